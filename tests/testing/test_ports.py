"""Ports for servers in other processes."""

import socket
import subprocess
import sys

import pytest

from pylog.testing import Broker
from pylog.testing.ports import BLOCK, FIRST, LIMIT, free_port
from tests.fixtures.brokers import REPOSITORY

ASK = "from pylog.testing.ports import free_port\nprint(*[free_port() for _ in range(3)])"


def test_port_is_allocated_once_and_free():
    ports = [free_port() for _ in range(BLOCK + 1)]
    assert len(set(ports)) == len(ports) and all(FIRST <= port < LIMIT for port in ports)
    with socket.create_server(("127.0.0.1", ports[-1])):
        pass


def test_processes_allocate_from_different_port_blocks():
    own = {(free_port() - FIRST) // BLOCK for _ in range(3)}
    told = subprocess.run([sys.executable, "-c", ASK], cwd=REPOSITORY, capture_output=True,
                          text=True, check=True).stdout
    assert not own & {(int(port) - FIRST) // BLOCK for port in told.split()}


def test_used_port_is_skipped(monkeypatch):
    from pylog.testing import ports

    with socket.create_server(("127.0.0.1", 0)) as taken:
        there = taken.getsockname()[1]
        monkeypatch.setattr(ports, "_left", type(ports._left)([there, there, free_port()]))
        assert free_port() != there


def test_exhausted_ports_are_reused_oldest_first(monkeypatch):
    from pylog.testing import ports

    first, second, third = (free_port() for _ in range(3))
    monkeypatch.setattr(ports, "_left", type(ports._left)())
    monkeypatch.setattr(ports, "_given", type(ports._left)([first, second, third]))
    monkeypatch.setattr(ports, "_claim_block", lambda: False)
    with socket.create_server(("127.0.0.1", first)):
        assert [free_port() for _ in range(3)] == [second, third, second]
        monkeypatch.setattr(ports, "_is_free", lambda port: False)
        with pytest.raises(OSError, match="no port from"):
            free_port()


def test_a_process_that_was_forked_has_no_port_of_its_parents_blocks():
    ask = ASK.splitlines()[1]
    program = f"import os\n{ASK}\nif not os.fork():\n    {ask}\n    os._exit(0)\nos.wait()"
    told = subprocess.run([sys.executable, "-u", "-c", program], cwd=REPOSITORY,
                          capture_output=True, text=True, check=True).stdout
    own, childs = ({(int(port) - FIRST) // BLOCK for port in line.split()}
                   for line in told.splitlines())
    assert not own & childs


def test_broker_port_is_outside_the_ephemeral_range(tmp_path):
    with Broker(tmp_path) as broker:
        assert FIRST <= broker.port < LIMIT

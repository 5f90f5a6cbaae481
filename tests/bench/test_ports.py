"""Ports for servers in other processes."""

import socket
import subprocess
import sys

from bench.ports import BLOCK, FIRST, LIMIT, free_port
from tests.brokers import REPOSITORY

ASK = "from bench.ports import free_port\nprint(*[free_port() for _ in range(3)])"


def test_a_port_is_given_once_and_can_be_listened_on():
    ports = [free_port() for _ in range(BLOCK + 1)]
    assert len(set(ports)) == len(ports) and all(FIRST <= port < LIMIT for port in ports)
    with socket.create_server(("127.0.0.1", ports[-1])):
        pass


def test_no_two_processes_get_ports_of_one_block():
    own = {(free_port() - FIRST) // BLOCK for _ in range(3)}
    told = subprocess.run([sys.executable, "-c", ASK], cwd=REPOSITORY, capture_output=True,
                          text=True, check=True).stdout
    assert not own & {(int(port) - FIRST) // BLOCK for port in told.split()}


def test_a_port_that_somebody_has_is_left_out(monkeypatch):
    from bench import ports

    with socket.create_server(("127.0.0.1", 0)) as taken:
        there = taken.getsockname()[1]
        monkeypatch.setattr(ports, "_left", type(ports._left)([there, there, free_port()]))
        assert free_port() != there

import asyncio
import logging
import os
import signal
import time

import pytest

from pylog.log.errors import StartError
from pylog.metadata.quorum.etcd import Etcd
from pylog.metadata.quorum.etcd_process import Host, Member, arguments, parse_log_line
from pylog.metadata.quorum.key_value import KeysError, Unknown, Unreachable
from pylog.testing.ports import free_port

WAIT_S = 30


def alone():
    return [Host(1, "127.0.0.1", free_port(), free_port())]


def member(path, hosts):
    return Member("etcd", str(path / "etcd"), 1, hosts, "test")


async def answered(client, seconds=WAIT_S):
    until = time.monotonic() + seconds
    while True:
        try:
            return client.get("key")
        except (KeysError, Unknown, Unreachable):
            assert time.monotonic() < until
            await asyncio.sleep(0.02)


def test_killed_member_restarts_with_its_data_and_ends_with_its_broker(tmp_path):
    hosts = alone()
    client = Etcd([f"127.0.0.1:{hosts[0].client_port}"])

    async def run():
        running = member(tmp_path, hosts)
        running.start()
        try:
            await answered(client)
            client.change("kv/put", {"key": "a2V5", "value": "dmFsdWU="})
            while (first := running.pid) is None:  # It may respond before its start is complete.
                await asyncio.sleep(0.01)
            os.kill(first, signal.SIGKILL)
            while running.pid in (first, None):  # It may also respond while it is being killed.
                await asyncio.sleep(0.01)
            row = await answered(client)
            assert row.value == b"value"
        finally:
            pid = running.pid
            await running.stop()
        assert not os.path.exists(f"/proc/{pid}")

    asyncio.run(run())


def test_missing_etcd_is_reported_with_installation_advice(tmp_path):
    with pytest.raises(StartError, match="apt install etcd-server.*quorum.etcd.endpoints"):
        Member("no-such-etcd", str(tmp_path), 1, alone(), "test")


def test_all_hosts_share_the_cluster_argument():
    hosts = [Host(1, "a", 2379, 2380), Host(2, "192.0.2.2", 2379, 2380), Host(3, "::3", 1, 2)]
    found = [arguments("/data", host.node_id, hosts, "t") for host in hosts]
    peers = ("--initial-cluster=node-1=http://a:2380,node-2=http://192.0.2.2:2380,"
             "node-3=http://[::3]:2")
    assert all(peers in flags for flags in found)
    assert "--listen-client-urls=http://0.0.0.0:2379" in found[0]
    assert "--listen-client-urls=http://192.0.2.2:2379" in found[1]
    assert "--advertise-client-urls=http://[::3]:1" in found[2]


@pytest.mark.parametrize("line,expected", [
    (b'{"level":"warn","msg":"slow","took":"1s"}\n', (logging.INFO, "slow")),
    (b'{"level":"fatal","msg":"failed","error":"port"}\n', (logging.ERROR, "failed: port")),
    (b"[1]\n", (logging.INFO, "[1]")), (b"\xff\n", (logging.INFO, "�")),
])
def test_etcd_output_is_logged_by_line(line, expected):
    assert parse_log_line(line) == expected

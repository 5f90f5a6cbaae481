"""An etcd of several members for tests, which can be killed, paused and restarted.

Owns: the processes.
Invariants: a member never outlives the test process; members keep their ports and data.
"""

import json
import shutil
import signal
import subprocess
import time
import urllib.request

from pylog.metadata.quorum.etcd import Etcd
from pylog.metadata.quorum.etcd_process import Host, arguments
from pylog.testing.ports import free_port
from tests.brokers import _die_with_parent

START_S = 30.0


class Etcds:
    """root: for data. count: number of members, all on 127.0.0.1."""

    def __init__(self, root, count: int = 3):
        self.root = root
        self.hosts = [Host(number, "127.0.0.1", free_port(), free_port())
                      for number in range(1, count + 1)]
        self.processes: dict = {}

    @property
    def addresses(self) -> list:
        return [f"{host.host}:{host.client_port}" for host in self.hosts]

    def keys(self, ttl_s: float) -> Etcd:
        """Return a new client."""
        return Etcd(self.addresses)

    @staticmethod
    def end_lease(keys: Etcd, lease: int) -> None:
        """Expire a lease, as if it had not been renewed in time."""
        keys.change("lease/revoke", {"ID": lease})

    def start(self) -> "Etcds":
        for host in self.hosts:
            self.start_member(host.node_id)
        self.await_leader()
        return self

    def start_member(self, node_id: int, state: str = "new") -> None:
        output = open(self.root / f"etcd-{node_id}.out", "ab")
        self.processes[node_id] = subprocess.Popen(
            [shutil.which("etcd") or "etcd",
             *arguments(str(self.root / f"etcd-{node_id}"), node_id, self.hosts, "test",
                        state)],
            stdout=output, stderr=output, preexec_fn=_die_with_parent)

    def kill(self, node_id: int) -> None:
        process = self.processes.pop(node_id)
        process.kill()
        process.wait()

    def move(self, node_id: int) -> str:
        """Give the member other ports for its next start; return its directory."""
        self.hosts[node_id - 1] = Host(node_id, "127.0.0.1", free_port(), free_port())
        return str(self.root / f"etcd-{node_id}")

    def pause(self, node_id: int) -> None:
        self.processes[node_id].send_signal(signal.SIGSTOP)

    def resume(self, node_id: int) -> None:
        self.processes[node_id].send_signal(signal.SIGCONT)

    def leader(self) -> int | None:
        """Return the node id of the leading member, None while there is no leader."""
        found = {}
        leading = None
        for host in self.hosts:
            status = _status(host)
            if status is not None:
                found[status["header"]["member_id"]] = host.node_id
                leading = status.get("leader", leading)
        return found.get(leading)

    def await_leader(self) -> int:
        until = time.monotonic() + START_S
        while (leader := self.leader()) is None:
            assert time.monotonic() < until, (self.root / "etcd-1.out").read_text()[-2000:]
            time.sleep(0.02)
        return leader

    def close(self) -> None:
        for node_id in list(self.processes):
            self.kill(node_id)


def _status(host):
    try:
        with urllib.request.urlopen(
                f"http://{host.host}:{host.client_port}/v3/maintenance/status", b"{}", 1) as answer:
            return json.load(answer)
    except (OSError, ValueError):
        return None

"""Several brokerds on this machine that form a cluster, each with its etcd.

Owns: the processes.
Invariants: a broker keeps its ports and data across restarts; no process outlives the test's.
"""

import subprocess
import time

from pylog.testing.ports import free_port
from tests.brokers import READY, Brokerd

START_S = 60.0


class Cluster:
    """`brokers` by node id. controllers: the first brokers, this many, are controllers too.
    settings: of all. protocol: of all listeners. arguments: additional arguments of each brokerd.
    """

    def __init__(self, root, count: int = 3, controllers: int = 3, settings: dict | None = None,
                 protocol: str = "PLAINTEXT", arguments=()):
        self.root = root
        clients, peers = free_port(), free_port()
        ports = {number: (free_port(), free_port()) for number in range(1, count + 1)}
        voters = ",".join(f"{number}@{_host(number)}:{ports[number][1]}"
                          for number in range(1, controllers + 1))
        self.brokers = {}
        for number, (port, controller_port) in ports.items():
            is_controller = number <= controllers
            listeners = f"{protocol}://127.0.0.1:{port}" + (
                f",CONTROLLER://{_host(number)}:{controller_port}" if is_controller else "")
            broker = Brokerd(root / f"broker-{number}", {
                "node.id": number, "controller.quorum.voters": voters, "listeners": listeners,
                "process.roles": "broker,controller" if is_controller else "broker",
                "controller.listener.names": "CONTROLLER",
                "security.inter.broker.protocol": protocol,
                "listener.security.protocol.map": f"{protocol}:{protocol},CONTROLLER:{protocol}",
                "quorum.etcd.client.port": clients, "quorum.etcd.peer.port": peers,
                "broker.session.timeout.ms": 3000, "broker.heartbeat.interval.ms": 500,
                "default.replication.factor": min(count, 3),
                "offsets.topic.replication.factor": min(count, 3),
                "transaction.state.log.replication.factor": min(count, 3),
                "share.coordinator.state.topic.replication.factor": min(count, 3),
                "min.insync.replicas": min(count, 2), "num.network.threads": 1,
                "offsets.topic.num.partitions": 4, **(settings or {})})
            broker.port = port
            broker.arguments = list(arguments)
            self.brokers[number] = broker

    def start(self) -> "Cluster":
        """Start all at the same time; returns when each has joined."""
        for broker in self.brokers.values():
            # Spawn in this thread: a child is killed when the thread that created it ends.
            broker.spawn()
        for broker in self.brokers.values():
            _await_ready(broker)
        return self

    def start_broker(self, number: int) -> None:
        self.brokers[number].spawn()
        _await_ready(self.brokers[number])

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{broker.port}" for broker in self.brokers.values())

    def tails(self) -> str:
        return "\n".join(f"--- {number}\n{broker.tail(6000)}"
                         for number, broker in self.brokers.items())

    def close(self) -> None:
        for broker in self.brokers.values():
            broker.kill()

    def __enter__(self) -> "Cluster":
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *exception) -> None:
        self.close()


def _await_ready(broker: Brokerd) -> None:
    until(lambda: READY.search(broker.output.read_text(errors="replace")) or not broker.alive(),
          START_S, f"{broker.root}: not ready")
    assert broker.alive(), broker.tail()


def _host(number: int) -> str:
    """Return the node's address: all differ, so that all can use the same ports for etcd."""
    return f"127.0.0.{number}"


def until(condition, seconds: float = 30.0, words: str = ""):
    """Return the first true result of condition()."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, words
        time.sleep(0.02)
    return found


def files_of(broker: Brokerd, topic: str, partition: int) -> bytes:
    """Return the records of one replica as stored on disk."""
    folder = broker.data_dir / f"{topic}-{partition}"
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))


def has_process(name: str, directory) -> bool:
    """Return True if a program of this name has `directory` among its arguments."""
    listed = subprocess.run(["ps", "-wweo", "args"], capture_output=True, text=True, check=True)
    return any(line.partition(" ")[0].endswith(name) and str(directory) in line
               for line in listed.stdout.splitlines())

"""Two Apache Kafka brokers and one brokerd, with Kafka's controller.

Owns: the controller.
Invariants: faults affect brokers only, never the controller.
tests.chaos.causes separates the problems that Kafka's brokers cause to idempotent producers.
"""

import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from bench.kafka import KafkaBroker
from bench.network import Network, address
from bench.process import die_with_parent
from pylog.testing.child import pause
from tests.chaos.causes import Causes
from tests.chaos.history import Final, History, Partition
from tests.chaos.machines import CLIENT_PORT, CONTROLLER_PORT, Machine, Machines, of_pylog
from tests.chaos.reigns import Append, appends_of, leaderships_of
from tests.chaos.traces import Refusal
from tests.fixtures.brokers import Brokerd

CONTROLLER, THEIRS, OURS = 9, (1, 2), 3
HEAP = "400m"
START_S = 600.0
SETTINGS = {
    "broker.session.timeout.ms": 3000, "broker.heartbeat.interval.ms": 300,
    "default.replication.factor": 3, "min.insync.replicas": 2,
    "offsets.topic.num.partitions": 3, "offsets.topic.replication.factor": 3,
    "transaction.state.log.num.partitions": 3, "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2, "group.initial.rebalance.delay.ms": 0,
    "log.segment.bytes": 1 << 20, "replica.lag.time.max.ms": 3000,
    "controller.quorum.voters": f"{CONTROLLER}@{address(CONTROLLER)}:{CONTROLLER_PORT}",
    "controller.listener.names": "CONTROLLER", "auto.create.topics.enable": "false"}


class KafkaMachine(KafkaBroker):
    """A Kafka process with the interface of Machine. is_controller: runs the controller, no broker.
    """

    def __init__(self, number: int, root: Path, network: Network, is_controller: bool = False):
        port = CONTROLLER_PORT if is_controller else CLIENT_PORT
        listener = ("CONTROLLER" if is_controller else "PLAINTEXT") + \
            f"://{address(number)}:{port}"
        root.mkdir()
        super().__init__(root / "data", port, {
            **SETTINGS, "node.id": number, "listeners": listener, "advertised.listeners": listener,
            "process.roles": "controller" if is_controller else "broker"}, HEAP)
        self.number, self.root = number, root
        self._enter = network.enter(number)

    @property
    def bootstrap(self) -> str:
        return f"{address(self.number)}:{self.port}"

    def joins(self, cluster: str) -> None:
        """Join a cluster. cluster: the line of meta.properties with its id."""
        self.data_dir.mkdir()
        (self.data_dir / "meta.properties").write_text(
            f"version=1\nnode.id={self.number}\n{cluster}\n")

    def spawn(self, command: list[str] | None = None, **options) -> None:
        """Start the process. Kafka's own start passes the command line; callers here pass none."""
        if command is None:
            self.start()
            return

        def prepare() -> None:
            die_with_parent()
            self._enter()

        with open(self.output, "ab") as sink:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink,
                                            stderr=subprocess.STDOUT, preexec_fn=prepare)

    def wait_answer(self, wait_s: float, pause_s: float = 0.05) -> None:
        """Do nothing: all processes start in parallel, and await_ready waits for them."""

    def await_ready(self) -> None:
        end_s = time.monotonic() + START_S
        while True:
            assert self.alive() and time.monotonic() < end_s, self.tail()
            try:
                socket.create_connection((address(self.number), self.port), 1).close()
                return
            except OSError:
                time.sleep(0.1)

    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def pause(self) -> None:
        pause(self.process)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def stop(self, wait_s: float = 60.0) -> int:
        """Stop the process and return its exit status. A JVM exits with 143 after SIGTERM."""
        return super().stop(wait_s) - 143

    def heal(self) -> None:
        if self.alive():
            self.go_on()

    def alarms(self) -> list[str]:
        return []

    def scrap(self, keep: bool) -> None:
        """Do nothing: its data is already in its folder."""


class _Mixed(Machines):
    """Machines of a mixed cluster. controller: starts first and stops last."""

    def __init__(self, network: Network, of: dict, controller: KafkaMachine):
        super().__init__(network, of)
        self._controller = controller

    def __enter__(self) -> "_Mixed":
        self._controller.spawn()
        self._controller.await_ready()
        lines = (self._controller.data_dir / "meta.properties").read_text().splitlines()
        cluster = next(line for line in lines if line.startswith("cluster.id="))
        for number in THEIRS:
            self.of[number].joins(cluster)
        super().__enter__()
        return self

    def __exit__(self, *exception) -> None:
        super().__exit__(*exception)
        self._controller.kill()

    def causes(self, history: History, finals: dict[Partition, Final],
               refusals: Callable[[str], list[Refusal]]) -> Causes:
        reigns = leaderships_of(self._controller.data_dir)

        def appends(place: Partition) -> list[Append]:
            return appends_of(self.of[reigns[place][-1].leader].data_dir, place)

        return Causes(history, finals, THEIRS, reigns, appends, refusals)


def of_both(root: Path, network: Network) -> Machines:
    listener = f"PLAINTEXT://{address(OURS)}:{CLIENT_PORT}"
    ours: dict[int, Machine | Brokerd | KafkaMachine] = dict(of_pylog(root, network, [OURS], {
        **SETTINGS, "process.roles": "broker", "listeners": listener}).of)
    theirs = {number: KafkaMachine(number, root / f"machine-{number}", network)
              for number in THEIRS}
    controller = KafkaMachine(CONTROLLER, root / "controller", network, is_controller=True)
    return _Mixed(network, {**theirs, **ours}, controller)

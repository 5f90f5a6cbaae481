"""Machines with a brokerd and its etcd each, and the operations that faults use.

Owns: the brokers, their in-memory file systems, the clock files.
Invariants: a machine keeps its address, ports and disk across restarts; each fault operation is
  fully undone by its counterpart.
"""

import mmap
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from bench.network import Network, address
from tests.chaos.causes import Causes
from tests.chaos.history import Final, History, Partition
from tests.chaos.power import Disk
from tests.chaos.traces import Refusal
from tests.durability.disk import environment, shim
from tests.fixtures.brokers import ALARMS, READY, Brokerd

CLIENT_PORT, CONTROLLER_PORT = 9092, 9093
DISK_BYTES = 512 << 20
START_S = 240.0
SETTINGS = {
    "broker.session.timeout.ms": 2000, "broker.heartbeat.interval.ms": 300,
    "default.replication.factor": 3, "min.insync.replicas": 2, "num.network.threads": 1,
    "offsets.topic.num.partitions": 3, "transaction.state.log.num.partitions": 3,
    "group.initial.rebalance.delay.ms": 0, "log.segment.bytes": 1 << 20,
    "replica.lag.time.max.ms": 3000, "controller.listener.names": "CONTROLLER",
    "process.roles": "broker,controller", "log.dir.min.free.bytes": 1 << 20,
}


class Machine(Brokerd):
    """One machine. number: node id and last byte of the address. libraries: preloaded, shim and
    clock.
    """

    def __init__(self, number: int, root: Path, network: Network, settings: dict, libraries):
        super().__init__(root, settings, preexec=network.enter(number))
        self.number = number
        self.port = CLIENT_PORT
        self._libraries = libraries
        self._ballast = self.data_dir / "ballast"
        self._clock = root / "clock"
        self._clock.write_bytes(bytes(mmap.PAGESIZE))
        self.data_dir.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "disk",
                        str(self.data_dir)], check=True)
        self.disk = Disk(self.data_dir, root / "records")

    @property
    def bootstrap(self) -> str:
        return f"{address(self.number)}:{self.port}"

    def spawn(self) -> None:
        shim_, clock = self._libraries
        self.environment = {
            **environment(shim_, self.data_dir, self.disk.next_record()),
            "CLOCK_FILE": str(self._clock)}
        self.environment["LD_PRELOAD"] += f" {clock}"
        super().spawn()

    def await_ready(self) -> None:
        end_s = time.monotonic() + START_S
        while not READY.search(self.output.read_text(errors="replace")):
            assert self.alive() and time.monotonic() < end_s, f"{self.number}: {self.tail()}"
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill brokerd and wait until its etcd, which dies with it, is gone too."""
        etcds = self._children()
        super().kill()
        while any(Path(f"/proc/{pid}").exists() for pid in etcds):
            time.sleep(0.01)

    def wipe(self) -> None:
        """Replace the machine by one with an empty disk."""
        for path in self.data_dir.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.disk.synced()

    def stop(self) -> int:
        status = super().stop()
        self.disk.synced()
        return status

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def fill(self) -> None:
        """Fill the disk."""
        with open(self._ballast, "wb", buffering=0) as ballast:
            for size in (1 << 20, 1 << 12):
                with suppress(OSError):
                    while True:
                        ballast.write(bytes(size))

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def scrap(self, keep: bool) -> None:
        """Unmount the in-memory file system. `keep` copies its contents to its folder first."""
        if keep:
            shutil.copytree(self.data_dir, self.root / "left", symlinks=True,
                            ignore=shutil.ignore_patterns("ballast"))
        subprocess.run(["umount", str(self.data_dir)], check=True)

    def alarms(self) -> list[str]:
        """Return unexpected alarms. Reported errors such as a full disk are expected."""
        return [line for line in super().alarms() if any(mark in line for mark in ALARMS)]

    def heal(self) -> None:
        """Undo any active fault except the death of the process."""
        if self.alive():
            self.go_on()
        self.free()
        self.set_clock(0)

    def set_clock(self, ahead_s: float) -> None:
        """Set the wall clock's distance from the true time."""
        with open(self._clock, "r+b") as file:
            file.write(int(ahead_s * 1e9).to_bytes(8, "little", signed=True))

    def _children(self) -> list[int]:
        listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(self.pid)],
                                capture_output=True, text=True)
        return [int(line) for line in listed.stdout.split()] if self.alive() else []

    def _signal(self, number: int) -> None:
        for pid in [self.pid, *self._children()]:
            os.kill(pid, number)


class Machines:
    """Brokers on one network. `of`: machines by number."""

    def __init__(self, network: Network, of: dict):
        self.network = network
        self.of = of

    def __enter__(self) -> "Machines":
        for machine in self.of.values():
            machine.spawn()
        for machine in self.of.values():
            machine.await_ready()
        return self

    def __exit__(self, *exception) -> None:
        for machine in self.of.values():
            if machine.alive():
                machine.go_on()
            machine.kill()

    def causes(self, history: History, finals: dict[Partition, Final],
               refusals: Callable[[str], list[Refusal]]) -> Causes | None:
        """Return a judge of causes in a mixed cluster, or None if all brokers are pylog's.

        refusals: returns the errors of a producer, by its name.
        """
        return None

    def heal(self) -> None:
        self.network.heal()
        for machine in self.of.values():
            machine.heal()

    @property
    def bootstrap(self) -> str:
        return ",".join(machine.bootstrap for machine in self.of.values())


def of_pylog(root: Path, network: Network, numbers, settings: dict) -> Machines:
    """Return machines with a brokerd each and its controller and etcd.

    settings: of every broker, in addition to SETTINGS.
    """
    libraries = shim(root), _clock(root)
    voters = ",".join(f"{number}@{address(number)}:{CONTROLLER_PORT}" for number in numbers)
    return Machines(network, {number: Machine(number, root / f"machine-{number}", network, {
        **SETTINGS, "node.id": number, "controller.quorum.voters": voters,
        "listeners": f"PLAINTEXT://{address(number)}:{CLIENT_PORT},"
                     f"CONTROLLER://{address(number)}:{CONTROLLER_PORT}", **settings,
    }, libraries) for number in numbers})


def _clock(folder: Path) -> Path:
    library = folder / "clock.so"
    subprocess.run([*os.environ.get("CC", "cc").split(), "-std=gnu11", "-O1", "-fPIC", "-shared",
                    "-Wall", "-Wextra", "-Werror", "-o", str(library),
                    str(Path(__file__).with_name("clock.c"))], check=True)
    return library

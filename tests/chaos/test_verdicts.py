"""Every run ends with a verdict: simulated machines, no brokers."""

import pytest

from tests.chaos import soak as soaks
from tests.chaos.faults import FAULTS, fault
from tests.chaos.history import Acknowledged, Partition, Sent, Value, Writer
from tests.chaos.machines import Machines
from tests.chaos.soak import Soak, Stuck


class Machine:
    """A machine that does nothing. ends: how often it exits by itself."""

    bootstrap = "127.0.0.1:1"
    ends = 0
    starts = heals = 0

    def alive(self) -> bool:
        return not self.ends

    def spawn(self) -> None:
        self.ends -= 1
        self.starts += 1

    def await_ready(self) -> None:
        assert self.alive(), "it ended"

    def heal(self) -> None:
        self.heals += 1

    def tail(self) -> str:
        return "its last words"


class Network:
    heals = 0

    def heal(self) -> None:
        self.heals += 1


class Played(Soak):
    """A run without topics and clients in which an acknowledged record was lost.

    stuck: the components without progress after faults. unreadable: the partition cannot be read.
    """

    stuck: tuple = ()
    unreadable = False

    def _start(self) -> None:
        self.history.writers["one"] = Writer()
        for topic in ("orders", "moved"):
            value = Value("one", len(topic))
            self.history.add(Sent(value, Partition(topic, 0)))
            self.history.add(Acknowledged(value, 7))

    def _recovered(self, what: str) -> None:
        self._revived()
        if self.stuck:
            self.stuck, stuck = (), self.stuck
            raise Stuck(f"after {what}: {stuck}")

    def _out_of_sync(self) -> list[str]:
        return []

    def _existing(self) -> set[str]:
        return set()

    def read(self, bootstrap: str, place: Partition, isolation: str) -> dict:
        if self.unreadable and place.topic == "orders":
            raise Stuck("nothing came")
        return {}

    def _digests(self, place: Partition, end_s: float) -> dict:
        return {}


LOST = "acknowledged and lost: 2: one/6 in orders-0 at 7, one/5 in moved-0 at 7"


@pytest.fixture
def soak(monkeypatch):
    machines = Machines(Network(), {1: Machine(), 2: Machine()})
    made = Played(machines, 1, lambda line: None)
    monkeypatch.setattr(soaks, "read_whole", made.read)
    monkeypatch.setattr(made, "_pause", lambda seconds: None)
    yield made
    # A finished run leaves no client behind that keeps reconnecting.
    assert made._admin._admin.cluster.closed


@pytest.fixture
def played(soak):
    """Register a generator function as the only fault. Its second call interrupts the run."""
    names = []

    def made(function) -> list[str]:
        turns = []

        def counted(machines, chance):
            turns.append(function)
            soak.is_interrupted = soak.is_interrupted or len(turns) == 2
            yield from function(machines, chance)

        counted.__name__ = "played"
        fault(counted)
        names.append(counted.__name__)
        return names

    yield made
    for name in names:
        FAULTS.pop(name, None)


def harmless(machines, chance):
    yield "nothing"


def test_interrupted_run_reports_a_verdict(soak, played):
    assert soak.run(1e9, played(harmless)) == [LOST]


def test_finished_run_reports_a_verdict(soak, played):
    assert soak.run(0, played(harmless)) == [LOST]


def test_stuck_run_is_healed_and_reports_a_verdict(soak, played):
    soak.stuck = ("group/1",)
    found = soak.run(1e9, played(harmless))
    assert found[0] == LOST
    assert "Stuck(\"after nothing: ('group/1',)\")" in found[1]
    assert soak.machines.network.heals == 1
    assert [machine.heals for machine in soak.machines.of.values()] == [1, 1]


def test_error_in_a_fault_ends_only_the_faults(soak, played):
    def broken(machines, chance):
        yield "something"
        raise AssertionError("no way back")

    found = soak.run(1e9, played(broken))
    assert found[0] == LOST
    assert "a fault: AssertionError('no way back')" in found[1]


def test_failed_start_still_reports_a_verdict(soak, played, monkeypatch):
    def start() -> None:
        Played._start(soak)
        raise Stuck("no topics")

    monkeypatch.setattr(soak, "_start", start)
    found = soak.run(1e9, played(harmless))
    assert found == [LOST, "the start: Stuck('no topics')"]


def test_machine_that_exits_is_reported_and_restarted(soak, played):
    soak.machines.of[2].ends = 1
    assert soak.run(1e9, played(harmless)) == [LOST, "2 ended: its last words"]
    assert soak.machines.of[2].starts == 1


def test_machine_that_stays_down_does_not_block_the_verdict(soak, played):
    soak.machines.of[2].ends = 1000
    found = soak.run(1e9, played(harmless))
    assert found[0] == LOST
    assert sum("it ended" in sentence for sentence in found) == 3


def test_unreadable_partitions_are_problems_and_others_are_judged(soak, played):
    soak.unreadable = True
    found = soak.run(1e9, played(harmless))
    assert found[0] == "acknowledged and lost: 1: one/5 in moved-0 at 7"
    assert found[1:] == [f"reading orders-{number}: Stuck('nothing came')" for number in range(4)]

"""Hung clients are reported, replaced and judged by the responses they received."""

import pytest

from tests.chaos.history import History
from tests.chaos.traces import Trace
from tests.chaos.watch import REPLACED_MAX, Crew, Role
from tests.chaos.writers import Client

HUNG_S = 100.0


class Clock:
    """A clock that tests advance."""

    def __init__(self):
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Played(Client):
    """A client that makes progress when a test calls it. is_deaf: it never stops."""

    def __init__(self, name: str, clock: Clock, kind: str):
        self.clock, self.kind = clock, kind
        super().__init__(name, History(), "nowhere")
        self.is_deaf = self.is_started = False

    def start(self) -> None:
        self.is_started = True

    def is_alive(self) -> bool:
        return self.is_deaf or not self.stopping.is_set()

    def join(self, timeout=None) -> None:
        if self.is_alive():
            self.clock.now_s += timeout


class World:
    """Two members of a group and a sender. traces: by client name."""

    def __init__(self):
        self.clock = Clock()
        self.said: list[str] = []
        self.traces: dict[str, Trace] = {}
        self.made: dict[str, Played] = {}
        kinds = {"group/0": "member", "group/1": "member", "sender": "sender"}
        self.crew = Crew([Role(name, self._maker(kind)) for name, kind in kinds.items()],
                         self.said.append, self.traces.get, self.clock, HUNG_S)
        self.crew.start()
        self.crew.mark()

    def _maker(self, kind: str):
        def make(name: str) -> Played:
            self.made[name] = Played(name, self.clock, kind)
            return self.made[name]
        return make

    def answered(self, name: str) -> None:
        self.traces[name] = Trace(0.0, sent_count=7, last_commit="Broker: Not coordinator")

    def not_answered(self, name: str) -> None:
        self.answered(name)
        self.traces[name].open["handle", "broker 2", "17"] = "OffsetCommit", -60.0

    def hang(self, *names: str, seconds: float = HUNG_S) -> None:
        """Let all other clients make progress for the given time."""
        for _ in range(int(seconds)):
            self.clock.now_s += 1
            for client in self.crew.clients:
                if client.name not in names:
                    client.went_on()

    def names(self) -> list[str]:
        return [client.name for client in self.crew.clients]

    def end(self) -> tuple[list[str], list[str]]:
        self.crew.end(50.0, lambda client: client.kind == "member")
        return self.crew.verdict()


@pytest.fixture
def world():
    return World()


def test_clients_with_progress_are_not_replaced(world):
    world.hang(seconds=500)
    assert world.crew.replace_hung() == 0
    assert world.crew.waiting() == []
    assert world.end() == ([], [])


def test_hung_member_is_reported_with_its_last_requests(world):
    world.made["group/1"].asks("a synchronous commit of moved-1 at 7")
    world.answered("group/1")
    world.hang("group/1")
    assert world.crew.replace_hung() == 1
    told, = world.said
    for part in ("group/1 hangs for 100 s", "a synchronous commit of moved-1 at 7",
                 "while group/0, sender went on", "7 requests sent, all answered or cut off",
                 "Broker: Not coordinator"):
        assert part in told


def test_hung_client_is_replaced(world):
    world.hang("group/1")
    world.crew.replace_hung()
    assert world.names() == ["group/0", "group/1.1", "sender"]
    assert world.made["group/1.1"].is_started
    hung = world.made["group/1"]
    assert hung.is_abandoned
    assert hung.stopping.is_set()
    world.crew.mark()
    assert world.crew.waiting() == ["group/0", "group/1.1", "sender"]
    world.hang(seconds=5)
    assert world.crew.waiting() == []


def test_hung_member_is_found_although_its_group_makes_progress(world):
    world.crew.mark()
    world.hang("group/1", seconds=5)
    assert world.crew.waiting() == ["group/1"]


def test_client_is_not_hung_before_the_timeout(world):
    world.hang("group/1", seconds=HUNG_S - 1)
    assert world.crew.replace_hung() == 0
    # The end of a fault restarts every client's timeout.
    world.crew.mark()
    world.hang("group/1", seconds=HUNG_S - 1)
    assert world.crew.replace_hung() == 0


def test_no_client_is_hung_if_none_makes_progress(world):
    world.hang("group/0", "group/1", "sender", seconds=HUNG_S * 3)
    assert world.crew.replace_hung() == 0
    assert world.crew.waiting() == ["group/0", "group/1", "sender"]


def test_hang_is_the_clients_fault_if_all_was_answered_and_replacement_works(world):
    world.answered("group/1")
    world.hang("group/1")
    world.crew.replace_hung()
    world.hang(seconds=5)
    failures, own = world.end()
    assert failures == []
    assert "group/1 hangs" in own[0]


def test_hang_is_a_problem_if_the_replacement_makes_no_progress(world):
    world.answered("group/1")
    world.hang("group/1")
    world.crew.replace_hung()
    world.hang("group/1.1", seconds=5)
    failures, own = world.end()
    assert "group/1 hangs" in failures[0]
    assert own == []


def test_hang_is_a_problem_if_a_request_was_not_answered(world):
    world.not_answered("group/1")
    world.hang("group/1")
    world.crew.replace_hung()
    world.hang(seconds=5)
    failures, own = world.end()
    assert "NOT ANSWERED: OffsetCommit for 60 s by broker 2" in failures[0]
    assert own == []


def test_hang_is_a_problem_without_a_trace(world):
    world.hang("group/1")
    world.crew.replace_hung()
    world.hang(seconds=5)
    assert "what it was answered is not known" in world.end()[0][0]


def test_hang_is_a_problem_if_no_client_of_its_kind_works(world):
    for name in ("group/0", "group/1"):
        world.answered(name)
    world.hang("group/0", "group/1")
    assert world.crew.replace_hung() == 2
    assert len(world.end()[0]) == 2


def test_failed_client_is_reported_and_replaced(world):
    world.made["sender"].asks("record 9")
    world.made["sender"].failure = ValueError("broken")
    assert world.crew.replace_hung() == 1
    assert world.names() == ["group/0", "group/1", "sender.1"]
    assert world.end() == (["sender ended as it asked for record 9: ValueError('broken')"], [])


def test_replacements_are_limited(world):
    for _ in range(REPLACED_MAX + 5):
        for client in world.crew.clients:
            if client.kind == "sender":
                client.failure = ValueError("broken")
        world.crew.replace_hung()
    assert f"sender.{REPLACED_MAX}" in world.names()


def test_client_that_does_not_stop_is_reported_and_the_run_ends(world):
    hung = world.made["group/1"]
    hung.is_deaf = True
    hung.asks("a close")
    world.hang(seconds=5)
    failures, own = world.end()
    assert "group/1 hangs" in failures[0]
    assert "a close" in failures[0]
    assert own == []
    # A replacement without other work completes what the client left.
    assert world.made["group/1.1"].stopping.is_set()


def test_client_that_does_not_stop_although_all_was_answered_is_at_fault(world):
    world.made["group/1"].is_deaf = True
    world.answered("group/1")
    failures, own = world.end()
    assert failures == []
    assert "group/1 hangs" in own[0]


def test_kind_of_clients_that_never_stops_is_a_problem(world):
    for name in ("group/0", "group/1"):
        world.made[name].is_deaf = True
        world.answered(name)
    assert len(world.end()[0]) == 2


def test_readers_stop_after_all_other_clients(world):
    order = []
    for client in world.crew.clients:
        client.join = lambda timeout=None, client=client: order.append(client.name)
    world.end()
    assert order == ["sender", "group/0", "group/1"]

"""The blocking and the asyncio consumer: calls to the core, and the wait time of the blocking poll,
on a clock that advances while waiting.
"""

import asyncio
from types import SimpleNamespace

import pytest

from pylog.client.background_loop import SingleUser
from pylog.client.consumer import aio_consumer, consumer
from pylog.client.consumer.list_offsets import EARLIEST, LATEST
from pylog.client.consumer.subscription_state import NO_POLL
from pylog.client.errors import ClosedError
from pylog.client.types import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


class Core:
    """A Consuming that records its calls. attends: seconds that each round of background work
    takes. records: available records, round by round.
    """

    def __init__(self):
        self.heard, self.closed, self.woken, self.polling = [], False, False, False
        # A different process id: the consumer does not close it when it is dropped.
        self.process = -1
        self.has_pending_work, self.attends, self.due, self.records = False, [], None, []
        self.membership = None
        self.subscription = SimpleNamespace(topics=["t"], known=[A], states={
            A: SimpleNamespace(revoking=False, paused=True),
            B: SimpleNamespace(revoking=True, paused=False)})
        self.fetcher = SimpleNamespace(starved=False, poke=lambda: self.heard.append(("poke",)))
        self.collector = SimpleNamespace(
            records=self._take, columns=self._take, poll=1, undelivered_poll=NO_POLL)
        self.has_undelivered = False

    def __getattr__(self, name):
        async def call(*given):
            self.heard.append((name, *given))
            return 7 if name == "position" else {"from": name}
        return call

    def check_topics(self):
        """Accept the poll: there is something to read."""

    def consumed(self):
        return {A: "consumed"}

    def commit_request(self, offsets=None):
        return "committable" if offsets is None else offsets

    def store(self, offsets):
        self.heard.append(("store", offsets))

    def notify(self):
        self.heard.append(("notify", self.woken))

    def commit_in_background(self, *given):
        self.heard.append(("commit_in_background", *given))

    def auto_commit(self, offsets):
        self.heard.append(("auto_commit", offsets))

    def polled(self):
        assert self.polling
        due, self.due = self.due, None
        return due

    def _take(self, most, *_):
        self.heard.append(("take", most))
        return self.records.pop(0) if self.records else []


class Plain:
    """A consumer.Consumer with a simulated core, event and clock."""

    def __init__(self, monkeypatch):
        self.core, self.now_s, self.waits = Core(), 50.0, []
        monkeypatch.setattr(consumer, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        made = self.made = consumer.Consumer.__new__(consumer.Consumer)
        made._core, made._records_max, made._interceptors = self.core, 500, []
        made._runner, made._user = SimpleNamespace(
            run=asyncio.run, close_client=asyncio.run), SingleUser("consumer")
        made._driver = SimpleNamespace(
            post=lambda call, *given: call(*given), check_running=lambda: None)
        made._event = SimpleNamespace(clear=lambda: None, wait=self._wait)
        self.core.run_pending_work = self._run_pending_work

    async def _run_pending_work(self, left_s):
        self.core.heard.append(("attend", left_s))
        self.now_s += self.core.attends.pop(0)
        self.core.has_pending_work = bool(self.core.attends)

    def _wait(self, seconds):
        self.waits.append(seconds)
        self.now_s += seconds

    def call(self, name, *given, **more):
        return getattr(self.made, name)(*given, **more)


class Aio:
    def __init__(self, monkeypatch):
        self.core = Core()
        self.made = aio_consumer.Consumer.__new__(aio_consumer.Consumer)
        self.made._started = self.core

    def call(self, name, *given, **more):
        found = getattr(self.made, name)(*given, **more)
        return asyncio.run(found) if asyncio.iscoroutine(found) else found


@pytest.fixture(params=[Plain, Aio])
def face(request, monkeypatch):
    return request.param(monkeypatch)


@pytest.fixture
def plain(monkeypatch):
    return Plain(monkeypatch)


# Calls.

@pytest.mark.parametrize(("name", "given", "asked"), [
    ("assign", ([A],), ("assign", [A])), ("unsubscribe", (), ("unsubscribe",)),
    ("seek", (A, 5), ("seek", A, 5)), ("seek", (("t", 0), 5), ("seek", A, 5)),
    ("seek_to_beginning", (A, B), ("seek_to", (A, B), "earliest")),
    ("seek_to_end", (A,), ("seek_to", (A,), "latest")),
    ("pause", (A,), ("set_paused", (A,), True)), ("resume", (A,), ("set_paused", (A,), False)),
    ("beginning_offsets", ([A], 2), ("boundary_offsets", [A], EARLIEST, 2)),
    ("end_offsets", ([A], 2), ("boundary_offsets", [A], LATEST, 2)),
    ("offsets_for_times", ({A: 1}, 2), ("list_offsets", {A: 1}, 2)),
    ("commit", ({A: 1}, 2), ("commit", {A: 1}, 2)), ("commit", (), ("commit", None, None)),
    ("committed", ([A], 2), ("committed", [A], 2)), ("close", (3,), ("close", 3)),
    ("partitions_for", ("t", 2), ("partitions_for", "t", 2)),
    ("list_topics", (2,), ("list_topics", 2))])
def test_a_call_is_the_cores(face, name, given, asked):
    face.call(name, *given)
    assert face.core.heard == [asked]


def test_lag_and_position_accept_a_timeout(face):
    face.call("lag", A, B, timeout=2)
    assert face.call("position", A, 3) == 7
    assert face.core.heard == [("lag", (A, B), 2), ("position", A, 3)]


def test_revoked_partitions_are_removed_from_the_assignment(face):
    assert face.made.assignment() == [A] and face.made.paused() == {A}
    assert face.made.subscription() == {"t"} and face.made.positions() == {A: "consumed"}


def test_a_member_has_an_id_in_its_group(face):
    assert face.made.member_id() is None
    face.core.membership = SimpleNamespace(member_id="m")
    assert face.made.member_id() == "m"


def test_async_commit_uses_positions_or_given_offsets(face):
    face.call("commit_async")
    face.call("commit_async", {}, "callback")
    assert face.core.heard == [("commit_in_background", "committable", None),
                               ("commit_in_background", {}, "callback")]


def test_offsets_are_stored_without_waiting(face):
    assert face.made.store_offsets({A: 5}) is None
    assert face.core.heard == [("store", {A: 5})]


def test_wakeup_is_recorded_before_the_poll_wakes(face):
    face.call("wakeup")
    assert face.core.heard == [("notify", True)]


# The blocking poll.

def test_poll_waits_for_records_until_its_timeout(plain):
    assert plain.call("poll") == [] and plain.waits == []
    assert plain.call("poll", 3.0) == [] and plain.waits == [3.0]
    assert plain.core.polling is False


def test_arriving_records_end_the_wait(plain):
    plain.core.records = [[], ["a", "b"]]
    assert plain.call("poll", 3.0, 2) == ["a", "b"]
    assert plain.waits == [3.0] and plain.core.heard == [("take", 2)] * 2


def test_poll_returns_at_most_the_configured_number(plain):
    plain.core.records = [["a"]]
    plain.call("poll")
    assert plain.core.heard == [("take", 500)]


def test_due_offsets_are_committed_before_records_are_taken(plain):
    plain.core.due = {A: 1}
    plain.call("poll")
    assert plain.core.heard == [("auto_commit", {A: 1}), ("take", 500)]


def test_a_fetcher_that_starves_is_poked(plain):
    plain.core.fetcher.starved, plain.core.records = True, [["a"]]
    plain.call("poll")
    assert plain.core.heard == [("take", 500), ("poke",)]


def test_background_work_counts_towards_the_polls_timeout(plain):
    plain.core.has_pending_work, plain.core.attends = True, [2.0]
    assert plain.call("poll", 5.0) == []
    assert plain.core.heard[0] == ("attend", 5.0) and plain.waits == [3.0]


def test_second_round_gets_the_remaining_time_but_not_less_than_zero(plain):
    core, look = plain.core, plain.core._take

    def take(most):
        core.has_pending_work = bool(core.attends)
        return look(most)

    core.collector.records = take
    core.has_pending_work, core.attends = True, [2.0, 9.0]
    plain.made._event.wait = lambda seconds: plain.waits.append(seconds)
    assert plain.call("poll", 5.0) == []
    assert [call for call in core.heard if call[0] == "attend"] == [
        ("attend", 5.0), ("attend", 3.0)]


def test_interceptors_receive_a_polls_records_in_turn(plain):
    plain.core.records = [["a"]]
    plain.made._interceptors = [
        SimpleNamespace(on_consume=lambda found: [*found, "b"]),
        SimpleNamespace(on_consume=lambda found: [*found, "c"])]
    assert plain.call("poll") == ["a", "b", "c"]


def test_a_consumer_that_is_closed_polls_nothing(plain):
    plain.core.closed = True
    with pytest.raises(ClosedError):
        plain.call("poll")
    assert plain.core.heard == []


def test_failed_poll_is_finished(plain):
    def take(most):
        assert plain.core.polling
        raise ValueError("planted")

    plain.core.collector.records = take
    with pytest.raises(ValueError):
        plain.call("poll")
    assert plain.core.polling is False


def test_empty_poll_returns_no_columns(plain):
    plain.core.collector.columns = lambda *given: plain.core.heard.append(given)
    assert plain.call("poll_numpy") == {} and plain.call("poll_columns") is None
    batch = plain.call("poll_arrow", columns=["offset", "headers"])
    assert batch.num_rows == 0 and batch.schema.names == ["offset", "headers"]
    assert [given[1] for given in plain.core.heard] == [False, True, True]

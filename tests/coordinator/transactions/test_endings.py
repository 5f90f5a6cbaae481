"""The end of a transaction on a virtual clock: markers until every partition has one, and requests
that wait for it.
"""

import asyncio
import itertools
from types import SimpleNamespace

import pytest

from pylog import supervisor
from pylog._native.log.log import LogError
from pylog.coordinator.runtime.deferred_response import DeferredResponse
from pylog.coordinator.runtime.transactional_batches import Marker
from pylog.coordinator.transactions import service as transaction_service
from pylog.coordinator.transactions.service import TOPIC, TransactionCoordinator
from pylog.coordinator.transactions.shard import Ending, NeedProducerId, Overdue, Transactions
from pylog.protocol.api_error import Refusal
from pylog.protocol.errors import ErrorCode
from tests.client.virtual_time import VirtualTime
from tests.coordinator import played_runtime

ID, A, B = "app", ("a", 0), ("b", 1)
NONE, FENCED = ErrorCode.NONE, ErrorCode.TRANSACTION_COORDINATOR_FENCED
LATER, BUSY = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.CONCURRENT_TRANSACTIONS
RETRY_MS = "add_partitions_to_txn_retry_backoff_max_ms"


def ending(*partitions, id_=ID):
    return Ending(id_, 7, 3, True, partitions, 2)


class World:
    """answers: partition -> its errors, one for each marker, then NONE. written: (time, Marker,
    partitions). ids: of producers, or an exception to raise.
    """

    def __init__(self, monkeypatch, **settings):
        monkeypatch.setattr(transaction_service, "CoordinatorRuntime", played_runtime.Runtime)
        self.time, self.answers, self.written = VirtualTime(), {}, []
        self.partitions, self.ids = {A, B}, [9]
        self.node = played_runtime.node(**settings)
        self.node.image.partition = lambda *which: which if which in self.partitions else None
        self.node.controller = SimpleNamespace(next_producer_id=self._next_id)
        self.service = TransactionCoordinator(self.node, self._write)
        self.runtime = self.service.runtime

    async def _next_id(self):
        found = self.ids.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    async def _write(self, marker, partitions):
        self.written.append((round(self.time.now_s - 1000, 3), marker, partitions))
        await asyncio.sleep(0)
        found = {one: self.answers[one].pop(0) if self.answers.get(one) else NONE
                 for one in partitions}
        for error in found.values():
            if isinstance(error, Exception):
                raise error
        return found

    def run(self, work):
        """Run the coroutine function on the virtual clock, and everything that it started."""
        async def whole():
            found = await work()
            while self.service._tasks:
                await asyncio.gather(*self.service._tasks)
            return found
        return self.time.run(whole())

    def end(self, *endings):
        async def work():
            for one in endings:
                self.service.respond(one)
        self.run(work)

    @property
    def completed(self):
        return [call[3] for call in self.runtime.calls if call[2:3] == (Transactions.complete,)]


@pytest.fixture
def world(monkeypatch):
    return World(monkeypatch)


# Markers.

def test_an_ending_is_complete_when_every_partition_has_its_marker(world):
    world.end(ending(A, B))
    assert world.written == [(0, Marker(7, 3, 4, True, 2), (A, B))]
    assert world.runtime.calls == [("run", ID, Transactions.complete, ending(A, B))]


def test_the_first_term_of_a_leader_ends_transactions_too(world):
    world.runtime.epoch = 0
    world.end(ending(A))
    assert world.written[0][1].coordinator_epoch == 0 and len(world.completed) == 1


def test_an_ending_without_partitions_is_complete_at_once(world):
    world.end(ending())
    assert world.written == [] and world.completed == [ending()]


def test_partitions_without_a_marker_are_retried_with_backoff(world):
    world.answers = {A: [LATER] * 9, B: [LATER, ErrorCode.INVALID_PRODUCER_EPOCH]}
    world.end(ending(A, B))
    assert [partitions for _, _, partitions in world.written] == [(A, B)] * 2 + [(A,)] * 8
    times = [at for at, _, _ in world.written]
    assert times == pytest.approx([0, .02, .06, .14, .3, .62, 1.26, 2.26, 3.26, 4.26])
    assert len(world.completed) == 1


def test_deleted_partition_needs_no_marker(world):
    world.answers, world.partitions = {A: [LATER] * 9}, {B}
    world.end(ending(A, B))
    assert len(world.written) == 1 and len(world.completed) == 1


@pytest.mark.parametrize("answers", [{A: [FENCED]}, {A: [LATER], B: [FENCED]}])
def test_fenced_coordinator_leaves_the_ending_to_its_successor(world, answers):
    world.answers = answers
    world.end(ending(A, B))
    assert len(world.written) == 1 and world.completed == []


@pytest.mark.parametrize(("writes", "answers"), [(0, {}), (1, {}), (1, {A: [LATER]})])
def test_former_coordinator_ends_no_transaction(world, writes, answers):
    world.answers = answers
    epochs = itertools.chain([0] * (1 + writes), itertools.repeat(-1))
    world.runtime.epoch_of = lambda id_: next(epochs)
    world.end(ending(A))
    assert len(world.written) == writes and world.completed == []
    assert all(marker.coordinator_epoch == 0 for _, marker, _ in world.written)


def test_ending_stops_with_its_coordinator_term(world):
    # Another coordinator may have ended it since, and the producer's next transaction may be open.
    world.answers = {A: [LATER]}
    epochs = iter([4, 4, 6, 6])
    world.runtime.epoch_of = lambda id_: next(epochs)
    world.end(ending(A))
    assert [marker.coordinator_epoch for _, marker, _ in world.written] == [4]
    assert world.completed == []


def test_ending_of_an_earlier_term_does_not_block_later_ones(world):
    world.answers = {A: [LATER]}
    later = Ending(ID, 7, 3, False, (A, B), 0)

    async def work():
        world.service.respond(ending(A))
        await asyncio.sleep(0.01)
        world.runtime.epoch = 6
        world.service.respond(later)
    world.run(work)
    assert world.written == [(0, Marker(7, 3, 4, True, 2), (A,)),
                             (0.01, Marker(7, 3, 6, False, 0), (A, B))]
    assert world.completed == [later] and not world.service._ending


def test_repeated_ending_runs_once(world):
    world.end(ending(A), ending(A), ending(B, id_="other"))
    assert [partitions for _, _, partitions in world.written] == [(A,), (B,)]
    world.end(ending(A))
    assert len(world.written) == 3


def test_failed_ending_is_retried_until_complete(world, caplog):
    before = supervisor.failures().get("transaction endings", 0)
    world.answers = {A: [ValueError("planted"), ValueError("planted")]}
    world.end(ending(A, B))
    assert len(world.written) == 3 and world.completed == [ending(A, B)]
    assert not world.service._ending
    assert supervisor.failures()["transaction endings"] == before + 2
    assert caplog.text.count("ValueError: planted") == 2


def test_an_ending_that_fails_is_not_tried_in_a_later_term(world):
    world.answers = {A: [ValueError("planted")]}

    async def work():
        world.service.respond(ending(A))
        await asyncio.sleep(0.01)
        world.runtime.epoch = 6
    world.run(work)
    assert len(world.written) == 1 and world.completed == []


def test_failed_write_sends_nothing(world):
    assert world.service.refuse(LATER) is None and world.service.is_request is False
    assert world.runtime.calls == []


# Requests that wait for an ending.

class Adding:
    """A world in which partitions are added during an ending of `tries` markers."""

    def __init__(self, monkeypatch, retry_ms, *tries):
        self.world = World(monkeypatch, **{RETRY_MS: str(retry_ms)})
        self.world.answers = {A: [error for count in tries for error in [LATER] * count + [NONE]]}
        self.endings = len(tries)
        self._run, self.world.runtime.run = self.world.runtime.run, self._begin

    def _begin(self, key, pending, step, *arguments):
        if step is Transactions.add and self.endings > 0:
            self.endings -= 1
            self.world.service.respond(ending(A))
        return self._run(key, pending, step, *arguments)

    def result(self):
        """Return (error, seconds until the response, number of machine calls)."""
        async def work():
            error = await self.world.service.add(ID, 7, 3, [A], 2)
            asked = [call for call in self.world.runtime.calls if call[2] is Transactions.add]
            assert all(call == ("run", ID, Transactions.add, ID, 7, 3, [A], 2) for call in asked)
            return error, round(self.world.time.now_s - 1000, 3), len(asked)
        return self.world.run(work)


def test_adding_partitions_waits_for_an_ending(monkeypatch):
    adding = Adding(monkeypatch, 500, 2)
    adding.world.runtime.errors = [BUSY]
    assert adding.result() == (NONE, 0.06, 2)


def test_wait_for_an_ending_is_limited_by_the_setting(monkeypatch):
    adding = Adding(monkeypatch, 50, 4)
    adding.world.runtime.errors = [BUSY]
    assert adding.result() == (BUSY, 0.05, 1)


def test_next_ending_is_awaited_for_the_remaining_time(monkeypatch):
    adding = Adding(monkeypatch, 70, 2, 2)
    adding.world.runtime.errors = [BUSY, NONE, BUSY]
    assert adding.result() == (BUSY, 0.07, 2)


@pytest.mark.parametrize(("retry_ms", "endings", "error"), [
    (500, [], BUSY), (0, [2], BUSY), (500, [2], FENCED)])
def test_request_with_nothing_to_await_is_answered_immediately(
        monkeypatch, retry_ms, endings, error):
    adding = Adding(monkeypatch, retry_ms, *endings)
    adding.world.runtime.errors = [error]
    assert adding.result() == (error, 0, 1)


# Producer ids.

def step(world, *results, errors=()):
    """Return the response to a request whose step has these results."""
    world.runtime.results, world.runtime.errors = list(results), list(errors)
    pending = DeferredResponse(lambda error: ("refused", error))

    async def work():
        assert world.service.run(ID, pending, Transactions.init, "request") is pending
    world.run(work)
    return pending.message


def test_step_is_repeated_with_an_allocated_producer_id(world):
    assert step(world, NeedProducerId, "answer") == "answer"
    assert world.runtime.calls == [("run", ID, Transactions.init, "request"),
                                   ("run", ID, Transactions.init, "request", 9)]


def test_step_without_need_allocates_no_producer_id(world):
    assert step(world, "answer") == "answer" and world.ids == [9]


@pytest.mark.parametrize("where", [0, 1])
def test_rejected_step_returns_the_error_of_its_request(world, where):
    results = [NeedProducerId] * where
    assert step(world, *results, errors=[NONE] * where + [LATER]) == ("refused", LATER)


@pytest.mark.parametrize("failure", [
    LogError(1, ErrorCode.REQUEST_TIMED_OUT, "no controller"),
    Refusal(ErrorCode.REQUEST_TIMED_OUT)], ids=["of the controller here", "of one elsewhere"])
def test_missing_producer_id_is_reported_with_the_reason(world, failure):
    world.ids = [failure]
    assert step(world, NeedProducerId) == ("refused", ErrorCode.REQUEST_TIMED_OUT)
    assert len(world.runtime.calls) == 1


def test_failed_producer_id_allocation_is_answered_with_an_error(world):
    world.ids = [ValueError("planted")]
    assert step(world, NeedProducerId) == ("refused", ErrorCode.UNKNOWN_SERVER_ERROR)


def test_overdue_transaction_with_exhausted_epochs_is_aborted_with_a_new_id(world):
    overdue = Overdue(ID, 77)
    world.end(overdue)
    assert world.runtime.calls == [("run", ID, Transactions.abort_overdue, overdue, 9)]
    world.ids = [LogError(1, ErrorCode.REQUEST_TIMED_OUT, "no controller")]
    world.end(overdue)
    assert len(world.runtime.calls) == 1


# Start, stop and topics.

def test_stop_ends_pending_work_before_its_runtime(world):
    async def work():
        world.answers = {A: [LATER] * 99}
        world.service.start()
        world.service.respond(ending(A))
        await asyncio.sleep(0.5)
        await world.service.stop()
        assert not world.service._tasks and not world.service._ending
    world.run(work)
    assert world.runtime.calls == [("start",), ("stop",)]


def test_only_changes_of_its_own_topic_affect_the_runtime(world):
    own, other = SimpleNamespace(name=TOPIC), SimpleNamespace(name="t")
    world.service.topic_changed(other)
    world.service.topic_deleted("t")
    assert world.runtime.calls == []
    world.service.topic_changed(own)
    world.service.topic_deleted(TOPIC)
    assert world.runtime.calls == [("topic_changed", own), ("topic_deleted",)]


def test_internal_topic_is_created_from_the_settings(monkeypatch):
    world = World(monkeypatch, transaction_state_log_num_partitions="7",
                  transaction_state_log_replication_factor="2", transaction_state_log_min_isr="1",
                  transaction_state_log_segment_bytes="4096")
    spec = world.runtime.topic.spec
    assert spec[:3] == (TOPIC, 7, 2) and spec.min_insync == 1
    assert spec.configs == {"cleanup.policy": "compact", "compression.type": "uncompressed",
                            "unclean.leader.election.enable": "false", "segment.bytes": "4096"}
    assert world.run(world.service.ensure_topic) == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_machine_uses_the_currently_finalized_feature(world):
    make, snapshot = world.runtime.coordination.open(bytes(16), 0, SimpleNamespace())
    state_machine = make()
    assert snapshot is None and make() is not state_machine
    assert world.service.feature_level == 0
    world.node.image.features["transaction.version"] = 2
    assert world.service.feature_level == state_machine._feature_level() == 2

"""A share consumer without brokers: polls, acquired records, request targets, close."""

import asyncio
from types import SimpleNamespace

import pytest

from pylog.client.config.settings import SHARE_CONSUMER, Settings
from pylog.client.errors import (
    ClosedError, ConfigError, IllegalStateError, KafkaError, KafkaTimeoutError, WakeupError, error,
)
from pylog.client.share import core as share_core
from pylog.client.share.acknowledgements import Acknowledge, Batch
from pylog.client.share.core import Sharing
from pylog.client.share.session import Acquired, Outcome
from pylog.client.types import TopicPartition
from pylog.protocol.errors import ErrorCode

ONE, TWO = TopicPartition("t", 0), TopicPartition("t", 1)
ACCEPT, RELEASE = Acknowledge.ACCEPT, Acknowledge.RELEASE
ID = b"t" * 16


class Membership:
    """Owns the partitions that the test assigns."""

    def __init__(self, core, group):
        self.core, self.member_id, self.has_pending_work, self.polled_s = core, "m", False, 0.0
        self.steps, self.failures = [], []

    async def run_pending_work(self):
        self.steps.append("attend")
        if self.failures:
            raise self.failures.pop(0)
        self.has_pending_work = False

    async def end(self):
        self.steps.append("end")

    async def stop(self):
        self.steps.append("stop")

    def subscription_changed(self):
        self.steps.append("subscription")

    def metadata_changed(self):
        self.steps.append("metadata")


class Session:
    """Records its calls; `flush` takes flush_s."""

    flush_s = 0.0

    def __init__(self, core, node_id):
        self.core, self.node_id, self.task = core, node_id, None
        self.pending, self.asked, self.said, self.flushed = {}, [], [], []

    @property
    def idle(self):
        return self.task is None or self.task.done()

    def acknowledge_later(self, tp, batches):
        if batches:
            self.said.append((tp, batches))
            self.pending.setdefault(tp, []).extend(batches)

    async def work(self, wanted):
        self.asked.append(sorted(wanted.values()))
        self.pending = {}
        if self.core.broken is not None:
            raise self.core.broken
        found = self.core.coming.pop(self.node_id, [])
        for acquired in found:
            self.core.arrived(acquired)
        if not found:
            await asyncio.sleep(0.5)  # A broker waits this long for records.

    def end_fetching(self):
        self.has_ended = True

    async def flush(self, final=False):
        self.flushed.append(final)
        await asyncio.sleep(self.flush_s)
        return [Outcome(tp, [], None) for tp in dict(self.said)]


class Core(Sharing):
    """A core with simulated members, sessions and leaders."""

    def __init__(self, clock, **more):
        super().__init__(Settings(SHARE_CONSUMER, bootstrap_servers="x:1", group_id="g",
                                  retry_backoff_ms=100, retry_backoff_max_ms=100, **more))
        self.clock, self.coming, self.broken, self.refreshes = clock, {}, None, 0
        self.leaders = {ONE: 1, TWO: 1}
        self.cluster.metadata = SimpleNamespace(
            leader=lambda topic, number: self.leaders[TopicPartition(topic, number)],
            topic_id=lambda topic: ID)
        self.cluster.request_refresh = self._refresh

    def _refresh(self):
        self.refreshes += 1

    async def begin(self, *partitions):
        await self.subscribe("t")
        self.subscription.add(partitions)
        self._ids["t"], self.refreshes = ID, 0
        return self

    def at(self, node_id):
        return self.sessions[node_id]


def acquired(tp, *ranges, node_id=1):
    return Acquired(node_id, tp, b"", [(first, last, 1) for first, last in ranges])


@pytest.fixture
def clock(virtual_time, monkeypatch):
    monkeypatch.setattr(share_core, "ShareMembership", Membership)
    monkeypatch.setattr(share_core, "ShareSession", Session)
    return virtual_time(share_core)


@pytest.fixture
def run(clock):
    return clock.run


def test_a_group_is_needed(clock):
    with pytest.raises(ConfigError, match=r"needs group\.id"):
        Sharing(Settings(SHARE_CONSUMER, bootstrap_servers="x:1"))


# Polls.

def test_empty_poll_waits_for_its_timeout(clock, run):
    async def steps():
        core = await Core(clock).begin(ONE)
        assert await core.poll(2.5) == []
        assert clock.now_s == pytest.approx(1002.5) and not core.polling
        ended_s = core.membership.polled_s
        assert ended_s == clock.now_s and await core.poll(0) == [] and clock.now_s == ended_s

    run(steps())


def test_poll_returns_received_records_at_once(clock, run):
    async def steps():
        core = await Core(clock).begin(ONE)
        core.coming[1] = [acquired(ONE, (0, 4)), acquired(ONE, (7, 7))]
        assert await core.poll(60) == [acquired(ONE, (0, 4)), acquired(ONE, (7, 7))]
        assert clock.now_s == 1000.0
        assert await core.poll(0) == []

    run(steps())


def test_records_are_returned_before_their_broker_finishes_other_requests(clock, run):
    async def steps():
        core = await Core(clock).begin(ONE)
        asyncio.get_running_loop().call_later(0.25, core.arrived, acquired(ONE, (0, 4)))
        assert await core.poll(60) == [acquired(ONE, (0, 4))]
        assert clock.now_s == pytest.approx(1000.25) and not core.at(1).idle

    run(steps())


def test_a_poll_without_a_subscription_is_rejected(clock, run):
    async def steps():
        core = Core(clock)
        with pytest.raises(IllegalStateError, match="subscribe"):
            await core.poll(1)
        await core.begin(ONE)
        await core.unsubscribe()
        with pytest.raises(IllegalStateError, match="subscribe"):
            await core.poll(1)

    run(steps())


def test_error_is_raised_once(clock, run):
    async def steps():
        core = await Core(clock).begin(ONE)
        core.fail(KafkaError("first"))
        with pytest.raises(KafkaError, match="first"):
            await core.poll(0)
        assert await core.poll(0) == []
        core.woken = True
        with pytest.raises(WakeupError):
            await core.poll(0)
        assert await core.poll(0) == [] and not core.polling

    run(steps())


@pytest.mark.parametrize(("failure", "text"), [
    (error(ErrorCode.GROUP_AUTHORIZATION_FAILED), "authorized"), (ValueError("ours"),
                                                                  "ValueError: ours")])
def test_session_error_is_raised(
        clock, run, failure, text):
    async def steps():
        core = await Core(clock).begin(ONE)
        core.broken = failure
        with pytest.raises(KafkaError, match=text):
            await core.poll(60)
        assert clock.now_s == 1000.0

    run(steps())


def test_retriable_join_error_is_retried_and_a_rejection_raised(clock, run):
    async def steps():
        core = await Core(clock).begin(ONE)
        core.membership.has_pending_work = True
        core.membership.failures = [error(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)]
        core.coming[1] = [acquired(ONE, (0, 0))]
        await core.poll(0.05)
        assert clock.now_s == pytest.approx(1000.05)
        core.membership.has_pending_work = True
        core.membership.failures = [error(ErrorCode.GROUP_AUTHORIZATION_FAILED)]
        with pytest.raises(KafkaError, match="authorized"):
            await core.poll(60)
        assert core._ids == {"t": ID}

    run(steps())


# Requests per leader.

def test_each_leader_is_fetched_once_for_its_partitions(clock, run):
    async def steps():
        core = await Core(clock).begin(ONE, TWO)
        core.leaders[TWO] = 2
        core._start_requests()
        core._start_requests()
        await asyncio.sleep(0.1)
        assert (core.at(1).asked, core.at(2).asked) == ([[ONE]], [[TWO]])

    run(steps())


@pytest.mark.parametrize(("leader", "revoking", "asked", "refreshes"), [
    (-1, False, [[ONE]], 1), (0, False, [[ONE]], 0), (1, True, [[ONE]], 0),
    (1, False, [[ONE, TWO]], 0)])
def test_partition_without_a_leader_or_revoked_is_not_fetched(
        clock, run, leader, revoking, asked, refreshes):
    async def steps():
        core = await Core(clock).begin(ONE, TWO)
        core.leaders[TWO], core.subscription.states[TWO].revoking = leader, revoking
        core._start_requests()
        await asyncio.sleep(0)
        assert core.at(1).asked == asked and core.refreshes == refreshes
        assert set(core.sessions) == {1} | ({0} if leader == 0 else set())

    run(steps())


def test_broker_with_pending_records_is_not_fetched_again(clock, run):
    async def steps():
        core = await Core(clock).begin(ONE)
        core.arrived(acquired(ONE, (0, 0)))
        core._start_requests()
        await asyncio.sleep(0)
        assert core.at(1).asked == []
        core.at(1).pending[ONE] = [Batch(0, 0, ACCEPT)]
        core._start_requests()
        await asyncio.sleep(0)
        assert core.at(1).asked == [[]]

    run(steps())


# Acquired records.

def test_poll_accepts_the_records_of_the_previous_one(clock, run):
    async def steps():
        core = await Core(clock).begin(ONE)
        core.add_acquired(acquired(ONE, (0, 4)), [3])
        await core.poll(0)
        assert core.at(1).said == [(ONE, [Batch(0, 2, ACCEPT), Batch(3, 3, 0),
                                          Batch(4, 4, ACCEPT)])]
        assert not core.delivered
        await core.poll(0)
        assert len(core.at(1).said) == 1

    run(steps())


def test_records_are_acknowledged_to_their_own_broker(clock, run):
    async def steps():
        core = await Core(clock).begin(ONE)
        core.add_acquired(acquired(ONE, (0, 1)), ())
        core.add_acquired(acquired(ONE, (2, 3)), ())
        assert core.delivered[ONE].ranges == [(0, 1), (2, 3)] and core.delivered[ONE].node_id == 1
        core.add_acquired(acquired(ONE, (4, 5), node_id=2), ())
        await core.poll(0)
        assert core.at(2).said == [(ONE, [Batch(4, 5, ACCEPT)])]

    run(steps())


def test_explicit_mode_requires_each_record_to_be_acknowledged(clock, run):
    async def steps():
        core = await Core(clock, share_acknowledgement_mode="explicit").begin(ONE)
        core.add_acquired(acquired(ONE, (0, 1)), ())
        core.acknowledge(ONE, 0, RELEASE)
        with pytest.raises(IllegalStateError, match="1 record of earlier polls"):
            await core.poll(0)
        core.acknowledge(ONE, 1, ACCEPT)
        await core.poll(0)
        assert core.at(1).said == [(ONE, [Batch(0, 0, RELEASE), Batch(1, 1, ACCEPT)])]
        with pytest.raises(IllegalStateError, match=r"t-0 at 1 is not acquired"):
            core.acknowledge(ONE, 1, ACCEPT)
        with pytest.raises(IllegalStateError, match=r"t-1 at 1 is not acquired"):
            core.acknowledge(TWO, 1, ACCEPT)

    run(steps())


def test_implicit_mode_rejects_acknowledgements(clock, run):
    async def steps():
        core = await Core(clock).begin(ONE)
        core.add_acquired(acquired(ONE, (0, 1)), ())
        with pytest.raises(IllegalStateError, match="explicit"):
            core.acknowledge(ONE, 0, ACCEPT)

    run(steps())


@pytest.mark.parametrize(("mode", "said"), [
    ("implicit", [(ONE, [Batch(0, 1, ACCEPT)])]), ("explicit", [(ONE, [Batch(1, 1, RELEASE)])])])
def test_commit_sends_explicit_acknowledgements_and_accepts_the_rest(clock, run, mode, said):
    async def steps():
        core = await Core(clock, share_acknowledgement_mode=mode).begin(ONE)
        core.add_acquired(acquired(ONE, (0, 1)), ())
        if core.explicit:
            core.acknowledge(ONE, 1, RELEASE)
        assert await core.commit(None) == {ONE: None}
        assert core.at(1).said == said and core.at(1).flushed == [False]
        assert (ONE in core.delivered) == core.explicit

    run(steps())


@pytest.mark.parametrize(("flush_s", "timeout_s", "late"), [
    (2.0, 1.5, True), (2.0, 2.5, False), (59.0, None, False), (61.0, None, True)])
def test_a_commit_has_its_time_or_that_of_a_call(clock, run, flush_s, timeout_s, late):
    """default.api.timeout.ms is a minute."""
    async def steps():
        core = await Core(clock).begin(ONE)
        core.add_acquired(acquired(ONE, (0, 1)), ())
        core._session(1).flush_s = flush_s
        if late:
            with pytest.raises(KafkaTimeoutError, match=f"{timeout_s or 60.0} s"):
                await core.commit(timeout_s)
        else:
            await core.commit(timeout_s)

    run(steps())


def test_oldest_unread_outcomes_are_dropped(clock):
    core = Core(clock)
    for number in range(10_001):
        core.outcome(Outcome(ONE, [Batch(number, number, 1)], None))
    assert len(core.outcomes) == 10_000 and core.outcomes[0].batches[0].first == 1


# Subscriptions and close.

def test_topics_are_subscribed_to_by_name(clock, run):
    async def steps():
        core = Core(clock)
        await core.subscribe("t")
        membership = core.membership
        await core.subscribe(["t", "u"])
        assert core.subscription.topics == {"t", "u"} and core.membership is membership
        assert membership.steps == ["subscription"]
        for refused in ("^t", ["t", "^u"]):
            with pytest.raises(ValueError, match="by name"):
                await core.subscribe(refused)

    run(steps())


def test_new_metadata_is_the_memberships_too(clock, run):
    async def steps():
        core = Core(clock)
        core._metadata_changed(None)
        await core.begin(ONE)
        core._metadata_changed(None)
        assert core.membership.steps == ["metadata"]

    run(steps())


def test_unsubscribe_closes_sessions_before_it_leaves(clock, run):
    async def steps():
        core = await Core(clock).begin(ONE)
        core.add_acquired(acquired(ONE, (0, 1)), ())
        core.arrived(acquired(ONE, (2, 2)))
        session, membership = core._session(1), core.membership
        session.task = asyncio.create_task(asyncio.sleep(60))
        await core.unsubscribe()
        assert session.flushed == [True] and session.task.cancelled()
        assert membership.steps == ["end", "stop"] and core.membership is None
        assert not (core.sessions or core.delivered or core._ready or core.subscription.topics)
        assert clock.now_s == 1000.0
        await core.unsubscribe()

    run(steps())


@pytest.mark.parametrize(("flush_s", "ended_s"), [(2.0, 2.0), (9.0, 5.0)])
def test_close_is_bounded_and_stops_all_work(
        clock, run, flush_s, ended_s):
    async def steps():
        core = await Core(clock).begin(ONE)
        core._session(1).flush_s = flush_s
        membership = core.membership
        await core.close(5.0)
        assert clock.now_s == 1000.0 + ended_s and core.closed and core.cluster.closed
        assert membership.steps[-1] == "stop"
        await core.close(5.0)
        for refused in (core.poll(0), core.commit(None), core.subscribe("t")):
            with pytest.raises(ClosedError):
                await refused
        with pytest.raises(ClosedError):
            core.acknowledge(ONE, 0, ACCEPT)

    run(steps())


@pytest.mark.parametrize("call", ["unsubscribe", "close"])
def test_cancelled_end_continues_and_the_next_close_waits_for_it(clock, run, call):
    async def steps():
        core = await Core(clock).begin(ONE)
        session, membership = core._session(1), core.membership
        session.flush_s = 2.0
        task = asyncio.create_task(core.unsubscribe() if call == "unsubscribe" else core.close(5.0))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() and session.has_ended and clock.now_s == 1000.0
        await core.close(5.0)
        assert membership.steps == ["end", "stop"] and core.cluster.closed
        assert clock.now_s == 1002.0

    run(steps())


def test_poll_in_progress_raises_when_the_consumer_unsubscribes(clock, run):
    async def steps():
        core = await Core(clock).begin(ONE)
        poll = asyncio.create_task(core.poll(60))
        await asyncio.sleep(0.01)
        await core.unsubscribe()
        with pytest.raises(IllegalStateError, match="unsubscribed during this poll"):
            await poll

    run(steps())

"""Commits of a consumer: offsets, timing, identity, and handling of errors; without a broker."""

import asyncio
from types import SimpleNamespace

import pytest

from pylog._native.client.columns import Record
from pylog.client.consumer.commit_manager import COMMIT_BEFORE_REVOKE_S
from pylog.client.consumer.offset_requests import Identity
from pylog.client.errors import (
    ClosedError, CommitFailedError, IllegalStateError, KafkaError, KafkaTimeoutError,
    RebalanceNeededError, error,
)
from pylog.client.types import GroupMetadata, OffsetAndMetadata
from pylog.protocol.errors import ErrorCode
from tests.client.played_consumer import ONE, OTHER, TWO

AT_5, AT_9 = OffsetAndMetadata(5), OffsetAndMetadata(9)


def commits_of(world):
    return [told[2] for told in world.asked if told[0] == "commit"]


def at_work(world):
    """Simulate that the current or previous poll returned records 5 to 8."""
    one, _ = world.standing(p0=5, p1=None)
    one.save_position(world.core.collector.poll)
    one.position = 9


# Automatic commits.

def test_offsets_are_due_once_in_an_interval_and_only_when_they_have_moved(play):
    async def steps(world):
        core = world.core
        one, two = world.standing(p0=5, p1=None)
        assert core.polled() is None
        world.clock.now_s += 4.9
        assert core.polled() is None
        world.clock.now_s += 0.1
        assert core.polled().offsets == {ONE: AT_5}
        assert core.polled() is None
        world.clock.now_s += 5
        core._auto_committed = {ONE: AT_5}
        assert core.polled() is None
        world.clock.now_s += 5
        one.position = 9
        assert core.polled().offsets == {ONE: AT_9}

    play(steps, group_id="g")


@pytest.mark.parametrize("settings", [{}, {"group_id": "g", "enable_auto_commit": False}])
def test_without_a_group_or_when_switched_off_nothing_is_due(play, settings):
    async def steps(world):
        world.standing(p0=5)
        world.clock.now_s += 60
        assert world.core.polled() is None
        await world.core.commit_before_revoke()
        assert not commits_of(world)

    play(steps, **settings)


def test_no_commit_is_due_without_a_position(play):
    async def steps(world):
        world.standing(p0=None)
        world.clock.now_s += 60
        assert world.core.polled() is None

    play(steps, group_id="g")


def test_poll_extends_the_poll_interval(play):
    async def steps(world):
        member = world.joined()
        world.standing(p0=5)
        world.clock.now_s += 3
        world.core.polled()
        assert member.polled_s == 1003

    play(steps, group_id="g")


@pytest.mark.parametrize("refusal, remembered", [(None, True), (KafkaError("no"), False)])
def test_auto_commit_covers_assigned_partitions_and_counts_on_success(
        play, refusal, remembered):
    async def steps(world):
        core = world.core
        world.standing(p0=9)
        world.refusals = [refusal]
        core.auto_commit(core.commit_request({ONE: AT_5, OTHER: AT_9}))
        await asyncio.gather(*core._committing)
        await asyncio.sleep(0)
        assert commits_of(world) == [{ONE: AT_5}] and not core._committing
        assert core._auto_committed == ({ONE: AT_5, OTHER: AT_9} if remembered else {})

    play(steps, group_id="g")


def test_reassigned_partitions_are_committed_again(play):
    async def steps(world):
        world.core._auto_committed = {ONE: AT_5}
        await world.core.assign([ONE])
        world.standing(p0=5)
        assert world.core._auto_committed == {}

    play(steps, group_id="g")


def test_before_partitions_go_their_offsets_are_committed_for_so_long_at_most(play):
    async def steps(world):
        world.standing(p0=5)
        world.core.polling = True
        await world.core.commit_before_revoke()
        assert commits_of(world) == [{ONE: AT_5}] and world.clock.now_s == 1000
        world.refusals = [error(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)] * 1000
        await world.core.commit_before_revoke()
        assert world.clock.now_s == pytest.approx(1000 + COMMIT_BEFORE_REVOKE_S, abs=1e-6)

    play(steps, group_id="g")


def test_records_in_processing_are_committed_at_the_next_poll(play):
    async def steps(world):
        core = world.core
        at_work(world)
        work = asyncio.create_task(core.commit_before_revoke())
        await asyncio.sleep(100)
        assert not commits_of(world)
        core.polling = True
        core.polled()
        await work
        assert commits_of(world) == [{ONE: AT_9}]

    play(steps, group_id="g")


def test_records_of_the_current_poll_are_not_committed_before_revocation(play):
    async def steps(world):
        world.core.polling = True
        at_work(world)
        await world.core.commit_before_revoke()
        assert commits_of(world) == [{ONE: AT_5}]

    play(steps, group_id="g")


def test_application_that_stops_polling_keeps_its_partitions_for_the_poll_interval(play):
    async def steps(world):
        at_work(world)
        await world.core.commit_before_revoke()
        assert commits_of(world) == [{ONE: AT_5}] and world.clock.now_s == 1060

    play(steps, group_id="g", max_poll_interval_ms=60_000)


def test_at_the_end_all_that_was_handed_out_is_committed_at_once(play):
    async def steps(world):
        at_work(world)
        await world.core.close(10.0)
        assert commits_of(world) == [{ONE: AT_9}] and world.clock.now_s == 1000

    play(steps, group_id="g")


# Explicit commits.

def test_commit_uses_positions_or_given_offsets(play):
    async def steps(world):
        core = world.core
        one, _ = world.standing(p0=5, p1=None)
        one.record_epoch = 2
        assert await core.commit(None) == {ONE: OffsetAndMetadata(5, "", 2)}
        given = {("t", 0): 7, ("t", 1): (8, "note", 3), ("u", 0): AT_9}
        made = {ONE: OffsetAndMetadata(7), TWO: OffsetAndMetadata(8, "note", 3), OTHER: AT_9}
        assert await core.commit(given) == made
        assert commits_of(world) == [{ONE: OffsetAndMetadata(5, "", 2)}, made]
        assert core.metrics()["consumer-coordinator-metrics"]["commit-total"] == 2

    play(steps, group_id="g")


def test_a_consumer_commits_as_the_member_that_it_is(play):
    async def steps(world):
        core = world.core
        assert core._committer() == Identity("g")
        assert core.group_metadata() == GroupMetadata("g")
        member = world.joined(generation=0)
        member.identity = Identity("g", "m", 0, "i")
        assert core._committer() is member.identity
        assert core.group_metadata() == GroupMetadata("g", 0, "m", "i")
        member.generation = -1
        for call in (core._committer, core.group_metadata):
            with pytest.raises(CommitFailedError, match="not a member of group 'g'"):
                call()

    play(steps, group_id="g")


def test_commit_without_a_group_raises(play):
    async def steps(world):
        core = world.core
        world.standing(p0=5)
        with pytest.raises(IllegalStateError, match="commits need group.id"):
            await core.commit(None)
        with pytest.raises(IllegalStateError, match="committed offsets need group.id"):
            await core.committed([ONE], None)
        with pytest.raises(IllegalStateError, match="no group.id"):
            core.group_metadata()
        with pytest.raises(IllegalStateError, match="subscribe needs the setting group.id"):
            await core.subscribe(["t"], None, None)

    play(steps)


def test_retriable_commit_error_is_retried(play):
    async def steps(world):
        world.standing(p0=5)
        world.refusals = [error(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), None]
        await world.core.commit(None)
        assert commits_of(world) == [{ONE: AT_5}] * 2

    play(steps, group_id="g")


def test_unanswered_commit_times_out(play):
    async def steps(world):
        world.standing(p0=5)
        world.refusals = [error(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)] * 1000
        with pytest.raises(KafkaTimeoutError):
            await world.core.commit(None, 3.0)
        assert world.clock.now_s == pytest.approx(1003, abs=1e-6)

    play(steps, group_id="g")


def test_retry_does_not_overwrite_a_later_commit(play):
    async def steps(world):
        core = world.core
        world.refusals = [error(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), None, None]
        first = asyncio.create_task(core.commit({ONE: 5, TWO: 5}))
        await asyncio.sleep(0.01)
        await core.commit({ONE: 9})
        await first
        assert commits_of(world) == [{ONE: AT_5, TWO: AT_5}, {ONE: AT_9}, {TWO: AT_5}]
        await core.commit({ONE: 5})
        assert commits_of(world)[-1] == {ONE: AT_5}, "one that is asked for later goes back"

    play(steps, group_id="g")


def test_commits_are_sent_one_at_a_time(play):
    async def steps(world):
        core, under_way = world.core, []

        async def slow(cluster, who, offsets):
            under_way.append(offsets)
            assert len(under_way) == 1
            await asyncio.sleep(1)
            under_way.pop()

        world.replace("commit", slow)
        await asyncio.gather(*[core.commit({ONE: number}) for number in range(3)])
        assert world.clock.now_s == pytest.approx(1003, abs=1e-6)

    play(steps, group_id="g")


@pytest.mark.parametrize("code", [
    ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.FENCED_MEMBER_EPOCH])
def test_removed_member_is_notified_and_its_commit_fails(play, code):
    async def steps(world):
        for member in (None, world.joined()):
            world.core.membership = member
            world.refusals = [error(code)]
            with pytest.raises(CommitFailedError, match="rebalanced without") as raised:
                await world.core.commit({ONE: 5})
            assert raised.value.__cause__.code == code
        assert [failure.code for failure in member.failures] == [code]

    play(steps, group_id="g")


def test_commit_during_a_rebalance_requires_a_poll(play):
    async def steps(world):
        member = world.joined()
        world.refusals = [error(ErrorCode.REBALANCE_IN_PROGRESS)]
        with pytest.raises(RebalanceNeededError, match="poll, then commit again") as raised:
            await world.core.commit({ONE: 5}, 0.05)
        assert raised.value.__cause__.code == ErrorCode.REBALANCE_IN_PROGRESS
        assert not member.failures

    play(steps, group_id="g")


def test_other_commit_errors_are_raised_unchanged(play):
    async def steps(world):
        refusal = error(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        world.refusals = [refusal]
        with pytest.raises(KafkaError) as raised:
            await world.core.commit({ONE: 5})
        assert raised.value is refusal and len(commits_of(world)) == 1

    play(steps, group_id="g")


def test_commit_with_a_stale_epoch_is_retried_in_the_new_one(play):
    async def steps(world):
        member = world.joined(3)
        world.refusals = [error(ErrorCode.STALE_MEMBER_EPOCH), None]
        refused = member.commit_refused
        member.commit_refused = lambda failure: (
            refused(failure), setattr(member, "identity", Identity("g", "m", 4)))
        await world.core.commit({ONE: 5})
        assert [who.generation for _, who, _ in world.asked] == [3, 4]
        assert [failure.code for failure in member.failures] == [ErrorCode.STALE_MEMBER_EPOCH]

    play(steps, group_id="g")


@pytest.mark.parametrize("refused", [False, True])
def test_interceptors_receive_only_successful_commits(play, refused):
    async def steps(world):
        heard = []
        world.core.interceptors = [SimpleNamespace(on_commit=heard.append), SimpleNamespace()]
        world.refusals = [error(ErrorCode.GROUP_AUTHORIZATION_FAILED)] * refused
        world.core.commit_in_background(
            world.core.commit_request({ONE: 5}), lambda *outcome: heard.append(outcome))
        await asyncio.gather(*world.core._committing)
        if refused:
            [(given, failure)] = heard
            assert given == {ONE: AT_5} and failure.code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        else:
            assert heard == [{ONE: AT_5}, ({ONE: AT_5}, None)]

    play(steps, group_id="g")


def test_committed_offsets_are_returned_for_each_requested_partition(play):
    async def steps(world):
        world.committed = {ONE: 5}
        assert await world.core.committed([("t", 0), TWO], None) == {
            ONE: OffsetAndMetadata(5, "", 4), TWO: None}
        assert world.asked == [("committed", Identity("g"), [ONE, TWO], True)]

    play(steps, group_id="g")


# Transactions.

def test_transaction_commits_moved_positions_and_an_abort_resets_them(play):
    async def steps(world):
        core = world.core
        one, two, _ = world.standing(p0=5, p1=9, p2=None)
        assert core.moved() == {}
        one.position = 7
        assert core.moved() == {ONE: OffsetAndMetadata(7)}
        core.rewind()
        assert (one.position, two.position, two.epoch, world.pokes) == (5, 9, 1, 1)
        one.position = 7
        core.keep({**core.moved(), OTHER: AT_9})
        assert core.moved() == {} and one.rewind_position == 7
        core.rewind()
        assert one.position == 7

    play(steps, group_id="g")


# Close.

def test_close_waits_for_commits_leaves_the_group_and_rejects_calls(play):
    async def steps(world):
        core, closed = world.core, []
        member = world.joined()
        world.standing(p0=5)
        core.interceptors = [SimpleNamespace(close=lambda: closed.append(1)), SimpleNamespace()]
        stopped = core.fetcher.close
        core.fetcher.close = lambda: closed.append("fetcher") or stopped()
        core._pending_work = asyncio.create_task(asyncio.sleep(1000))
        core.commit_in_background(core.commit_request({ONE: 5}))
        await core.close(10.0)
        assert member.owned() == [ONE] and closed == ["fetcher", 1] and core.closed
        assert world.asked == [("commit", member.identity, {ONE: AT_5}), ("take", [ONE]), "end",
                               "stop", "close"]
        assert world.clock.now_s == 1000 and world.notices
        await core.close(10.0)
        assert world.asked.count("close") == 1
        for call in (lambda: core.commit({}), lambda: core.assign([]),
                     lambda: core.subscribe(["t"], None, None), lambda: core.committed([], None),
                     lambda: core.list_offsets({}, None)):
            with pytest.raises(ClosedError):
                await call()

    play(steps, group_id="g")


def test_without_membership_the_end_commits_the_positions(play):
    async def steps(world):
        world.standing(p0=5)
        await world.core.close(10.0)
        assert commits_of(world) == [{ONE: AT_5}]

    play(steps, group_id="g")


def test_close_is_bounded_and_releases_everything(play):
    async def steps(world):
        core, member = world.core, world.joined()

        async def never():
            await asyncio.sleep(1000)

        member.end = never
        await core.close(2.0)
        assert world.clock.now_s == 1002 and core.closed
        assert world.asked == [("take", []), "stop", "close"]

    play(steps, group_id="g")


# Offsets stored by the application.

STORES = {"group_id": "g", "enable_auto_offset_store": False}


def test_only_stored_offsets_are_committed_and_each_once(play):
    async def steps(world):
        core = world.core
        world.joined()
        world.standing(p0=9, p1=9)
        assert await core.commit(None) == {}
        core.store({ONE: 5})
        world.clock.now_s += 60
        assert core.polled().offsets == {ONE: AT_5}
        assert await core.commit(None) == {ONE: AT_5}
        assert await core.commit(None) == {}
        world.clock.now_s += 60
        assert core.polled() is None
        core.store({ONE: 5, TWO: 9})
        assert await core.commit(None) == {ONE: AT_5, TWO: AT_9}
        assert core.consumed() == {ONE: AT_9, TWO: AT_9}

    play(steps, **STORES)


def test_stored_offsets_are_committed_before_partitions_go(play):
    async def steps(world):
        world.joined()
        world.standing(p0=9)
        world.core.polling = True
        world.core.store({ONE: 5})
        await world.core.commit_before_revoke()
        assert commits_of(world) == [{ONE: AT_5}]

    play(steps, **STORES)


def test_a_stored_offset_waits_for_a_commit_that_succeeds(play):
    async def steps(world):
        world.joined()
        world.standing(p0=9)
        world.core.store({ONE: 5})
        world.refusals = [KafkaError("no")]
        with pytest.raises(KafkaError):
            await world.core.commit(None)
        assert world.core.committable() == {ONE: AT_5}

    play(steps, **STORES)


def test_stored_offset_does_not_lower_a_later_commit(play):
    async def steps(world):
        world.joined()
        world.standing(p0=9)
        world.core.store({ONE: 5})
        await world.core.commit({ONE: 9})
        assert world.core.committable() == {}
        world.core.store({ONE: 6})
        await world.core.commit({ONE: 5})
        assert world.core.committable() == {ONE: OffsetAndMetadata(6)}

    play(steps, **STORES)


@pytest.mark.parametrize("requested", ["commit_async", "automatic commit"])
def test_lower_offset_stored_after_a_commit_was_requested_is_committed_next(play, requested):
    async def steps(world):
        core = world.core
        world.joined()
        world.standing(p0=9)
        core.store({ONE: 9})
        world.clock.now_s += 60
        due = core.polled() if requested == "automatic commit" else core.commit_request()
        core.store({ONE: 5})  # Before the commit starts on the client's loop.
        core.auto_commit(due)
        await asyncio.gather(*core._committing)
        assert commits_of(world) == [{ONE: AT_9}] and core.committable() == {ONE: AT_5}
        await core.commit(None)
        assert commits_of(world)[1:] == [{ONE: AT_5}] and core.committable() == {}

    play(steps, **STORES)


def test_lower_offset_stored_after_an_explicit_commit_was_requested_is_committed_next(play):
    async def steps(world):
        core = world.core
        world.joined()
        world.standing(p0=9)
        core.store({ONE: 9})
        request = core.commit_request({ONE: 9})
        core.store({ONE: 5})
        core.commit_in_background(request)
        await asyncio.gather(*core._committing)
        assert core.committable() == {ONE: AT_5}

    play(steps, **STORES)


def test_retry_of_an_overtaken_commit_does_not_make_a_committed_offset_due_again(play):
    async def steps(world):
        core = world.core
        world.joined()
        world.standing(p0=9)
        world.refusals = [error(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), None, None, None]
        core.store({ONE: 9})
        first = asyncio.create_task(core.commit(None))
        await asyncio.sleep(0.01)
        core.store({ONE: 5})
        assert await core.commit(None) == {ONE: AT_5}
        await first
        assert core.committable() == {}

    play(steps, **STORES)


def test_commit_requested_earlier_does_not_overwrite_one_that_starts_first(play):
    async def steps(world):
        core = world.core
        world.standing(p0=9)
        core.commit_in_background(core.commit_request({ONE: 5}))
        await core.commit({ONE: 9})  # Starts before the task of the other commit runs.
        await asyncio.gather(*core._committing)
        assert commits_of(world) == [{ONE: AT_9}, {}]

    play(steps, group_id="g")


@pytest.mark.parametrize("settings, committed", [
    ({}, [{ONE: AT_5}, {ONE: AT_9}]), ({"enable_auto_commit": False}, [])])
def test_offset_that_the_listener_stores_is_committed_before_its_partition_is_given_up(
        play, settings, committed):
    async def steps(world):
        core = world.core
        world.joined()
        world.standing(p0=9)
        core.polling = True
        core.store({ONE: 5})
        await core.commit_before_revoke()
        await core.commit_stored_by_listener()
        core.store({ONE: 9})
        await core.commit_stored_by_listener()
        assert commits_of(world) == committed

    play(steps, **STORES, **settings)


def test_an_offset_of_an_earlier_assignment_is_not_committed(play):
    async def steps(world):
        world.standing(p0=5)
        world.core.store({ONE: 5})
        world.core.subscription.unsubscribe()
        world.standing(p0=9)
        assert world.core.committable() == {}

    play(steps, **STORES)


def test_storing_records_stores_the_offset_after_the_last_of_each_partition(play):
    async def steps(world):
        world.standing(p0=5, p1=5)
        records = [Record(topic="t", partition=partition, offset=offset, leader_epoch=3)
                   for partition, offset in ((0, 5), (1, 7), (0, 8), (0, 6))]
        world.core.store(iter(records))
        assert world.core.committable() == {
            ONE: OffsetAndMetadata(9, "", 3), TWO: OffsetAndMetadata(8, "", 3)}
        world.core.store(records[0])
        assert world.core.committable()[ONE].offset == 6

    play(steps, **STORES)


@pytest.mark.parametrize("offsets, failure, match", [
    ({ONE: 6, OTHER: 6}, IllegalStateError, "u-0 is not assigned"),
    ({ONE: -1}, ValueError, "not be negative"), ({ONE: "6"}, TypeError, "is not an offset"),
    ({"t": 6}, TypeError, "is not a partition"), ([6], TypeError, "cannot be stored"),
])
def test_offsets_that_cannot_be_stored_raise_and_store_nothing(play, offsets, failure, match):
    async def steps(world):
        world.standing(p0=5)
        with pytest.raises(failure, match=match):
            world.core.store(offsets)
        assert world.core.committable() == {}

    play(steps, **STORES)


@pytest.mark.parametrize("settings, match", [
    ({"group_id": "g"}, "enable.auto.offset.store=false"),
    ({"enable_auto_offset_store": False}, "group.id"),
])
def test_offsets_are_stored_only_for_assigned_partitions(play, settings, match):
    async def steps(world):
        world.standing(p0=5)
        with pytest.raises(IllegalStateError, match=match):
            world.core.store({ONE: 5})

    play(steps, **settings)


def test_a_closed_consumer_stores_nothing(play):
    async def steps(world):
        world.core.closed = True
        with pytest.raises(ClosedError):
            world.core.store({})

    play(steps, **STORES)

"""Events that a poll handles, and how long it takes; on a virtual clock."""

import asyncio
from types import SimpleNamespace

import pytest

from pylog.client.consumer.consumer_membership import ConsumerMembership
from pylog.client.consumer.fetch_buffer import CompletedFetch
from pylog.client.consumer.offset_requests import Identity
from pylog.client.consumer.subscription_state import PartitionState
from pylog.client.errors import (
    ClosedError, KafkaConnectionError, KafkaError, KafkaTimeoutError, WakeupError, error,
)
from pylog.protocol.errors import ErrorCode
from tests.client.played_consumer import ONE, OTHER, TWO, listener, picture


def test_a_poll_attends_to_each_kind_of_news_and_to_nothing_else(play):
    async def steps(world):
        core = world.core
        assert not core.has_pending_work
        for name in ("dirty", "woken", "closed"):
            setattr(core, name, True)
            assert core.has_pending_work, name
            setattr(core, name, False)
        core._pending_work = object()
        assert core.has_pending_work
        core._pending_work = None
        member = world.joined()
        assert not core.has_pending_work
        member.has_pending_work = True
        assert core.has_pending_work

    play(steps)


def test_wakeup_ends_exactly_one_call(play):
    async def steps(world):
        world.core.woken = True
        with pytest.raises(WakeupError):
            await world.core.run_pending_work(1.0)
        await world.core.run_pending_work(1.0)

    play(steps)


def test_a_closed_consumer_attends_to_nothing(play):
    async def steps(world):
        world.core.closed = True
        with pytest.raises(ClosedError):
            await world.core.run_pending_work(1.0)

    play(steps)


def endless(world, after_s=None):
    """Position lookups take forever, or this long."""
    async def locate():
        world.asked.append("locate")
        await asyncio.sleep(10_000 if after_s is None else after_s)

    world.core._locate = locate


def test_a_poll_that_ends_early_cuts_nothing_short(play):
    async def steps(world):
        core = world.core
        endless(world, 5)
        for waited_s in (2, 4):
            await core.run_pending_work(2.0)
            assert world.clock.now_s == 1000 + waited_s and core._pending_work is not None
        await core.run_pending_work(None)
        assert world.clock.now_s == 1005 and core._pending_work is None
        assert world.asked == ["locate"] and not core.has_pending_work

    play(steps)


@pytest.mark.parametrize("news", ["records", "a wakeup"])
def test_records_and_wakeups_end_the_wait(play, news):
    async def steps(world):
        core = world.core
        endless(world)

        def come():
            if news == "records":
                core.queue.put([CompletedFetch(PartitionState(ONE, 0), b"", [], None)])
            else:
                core.woken = True
            core.notify()

        asyncio.get_running_loop().call_later(3, come)
        await core.run_pending_work(60.0)
        assert world.clock.now_s == 1003 and core._pending_work is not None
        await core._settle()

    play(steps)


def test_buffered_records_are_returned_without_waiting(play):
    async def steps(world):
        endless(world)
        world.core.queue.put([CompletedFetch(PartitionState(ONE, 0), b"", [], None)])
        await world.core.run_pending_work(60.0)
        assert world.clock.now_s == 1000
        await world.core._settle()

    play(steps)


def test_permanent_error_is_raised_once_by_the_waiting_poll(play):
    async def steps(world):
        async def locate():
            raise error(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

        core = world.core
        core._locate = locate
        with pytest.raises(KafkaError):
            await core.run_pending_work(1.0)
        assert core._pending_work is None

    play(steps)


def test_retriable_error_is_retried_after_a_pause(play):
    async def steps(world):
        failures = [KafkaConnectionError("gone"), KafkaConnectionError("gone")]

        async def locate():
            if failures:
                raise failures.pop()

        world.core._locate = locate
        await world.core.run_pending_work(60.0)
        assert not failures and 1000.15 < world.clock.now_s < 1000.3
        assert not world.core.dirty and world.pokes == 1

    play(steps)


def test_timed_out_lookup_fails_the_call_and_is_retried_by_the_next_poll(play):
    async def steps(world):
        async def locate():
            raise KafkaTimeoutError("late")

        world.core._locate = locate
        with pytest.raises(KafkaTimeoutError, match="late"):
            await world.core.run_pending_work(60.0)
        assert world.core.dirty and world.clock.now_s == 1000

    play(steps)


def test_membership_is_processed_until_no_work_is_left(play):
    async def steps(world):
        core, member = world.core, world.joined()
        core.subscription.subscribe(["t"], None, None)
        member.has_pending_work = True
        rounds = []

        async def run_pending_work():
            rounds.append(1)
            member.has_pending_work = len(rounds) < 3

        member.run_pending_work = run_pending_work
        await core.run_pending_work(60.0)
        assert len(rounds) == 3 and world.asked == []

    play(steps, group_id="g")


def test_a_rebalance_does_not_wait_for_positions_that_cannot_be_had(play):
    async def steps(world):
        core, member = world.core, world.joined()
        core.subscription.subscribe(["t"], None, None)
        endless(world)

        def call():
            member.has_pending_work = True
            core.notify()

        asyncio.get_running_loop().call_later(3, call)
        await core.run_pending_work(5.0)
        assert world.asked == ["locate", "attend", "locate"] and core._pending_work is not None
        await core._settle()
        assert core._locating is None

    play(steps, group_id="g")


def test_subscription_change_during_a_lookup_reaches_the_group_immediately(play):
    async def steps(world):
        core, member = world.core, world.joined()
        core.subscription.subscribe(["t"], None, None)
        endless(world)
        await core.run_pending_work(1.0)
        member.subscription_changed = lambda: setattr(member, "has_pending_work", True)
        await core.subscribe(["u"], None, None)
        await core.run_pending_work(1.0)
        assert world.asked == ["locate", "request refresh", "attend", "locate"]
        await core._settle()

    play(steps, group_id="g")


def test_membership_changes_during_a_poll_are_processed_in_it(play):
    async def steps(world):
        core, looks = world.core, []

        async def locate():
            looks.append(1)
            core.dirty = len(looks) < 3

        core._locate = locate
        await core.run_pending_work(60.0)
        assert len(looks) == 3

    play(steps)


@pytest.mark.parametrize("version, pattern, matched, asks", [
    (0, None, False, True), (1, None, False, False), (1, "^t", False, True),
    (1, "^t", True, False)])
def test_missing_metadata_is_requested_before_joining(
        play, version, pattern, matched, asks):
    async def steps(world):
        core = world.core
        core.cluster.metadata = picture(version=version)
        world.joined()
        core.subscription.subscribe(None if pattern else ["t"], pattern, None)
        if matched:
            core.subscription.match(core.cluster.metadata)
        await core.run_pending_work(60.0)
        assert ("refresh" in world.asked) == asks

    play(steps, group_id="g")


# Positions.

def test_positions_without_a_group_follow_the_reset_policy(play):
    async def steps(world):
        one, two = world.standing(p0=None, p1=5)
        await world.core.run_pending_work(60.0)
        assert (one.position, two.position) == (70, 5)
        assert world.asked == [("reset", [(ONE, "earliest")], 0)]

    play(steps, auto_offset_reset="earliest")


def test_committed_positions_are_used_and_others_reset(play):
    async def steps(world):
        one, two = world.standing(p0=None, p1=None)
        world.committed = {ONE: 0}
        await world.core.run_pending_work(60.0)
        assert (one.position, one.record_epoch, two.position) == (0, 4, 70)
        assert world.asked == [("committed", Identity("g"), [ONE, TWO], True),
                               ("reset", [(TWO, "latest")], 1)]

    play(steps, group_id="g", isolation_level="read_committed")


def test_seek_replaces_the_lookup_of_committed_offsets(play):
    async def steps(world):
        [one] = world.standing(p0=None)
        one.forget_position("earliest")
        world.committed = {ONE: 9}
        await world.core.run_pending_work(60.0)
        assert world.asked == [("reset", [(ONE, "earliest")], 0)]

    play(steps, group_id="g")


def test_seek_during_the_lookup_of_committed_offsets_is_kept(play):
    async def steps(world):
        [one] = world.standing(p0=None)
        world.committed = {ONE: 9}
        retry = world.core.cluster.retry

        async def seek_meanwhile(attempt):
            found = await retry(attempt)
            one.move_to(3)
            return found

        world.core.cluster.retry = seek_meanwhile
        await world.core.run_pending_work(60.0)
        assert one.position == 3

    play(steps, group_id="g")


def test_partitions_that_go_are_not_located(play):
    async def steps(world):
        one, two = world.standing(p0=None, p1=5)
        one.revoking = two.revoking = True
        two.validate = 3
        await world.core.run_pending_work(60.0)
        assert world.asked == [] and world.pokes == 1

    play(steps, group_id="g")


def test_position_is_validated_against_a_new_leaders_log(play):
    async def steps(world):
        one, two, three = world.standing(p0=5, p1=5, p2=None)
        one.validate = three.validate = 0
        world.before_reset = lambda states: setattr(three, "validate", -1)
        await world.core.run_pending_work(60.0)
        assert world.asked[-1] == ("validate", [ONE])

    play(steps)


def test_member_of_the_new_protocol_reports_its_id_once_it_has_joined(play):
    async def steps(world):
        core = world.core
        core.membership = member = ConsumerMembership(core, "g")
        member.member_id = "m"
        assert core._reader() == Identity("g")
        for generation, expected in ((0, Identity("g")), (1, Identity("g", "m", 1))):
            member.generation = generation
            assert core._reader() == expected

    play(steps, group_id="g", group_protocol="consumer")


@pytest.mark.parametrize("record_epoch, epoch, checked, validate, checks", [
    (2, 3, -1, -1, True), (0, 1, -1, -1, True), (3, 3, -1, -1, False), (3, 2, -1, -1, False),
    (-1, 3, -1, -1, False), (2, 3, 3, -1, False), (2, 4, 3, -1, True), (2, 3, -1, 3, False),
    (2, 3, -1, 0, False)])
def test_position_is_validated_once_with_a_new_leader(
        play, record_epoch, epoch, checked, validate, checks):
    async def steps(world):
        core = world.core
        [one] = world.standing(p0=5)
        one.record_epoch, one.checked_epoch, one.validate = record_epoch, checked, validate
        core._metadata_changed(picture(epoch))
        assert core.dirty == checks
        assert one.validate == (epoch if checks else validate)
        assert one.checked_epoch == (epoch if checks else checked)
        assert world.pokes == 1 and world.notices == 1

    play(steps)


def test_a_partition_that_the_picture_lacks_or_has_no_position_is_not_checked(play):
    async def steps(world):
        one, two = world.standing(p0=None, p1=5)
        one.record_epoch = two.record_epoch = 0
        world.core._metadata_changed(picture(7, partitions=1))
        assert not world.core.dirty and one.validate == two.validate == -1

    play(steps)


def test_member_is_notified_of_topics_and_new_pattern_matches(play):
    async def steps(world):
        core = world.core
        core.subscription.subscribe(None, "^t", None)
        core._metadata_changed(picture(topics=["t"]))
        world.joined()
        core._metadata_changed(picture(topics=["t"]))
        assert world.asked == ["metadata changed"]
        core._metadata_changed(picture(topics=["t", "t2"]))
        assert world.asked[1:] == ["subscription changed", "metadata changed"]

    play(steps, group_id="g")


def test_a_started_consumer_watches_the_metadata(play):
    async def steps(world):
        core = await world.core.start()
        assert core is world.core and world.asked == ["start"]
        core.cluster._show(picture())
        assert world.pokes == 1 and world.notices == 1

    play(steps)


# Errors of a fetch.

def failed(state, failure):
    item = CompletedFetch(state, b"", [], None, failure)
    state.error = failure
    return item


def test_out_of_range_offset_is_reset_by_the_setting(play):
    async def steps(world):
        [one] = world.standing(p0=5)
        world.core._failed(failed(one, error(ErrorCode.OFFSET_OUT_OF_RANGE)))
        assert (one.position, one.reset, one.error) == (None, "earliest", None)
        assert world.core.dirty and world.notices == 1

    play(steps, auto_offset_reset="earliest")


@pytest.mark.parametrize("policy, failure", [
    ("none", error(ErrorCode.OFFSET_OUT_OF_RANGE)), ("latest", RuntimeError("a fault")),
    ("latest", error(ErrorCode.TOPIC_AUTHORIZATION_FAILED))])
def test_fetch_errors_are_raised_and_reading_continues(play, policy, failure):
    async def steps(world):
        [one] = world.standing(p0=5)
        with pytest.raises(type(failure)) as raised:
            world.core._failed(failed(one, failure))
        assert raised.value is failure and (one.position, one.error) == (5, None)
        assert not world.core.dirty
        await asyncio.sleep(0)
        assert world.pokes == 1

    play(steps, auto_offset_reset=policy)


# Callbacks.

@pytest.mark.parametrize("what, has, called", [
    ("assigned", ["assigned"], "assigned"), ("revoked", ["revoked"], "revoked"),
    ("lost", ["lost", "revoked"], "lost"), ("lost", ["revoked"], "revoked"),
    ("lost", ["assigned"], None), ("revoked", ["lost"], None), ("assigned", ["revoked"], None)])
def test_listener_callback_matches_the_event(play, what, has, called):
    async def steps(world):
        calls, core = [], world.core
        core.subscription.listener = listener(calls, *has)
        await core.call_listener(what, [ONE])
        assert calls == ([(called, [ONE])] if called else []) and not core._in_callback
        assert core.metrics()["consumer-coordinator-metrics"]["rebalance-total"] == (
            what == "assigned")

    play(steps, group_id="g")


def test_failed_listener_is_not_running_any_more(play):
    async def steps(world):
        core, seen = world.core, []

        def fails(given):
            seen.append(core._in_callback)
            raise ValueError

        core.subscription.listener = SimpleNamespace(on_partitions_assigned=fails)
        with pytest.raises(ValueError):
            await core.call_listener("assigned", [OTHER])
        assert seen == [True] and not core._in_callback

    play(steps, group_id="g")


def test_failed_position_lookup_is_retried_by_the_next_poll(play):
    async def steps(world):
        core, failures = world.core, [KafkaError("no right to this topic")]
        [one] = world.standing(p0=None)
        one.reset = "earliest"

        def fails(states):
            if failures:
                raise failures.pop()

        world.before_reset = fails
        core.dirty = True
        with pytest.raises(KafkaError, match="no right"):
            await core.run_pending_work(1.0)
        assert core.has_pending_work
        await core.run_pending_work(1.0)
        assert one.position == 70

    play(steps)


def test_error_of_several_partitions_is_raised_once_and_all_are_refetched(play):
    async def steps(world):
        core, failure = world.core, KafkaError("refused")
        one, two = world.standing(p0=5, p1=5)
        one.error = two.error = failure
        items = [CompletedFetch(state, b"", [], None, failure) for state in (one, two)]
        with pytest.raises(KafkaError, match="refused"):
            core._failed(items[0])
        assert one.error is None and two.error is None
        core._failed(items[1])

    play(steps)

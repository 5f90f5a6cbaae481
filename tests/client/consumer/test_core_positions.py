"""A consumer's assignment, positions and lag; without a broker."""

import asyncio

import pytest

from pylog.client.consumer.classic_membership import ClassicMembership
from pylog.client.consumer.consumer_membership import ConsumerMembership
from pylog.client.consumer.fetch_buffer import CompletedFetch
from pylog.client.errors import IllegalStateError, KafkaTimeoutError
from pylog.client.types import EARLIEST, LATEST
from tests.client.played_consumer import ONE, OTHER, TWO, picture


def consumer_part(world, name):
    return world.core.metrics()[name]


# Subscriptions.

@pytest.mark.parametrize("protocol, kind", [
    ("classic", ClassicMembership), ("consumer", ConsumerMembership)])
def test_subscription_creates_a_member_of_the_configured_protocol(play, protocol, kind):
    async def steps(world):
        core = world.core
        await core.subscribe(["t"], None, "listener")
        assert type(core.membership) is kind and core.membership.group == "g"
        assert core.cluster.interest == {"t"} and not core.cluster.wants_all_topics
        assert core.dirty and core.subscription.listener == "listener"

    play(steps, group_id="g", group_protocol=protocol)


def test_pattern_requests_all_topics_and_matches_the_known_ones(play):
    async def steps(world):
        core = world.core
        await core.subscribe(None, "^t", None)
        assert core.cluster.wants_all_topics and core.subscription.topics == {"t"}
        assert world.asked == ["request refresh"] and core.cluster.interest == set()
        await core.subscribe(["u"], None, None)
        assert not core.cluster.wants_all_topics and core.cluster.interest == {"u"}

    play(steps, group_id="g")


def test_new_subscription_keeps_the_member_and_rejoins_with_the_new_topics(play):
    async def steps(world):
        member = world.joined()
        await world.core.subscribe(["t"], None, None)
        assert world.core.membership is member and "subscription changed" in world.asked

    play(steps, group_id="g")


def test_unsubscribe_leaves_the_group_and_clears_the_assignment(play):
    async def steps(world):
        core = world.core
        world.joined()
        core._pending_work = task = asyncio.create_task(asyncio.sleep(1000))
        core.subscription.subscribe(None, "^t", None)
        core.subscription.add([ONE])
        core.cluster.wants_all_topics = True
        await core.unsubscribe()
        assert task.cancelled() and core._pending_work is None and core.membership is None
        assert world.asked == [("take", [ONE]), "end"] and world.pokes == 1
        assert not core.subscription.states and not core.cluster.wants_all_topics
        await core.assign([TWO])
        await core.unsubscribe()
        assert not core.subscription.states

    play(steps, group_id="g")


def test_manually_assigned_partitions_are_looked_up_and_fetched(play):
    async def steps(world):
        core = world.core
        await core.assign([ONE, OTHER])
        assert core.dirty and world.pokes == 1 and core.cluster.interest == {"t", "u"}

    play(steps)


# Positions.

def test_seek_requires_a_non_negative_offset(play):
    async def steps(world):
        [one] = world.standing(p0=5)
        await world.core.seek(ONE, 0)
        assert one.position == 0 and world.pokes == 1
        with pytest.raises(ValueError, match="not be negative"):
            await world.core.seek(ONE, -1)
        with pytest.raises(IllegalStateError, match="t-1 is not assigned"):
            await world.core.seek(TWO, 0)
        assert one.position == 0

    play(steps)


@pytest.mark.parametrize("named, expected", [([TWO], [None, "latest"]), ([], ["latest"] * 2)])
def test_seek_to_end_covers_given_or_all_partitions(play, named, expected):
    async def steps(world):
        states = world.standing(p0=5, p1=5)
        await world.core.seek_to(named, "latest")
        assert [state.reset for state in states] == expected and world.core.dirty

    play(steps)


def test_paused_records_are_kept_and_returned_after_resume(play):
    async def steps(world):
        core = world.core
        one, two = world.standing(p0=5, p1=5)
        core.queue.put([CompletedFetch(state, b"", [], None, KafkaTimeoutError())
                        for state in (one, two)])
        await core.set_paused([ONE], True)
        assert core.queue.head().state is two and one.paused and not two.paused
        await core.set_paused([ONE], False)
        assert core.queue.head().state is one and not one.paused
        assert world.pokes == 2 and world.notices == 2

    play(steps)


def test_a_position_is_awaited(play):
    async def steps(world):
        one, two = world.standing(p0=None, p1=5)
        assert await world.core.position(TWO, 0) == 5
        assert world.asked == []
        assert await world.core.position(ONE, 60) == 70

    play(steps)


@pytest.mark.parametrize("given_s, waited_s", [(0.5, 0.5), (3.0, 3.0), (None, 7.0)])
def test_unanswered_position_lookup_times_out(play, given_s, waited_s):
    async def steps(world):
        async def never():
            await asyncio.sleep(1000)

        world.core._locate = never
        world.standing(p0=None)
        with pytest.raises(KafkaTimeoutError, match="the position of t-0 is not known"):
            await world.core.position(ONE, given_s)
        assert waited_s <= world.clock.now_s - 1000 < waited_s + 0.01
        await world.core._settle()

    play(steps, default_api_timeout_ms=7000)


def test_position_query_in_a_callback_does_not_deadlock(play):
    async def steps(world):
        core = world.core
        world.standing(p0=None)
        core._in_callback = True
        core._pending_work = asyncio.create_task(asyncio.sleep(1000))
        assert await core.position(ONE, 60) == 70 and world.clock.now_s == 1000
        await core._settle()

    play(steps)


def test_offsets_for_times_use_the_consumers_isolation_level(play):
    async def steps(world):
        world.ends = {ONE: 8}
        await world.core.list_offsets({("t", 0): 77}, 5.0)
        assert await world.core.boundary_offsets([ONE, TWO], LATEST, None) == {ONE: 8, TWO: 0}
        assert await world.core.boundary_offsets([ONE], EARLIEST, None) == {ONE: 8}
        assert world.asked == [("list", {ONE: 77}, 1, 5.0),
                               ("list", {ONE: LATEST, TWO: LATEST}, 1, None),
                               ("list", {ONE: EARLIEST}, 1, None)]

    play(steps, isolation_level="read_committed")


@pytest.mark.parametrize("level, expected", [("read_uncommitted", 7), ("read_committed", 3)])
def test_lag_counts_up_to_the_readable_end(play, level, expected):
    async def steps(world):
        [one] = world.standing(p0=5)
        one.high_watermark, one.last_stable_offset = 12, 8
        assert await world.core.lag([ONE], None) == {ONE: expected}
        one.position = 13
        assert await world.core.lag([], None) == {ONE: 0}
        assert world.asked == []

    play(steps, isolation_level=level)


def test_unknown_lag_is_looked_up(play):
    async def steps(world):
        one, two, three, four = world.standing(p0=5, p1=5, p2=None, p3=0)
        one.high_watermark = three.high_watermark = 9
        four.high_watermark = 0
        world.ends = {TWO: 6, three.tp: 75}
        assert await world.core.lag([], 9.0) == {ONE: 4, TWO: 1, three.tp: 5, four.tp: 0}
        assert ("list", {TWO: LATEST, three.tp: LATEST}, 0, 9.0) in world.asked
        world.ends = {TWO: 2}
        assert await world.core.lag([TWO], 9.0) == {TWO: 0}

    play(steps)


# Reported totals.

def test_totals_contain_the_consumers_lag(play):
    async def steps(world):
        lag = "consumer-fetch-manager-metrics"
        assert [consumer_part(world, lag)[name] for name in ("records-lag-max", "records-lag")] \
            == [-1, 0]
        one, two, three, four = world.standing(p0=5, p1=5, p2=None, p3=5)
        four.high_watermark = 0
        assert consumer_part(world, lag)["records-lag-max"] == 0
        four.high_watermark = -1
        one.high_watermark, two.high_watermark, three.high_watermark = 9, 8, 100
        assert [consumer_part(world, lag)[name] for name in ("records-lag-max", "records-lag")] \
            == [4, 7]
        one.high_watermark, two.high_watermark, four.high_watermark = 0, 3, 4
        assert [consumer_part(world, lag)[name] for name in ("records-lag-max", "records-lag")] \
            == [0, 0]
        group = consumer_part(world, "consumer-coordinator-metrics")
        assert group == {"assigned-partitions": 4, "rebalance-total": 0, "commit-total": 0}

    play(steps)


def test_the_room_for_fetched_records_is_as_set(play):
    async def steps(world):
        queue = world.core.queue
        assert (queue.bytes_max, queue.read_committed, queue.check_crc) == (3072, True, False)

    play(steps, queued_max_messages_kbytes=3, isolation_level="read_committed", check_crcs=False)


@pytest.mark.parametrize("excludes, expected", [
    (True, {"t": [0, 1]}), (False, {"t": [0, 1], "in": [0, 1]})])
def test_topics_are_listed_all_of_them_once(play, excludes, expected):
    async def steps(world):
        core = world.core
        core.cluster.metadata = picture(topics=["t", "in"], internal=["in"])

        async def every_topic():
            return core.cluster.metadata

        core.cluster.every_topic = every_topic
        assert await core.list_topics(None) == expected
        assert await core.partitions_for("t", None) == [0, 1]

    play(steps, exclude_internal_topics=excludes)

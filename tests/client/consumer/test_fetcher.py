"""Fetch requests: partitions, timing and sessions, with simulated brokers."""

import asyncio

import pytest

from pylog.client.consumer.fetch_buffer import CompletedFetch
from pylog.client.errors import KafkaError
from pylog.protocol.errors import ErrorCode
from tests.client.played_consumer import ONE, OTHER, TWO, picture
from tests.client.played_fetches import forgotten, named, records, row


def test_fetch_contains_positions_and_limits(fetch):
    async def steps(world):
        world.assigned(ONE, TWO)
        request = await world.fetching()
        it = request.it
        assert (request.node, request.version, it.replica_id, it.max_wait_ms, it.min_bytes,
                it.max_bytes, it.isolation_level, it.rack_id) == (1, 16, -1, 40, 3, 900, 1, "r")
        assert (it.session_id, it.session_epoch, it.forgotten_topics_data) == (0, 0, [])
        [topic] = it.topics
        assert (topic.topic, topic.topic_id) == ("t", b"t" * 16)
        assert [(part.partition, part.fetch_offset, part.current_leader_epoch,
                 part.partition_max_bytes) for part in topic.partitions] == [
            (0, 7, 5, 800), (1, 7, 5, 800)]
        assert world.connections == [(1, "fetch")] and len(world.requests) == 1

    fetch(steps, fetch_max_wait_ms=40, fetch_min_bytes=3, fetch_max_bytes=900, client_rack="r",
          max_partition_fetch_bytes=800, isolation_level="read_committed")


@pytest.mark.parametrize("request_ms, wait_ms, expected", [
    (30_000, 500, 30.0), (1000, 500, 5.5), (1000, 60_000, 65.0)])
def test_an_answer_has_the_time_that_the_broker_may_wait_and_some_more(
        fetch, request_ms, wait_ms, expected):
    async def steps(world):
        world.assigned(ONE)
        assert (await world.fetching()).timeout_s == expected

    fetch(steps, request_timeout_ms=request_ms, fetch_max_wait_ms=wait_ms)


def test_fetches_are_limited_by_buffer_space(fetch):
    async def steps(world):
        world.assigned(ONE)
        item = CompletedFetch(world.subscription.states[ONE], b"x" * 999, [], None)
        world.queue.put([item])
        assert (await world.fetching()).it.max_bytes == 1
        full = CompletedFetch(world.subscription.states[ONE], b"x", [], None)
        world.queue.put([full])
        await world.answered()
        assert len(world.requests) == 1 and world.fetcher.starved
        world.queue.done(item)
        assert (await world.fetching()).it.max_bytes == 999
        assert not world.fetcher.starved

    fetch(steps)


@pytest.mark.parametrize("change", [
    {"position": None}, {"paused": True}, {"revoking": True}, {"error": KafkaError()},
    {"validate": 0}])
def test_unreadable_partition_is_excluded_from_fetches(fetch, change):
    async def steps(world):
        one, _ = world.assigned(ONE, TWO)
        [(name, value)] = change.items()
        setattr(one, name, value)
        assert named(await world.fetching()) == [("t", 1, 7)]

    fetch(steps)


def test_no_fetch_is_sent_until_a_partition_is_wanted(fetch):
    async def steps(world):
        [one] = world.assigned(ONE)
        one.paused = True
        assert await world.fetching() is None
        await asyncio.sleep(60)
        assert not world.requests
        one.paused = False
        assert named(await world.fetching()) == [("t", 0, 7)]

    fetch(steps)


def test_partition_without_a_leader_triggers_a_metadata_request(fetch):
    async def steps(world):
        world.assigned(ONE, OTHER)
        world.metadata = picture(topics=["t"])
        assert named(await world.fetching()) == [("t", 0, 7)]
        assert world.refreshes == 1 and list(world.fetcher.nodes) == [1]

    fetch(steps)


def test_each_broker_is_fetched_for_its_led_partitions(fetch):
    async def steps(world):
        one, two = world.assigned(ONE, TWO)
        two.preferred, two.preferred_until_s = 2, 5000.0
        await world.fetching()
        assert [(request.node, named(request)) for request in world.requests] == [
            (1, [("t", 0, 7)]), (2, [("t", 1, 7)])]
        two.preferred = 9
        await world.fetching()
        assert len(world.requests) == 2 and two.preferred == -1

    fetch(steps)


# Sessions.

def test_session_fetch_names_only_changes(fetch):
    async def steps(world):
        one, two, _ = world.assigned(ONE, TWO, OTHER)
        await world.fetching()
        second = await world.answered(row(ONE, records(7)), session=9)
        assert (second.it.session_id, second.it.session_epoch) == (9, 1)
        assert named(second) == [("t", 0, 10)] and forgotten(second) == []
        third = await world.answered(session=9)
        assert (third.it.session_epoch, named(third)) == (2, [])
        world.subscription.drop([TWO])
        one.paused = True
        fourth = await world.answered(session=9)
        assert named(fourth) == [] and forgotten(fourth) == [("t", [0, 1])]
        [topic] = fourth.it.forgotten_topics_data
        assert topic.topic_id == b"t" * 16
        one.paused = False
        fifth = await world.answered(session=9)
        assert named(fifth) == [("t", 0, 10)] and forgotten(fifth) == []

    fetch(steps)


def test_new_leader_epoch_is_sent_within_a_session(fetch):
    async def steps(world):
        world.assigned(ONE)
        await world.fetching()
        world.metadata = picture(epoch=6)
        request = await world.answered(session=9)
        assert request.it.topics[0].partitions[0].current_leader_epoch == 6

    fetch(steps)


@pytest.mark.parametrize("epoch, following", [(2**31 - 2, 2**31 - 1), (2**31 - 1, 1)])
def test_fetch_session_epoch_wraps_around(fetch, epoch, following):
    async def steps(world):
        world.assigned(ONE)
        await world.fetching()
        await world.answered(session=9)
        world.fetcher.nodes[1].session.epoch = epoch
        request = await world.answered(session=9)
        assert (request.it.session_id, request.it.session_epoch) == (9, following)

    fetch(steps)


def test_broker_without_sessions_gets_complete_requests(fetch):
    async def steps(world):
        world.assigned(ONE, TWO)
        await world.fetching()
        world.subscription.drop([TWO])
        second = await world.answered(session=0)
        assert (second.it.session_id, second.it.session_epoch) == (0, 0)
        assert named(second) == [("t", 0, 7)] and forgotten(second) == []
        third = await world.answered(session=0)
        assert named(third) == [("t", 0, 7)]

    fetch(steps)


@pytest.mark.parametrize("code", [
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR])
def test_lost_session_restarts_at_once(fetch, code):
    async def steps(world):
        [one] = world.assigned(ONE)
        await world.fetching()
        await world.answered(session=9)
        request = await world.answered(session=9, code=code)
        assert (request.it.session_id, request.it.session_epoch, request.at_s) == (0, 0, 0)
        assert named(request) == [("t", 0, 7)] and one.error is None
        assert world.pool.given_back == 2 and world.refreshes == 0

    fetch(steps)


@pytest.mark.parametrize("version, epoch, sent", [
    (6, -1, 6), (7, 0, 7), (12, 0, 12), (13, 0, 13), (16, 0, 16)])
def test_old_broker_is_fetched_without_sessions(fetch, version, epoch, sent):
    async def steps(world):
        world.assigned(ONE)
        world.version = version
        request = await world.fetching()
        assert (request.version, request.it.session_epoch) == (sent, epoch)
        request = await world.answered(row(ONE, records(7)), session=9 if version > 6 else 0)
        assert request.it.session_epoch == (1 if version > 6 else -1)
        assert named(request) == [("t", 0, 10)] and len(world.queue.items) == 1

    fetch(steps)


def test_topic_without_an_id_is_fetched_by_name_in_a_separate_session(fetch):
    async def steps(world):
        world.assigned(ONE)
        await world.fetching()
        await world.answered(session=9)
        known, world.metadata = world.metadata, picture(epoch=5)
        world.metadata.topics["t"] = known.topics["t"]._replace(id=bytes(16))
        request = await world.answered(session=9)
        assert (request.version, request.it.session_epoch) == (12, 0)
        request = await world.answered(row(ONE, records(7)), session=8)
        assert (request.it.session_id, request.it.session_epoch) == (8, 1)
        world.metadata = known
        request = await world.answered(session=8)
        assert (request.version, request.it.session_id, request.it.session_epoch) == (16, 0, 0)

    fetch(steps)

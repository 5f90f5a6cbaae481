"""Handling of fetch responses and failures, with simulated brokers."""

import asyncio
from dataclasses import replace

import pytest

from pylog.client.errors import KafkaConnectionError, KafkaError
from pylog.client.network.connection import Frame
from pylog.protocol.errors import ErrorCode, ProtocolError
from tests.client.played_consumer import ONE, OTHER, TWO
from tests.client.played_fetches import RESPONSE, named, records, row


@pytest.mark.parametrize("failure, told", [
    (KafkaConnectionError("gone"), False), (ProtocolError("odd"), False),
    (KafkaError("refused"), True)])
def test_failed_fetch_is_followed_by_backoff_and_a_new_session(fetch, failure, told):
    async def steps(world):
        one, two = world.assigned(ONE, TWO)
        await world.fetching()
        await world.answered(session=9)
        world.requests[-1].future.set_exception(failure)
        await asyncio.sleep(0.07)
        assert len(world.requests) == 2 and world.refreshes == 1
        assert (one.error, two.error) == ((failure, failure) if told else (None, None))
        assert [item.error for item in world.queue.items] == [failure] * 2 * told
        assert world.arrivals == told
        one.error = two.error = None
        await asyncio.sleep(0.06)
        request = await world.fetching()
        assert len(world.requests) == 3 and request.it.session_epoch == 0

    fetch(steps)


def test_backoff_resets_after_a_response(fetch):
    async def steps(world):
        world.assigned(ONE)
        await world.fetching()
        for _ in range(4):
            count = len(world.requests)
            world.requests[-1].future.set_exception(KafkaConnectionError("gone"))
            await asyncio.sleep(100)
            assert len(world.requests) == count + 1
        await world.answered()
        began_s = world.clock.now_s
        world.requests[-1].future.set_exception(KafkaConnectionError("gone"))
        count = len(world.requests)
        await asyncio.sleep(0.13)
        assert len(world.requests) == count + 1 and world.clock.now_s < began_s + 0.2

    fetch(steps, retry_backoff_max_ms=60_000)


def test_rejection_of_a_whole_fetch_is_raised(fetch):
    async def steps(world):
        [one] = world.assigned(ONE)
        await world.fetching()
        await world.answered(code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        assert "fetch from broker 1" in str(one.error) and world.pool.given_back == 1

    fetch(steps)


def test_unreadable_response_releases_its_buffer(fetch):
    async def steps(world):
        world.assigned(ONE)
        request = await world.fetching()
        frame = Frame(bytearray(3), 3, world.pool)
        frame.version = request.version
        request.future.set_result(frame)
        await world.soon()
        assert world.pool.given_back == 1 and world.refreshes == 1

    fetch(steps)


def test_invalid_request_error_is_reported_for_every_partition(fetch):
    async def steps(world):
        one, two = world.assigned(ONE, OTHER)
        one.paused = True
        await world.fetching()
        fault = RuntimeError("a fault")
        world.requests[-1].future.set_exception(fault)
        await world.soon()
        assert one.error is fault and two.error is fault and world.arrivals == 1
        assert [item.error for item in world.queue.items] == [fault] * 2
        one.error = two.error = None
        assert (await world.fetching()).at_s == 0 and len(world.requests) == 2

    fetch(steps)


# Responses.

def test_next_fetch_starts_after_queued_records(fetch):
    async def steps(world):
        one, two = world.assigned(ONE, OTHER)
        await world.fetching()
        request = await world.answered(
            row(ONE, records(7), high_watermark=20, last_stable_offset=15, log_start_offset=2,
                aborted_transactions=[RESPONSE.AbortedTransaction(producer_id=3, first_offset=8)]),
            row(OTHER, records(7, 5)))
        assert named(request) == [("t", 0, 10), ("u", 0, 12)]
        assert (one.high_watermark, one.last_stable_offset, one.log_start_offset) == (20, 15, 2)
        first, second = world.queue.items
        assert (first.state, first.start, first.aborted, first.error) == (one, 7, [(3, 8)], None)
        assert second.state is two and world.arrivals == 1
        world.queue.done(first)
        assert world.pool.given_back == 0
        world.queue.done(second)
        assert world.pool.given_back == 1

    fetch(steps)


@pytest.mark.parametrize("data", [b"", records(7)[:50]])
def test_response_without_a_whole_batch_is_released(fetch, data):
    async def steps(world):
        [one] = world.assigned(ONE)
        await world.fetching()
        request = await world.answered(row(ONE, data, high_watermark=7))
        assert named(request) == [("t", 0, 7)] and one.high_watermark == 7
        assert world.pool.given_back == 1 and world.arrivals == 0 and not world.queue.items

    fetch(steps)


def test_records_from_before_the_position_do_not_lead_back(fetch):
    async def steps(world):
        world.assigned(ONE)
        await world.fetching()
        assert named(await world.answered(row(ONE, records(2)))) == [("t", 0, 7)]

    fetch(steps)


def test_unrequested_and_outdated_responses_are_ignored(fetch):
    async def steps(world):
        one, two = world.assigned(ONE, TWO)
        await world.fetching()
        one.move_to(3)
        request = await world.answered(
            row(ONE, records(7), high_watermark=20), row(OTHER, records(7)), row(TWO, records(7)))
        assert named(request) == [("t", 0, 3), ("t", 1, 10)] and one.high_watermark == -1
        assert [item.state for item in world.queue.items] == [two]

    fetch(steps)


@pytest.mark.parametrize("code, refreshes", [
    (ErrorCode.NOT_LEADER_OR_FOLLOWER, 1), (ErrorCode.OFFSET_NOT_AVAILABLE, 0)])
def test_retriable_fetch_error_is_retried_after_a_pause(fetch, code, refreshes):
    async def steps(world):
        [one] = world.assigned(ONE)
        await world.fetching()
        await world.answered(row(ONE, code=code, leader=(2, 6)))
        assert world.learnt == [("t", 0, 2, 6)] and world.refreshes == refreshes
        assert one.error is None and not world.queue.items and len(world.requests) == 1
        await asyncio.sleep(0.11)
        assert [request.at_s for request in world.requests] == [0, 0.1]

    fetch(steps)


def test_other_partitions_are_fetched_during_one_partitions_backoff(fetch):
    async def steps(world):
        one, two, three = world.assigned(ONE, TWO, OTHER)
        one.not_before_s, two.not_before_s, three.not_before_s = 1000.5, 1000.2, 1000.9
        assert await world.fetching() is None
        await asyncio.sleep(0.19)
        assert not world.requests
        await asyncio.sleep(0.02)
        assert named(world.requests[0]) == [("t", 1, 7)]
        await asyncio.sleep(0.3)
        assert named(await world.answered()) == [("t", 0, 7), ("t", 1, 7)]

    fetch(steps)


@pytest.mark.parametrize("code", [
    ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CORRUPT_MESSAGE])
def test_errors_are_raised_after_earlier_fetched_records(fetch, code):
    async def steps(world):
        one, two = world.assigned(ONE, OTHER)
        await world.fetching()
        await world.answered(row(ONE, records(7)))
        request = await world.answered(row(ONE, code=code), row(OTHER, records(7)))
        assert [(item.state, item.error and item.error.code) for item in world.queue.items] == [
            (one, None), (one, code), (two, None)]
        assert one.error.code == code and "t-0" in str(one.error)
        assert named(request) == [("u", 0, 10)] and not world.learnt and not world.refreshes

    fetch(steps)


def test_recreated_topic_is_an_error_after_its_old_records(fetch):
    async def steps(world):
        one, two = world.assigned(ONE, OTHER)
        await world.fetching()
        again = world.metadata.topics["t"]._replace(id=b"n" * 16)
        world.metadata = replace(world.metadata, topics={**world.metadata.topics, "t": again})
        await world.answered(row(ONE, records(7)), row(OTHER, records(7)))
        assert [(item.state, item.error and item.error.code) for item in world.queue.items] == [
            (one, None), (two, None), (one, ErrorCode.OFFSET_OUT_OF_RANGE)]
        assert named(await world.soon()) == [("u", 0, 10)]
        one.move_to(3)  # A new position belongs to the new topic.
        await world.answered()
        assert ("t", 0, 3) in named(await world.fetching())

    fetch(steps)


def test_lagging_replica_is_replaced_by_the_leader(fetch):
    async def steps(world):
        [one] = world.assigned(ONE)
        one.preferred, one.preferred_until_s = 2, 5000.0
        await world.fetching()
        await world.answered(row(ONE, code=ErrorCode.OFFSET_OUT_OF_RANGE))
        await asyncio.sleep(0.11)
        assert [request.node for request in world.requests] == [2, 1]
        assert one.error is None and not world.queue.items

    fetch(steps)

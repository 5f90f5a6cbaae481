"""A leader's requests to the controller for its partitions; logs and channel are simulated."""

import asyncio
import types

import pytest

from pylog._native.log.log import LogDeleted
from pylog.metadata.image.image import Broker, Image, Partition, Topic
from pylog.peer.errors import PeerError
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode
from pylog.replication.leadership import Leadership

ID = bytes(15) + b"\7"
SETTINGS = {"replica.lag.time.max.ms": 10_000}
SECOND = 10**9


class Log:
    """The part of a log that its leadership uses."""

    end_offset, high_watermark = 100, 90

    def __init__(self):
        self.told: list = []
        self.known = {2: (12, 95, 0)}

    def set_replicas(self, partition_epoch, self_id, replicas, in_sync_count, *, ineligible=()):
        self.told.append((partition_epoch, [row[0] for row in replicas if row[3]], in_sync_count))

    def followers(self):
        return [(id_, epoch, end, 0, caught, caught)
                for id_, (epoch, end, caught) in self.known.items()]

    def end_for_epoch(self, epoch):
        return epoch, 80


class Channel:
    """Responds with the result of `decide` for each request."""

    broker_epoch = 11

    def __init__(self, decide):
        self.decide = decide
        self.asked: list = []
        self.beats = 0

    async def call(self, request):
        self.asked.append(request)
        await asyncio.sleep(0)
        return self.decide(request)

    def send_heartbeats(self):
        self.beats += 1


def accept(request):
    new = messages.AlterPartitionResponse
    return new(topics=[new.TopicData(topic_id=topic.topic_id, partitions=[
        new.PartitionData(
            partition_index=row.partition_index, leader_epoch=row.leader_epoch,
            isr=[member.broker_id for member in row.new_isr_with_epochs],
            partition_epoch=row.partition_epoch + 1) for row in topic.partitions])
        for topic in request.topics])


def refuse(error, top=False):
    def decide(request):
        answer = accept(request)
        if top:
            return messages.AlterPartitionResponse(error_code=error)
        for topic in answer.topics:
            for row in topic.partitions:
                row.error_code = error
        return answer

    return decide


def image(fenced=()) -> Image:
    return Image(brokers={id_: Broker(id_, 10 + id_, b"", (), (), None, id_ in fenced, False, ())
                          for id_ in (1, 2, 3)})


def topic(count=1, isr=(1,), partition_epoch=0) -> Topic:
    return Topic("t", ID, (Partition((1, 2), tuple(isr), 1, 3, partition_epoch, 0, (), (), (), (),
                                     ()),) * count)


def run(decide, use, count=1, isr=(1,)):
    """Run use(leadership, channel, logs) as leader of one topic's partitions; return the channel.
    """
    async def go():
        channel = Channel(decide)
        clock = types.SimpleNamespace(ns=0)
        leadership = Leadership(1, channel, SETTINGS, lambda: clock.ns)
        leadership.take_brokers(image())
        logs = [Log() for _ in range(count)]
        for index, partition_log in enumerate(logs):
            leadership.lead(topic(count, isr), index, partition_log)
        await use(leadership, channel, logs, clock)
        await leadership.close()
        return channel

    return asyncio.run(go())


async def settle():
    for _ in range(20):
        await asyncio.sleep(0)


def test_isr_joins_of_one_tick_are_one_request():
    async def use(leadership, channel, logs, clock):
        for index in range(5):
            leadership.may_join(ID, index, 2)
        await settle()
        assert all(partition_log.told[-1] == (1, [1, 2], 2) for partition_log in logs)

    channel = run(accept, use, 5)
    request, = channel.asked
    assert (request.broker_id, request.broker_epoch) == (1, 11)
    assert [row.partition_index for row in request.topics[0].partitions] == [0, 1, 2, 3, 4]


def test_log_waits_for_a_proposed_isr_member():
    async def use(leadership, channel, logs, clock):
        leadership.may_join(ID, 0, 2)
        assert not channel.asked
        assert logs[0].told[-1] == (0, [1, 2], 1)
        await settle()

    run(accept, use)


def test_lagging_follower_is_removed_from_the_isr():
    async def use(leadership, channel, logs, clock):
        assert leadership.under_replicated == 0
        clock.ns = 11 * SECOND
        leadership.tick()
        await settle()
        assert logs[0].told[-1] == (1, [1], 1)
        assert (leadership.shrinks, leadership.under_replicated) == (1, 1)

    run(accept, use, isr=(1, 2))


def test_tick_skips_partitions_with_caught_up_followers():
    async def use(leadership, channel, logs, clock):
        logs[0].known = {2: (12, Log.end_offset, 0)}
        logs[0].end_for_epoch = None  # A detailed check would call it.
        clock.ns = 11 * SECOND
        leadership.tick()
        await settle()
        assert not channel.asked

    run(accept, use, isr=(1, 2))


def test_replica_caught_up_before_unfencing_joins_at_once():
    async def use(leadership, channel, logs, clock):
        leadership.take_brokers(image(fenced=(2,)))
        logs[0].known = {2: (12, Log.end_offset, 0)}
        leadership.may_join(ID, 0, 2)
        leadership.tick()
        await settle()
        assert not channel.asked
        leadership.take_brokers(image())
        await settle()
        assert logs[0].told[-1] == (1, [1, 2], 2)

    run(accept, use)


def test_tick_adds_replicas_that_caught_up_unnoticed():
    async def use(leadership, channel, logs, clock):
        logs[0].known = {2: (12, Log.end_offset, 0)}
        leadership.tick()
        await settle()
        assert logs[0].told[-1] == (1, [1, 2], 2)

    run(accept, use)


@pytest.mark.parametrize(("decide", "asked"), [
    (refuse(ErrorCode.INVALID_UPDATE_VERSION), 1), (refuse(ErrorCode.INELIGIBLE_REPLICA), 1)])
def test_rejected_proposal_is_not_repeated_by_itself(decide, asked):
    async def use(leadership, channel, logs, clock):
        leadership.may_join(ID, 0, 2)
        await asyncio.sleep(0.25)
        leadership.may_join(ID, 0, 2)
        await settle()

    assert len(run(decide, use).asked) == asked


def test_stale_broker_epoch_is_refreshed_immediately():
    async def use(leadership, channel, logs, clock):
        leadership.may_join(ID, 0, 2)
        await settle()
        assert channel.beats == 1

    run(refuse(ErrorCode.STALE_BROKER_EPOCH, top=True), use)


@pytest.mark.parametrize("error", [
    ErrorCode.STALE_BROKER_EPOCH, ErrorCode.CLUSTER_AUTHORIZATION_FAILED])
def test_rejected_request_does_not_prove_that_an_earlier_one_failed(error):
    """The response was lost: the follower may be in the ISR, so the log still waits for it."""
    asked = []

    def decide(request):
        asked.append(request)
        if len(asked) == 1:
            raise PeerError("gone")
        return refuse(error, top=True)(request)

    async def use(leadership, channel, logs, clock):
        leadership.may_join(ID, 0, 2)
        async with asyncio.timeout(10):
            while len(asked) < 3:
                await asyncio.sleep(0.01)
        assert asked[2] == asked[0]
        assert logs[0].told[-1] == (0, [1, 2], 1)

    run(decide, use)


def test_unanswered_proposal_is_repeated_without_a_busy_loop():
    failures = []

    def decide(request):
        if len(failures) < 2:
            failures.append(request)
            raise PeerError("gone")
        return accept(request)

    async def use(leadership, channel, logs, clock):
        leadership.may_join(ID, 0, 2)
        await settle()
        assert len(channel.asked) == 1
        async with asyncio.timeout(10):
            while logs[0].told[-1] != (1, [1, 2], 2):
                await asyncio.sleep(0.01)

    channel = run(decide, use)
    assert channel.asked[0] == channel.asked[1] == channel.asked[2]


def test_failed_request_loses_no_proposal():
    failures = []

    def decide(request):
        if not failures:
            failures.append(request)
            raise ValueError("planted")
        return accept(request)

    async def use(leadership, channel, logs, clock):
        leadership.may_join(ID, 0, 2)
        async with asyncio.timeout(10):
            while logs[0].told[-1] != (1, [1, 2], 2):
                await asyncio.sleep(0.01)

    channel = run(decide, use)
    assert channel.asked[0] == channel.asked[1]


def test_closed_log_does_not_block_other_partitions():
    def closed():
        raise LogDeleted(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "closed")

    async def use(leadership, channel, logs, clock):
        clock.ns = 60 * SECOND
        logs[0].followers = closed
        leadership.tick()
        await settle()

    request, = run(accept, use, 2, isr=(1, 2)).asked
    assert [row.partition_index for row in request.topics[0].partitions] == [1]


def test_partitions_no_longer_led_are_not_proposed():
    async def use(leadership, channel, logs, clock):
        leadership.may_join(ID, 0, 2)
        leadership.rest(ID, 0)
        leadership.may_join(ID, 0, 2)
        await settle()

    assert run(accept, use).asked == []


def test_a_fenced_follower_joins_once_it_is_unfenced():
    async def use(leadership, channel, logs, clock):
        leadership.take_brokers(image(fenced=[2]))
        leadership.may_join(ID, 0, 2)
        await settle()
        assert channel.asked == []
        leadership.take_brokers(image())
        leadership.tick()
        await settle()

    assert len(run(accept, use).asked) == 1


def test_image_state_replaces_the_proposed_state():
    async def use(leadership, channel, logs, clock):
        leadership.may_join(ID, 0, 2)
        leadership.lead(topic(1, (1, 2), 1), 0, logs[0])
        assert logs[0].told[-1] == (1, [1, 2], 2)
        await settle()

    assert run(accept, use).asked == []

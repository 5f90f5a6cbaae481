"""The sender with a simulated broker: order, sequences, retries, limits."""

import asyncio
import math
import types

import pytest
from pylog._native.records import batch as native_batch

from pylog.client.config.settings import PRODUCER, Settings
from pylog.client.errors import KafkaConnectionError, KafkaTimeoutError, error
from pylog.client.network.log_once import Notices
from pylog.client.producer.accumulator import Accumulator
from pylog.client.producer.sender import Sender
from pylog.client.producer.transaction_manager import Identity
from pylog.protocol import messages
from pylog.protocol.codec import ZERO_UUID
from pylog.protocol.errors import ErrorCode

RESPONSE = messages.ProduceResponse


class World:
    """One broker, one topic; requests wait in `requests` for the test's response."""

    def __init__(self, idempotent=True, batch_bytes=100, acquainted=True, **more):
        self.acquainted = acquainted and idempotent
        self.settings = Settings(PRODUCER, bootstrap_servers="x:1", retry_backoff_ms=1,
                                 retry_backoff_max_ms=2, **more)
        self.notices = Notices("producer test")
        self.requests: list = []
        self.refreshes = 0
        self.metadata = types.SimpleNamespace(
            leader=lambda topic, partition: self.leader, topic_id=lambda topic: ZERO_UUID, ids={},
            partition_count=lambda topic: 2)
        self.leader = 1
        self.accumulator = Accumulator(
            batch_bytes=batch_bytes, bytes_max=10_000, linger_s=0.0, codec=0, level=None,
            wake=lambda: loop.call_soon(self.sender.awake))
        loop = self.loop = asyncio.get_running_loop()
        self.identity = None
        if idempotent:
            self.identity = Identity(self, self.settings, self.accumulator.notify, self.failed)
            self.identity.producer_id, self.identity.epoch = 7, 0
        self.sender = Sender(self, self.settings, self.accumulator, self.identity, -1)
        self.task = asyncio.create_task(self.sender.run())

    # The parts of Cluster and Connection that Sender uses.

    def usable(self, node_id):
        return self

    def request_refresh(self):
        self.refreshes += 1

    def version(self, cls, highest=None):
        return min(12, highest or 12)

    def send(self, request, version):
        future = self.loop.create_future()
        self.requests.append((request, future))
        return future

    def failed(self, failure):
        raise AssertionError(failure)

    # Used by tests.

    def put(self, value, partition=0):
        """Append one record; with 90 bytes it fills a batch."""
        queue = self.accumulator.queue("t", partition)
        if self.acquainted and queue.producer_id == -1:
            queue.producer_id, queue.epoch = 7, 0
            queue.known_until_s, queue.topic_id = math.inf, ZERO_UUID
        taken = self.accumulator.append(queue, None, value, 5, None, None, len(value))
        return None if taken is None else taken[0]

    async def wait(self, count):
        for _ in range(1000):
            if len(self.requests) >= count:
                return
            await asyncio.sleep(0.001)
        raise AssertionError(f"{len(self.requests)} requests, {count} are awaited")

    def sent(self, number):
        """Return (producer epoch, base sequence, value) of the batch in a request."""
        rows = self.requests[number][0].topic_data[0].partition_data
        header = native_batch.header(rows[0].records)
        values = [row[3][:1] for row in native_batch.records(rows[0].records)]
        return header.producer_epoch, header.base_sequence, b"".join(values)

    def answer(self, number, code=0, offset=0):
        request, future = self.requests[number]
        future.set_result(RESPONSE(responses=[RESPONSE.TopicProduceResponse(
            name="t", partition_responses=[RESPONSE.PartitionProduceResponse(
                index=row.index, error_code=code, base_offset=offset, log_append_time_ms=-1)
                for row in topic.partition_data]) for topic in request.topic_data]))

    def lose(self, number):
        self.requests[number][1].set_exception(KafkaConnectionError("lost"))


async def until(is_so):
    for _ in range(1000):
        if is_so():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it did not come to be so")


def played(test):
    """Run the test on a new event loop; the sender must still run at its end."""
    def run():
        async def work():
            world = World(**options)
            await test(world)
            assert not world.task.done(), world.task
            world.task.cancel()

        asyncio.run(work())

    options = getattr(test, "options", {})
    run.__name__ = test.__name__
    return run


def with_options(**options):
    def mark(test):
        test.options = options
        return test
    return mark


@played
@with_options(acquainted=False)
async def test_first_batch_is_sent_alone_until_acknowledged(world):
    for i in range(3):
        world.put(bytes([i]) * 60)
    await world.wait(1)
    world.answer(0, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    await world.wait(2)
    assert [world.sent(number) for number in range(2)] == [(0, 0, b"\0"), (0, 0, b"\0")]
    world.answer(1)
    await world.wait(4)
    assert [world.sent(number) for number in (2, 3)] == [(0, 1, b"\1"), (0, 2, b"\2")]


@played
async def test_batches_are_pipelined(world):
    pendings = [world.put(bytes([i]) * 60) for i in range(3)]
    await world.wait(3)
    assert [world.sent(i) for i in range(3)] == [(0, 0, b"\0"), (0, 1, b"\1"), (0, 2, b"\2")]
    for i in range(3):
        world.answer(i, offset=i)
    await asyncio.sleep(0.01)
    assert [p.base_offset for p in pendings] == [0, 1, 2]
    assert world.accumulator.bytes_used == 0 and not world.accumulator.active


@played
async def test_in_flight_requests_are_limited(world):
    for i in range(8):
        world.put(bytes([i]) * 60)
    await world.wait(5)
    await asyncio.sleep(0.02)
    assert len(world.requests) == 5
    world.answer(0)
    await world.wait(6)


@played
async def test_lost_batches_are_resent_in_order_with_their_sequences(world):
    pendings = [world.put(bytes([i]) * 60) for i in range(3)]
    await world.wait(3)
    world.lose(1)
    world.answer(0)
    world.answer(2, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    await world.wait(4)
    await asyncio.sleep(0.02)
    assert len(world.requests) == 4, "a retry goes alone"
    assert world.sent(3) == (0, 1, b"\1")
    world.answer(3)
    await world.wait(5)
    assert world.sent(4) == (0, 2, b"\2")
    world.answer(4)
    await asyncio.sleep(0.01)
    assert all(p.done and p.error is None for p in pendings) and world.refreshes


@played
async def test_a_duplicate_was_written_before(world):
    pending = world.put(b"x" * 60)
    await world.wait(1)
    world.lose(0)
    await world.wait(2)
    world.answer(1, ErrorCode.DUPLICATE_SEQUENCE_NUMBER, offset=-1)
    await asyncio.sleep(0.01)
    assert pending.error is None and pending.metadata(0, 5).offset == -1


@played
async def test_a_forgotten_producer_begins_a_new_epoch_at_zero(world):
    for i in range(2):
        world.put(bytes([i]) * 60)
    await world.wait(2)
    world.answer(0)
    world.answer(1, ErrorCode.UNKNOWN_PRODUCER_ID)
    await world.wait(3)
    assert world.sent(2) == (1, 0, b"\1")
    world.put(b"\2" * 60)
    world.answer(2)
    await world.wait(4)
    assert world.sent(3) == (1, 1, b"\2")


def test_rejection_that_starts_a_new_epoch_is_logged_each_time(caplog):
    @played
    async def play(world):
        for i in range(3):
            world.put(bytes([i]) * 60)
            await world.wait(2 * i + 1)
            world.answer(2 * i, ErrorCode.UNKNOWN_PRODUCER_ID)
            await world.wait(2 * i + 2)
            world.answer(2 * i + 1)

    play()
    assert caplog.messages == [
        "producer test: broker 1 rejected records for t-0; they are sent again with a new epoch "
        "and may be duplicated: t-0: Nothing is known about the producer id any more."] * 3


@played
async def test_permanently_rejected_batch_leaves_no_sequence_gap(world):
    pendings = [world.put(bytes([i]) * 60) for i in range(3)]
    await world.wait(3)
    world.answer(0, ErrorCode.MESSAGE_TOO_LARGE)
    for i in (1, 2):
        world.answer(i, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    await world.wait(4)
    assert world.sent(3) == (1, 0, b"\1")
    world.answer(3)
    await world.wait(5)
    assert world.sent(4) == (1, 1, b"\2")
    world.answer(4)
    await asyncio.sleep(0.01)
    assert [p.error and p.error.code for p in pendings] == [10, None, None]


@played
@with_options(batch_bytes=150)
async def test_a_batch_that_is_too_large_is_split_with_its_sequences(world):
    world.leader = -1
    told = []
    queue = world.accumulator.queue("t", 0)
    taken = []
    for i in range(5):
        taken.append(world.accumulator.append(
            queue, None, bytes([i]), 5, None, lambda *outcome: told.append(outcome), 1))
    pending = taken[0][0]
    after = world.put(b"\x09" * 60)
    world.leader = 1
    world.accumulator.notify()
    await world.wait(2)
    assert world.sent(0) == (0, 0, b"\0\1\2\3\4") and world.sent(1) == (0, 5, b"\x09")
    world.answer(0, ErrorCode.MESSAGE_TOO_LARGE)
    world.answer(1, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    await world.wait(3)
    assert world.sent(2) == (0, 0, b"\0\1")
    world.answer(2, offset=10)
    await world.wait(4)
    assert world.sent(3) == (0, 2, b"\2\3\4")
    world.answer(3, ErrorCode.MESSAGE_TOO_LARGE)
    for number, code, offset in ((4, 0, 20), (5, ErrorCode.INVALID_RECORD, 0)):
        await world.wait(number + 1)
        world.answer(number, code, offset)
    await world.wait(7)
    assert world.sent(4) == (0, 2, b"\2") and world.sent(5) == (0, 3, b"\3\4")
    assert world.sent(6)[2] == b"\x09"
    world.answer(6, offset=30)
    await asyncio.sleep(0.01)
    assert after.base_offset == 30 and pending.done
    assert [pending.metadata(i, 5).offset for i in range(3)] == [10, 11, 20]
    assert [p.error and p.error.code for p in pending.leaves()] == [None, None, 87]
    assert [metadata and metadata.offset for metadata, _ in told] == [10, 11, 20, None, None]
    assert world.accumulator.bytes_used == 0 and not world.accumulator.incomplete


@played
@with_options(delivery_timeout_ms=150, request_timeout_ms=100, linger_ms=0)
async def test_record_not_delivered_in_time_fails(world):
    world.leader = -1
    pending = world.put(b"x" * 60)
    await asyncio.sleep(0.4)
    assert isinstance(pending.error, KafkaTimeoutError) and world.refreshes > 1
    assert world.accumulator.bytes_used == 0


@played
async def test_delivery_timeout_contains_the_last_error(world):
    pending = world.put(b"x" * 60)
    await world.wait(1)
    world.leader = -1
    world.lose(0)
    await until(lambda: pending.queue.ready)
    pending.created_s -= world.sender.delivery_s
    world.accumulator.notify()
    await until(lambda: pending.done)
    assert str(pending.error) == "t-0: not delivered within 120 s and 1 tries; the last: lost"


@played
async def test_persistent_partition_failure_is_logged_with_its_end(world):
    told = []
    world.notices.warn_if_it_stays = world.notices.over = (
        lambda cause, text, *given: told.append((cause, text % given)))
    pending = world.put(b"x" * 60)
    await world.wait(1)
    world.lose(0)
    await world.wait(2)
    world.answer(1, offset=5)
    await until(lambda: pending.done)
    after = world.put(b"x" * 60)
    await world.wait(3)
    world.answer(2, offset=6)
    await until(lambda: after.done)
    assert told == [(("retried", "t"), "retrying records for t-0: lost"),
                    (("retried", "t"), "records for t are delivered")]


@played
@with_options(retries=2, enable_idempotence=True)
async def test_retries_are_counted(world):
    pending = world.put(b"x" * 60)
    for number in range(3):
        await world.wait(number + 1)
        world.lose(number)
    await asyncio.sleep(0.02)
    assert isinstance(pending.error, KafkaConnectionError) and len(world.requests) == 3


@played
async def test_an_error_that_is_not_retriable_is_final(world):
    pending = world.put(b"x" * 60)
    await world.wait(1)
    world.answer(0, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    await asyncio.sleep(0.01)
    assert pending.error.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


@played
@with_options(idempotent=False, max_in_flight_requests_per_connection=1)
async def test_one_in_flight_request_keeps_the_order_without_idempotence(world):
    for i in range(3):
        world.put(bytes([i]) * 60)
    await world.wait(1)
    world.lose(0)
    for number in range(1, 4):
        await world.wait(number + 1)
        await asyncio.sleep(0.01)
        assert len(world.requests) == number + 1
        assert world.sent(number) == (-1, -1, bytes([number - 1]))
        world.answer(number)


@played
async def test_request_contains_one_batch_per_partition(world):
    world.leader = -1
    for partition in range(3):
        world.put(b"x" * 60, partition)
    await asyncio.sleep(0.02)
    world.leader = 1
    world.accumulator.notify()
    await world.wait(1)
    rows = world.requests[0][0].topic_data[0].partition_data
    assert sorted(row.index for row in rows) == [0, 1, 2]


@played
async def test_memory_is_rejected_above_its_limit_and_waiters_notified(world):
    world.leader, told = -1, []
    pendings = []
    while (pending := world.put(b"x" * 60)) is not None:
        pendings.append(pending)
    assert world.accumulator.bytes_used <= 10_000 and len(pendings) > 20
    world.accumulator.when_room([lambda: told.append(1)])
    world.leader = 1
    world.accumulator.notify()
    await world.wait(1)
    world.answer(0)
    await asyncio.sleep(0.01)
    assert told == [1] and world.put(b"x" * 60) is not None


@played
async def test_failed_producer_fails_pending_records(world):
    world.leader = -1
    pending = world.put(b"x" * 60)
    world.sender.fail_all(error(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    assert pending.error.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    with pytest.raises(AssertionError):
        pending.complete()


@played
@with_options(partitioner_availability_timeout_ms=10**6, max_in_flight_requests_per_connection=1)
async def test_unresponsive_leader_is_marked_stalled_until_it_responds(world):
    sender = world.sender
    world.put(b"a" * 90)
    await world.wait(1)
    world.put(b"b" * 90)
    await asyncio.sleep(0.02)
    assert sender.stalled("t") == set()
    sender.availability_s = 0.001
    assert sender.stalled("t") == {0, 1}
    world.answer(0)
    await world.wait(2)
    await asyncio.sleep(0.02)
    assert sender.stalled("t") == set()  # No record waits for it.
    world.put(b"c" * 90)
    await asyncio.sleep(0.02)
    assert sender.stalled("t") == {0, 1}
    sender.availability_s = 10**6
    assert sender.stalled("t") == set()


@played
@with_options(max_in_flight_requests_per_connection=1)
async def test_without_a_timeout_no_leader_is_stalled(world):
    world.put(b"a" * 90)
    await world.wait(1)
    world.put(b"b" * 90)
    await asyncio.sleep(0.02)
    assert world.sender.stalled("t") == set()


@played
async def test_slow_broker_does_not_delay_other_partitions(world):
    world.put(b"a" * 10)
    await world.wait(1)
    while world.sender._wakeup is None:
        await asyncio.sleep(0)
    world.put(b"b" * 10, partition=1)
    await world.wait(2)
    assert [world.sent(number)[2] for number in range(2)] == [b"a", b"b"]


@played
async def test_out_of_order_batch_below_an_acknowledged_one_fails(world):
    first, second = world.put(b"a" * 90), world.put(b"b" * 90)
    await world.wait(2)
    world.answer(1, offset=0)  # The broker has no state for the producer: it accepts any sequence.
    world.answer(0, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    await world.wait(3)
    assert world.sent(2) == (0, 0, b"a")
    world.answer(2, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    await until(lambda: first.done)
    assert first.error.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert second.error is None and second.base_offset == 0


@played
async def test_new_batch_waits_for_an_unanswered_exclusive_batch(world):
    first = world.put(b"a" * 90)
    await world.wait(1)
    second = world.put(b"b" * 90)
    await world.wait(2)
    third = world.put(b"c" * 90)
    await world.wait(3)
    world.answer(1, offset=1)
    await until(lambda: second.done)
    fourth = world.put(b"d" * 90)
    await asyncio.sleep(0.02)
    assert len(world.requests) == 3
    world.lose(0)
    world.answer(2, offset=2)
    await world.wait(4)
    assert world.sent(3) == (0, 0, b"a")
    world.answer(3, offset=0)  # The broker has state for it.
    await world.wait(5)
    world.answer(4, offset=3)
    await until(lambda: fourth.done)
    assert [p.base_offset for p in (first, second, third, fourth)] == [0, 1, 2, 3]


@played
async def test_rejected_batch_is_resent_alone(world):
    world.put(b"a" * 90)
    await world.wait(1)
    world.answer(0, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    world.put(b"b" * 90)
    await world.wait(2)
    await asyncio.sleep(0.02)
    assert len(world.requests) == 2
    world.answer(1)
    await world.wait(3)
    world.put(b"c" * 90)
    await world.wait(4)


@pytest.mark.parametrize("topic_id", [ZERO_UUID, b"another topic id"])
def test_batch_is_sent_alone_after_a_pause_and_in_a_recreated_topic(topic_id):
    @played
    async def play(world):
        world.put(b"a" * 90)
        await world.wait(1)
        world.answer(0)
        queue = world.accumulator.queue("t", 0)
        await until(lambda: not queue.in_flight)
        if topic_id == ZERO_UUID:
            queue.known_until_s = 0.0
        world.metadata.topic_id = lambda topic: topic_id
        world.metadata.ids = {topic_id: "t"}
        world.put(b"b" * 90)
        world.put(b"c" * 90)
        await world.wait(2)
        await asyncio.sleep(0.02)
        assert len(world.requests) == 2
        world.answer(1)
        await world.wait(3)

    play()


def expired(pending):
    """Let the delivery timeout of a batch expire now."""
    pending.created_s = -math.inf


@played
async def test_batches_after_an_unanswered_one_keep_their_sequences(world):
    first, second = world.put(b"a" * 90), world.put(b"b" * 90)
    await world.wait(2)
    world.lose(1)
    expired(first)
    world.lose(0)
    await until(lambda: first.done)
    await world.wait(3)
    assert world.sent(2) == (0, 1, b"b")
    third = world.put(b"c" * 90)
    await asyncio.sleep(0.02)
    assert len(world.requests) == 3
    world.answer(2, offset=1)  # Both were appended when they were first sent.
    await world.wait(4)
    assert world.sent(3) == (0, 2, b"c")
    world.answer(3, offset=2)
    await until(lambda: third.done)
    assert isinstance(first.error, KafkaConnectionError)
    assert (second.base_offset, third.base_offset) == (1, 2)


@played
async def test_batches_after_a_failed_one_start_a_new_epoch(world):
    first, second = world.put(b"a" * 90), world.put(b"b" * 90)
    await world.wait(2)
    world.lose(1)
    expired(first)
    world.lose(0)
    await until(lambda: first.done)
    await world.wait(3)
    world.answer(2, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    await world.wait(4)
    assert world.sent(3) == (1, 0, b"b")
    world.answer(3)
    await until(lambda: second.done)
    assert second.error is None


@played
async def test_new_epoch_begins_after_the_last_unanswered_batch(world):
    first = world.put(b"a" * 90)
    await world.wait(1)
    expired(first)
    world.lose(0)
    await until(lambda: first.done)
    world.put(b"b" * 90)
    await world.wait(2)
    assert world.sent(1) == (1, 0, b"b")

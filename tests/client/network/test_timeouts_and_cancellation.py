"""Calls that time out, are cancelled, or run on two threads: the object stays usable."""

import asyncio
import signal
import threading
import time
import uuid

import numpy as np
import pytest

from pylog.client import (
    ConfigResource, Consumer, Producer, ResourceType, ShareConsumer, TopicPartition, aio,
)
from pylog.client.errors import (
    ClosedError, ConcurrentUseError, IllegalStateError, KafkaError, KafkaTimeoutError, WakeupError,
)
from pylog.testing.child import pause
from tests.client.reading import new_topic, read_topic
from tests.fixtures.brokers import Brokerd

BROKER_SETTINGS = {"group.initial.rebalance.delay.ms": "0",
                   "group.share.min.heartbeat.interval.ms": "100",
                   "group.share.heartbeat.interval.ms": "100",
                   "group.share.assignment.interval.ms": "0"}
WAIT_S = 30


def group() -> str:
    return f"g-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def stoppable(tmp_path):
    """A separate broker for a test that suspends it."""
    with Brokerd(tmp_path, BROKER_SETTINGS) as broker:
        yield broker
        broker.process.send_signal(signal.SIGCONT)


# Two threads.

class Polling:
    """A consumer whose poll(60) waits on another thread; its exception is in `raised`."""

    def __init__(self, consumer):
        self.consumer, self.raised = consumer, []
        self.thread = threading.Thread(target=self._poll, daemon=True)
        self.thread.start()
        time.sleep(0.5)

    def _poll(self):
        try:
            self.consumer.poll(60)
        except KafkaError as failure:
            self.raised.append(type(failure))

    def ended(self):
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()
        return self.raised


@pytest.fixture(params=[Consumer, ShareConsumer])
def polling(request, target):
    consumer = request.param(bootstrap_servers=target.bootstrap, group_id=group())
    consumer.subscribe([new_topic(target.bootstrap)])
    made = Polling(consumer)
    yield made
    consumer.close()


def test_a_call_of_a_second_thread_is_rejected_immediately(polling):
    calls = [lambda: polling.consumer.poll(60), polling.consumer.commit,
             polling.consumer.unsubscribe]
    for call in calls:
        with pytest.raises(ConcurrentUseError, match="another thread is using this"):
            call()
    polling.consumer.wakeup()
    assert polling.ended() == [WakeupError]
    assert polling.consumer.poll(0.1) == []


def test_close_from_another_thread_ends_a_poll(polling):
    polling.consumer.close()
    assert polling.ended() == [ClosedError]


def test_a_consumer_may_change_threads_between_calls(target):
    topic = new_topic(target.bootstrap)
    with Consumer(bootstrap_servers=target.bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        done = []
        thread = threading.Thread(target=lambda: done.append(consumer.poll(0.1)))
        thread.start()
        thread.join(WAIT_S)
        assert done == [[]] and consumer.poll(0.1) == []


@pytest.mark.parametrize("kind", [aio.Consumer, aio.ShareConsumer])
def test_a_poll_of_a_second_task_is_rejected_immediately(target, kind):
    topic = new_topic(target.bootstrap)

    async def main():
        async with asyncio.timeout(60), kind(
                bootstrap_servers=target.bootstrap, group_id=group()) as consumer:
            await consumer.subscribe([topic])
            first = asyncio.ensure_future(consumer.poll(60))
            await asyncio.sleep(0)
            for call in (consumer.poll, consumer.poll_arrow, aiter(consumer).__anext__):
                with pytest.raises(ConcurrentUseError, match="another task is polling this"):
                    await call()
            consumer.wakeup()
            with pytest.raises(WakeupError):
                await first
            assert await consumer.poll(0.1) == []

    asyncio.run(main())


# Timeouts.

def test_a_commit_without_a_time_limit_ends_after_that_of_the_settings(stoppable):
    topic = new_topic(stoppable.bootstrap)
    with Consumer(bootstrap_servers=stoppable.bootstrap, group_id=group(),
                  default_api_timeout_ms=2000, enable_auto_commit=False) as consumer:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.commit({partition: 1})
        pause(stoppable.process)
        with pytest.raises(KafkaTimeoutError):
            consumer.commit({partition: 2})
        stoppable.process.send_signal(signal.SIGCONT)
        assert consumer.commit({partition: 3}, timeout=WAIT_S)


def test_late_commit_fails_without_hanging_the_process(target):
    topic = new_topic(target.bootstrap)
    with Consumer(bootstrap_servers=target.bootstrap, group_id=group(),
                  group_protocol="consumer", max_poll_interval_ms=1000,
                  auto_offset_reset="earliest", enable_auto_commit=False) as consumer, \
            Producer(bootstrap_servers=target.bootstrap) as producer:
        producer.send(topic, b"value").result(WAIT_S)
        consumer.subscribe([topic])
        end_s = time.monotonic() + WAIT_S
        while not consumer.poll(0.2):
            assert time.monotonic() < end_s
        time.sleep(7)  # The member leaves the group by its heartbeat.
        cpu_s = time.process_time()
        with pytest.raises(KafkaError):
            consumer.commit(timeout=5)
        producer.send(topic, b"more").result(WAIT_S)
        time.sleep(1)
        assert time.process_time() - cpu_s < 0.8
        while not consumer.poll(0.2):
            assert time.monotonic() < end_s + WAIT_S


@pytest.mark.parametrize("commits", [True, False])
def test_timed_out_transaction_end_can_be_repeated(stoppable, commits):
    topic = new_topic(stoppable.bootstrap)
    with Producer(bootstrap_servers=stoppable.bootstrap, transactional_id="x") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"first").result(WAIT_S)
        mine, other = producer.commit_transaction, producer.abort_transaction
        if not commits:
            mine, other = other, mine
        pause(stoppable.process)
        with pytest.raises(KafkaTimeoutError):
            mine(timeout=0.5)
        with pytest.raises(IllegalStateError, match="again first"):
            other(timeout=0.5)
        with pytest.raises(KafkaTimeoutError):
            mine(timeout=0.5)
        stoppable.process.send_signal(signal.SIGCONT)
        mine(timeout=WAIT_S)
        with producer.transaction():
            producer.send(topic, b"second")
    assert [row[2] for row in read_topic(stoppable.bootstrap, topic, 1)[0]] == (
        [b"first", b"second"] if commits else [b"second"])


# Cancellation at each await.

async def cancelled_at_each_await(make, limit: int = 200) -> int:
    """Cancel a new make() after 0, 1, 2, … iterations of the loop until a call completes before."""
    for turns in range(limit):
        task = asyncio.ensure_future(make())
        for _ in range(turns):
            if task.done():
                break
            await asyncio.sleep(0)
        if task.done():
            task.result()
            return turns
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() or task.exception() is None, task.exception()
    await make()
    return limit


CALLS = ["send", "flush", "partitions_for", "poll", "commit", "committed", "position", "seek",
         "pause", "end_offsets", "list_topics", "subscribe", "unsubscribe", "describe", "assign",
         "lag", "offsets_for_times", "beginning_offsets", "seek_to_beginning", "seek_to_end"]


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_is_cancelled_leaves_the_client_usable(target, call):
    topic = new_topic(target.bootstrap)
    partition = TopicPartition(topic, 0)

    async def main():
        async with asyncio.timeout(90), \
                aio.Producer(bootstrap_servers=target.bootstrap) as producer, \
                aio.Consumer(bootstrap_servers=target.bootstrap, group_id=group(),
                             auto_offset_reset="earliest", enable_auto_commit=False) as consumer, \
                aio.Admin(bootstrap_servers=target.bootstrap) as admin:
            if call in ("subscribe", "unsubscribe"):
                await consumer.subscribe([topic])
            else:
                await consumer.assign([partition])
            calls = {
                "send": lambda: producer.send_and_wait(topic, b"value"), "flush": producer.flush,
                "partitions_for": lambda: producer.partitions_for(topic),
                "poll": lambda: consumer.poll(0.2), "commit": lambda: consumer.commit(
                    {partition: 0}),
                "committed": lambda: consumer.committed([partition]),
                "position": lambda: consumer.position(partition),
                "seek": lambda: consumer.seek(partition, 0),
                "pause": lambda: consumer.pause(partition),
                "end_offsets": lambda: consumer.end_offsets([partition]),
                "list_topics": consumer.list_topics,
                "subscribe": lambda: consumer.subscribe([topic]),
                "unsubscribe": consumer.unsubscribe, "describe": admin.describe_cluster,
                "assign": lambda: consumer.assign([partition]),
                "lag": lambda: consumer.lag(partition),
                "offsets_for_times": lambda: consumer.offsets_for_times({partition: 0}),
                "beginning_offsets": lambda: consumer.beginning_offsets([partition]),
                "seek_to_beginning": consumer.seek_to_beginning,
                "seek_to_end": consumer.seek_to_end}
            await cancelled_at_each_await(calls[call])
            if call == "seek_to_end":
                await consumer.position(partition)  # Before the last record.
            sent = await producer.send_and_wait(topic, b"last")
            await consumer.resume(*consumer.paused())
            if call == "unsubscribe":
                await consumer.subscribe([topic])
            found = []
            while not found or found[-1].offset < sent.offset:
                found += await consumer.poll(1.0)
            await consumer.commit()
            assert await admin.describe_cluster()

    asyncio.run(main())


READ_COUNT = 400
ROUNDS = 150


async def cancelled_after(call, number: int, ms_max: int = 4) -> asyncio.Task:
    """Run a call and cancel it after up to ms_max and up to 40 iterations of the loop."""
    task = asyncio.ensure_future(call)
    turns = number // 3 % 8  # The first iterations return records that have arrived before.
    if number % 3:
        await asyncio.sleep(number % (ms_max + 1) * 0.001)
        turns = number % 41
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    return task


async def put_values(bootstrap, topic):
    async with aio.Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(READ_COUNT):
            await producer.send(topic, b"%d" % number)


async def next_of(consumer):
    async for record in consumer:
        return [record.offset]


async def offsets_of(consumer, call):
    """Return the offsets of the records that a reading call returns."""
    if call == "__aiter__":
        return await next_of(consumer)
    if call == "poll":
        return [record.offset for record in await consumer.poll(1.0, max_records=2)]
    found = await getattr(consumer, call)(1.0, max_records=2)
    if call == "poll_arrow":
        return found.column("offset").to_pylist()
    if call == "poll_numpy":
        return found["offset"].tolist() if found else []
    return np.frombuffer(found[0].offsets, "i8").tolist() if found else []


async def read_with_cancellations(read, before=None, ms_max=4):
    """Return the offsets of all records; cancels many calls of `read` before they return."""
    found = []
    for number in range(ROUNDS):
        if before is not None and found:
            await before(found[-1] + 1)
        task = await cancelled_after(read(), number, ms_max)
        if not task.cancelled():
            found += task.result()
    while len(found) < READ_COUNT:
        found += await read()
    return found


@pytest.mark.parametrize("seeks", [False, True])
@pytest.mark.parametrize("call", ["poll", "poll_arrow", "poll_numpy", "poll_columns", "__aiter__"])
def test_a_reading_call_that_is_cancelled_loses_and_repeats_no_record(target, call, seeks):
    topic = new_topic(target.bootstrap)

    async def main():
        await put_values(target.bootstrap, topic)
        async with asyncio.timeout(60), aio.Consumer(
                bootstrap_servers=target.bootstrap, group_id=group(), fetch_max_wait_ms=50,
                auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
            await consumer.subscribe([topic])

            async def seek(offset):  # The next call waits for a fetch.
                await consumer.seek(TopicPartition(topic, 0), offset)

            found = await read_with_cancellations(
                lambda: offsets_of(consumer, call), seek if seeks else None)
            assert found == list(range(READ_COUNT))
            await consumer.commit()

    asyncio.run(main())


@pytest.mark.parametrize("call", ["poll", "poll_arrow", "__aiter__"])
def test_a_share_consumers_call_that_is_cancelled_loses_and_repeats_no_record(target, call):
    topic, name = new_topic(target.bootstrap), group()

    async def main():
        async with aio.Admin(bootstrap_servers=target.bootstrap) as admin:
            await admin.incremental_alter_configs({ConfigResource(ResourceType.GROUP, name): {
                "share.auto.offset.reset": "earliest"}})
        await put_values(target.bootstrap, topic)
        async with asyncio.timeout(60), aio.ShareConsumer(
                bootstrap_servers=target.bootstrap, group_id=name, fetch_max_wait_ms=50,
                max_poll_records=3, share_acquire_mode="record_limit") as consumer:
            await cancelled_at_each_await(lambda: consumer.subscribe([topic]))

            counts = []

            async def read():
                if call == "__aiter__":
                    return await next_of(consumer)
                found = await getattr(consumer, call)(1.0)
                if call == "poll_arrow":
                    counts.extend(found.column("delivery_count").to_pylist())
                    return found.column("offset").to_pylist()
                counts.extend(consumer.delivery_count(record) for record in found)
                return [record.offset for record in found]

            async def pause(offset):  # Records arrive that the call before has requested.
                await asyncio.sleep(0.005)

            found = await read_with_cancellations(read, pause, 24)
            assert sorted(found) == list(range(READ_COUNT))
            assert not counts or max(counts) == 1  # None was lost and delivered again.
            assert all(failure is None for failure in (await consumer.commit()).values())

    asyncio.run(main())


def test_a_transaction_block_that_is_cancelled_is_committed_or_aborted(target):
    topic, committed = new_topic(target.bootstrap), []

    async def main():
        async with asyncio.timeout(90), aio.Producer(
                bootstrap_servers=target.bootstrap, transactional_id=group()) as producer:

            async def block(value):
                async with producer.transaction():
                    await producer.send_and_wait(topic, value)

            for number in range(ROUNDS):
                value = b"%d" % number
                task = await cancelled_after(block(value), number, 24)
                if not task.cancelled():
                    task.result()
                    committed.append(value)
                    continue
                try:
                    producer.begin_transaction()
                except IllegalStateError as failure:
                    if "not initialized" not in str(failure):
                        assert "again first" in str(failure)
                        await producer.commit_transaction()
                        committed.append(value)
                else:
                    await producer.abort_transaction()
            await block(b"last")

    asyncio.run(main())
    found = [row[2] for row in read_topic(target.bootstrap, topic, 1)[0]]
    assert found == [*committed, b"last"]


@pytest.mark.parametrize("commits", [True, False])
def test_cancelled_transaction_end_can_be_repeated(target, commits):
    topic, sent = new_topic(target.bootstrap), []

    async def main():
        async with asyncio.timeout(90), aio.Producer(
                bootstrap_servers=target.bootstrap, transactional_id=group()) as producer:
            await producer.init_transactions()
            end = producer.commit_transaction if commits else producer.abort_transaction
            for turns in range(30):
                producer.begin_transaction()
                await producer.send_and_wait(topic, b"%d" % turns)
                sent.append(b"%d" % turns)
                task = asyncio.ensure_future(end())
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                if task.cancelled():
                    if turns:
                        with pytest.raises(IllegalStateError, match="again first"):
                            producer.begin_transaction()
                    await end()

    asyncio.run(main())
    found = [row[2] for row in read_topic(target.bootstrap, topic, 1)[0]]
    assert found == (sent if commits else [])


@pytest.mark.parametrize("kind", ["producer", "consumer", "share", "admin"])
def test_a_close_that_is_cancelled_closes(target, kind):
    topic = new_topic(target.bootstrap)

    async def main():
        async with asyncio.timeout(90):
            for turns in range(12):
                if kind == "producer":
                    made = await aio.Producer(bootstrap_servers=target.bootstrap).start()
                    await made.send(topic, b"value")
                elif kind == "consumer":
                    made = await aio.Consumer(
                        bootstrap_servers=target.bootstrap, group_id=group()).start()
                    await made.subscribe([topic])
                    await made.poll(0.2)
                elif kind == "share":
                    made = await aio.ShareConsumer(
                        bootstrap_servers=target.bootstrap, group_id=group(),
                        fetch_max_wait_ms=50).start()
                    await made.subscribe([topic])
                    await made.poll(0.2)
                else:
                    made = await aio.Admin(bootstrap_servers=target.bootstrap).start()
                    await made.describe_cluster()
                task = asyncio.ensure_future(made.close())
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                await made.close()

    asyncio.run(main())

"""Calls that time out, are cancelled, or run on two threads: the object stays usable."""

import asyncio
import signal
import threading
import time
import uuid

import pytest

from pylog.client import Consumer, Producer, ShareConsumer, TopicPartition, aio
from pylog.client.errors import (
    ClosedError, ConcurrentUseError, IllegalStateError, KafkaError, KafkaTimeoutError, WakeupError,
)
from tests.brokers import Brokerd
from tests.client.reading import new_topic, read_topic

BROKER_SETTINGS = {"group.initial.rebalance.delay.ms": "0"}
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


def test_a_call_of_a_second_thread_is_refused_at_once(polling):
    calls = [lambda: polling.consumer.poll(60), polling.consumer.commit,
             polling.consumer.unsubscribe]
    for call in calls:
        with pytest.raises(ConcurrentUseError, match="another thread is using this"):
            call()
    polling.consumer.wakeup()
    assert polling.ended() == [WakeupError]
    assert polling.consumer.poll(0.1) == []


def test_close_of_another_thread_ends_a_poll(polling):
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
def test_a_poll_of_a_second_task_is_refused_at_once(target, kind):
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
        stoppable.process.send_signal(signal.SIGSTOP)
        with pytest.raises(KafkaTimeoutError):
            consumer.commit({partition: 2})
        stoppable.process.send_signal(signal.SIGCONT)
        assert consumer.commit({partition: 3}, timeout=WAIT_S)


def test_a_commit_that_comes_too_late_fails_and_the_process_goes_on(target):
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
def test_an_end_of_a_transaction_that_timed_out_is_called_again(stoppable, commits):
    topic = new_topic(stoppable.bootstrap)
    with Producer(bootstrap_servers=stoppable.bootstrap, transactional_id="x") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"first").result(WAIT_S)
        mine, other = producer.commit_transaction, producer.abort_transaction
        if not commits:
            mine, other = other, mine
        stoppable.process.send_signal(signal.SIGSTOP)
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
         "pause", "end_offsets", "list_topics", "subscribe", "unsubscribe", "describe"]


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
                "unsubscribe": consumer.unsubscribe, "describe": admin.describe_cluster}
            await cancelled_at_each_await(calls[call])
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


@pytest.mark.parametrize("commits", [True, False])
def test_an_end_of_a_transaction_that_is_cancelled_is_called_again(target, commits):
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
                        bootstrap_servers=target.bootstrap, group_id=group()).start()
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

"""Every callback of the application raises every kind of exception: no client stops for it.

Each test then proves that the same client, and another one of the process, still work.
"""

import asyncio
import contextlib
import time
import uuid

import pytest

from pylog.client import Consumer, Producer, ShareConsumer, TopicPartition, aio
from pylog.client.errors import FatalError
from tests.client.reading import new_topic

BROKER_SETTINGS = {"group.initial.rebalance.delay.ms": "0"}
KINDS = [ValueError, SystemExit, KeyboardInterrupt, asyncio.CancelledError]
WAIT_S = 30


def raising(kind, called):
    def function(*given, **more):
        called.append(given)
        raise kind("planted")

    return function


def wait_for(condition) -> None:
    end_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.02)


@pytest.fixture
def topic(target):
    name = new_topic(target.bootstrap, 1)
    yield name
    # Another client of the process works.
    with Producer(bootstrap_servers=target.bootstrap) as other:
        other.send(name, b"other").result(WAIT_S)


def group() -> str:
    return f"g-{uuid.uuid4().hex[:8]}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["on_delivery", "add_done_callback", "on_acknowledgement"])
def test_a_delivery_callback(target, topic, kind, where):
    called, delivered = [], []
    fails = raising(kind, called)

    class Interceptor:
        def on_acknowledgement(self, metadata, failure):
            fails()

    interceptors = [Interceptor()] if where == "on_acknowledgement" else []
    with Producer(bootstrap_servers=target.bootstrap, linger_ms=20,
                  interceptor_classes=interceptors) as producer:
        for _ in range(3):
            delivery = producer.send(
                topic, b"value", on_delivery=fails if where == "on_delivery" else (
                    lambda found, failure: delivered.append(found.offset)))
            if where == "add_done_callback":
                delivery.add_done_callback(fails)
        assert producer.flush(WAIT_S) == 0
        wait_for(lambda: len(called) == 3)
        if where != "on_delivery":
            assert delivered == [0, 1, 2]
        assert producer.send(topic, b"after").result(WAIT_S).offset == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_statistics_callback(target, topic, kind):
    called = []
    with Producer(bootstrap_servers=target.bootstrap, statistics_interval_ms=50,
                  stats_cb=raising(kind, called)) as producer:
        wait_for(lambda: len(called) > 1)
        assert producer.send(topic, b"after").result(WAIT_S).offset == 0


@pytest.mark.parametrize("kind", KINDS)
def test_an_interceptor_or_serializer_of_a_send_raises_it_where_the_record_is_sent(
        target, topic, kind):
    called = []

    class Interceptor:
        def on_send(self, **record):
            if record["key"] == b"bad":
                raising(kind, called)()

    with Producer(bootstrap_servers=target.bootstrap,
                  interceptor_classes=[Interceptor()]) as producer:
        with pytest.raises(kind):
            producer.send(topic, b"lost", b"bad")
        assert producer.send(topic, b"after").result(WAIT_S).offset == 0
    assert called


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["on_assign", "on_revoke"])
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_rebalance_listener(target, topic, kind, where, protocol):
    """The call that ran it raises it; the consumer has its partitions, and another call works."""
    called = []

    def once(partitions):
        if not called:
            raising(kind, called)(partitions)

    with Consumer(bootstrap_servers=target.bootstrap, group_id=group(), group_protocol=protocol,
                  auto_offset_reset="earliest") as consumer, \
            Producer(bootstrap_servers=target.bootstrap) as producer:
        producer.send(topic, b"value").result(WAIT_S)
        consumer.subscribe([topic], **{where: once})
        raised = None
        for _ in range(WAIT_S):
            try:
                if consumer.poll(1.0):
                    break
            except BaseException as failure:
                raised = failure
        else:
            pytest.fail("no record came")
        if where == "on_revoke":
            with pytest.raises(BaseException) as found:
                consumer.unsubscribe()
            raised = found.value
            consumer.subscribe([topic])
            producer.send(topic, b"more").result(WAIT_S)
            wait_for(lambda: consumer.poll(1.0))
        assert isinstance(raised, (kind, asyncio.CancelledError)) and len(called) == 1
        assert consumer.assignment() == [TopicPartition(topic, 0)]
        consumer.commit(timeout=WAIT_S)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["commit_async", "on_commit"])
def test_a_commit_callback(target, topic, kind, where):
    called = []
    fails = raising(kind, called)

    class Interceptor:
        def on_commit(self, offsets):
            fails()

    partition = TopicPartition(topic, 0)
    with Consumer(bootstrap_servers=target.bootstrap, group_id=group(),
                  interceptor_classes=[Interceptor()] if where == "on_commit" else []) as consumer:
        consumer.assign([partition])
        if where == "on_commit":
            consumer.commit({partition: 0}, timeout=WAIT_S)
        else:
            consumer.commit_async({partition: 0}, fails)
        wait_for(lambda: called)
        assert consumer.committed([partition], timeout=WAIT_S)[partition].offset == 0


@pytest.mark.parametrize("kind", KINDS)
def test_an_interceptors_close(target, topic, kind):
    called = []

    class Interceptor:
        def close(self):
            raising(kind, called)()

    consumer = Consumer(bootstrap_servers=target.bootstrap, interceptor_classes=[Interceptor()])
    consumer.close()
    assert called


@pytest.mark.parametrize("kind", KINDS)
def test_an_acknowledgement_callback_of_a_share_consumer(target, topic, kind):
    called = []
    with ShareConsumer(bootstrap_servers=target.bootstrap, group_id=group()) as consumer, \
            Producer(bootstrap_servers=target.bootstrap) as producer:
        consumer.subscribe([topic])
        wait_for(lambda: consumer.poll(0.2) == [] and consumer.assignment())
        producer.send(topic, b"value").result(WAIT_S)
        wait_for(lambda: consumer.poll(1.0))
        consumer.set_acknowledgement_commit_callback(raising(kind, called))
        with pytest.raises(kind):
            wait_for(lambda: consumer.poll(0.2))
        consumer.set_acknowledgement_commit_callback(None)
        assert called
        producer.send(topic, b"value").result(WAIT_S)
        wait_for(lambda: consumer.poll(1.0))


# With asyncio an exit ends the application's loop, as in asyncio's own callbacks.

ENDS_LOOP = (SystemExit, KeyboardInterrupt)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["on_delivery", "stats_cb", "commit_async", "on_commit"])
def test_a_callback_on_the_loop_of_the_application(target, topic, kind, where):
    called, done = [], []
    fails = raising(kind, called)

    def once(given):
        if not called:
            fails()

    class Interceptor:
        def on_commit(self, offsets):
            once(offsets)

    async def main():
        more = {"statistics_interval_ms": 50, "stats_cb": once} if where == "stats_cb" else {}
        partition = TopicPartition(topic, 0)
        async with asyncio.timeout(60), \
                aio.Producer(bootstrap_servers=target.bootstrap, **more) as producer, \
                aio.Consumer(
                    bootstrap_servers=target.bootstrap, group_id=group(),
                    interceptor_classes=[Interceptor()] if where == "on_commit" else []
                ) as consumer:
            await consumer.assign([partition])
            try:
                if where == "on_delivery":
                    await producer.send(topic, b"value", on_delivery=fails)
                    await producer.flush(WAIT_S)
                elif where == "commit_async":
                    consumer.commit_async({partition: 0}, fails)
                elif where == "on_commit":
                    await consumer.commit({partition: 0})
                while not called:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.05)
            finally:
                # The client works, or says that its loop is being ended.
                with contextlib.suppress(*[FatalError] if kind in ENDS_LOOP else []):
                    await producer.send_and_wait(topic, b"after")
                done.append(topic)

    if kind in ENDS_LOOP:
        with pytest.raises(kind):
            asyncio.run(main())
    else:
        asyncio.run(main())
    assert called and done == [topic]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_coroutine", [False, True])
def test_a_listener_on_the_loop_of_the_application(target, topic, kind, is_coroutine):
    called, done = [], []

    def on_assign(partitions):
        if not called:
            raising(kind, called)(partitions)

    async def on_assign_later(partitions):
        await asyncio.sleep(0)
        on_assign(partitions)

    async def main():
        async with asyncio.timeout(60), \
                aio.Producer(bootstrap_servers=target.bootstrap) as producer, \
                aio.Consumer(bootstrap_servers=target.bootstrap, group_id=group(),
                             auto_offset_reset="earliest") as consumer:
            await producer.send_and_wait(topic, b"value")
            await consumer.subscribe(
                [topic], on_assign=on_assign_later if is_coroutine else on_assign)
            raised = None
            while True:
                try:
                    if await consumer.poll(1.0):
                        break
                except (ValueError, asyncio.CancelledError) as failure:
                    if asyncio.current_task().cancelling():
                        raise
                    raised = failure
            assert isinstance(raised, kind)
            await consumer.commit()
            done.append(True)

    if kind in ENDS_LOOP:
        with pytest.raises(kind):
            asyncio.run(main())
    else:
        asyncio.run(main())
        assert done
    assert len(called) == 1

"""Every callback of the application raises every kind of exception: no client stops.

Each test then checks that the same client, and another client of the process, still work.
"""

import asyncio
import concurrent.futures
import contextlib
import time
import uuid

import pytest

from pylog.client import (
    Admin, ConfigResource, Consumer, Producer, ResourceType, ShareConsumer, TopicPartition, aio,
)
from pylog.client.consumer.assignors import ASSIGNORS, Assignor
from pylog.client.errors import (
    AuthenticationError, FatalError, RecordDeserializationError, SerializationError,
)
from pylog.security.oauth import token_source
from pylog.testing import Broker
from tests.client.reading import new_topic
from tests.fixtures.waits import until

BROKER_SETTINGS = {"group.initial.rebalance.delay.ms": "0",
                   "group.consumer.min.heartbeat.interval.ms": "100",
                   "group.consumer.heartbeat.interval.ms": "100",
                   "group.share.min.heartbeat.interval.ms": "100",
                   "group.share.heartbeat.interval.ms": "100",
                   "group.consumer.assignment.interval.ms": "0",
                   "group.share.assignment.interval.ms": "0"}


class ApplicationExit(BaseException):
    """An exception of the application that is no Exception."""


KINDS = [ValueError, SystemExit, KeyboardInterrupt, asyncio.CancelledError, StopIteration,
         StopAsyncIteration, GeneratorExit, ApplicationExit]
WAIT_S = 30
FETCH_WAIT_MS = 50  # A consumer that reads again waits for its fetch in flight.


def raising(kind, called):
    def function(*given, **more):
        called.append(given)
        raise kind("planted")

    return function


def from_coroutine(kind) -> type[BaseException]:
    """Return what a coroutine's caller gets if code inside it raises `kind`."""
    return RuntimeError if kind is StopIteration else kind


@pytest.fixture
def topic(target):
    name = new_topic(target.bootstrap, 1)
    yield name
    # Another client of the process works.
    with Producer(bootstrap_servers=target.bootstrap) as other:
        other.send(name, b"other").result(WAIT_S)


def group() -> str:
    return f"g-{uuid.uuid4().hex[:8]}"


def share_group(target) -> str:
    """Return a new share group that starts at the first record."""
    name = group()
    with Admin(bootstrap_servers=target.bootstrap) as admin:
        admin.incremental_alter_configs({ConfigResource(ResourceType.GROUP, name): {
            "share.auto.offset.reset": "earliest"}})
    return name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["on_delivery", "add_done_callback", "on_acknowledgement"])
def test_raising_delivery_callback_fails_no_record(target, topic, kind, where):
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
        until(lambda: len(called) == 3)
        if where != "on_delivery":
            assert delivered == [0, 1, 2]
        assert producer.send(topic, b"after").result(WAIT_S).offset == 3


@pytest.mark.parametrize("kind", KINDS)
def test_raising_statistics_callback_is_called_again(target, topic, kind):
    called = []
    with Producer(bootstrap_servers=target.bootstrap, statistics_interval_ms=50,
                  stats_cb=raising(kind, called)) as producer:
        until(lambda: len(called) > 1)
        assert producer.send(topic, b"after").result(WAIT_S).offset == 0


@pytest.mark.parametrize("kind", KINDS)
def test_interceptor_and_serializer_errors_of_a_send_are_raised_by_it(
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
def test_rebalance_listener_error_is_raised_once_and_keeps_the_partitions(
        target, topic, kind, where, protocol):
    """The call that ran the callback raises the exception; the consumer has its partitions, and
    another call works.
    """
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
            until(lambda: consumer.poll(1.0))
        assert isinstance(raised, (from_coroutine(kind), asyncio.CancelledError))
        assert len(called) == 1
        assert consumer.assignment() == [TopicPartition(topic, 0)]
        consumer.commit(timeout=WAIT_S)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["commit_async", "on_commit"])
def test_raising_commit_callback_keeps_the_committed_offset(target, topic, kind, where):
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
        until(lambda: called)
        assert consumer.committed([partition], timeout=WAIT_S)[partition].offset == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("client", [Producer, Consumer, ShareConsumer])
def test_raising_interceptor_does_not_prevent_close(target, topic, kind, client):
    called = []

    class Interceptor:
        def close(self):
            raising(kind, called)()

    more = {} if client is Producer else {"group_id": group()}
    made = client(bootstrap_servers=target.bootstrap, interceptor_classes=[Interceptor], **more)
    made.close()
    assert len(called) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_an_acknowledgement_callback_of_a_share_consumer(target, topic, kind):
    called = []
    with ShareConsumer(bootstrap_servers=target.bootstrap, group_id=share_group(target),
                       fetch_max_wait_ms=FETCH_WAIT_MS) as consumer, \
            Producer(bootstrap_servers=target.bootstrap) as producer:
        consumer.subscribe([topic])
        producer.send(topic, b"value").result(WAIT_S)
        until(lambda: consumer.poll(1.0))
        consumer.set_acknowledgement_commit_callback(raising(kind, called))
        with pytest.raises(kind):
            until(lambda: consumer.poll(0.2))
        consumer.set_acknowledgement_commit_callback(None)
        assert called
        producer.send(topic, b"value").result(WAIT_S)
        until(lambda: consumer.poll(1.0))


# With asyncio, an exit ends the application's loop, as in asyncio's own callbacks.

ENDS_LOOP = (SystemExit, KeyboardInterrupt)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["on_delivery", "add_done_callback", "on_acknowledgement",
                                   "stats_cb", "commit_async", "on_commit"])
def test_only_exit_errors_of_callbacks_end_the_applications_loop(target, topic, kind, where):
    called, done = [], []
    fails = raising(kind, called)

    def once(given):
        if not called:
            fails()

    class Interceptor:
        def on_commit(self, offsets):
            once(offsets)

        def on_acknowledgement(self, metadata, failure):
            once(metadata)

    async def main():
        more = {"statistics_interval_ms": 50, "stats_cb": once} if where == "stats_cb" else {}
        if where == "on_acknowledgement":
            more = {"interceptor_classes": [Interceptor()]}
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
                elif where == "add_done_callback":
                    (await producer.send(topic, b"value")).add_done_callback(fails)
                    await producer.flush(WAIT_S)
                elif where == "on_acknowledgement":
                    await producer.send(topic, b"value")
                    await producer.flush(WAIT_S)
                elif where == "commit_async":
                    consumer.commit_async({partition: 0}, fails)
                elif where == "on_commit":
                    await consumer.commit({partition: 0})
                while not called:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.05)
            finally:
                # The client works, or reports that its loop is closing.
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
def test_only_exit_errors_of_listeners_end_the_applications_loop(target, topic, kind, is_coroutine):
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
                except BaseException as failure:
                    if kind in ENDS_LOOP or asyncio.current_task().cancelling():
                        raise
                    raised = failure
            assert isinstance(raised, from_coroutine(kind))
            await consumer.commit()
            done.append(True)

    if kind in ENDS_LOOP:
        with pytest.raises(kind):
            asyncio.run(main())
    else:
        asyncio.run(main())
        assert done
    assert len(called) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("client", [aio.Producer, aio.Consumer, aio.ShareConsumer])
def test_raising_interceptor_does_not_prevent_asyncio_close(target, topic, kind, client):
    called = []

    class Interceptor:
        def close(self):
            raising(kind, called)()

    async def main():
        more = {} if client is aio.Producer else {"group_id": group()}
        async with asyncio.timeout(60):
            made = await client(bootstrap_servers=target.bootstrap,
                                interceptor_classes=[Interceptor], **more).start()
            await made.close()
            await asyncio.sleep(0.01)

    with pytest.raises(kind) if kind in ENDS_LOOP else contextlib.nullcontext():
        asyncio.run(main())
    assert len(called) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_an_acknowledgement_callback_of_a_share_consumer_with_asyncio(target, topic, kind):
    called, name = [], share_group(target)

    async def main():
        async with asyncio.timeout(60), aio.ShareConsumer(
                bootstrap_servers=target.bootstrap, group_id=name,
                fetch_max_wait_ms=FETCH_WAIT_MS) as consumer, \
                aio.Producer(bootstrap_servers=target.bootstrap) as producer:
            await consumer.subscribe([topic])
            await producer.send_and_wait(topic, b"value")
            while not await consumer.poll(1.0):
                pass
            consumer.set_acknowledgement_commit_callback(raising(kind, called))
            with pytest.raises(from_coroutine(kind)):
                while True:
                    await consumer.poll(0.2)
            consumer.set_acknowledgement_commit_callback(None)
            assert called
            await producer.send_and_wait(topic, b"value")
            while not await consumer.poll(1.0):
                pass

    asyncio.run(main())


# Application code that processes records, or chooses their partition.

VALUES = [b"0", b"1", b"2", b"3", b"4"]


class Failing:
    """Raises `kind` the first times that it gets `at`; is a deserializer and an interceptor."""

    def __init__(self, kind, at=b"2", times=1):
        self.kind, self.at, self.times, self.calls = kind, at, times, 0

    def __call__(self, data):
        if data == self.at and self.calls < self.times:
            self.calls += 1
            raise self.kind("planted")
        return data

    def on_consume(self, found):
        for record in found:
            self(record.value)
        return found


def reading_settings(where, kind, is_shared=False):
    # A consumer returns the records before a bad one first, and then raises.
    is_late = not is_shared and read_error(where, kind) is RecordDeserializationError
    failing = Failing(kind, times=1 + is_late)
    return failing, {where: [failing] if where == "interceptor_classes" else failing}


def put_values(bootstrap, topic):
    with Producer(bootstrap_servers=bootstrap) as producer:
        for value in VALUES:
            producer.send(topic, value, value)


def read_error(where, kind):
    """Return the exception that the reader gets if this code raises `kind`."""
    is_wrapped = issubclass(kind, Exception) and where != "interceptor_classes"
    return RecordDeserializationError if is_wrapped else kind


READING = ["interceptor_classes", "key_deserializer", "value_deserializer"]
# Iteration calls poll(): it differs only by the exceptions that a generator converts.
ITERATED_KINDS = [KeyboardInterrupt, StopIteration, StopAsyncIteration]
READS = [(kind, False) for kind in KINDS] + [(kind, True) for kind in ITERATED_KINDS]


@pytest.mark.parametrize(("kind", "iterates"), READS)
@pytest.mark.parametrize("where", READING)
def test_code_that_reads_records_loses_and_skips_none(target, topic, kind, where, iterates):
    put_values(target.bootstrap, topic)
    failing, more = reading_settings(where, kind)
    found, raised, name = [], [], group()
    with Consumer(bootstrap_servers=target.bootstrap, auto_offset_reset="earliest",
                  group_id=name, enable_auto_commit=False, fetch_max_wait_ms=FETCH_WAIT_MS,
                  **more) as consumer:
        consumer.subscribe([topic])
        end_s = time.monotonic() + WAIT_S
        while len(found) < len(VALUES) and time.monotonic() < end_s:
            try:
                if iterates:
                    for record in consumer:
                        found.append(record.value)
                        if len(found) == len(VALUES):
                            break
                else:
                    found += [record.value for record in consumer.poll(1.0)]
            except BaseException as failure:
                raised.append(type(failure))
        expected = read_error(where, kind)
        if iterates:
            expected = from_coroutine(expected)  # The same for a generator.
        assert found == VALUES and raised == [expected] and failing.calls == failing.times
        partition = TopicPartition(topic, 0)
        consumer.commit(timeout=WAIT_S)
        assert consumer.committed([partition], timeout=WAIT_S)[partition].offset == len(VALUES)


@pytest.mark.parametrize(("kind", "iterates"), READS)
@pytest.mark.parametrize("where", READING)
def test_code_that_reads_records_with_asyncio_loses_and_skips_none(
        target, topic, kind, where, iterates):
    put_values(target.bootstrap, topic)
    failing, more = reading_settings(where, kind)

    async def main():
        found, raised = [], []
        async with asyncio.timeout(60), aio.Consumer(
                bootstrap_servers=target.bootstrap, auto_offset_reset="earliest",
                group_id=group(), fetch_max_wait_ms=FETCH_WAIT_MS, **more) as consumer:
            await consumer.subscribe([topic])
            while len(found) < len(VALUES):
                try:
                    if iterates:
                        async for record in consumer:
                            found.append(record.value)
                            if len(found) == len(VALUES):
                                break
                    else:
                        found += [record.value for record in await consumer.poll(1.0)]
                except BaseException as failure:
                    if asyncio.current_task().cancelling():
                        raise
                    raised.append(type(failure))
            expected = from_coroutine(read_error(where, kind))
            if iterates and expected is StopAsyncIteration:
                expected = RuntimeError  # Like every asynchronous generator.
            assert found == VALUES and raised == [expected] and failing.calls == failing.times
            await consumer.commit()

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", READING)
def test_share_records_of_failing_code_are_redelivered(target, topic, kind, where):
    failing, more = reading_settings(where, kind, is_shared=True)
    found, raised = set(), []
    put_values(target.bootstrap, topic)
    with ShareConsumer(bootstrap_servers=target.bootstrap, group_id=share_group(target),
                       fetch_max_wait_ms=FETCH_WAIT_MS, **more) as consumer:
        consumer.subscribe([topic])

        def polled():
            try:
                found.update(record.value for record in consumer.poll(1.0))
            except BaseException as failure:
                raised.append(type(failure))
            return len(found) == len(VALUES) and raised

        until(polled)
        assert raised == [read_error(where, kind)] and failing.calls == 1
        assert all(failure is None for failure in consumer.commit(timeout=WAIT_S).values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", READING)
def test_share_records_of_failing_asyncio_code_are_redelivered(
        target, topic, kind, where):
    failing, more = reading_settings(where, kind, is_shared=True)
    put_values(target.bootstrap, topic)
    name = share_group(target)

    async def main():
        found, raised = set(), []
        async with asyncio.timeout(60), aio.ShareConsumer(
                bootstrap_servers=target.bootstrap, group_id=name,
                fetch_max_wait_ms=FETCH_WAIT_MS, **more) as consumer:
            await consumer.subscribe([topic])
            while len(found) < len(VALUES) or not raised:
                try:
                    found.update(record.value for record in await consumer.poll(1.0))
                except BaseException as failure:
                    if asyncio.current_task().cancelling():
                        raise
                    raised.append(type(failure))
            assert raised == [from_coroutine(read_error(where, kind))] and failing.calls == 1
            assert all(failure is None for failure in (await consumer.commit()).values())

    asyncio.run(main())


def partitioner(kind):
    """Return a partitioner that raises once."""
    failing = Failing(kind, b"bad")

    def choose(topic, key, partitions, *more):
        failing(key)
        return 0

    class Partitioner:
        def choose(self, *given):
            return choose(*given)

    return Partitioner()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", ["send", "send_arrow"])
def test_partitioner_error_is_raised_by_the_send(target, topic, kind, call):
    import pyarrow as pa

    rows = pa.table({"key": [b"good", b"bad"], "value": [b"1", b"2"]})
    with Producer(bootstrap_servers=target.bootstrap,
                  partitioner_class=partitioner(kind)) as producer:
        with pytest.raises(kind):
            if call == "send":
                producer.send(topic, b"lost", b"bad")
            else:
                producer.send_arrow(rows, topic)
        assert producer.send(topic, b"after", b"bad").result(WAIT_S).offset == 0
        assert producer.flush(WAIT_S) == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", ["send", "send_arrow"])
def test_partitioner_error_is_raised_by_the_asyncio_send(target, topic, kind, call):
    import pyarrow as pa

    rows = pa.table({"key": [b"good", b"bad"], "value": [b"1", b"2"]})

    async def main():
        async with asyncio.timeout(60), aio.Producer(
                bootstrap_servers=target.bootstrap,
                partitioner_class=partitioner(kind)) as producer:
            # send_arrow chooses partitions on a thread, from which only an Exception reaches the
            # caller.
            is_exception = issubclass(kind, Exception)
            expected = from_coroutine(kind) if call == "send" or is_exception else RuntimeError
            with pytest.raises(expected):
                if call == "send":
                    await producer.send(topic, b"lost", b"bad")
                else:
                    await producer.send_arrow(rows, topic)
            assert (await producer.send_and_wait(topic, b"after", b"bad")).offset == 0

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["key_serializer", "value_serializer"])
def test_serializer_error_is_raised_by_the_send(target, topic, kind, where):
    expected = SerializationError if issubclass(kind, Exception) else kind
    with Producer(bootstrap_servers=target.bootstrap,
                  **{where: Failing(kind, b"bad")}) as producer:
        with pytest.raises(expected):
            producer.send(topic, b"bad", b"bad")
        assert producer.send(topic, b"bad", b"bad").result(WAIT_S).offset == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["key_serializer", "value_serializer", "on_send"])
def test_serializer_and_interceptor_errors_are_raised_by_the_asyncio_send(
        target, topic, kind, where):
    failing = Failing(kind, b"bad")

    class Interceptor:
        def on_send(self, **record):
            failing(record["key"])

    more = {"interceptor_classes": [Interceptor()]} if where == "on_send" else {where: failing}
    expected = from_coroutine(kind)
    if where != "on_send" and issubclass(kind, Exception):
        expected = SerializationError

    async def main():
        async with asyncio.timeout(60), aio.Producer(
                bootstrap_servers=target.bootstrap, **more) as producer:
            with pytest.raises(expected):
                await producer.send(topic, b"bad", b"bad")
            assert (await producer.send_and_wait(topic, b"bad", b"bad")).offset == 0

    asyncio.run(main())


def assignor(kind, called):
    """Return an assignor that raises once."""
    def assign(counts, members):
        if not called:
            raising(kind, called)(counts)
        return ASSIGNORS["range"].assign(counts, members)

    return Assignor("mine", assign)


@pytest.mark.parametrize("kind", KINDS)
def test_raising_assignor_is_called_again_by_the_next_poll(target, topic, kind):
    put_values(target.bootstrap, topic)
    called, found, raised = [], [], []
    with Consumer(bootstrap_servers=target.bootstrap, group_id=group(), group_protocol="classic",
                  auto_offset_reset="earliest", session_timeout_ms=6000,
                  partition_assignment_strategy=[assignor(kind, called)]) as consumer:
        consumer.subscribe([topic])

        def polled():
            try:
                found.extend(record.value for record in consumer.poll(1.0))
            except BaseException as failure:
                raised.append(failure)
            return len(found) == len(VALUES)

        until(polled)
        assert found == VALUES and len(called) == 1
        assert len(raised) == 1 and isinstance(
            raised[0], (from_coroutine(kind), concurrent.futures.CancelledError))


@pytest.mark.parametrize("kind", KINDS)
def test_only_exit_errors_of_assignors_end_the_applications_loop(target, topic, kind):
    put_values(target.bootstrap, topic)
    called, found, raised = [], [], []

    async def main():
        async with asyncio.timeout(60), aio.Consumer(
                bootstrap_servers=target.bootstrap, group_id=group(), group_protocol="classic",
                auto_offset_reset="earliest", session_timeout_ms=6000,
                partition_assignment_strategy=[assignor(kind, called)]) as consumer:
            await consumer.subscribe([topic])
            while len(found) < len(VALUES):
                try:
                    found.extend(record.value for record in await consumer.poll(1.0))
                except BaseException as failure:
                    if kind in ENDS_LOOP or asyncio.current_task().cancelling():
                        raise
                    raised.append(type(failure))

    if kind in ENDS_LOOP:
        with pytest.raises(kind):
            asyncio.run(main())
    else:
        asyncio.run(main())
        assert found == VALUES and raised == [from_coroutine(kind)]
    assert len(called) == 1


@contextlib.contextmanager
def missing_polls(consumer):
    """Make the time between two polls too long for the group; yields the membership."""
    membership = consumer._core.membership
    interval_s, membership.poll_interval_s = membership.poll_interval_s, 0.0
    yield membership
    membership.poll_interval_s = interval_s


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_partitions_are_reassigned_after_a_raising_loss_listener(
        target, topic, kind, protocol):
    put_values(target.bootstrap, topic)
    called, raised = [], []
    with Consumer(bootstrap_servers=target.bootstrap, group_id=group(), group_protocol=protocol,
                  auto_offset_reset="earliest", heartbeat_interval_ms=50,
                  fetch_max_wait_ms=FETCH_WAIT_MS, enable_auto_commit=False) as consumer:
        consumer.subscribe([topic], on_lost=raising(kind, called))
        until(lambda: consumer.poll(0.2))
        with missing_polls(consumer) as membership:
            until(lambda: membership.lost)
        found = []

        def polled():
            try:
                found.extend(record.value for record in consumer.poll(1.0))
            except BaseException as failure:
                raised.append(failure)
            return raised and len(found) >= len(VALUES)

        until(polled)
        assert found == VALUES and len(called) == len(raised) == 1
        assert isinstance(raised[0], (from_coroutine(kind), concurrent.futures.CancelledError))
        consumer.commit(timeout=WAIT_S)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_listener_that_raises_in_close_leaves_the_group(target, topic, kind, protocol):
    put_values(target.bootstrap, topic)
    called, name = [], group()
    settings = {"bootstrap_servers": target.bootstrap, "group_id": name,
                "group_protocol": protocol, "auto_offset_reset": "earliest"}
    consumer = Consumer(**settings)
    consumer.subscribe([topic], on_revoke=raising(kind, called))
    until(lambda: consumer.poll(0.2))
    with contextlib.suppress(BaseException):
        consumer.close(timeout=5)
    consumer.close(timeout=5)
    assert len(called) == 1
    with Consumer(**settings) as other, Producer(bootstrap_servers=target.bootstrap) as producer:
        other.subscribe([topic])
        producer.send(topic, b"more").result(WAIT_S)
        until(lambda: other.poll(0.2))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_only_exit_errors_of_loss_listeners_end_the_applications_loop(
        target, topic, kind, protocol):
    put_values(target.bootstrap, topic)
    called, raised, found = [], [], []

    async def main():
        async with asyncio.timeout(60), aio.Consumer(
                bootstrap_servers=target.bootstrap, group_id=group(), group_protocol=protocol,
                auto_offset_reset="earliest", heartbeat_interval_ms=50,
                fetch_max_wait_ms=FETCH_WAIT_MS, enable_auto_commit=False) as consumer:
            await consumer.subscribe([topic], on_lost=raising(kind, called))
            while not await consumer.poll(0.2):
                pass
            with missing_polls(consumer) as membership:
                while not membership.lost:
                    await asyncio.sleep(0.02)
            while not raised or len(found) < len(VALUES):
                try:
                    found.extend(record.value for record in await consumer.poll(1.0))
                except BaseException as failure:
                    if kind in ENDS_LOOP or asyncio.current_task().cancelling():
                        raise
                    raised.append(type(failure))
            await consumer.commit()

    if kind in ENDS_LOOP:
        with pytest.raises(kind):
            asyncio.run(main())
    else:
        asyncio.run(main())
        assert found == VALUES and raised == [from_coroutine(kind)]
    assert len(called) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("call", ["close", "unsubscribe"])
def test_a_listener_on_the_loop_that_raises_at_the_end_leaves_the_group(
        target, topic, kind, protocol, call):
    put_values(target.bootstrap, topic)
    called = []
    settings = {"bootstrap_servers": target.bootstrap, "group_id": group(),
                "group_protocol": protocol, "auto_offset_reset": "earliest"}

    async def main():
        async with asyncio.timeout(60):
            consumer = await aio.Consumer(**settings).start()
            await consumer.subscribe([topic], on_revoke=raising(kind, called))
            while not await consumer.poll(0.2):
                pass
            try:
                with pytest.raises(from_coroutine(kind)):
                    await getattr(consumer, call)()
            finally:
                await consumer.close()

    if kind in ENDS_LOOP:
        with contextlib.suppress(kind):
            asyncio.run(main())
    else:
        asyncio.run(main())
    assert len(called) == 1
    with Consumer(**settings) as other, Producer(bootstrap_servers=target.bootstrap) as producer:
        other.subscribe([topic])
        producer.send(topic, b"more").result(WAIT_S)
        until(lambda: other.poll(0.2))


# Tokens for the login.

@pytest.fixture(scope="module")
def token_broker():
    with Broker(settings={
            "listeners": "SASL_PLAINTEXT://127.0.0.1:0", "auto.create.topics.enable": "true",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.unsecured.enable": "true"}) as broker:
        yield broker


def token_settings(broker, kind, called):
    """Settings whose token callback raises once."""
    def token(_):
        if not called:
            raising(kind, called)()
        return token_source.unsigned({"unsecuredLoginStringClaim_sub": "alice"}, time.time).token

    return {"bootstrap_servers": broker.bootstrap, "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "OAUTHBEARER", "oauth_cb": token}


@pytest.mark.parametrize("kind", KINDS)
def test_raising_token_callback_fails_one_call_and_is_called_again(token_broker, kind):
    called = []
    with Producer(**token_settings(token_broker, kind, called)) as producer:
        with pytest.raises(AuthenticationError, match=f"oauth_cb raised {kind.__name__}: planted"):
            producer.partitions_for("tokens")
        assert called
        assert producer.send("tokens", b"after").result(WAIT_S)


@pytest.mark.parametrize("kind", KINDS)
def test_raising_token_callback_fails_one_asyncio_call(token_broker, kind):
    called = []

    async def main():
        async with asyncio.timeout(60), aio.Producer(
                **token_settings(token_broker, kind, called)) as producer:
            with pytest.raises(AuthenticationError, match=f"raised {kind.__name__}: planted"):
                await producer.partitions_for("tokens")
            assert called
            assert await producer.send_and_wait("tokens", b"after")

    asyncio.run(main())

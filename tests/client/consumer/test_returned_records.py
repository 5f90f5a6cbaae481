"""Positions advance only past records that the application received, whichever error a poll raises.

Each step is a call that fails after records were taken; the next calls must return every record.
"""

import asyncio
import pickle
from types import SimpleNamespace

import numpy as np
import pytest

from pylog.client import ShareConsumer, TopicPartition, aio, errors
from pylog.client.columns import arrow
from tests.client.share.test_share_consumer import new_group, take
from tests.client.support import BASE_MS, collect, new_name, new_topic, put, reader, rows

BROKER_SETTINGS = {"share.coordinator.state.topic.num.partitions": 4,
                   "group.share.min.heartbeat.interval.ms": 500,
                   "group.share.heartbeat.interval.ms": 500}
pytestmark = pytest.mark.timeout(180)
SPAN = 200


@pytest.fixture(scope="module")
def broker(brokerd):
    return brokerd


def filled(broker, values, partitions=1):
    topic = new_topic(broker, partitions)
    for partition in range(partitions):
        put(broker, topic, [(None, value, BASE_MS, []) for value in values], partition)
    return topic


class Fails:
    """Raises `failure` on its first calls, and does nothing later."""

    def __init__(self, failure, times=1):
        self.failure, self.left = failure, times

    def __call__(self, *given):
        if self.left:
            self.left -= 1
            raise self.failure


def interceptor(fails):
    def on_consume(found):
        fails()
        return found
    return SimpleNamespace(on_consume=on_consume)


def test_iteration_returns_the_records_before_an_undeserializable_one(broker):
    topic = filled(broker, [b"0", b"1", b"x", b"3"])
    part, found = TopicPartition(topic, 0), []
    with reader(broker, topic, value_deserializer=int, group_id=new_name("g")) as consumer:
        for _ in range(2):
            with pytest.raises(errors.RecordDeserializationError, match="seek past") as bad:
                for record in consumer:
                    found.append(record.value)
            assert (bad.value.partition, bad.value.offset) == (part, 2)
            assert found == [0, 1] and consumer.position(part) == 2
            assert consumer.commit()[part].offset == 2
        consumer.seek(part, 3)
        assert next(iter(consumer)).value == 3


def test_async_iteration_returns_the_records_before_an_undeserializable_one(broker):
    topic = filled(broker, [b"0", b"1", b"x", b"3"])

    async def work():
        part, found = TopicPartition(topic, 0), []
        async with aio.Consumer(bootstrap_servers=broker.bootstrap, value_deserializer=int,
                                auto_offset_reset="earliest") as consumer:
            await consumer.assign([part])
            with pytest.raises(errors.RecordDeserializationError):
                async for record in consumer:
                    found.append(record.value)
            assert found == [0, 1] and await consumer.position(part) == 2

    asyncio.run(work())


@pytest.mark.parametrize("bad", [0, 3])
def test_numpy_polls_return_the_records_before_one_of_different_length(broker, bad):
    values = [b"%04d" % number for number in range(8)]
    values[bad] = b"short"
    topic = filled(broker, values, partitions=2)
    parts = [TopicPartition(topic, number) for number in range(2)]
    with reader(broker, topic) as consumer:
        found = {part: [] for part in parts}
        for part in parts:  # In sequence: a bad record stops the poll.
            consumer.pause(*parts)
            consumer.resume(part)
            while len(found[part]) < bad:
                batch = consumer.poll_numpy(1.0, value_dtype="<i4")
                found[part] += batch["offset"].tolist() if batch else []
            for _ in range(2):
                with pytest.raises(errors.RecordDeserializationError) as refused:
                    consumer.poll_numpy(20.0, value_dtype="<i4")
                assert (refused.value.partition, refused.value.offset) == (part, bad)
            assert consumer.position(part) == bad
            consumer.seek(part, bad + 1)
            while len(found[part]) < 7:
                batch = consumer.poll_numpy(1.0, value_dtype="<i4")
                found[part] += batch["offset"].tolist() if batch else []
        assert set(map(tuple, found.values())) == {
            tuple(number for number in range(8) if number != bad)}


def test_numpy_poll_stops_at_a_value_of_another_length_in_each_partition(broker):
    """Each other record is returned once and in order."""
    values = [b"%04d" % number for number in range(30)]
    values[17] = b"longer"
    topic = filled(broker, values, partitions=3)
    found: dict = {TopicPartition(topic, number): [] for number in range(3)}
    with reader(broker, topic) as consumer:
        while sum(map(len, found.values())) < 3 * 29:
            try:
                batch = consumer.poll_numpy(20.0, value_dtype=np.dtype("<i4"))
            except errors.RecordDeserializationError as refused:
                assert refused.offset == 17
                consumer.seek(refused.partition, 18)
                continue
            names = "partition", "offset", "value", "topic"
            assert len({len(batch[name]) for name in names}) == 1
            for partition, offset in zip(batch["partition"].tolist(), batch["offset"].tolist()):
                found[topic, partition].append(offset)
    for offsets in found.values():
        assert offsets == [number for number in range(30) if number != 17]


POLLS = {"poll": lambda consumer: [one.offset for one in consumer.poll(20.0)],
         "poll_numpy": lambda consumer: consumer.poll_numpy(20.0)["offset"].tolist(),
         "poll_arrow": lambda consumer: consumer.poll_arrow(20.0).column("offset").to_pylist()}


@pytest.mark.parametrize("name", POLLS)
@pytest.mark.parametrize("failure", [MemoryError("planted"), KeyboardInterrupt("planted")])
def test_records_of_a_failed_poll_are_returned_by_the_next_one(broker, monkeypatch, name, failure):
    topic = filled(broker, [b"%d" % number for number in range(SPAN)])
    part, fails = TopicPartition(topic, 0), Fails(failure)
    for work in ("numpy_batch", "record_batch"):
        real = getattr(arrow, work)
        monkeypatch.setattr(arrow, work, lambda *given, real=real: fails() or real(*given))
    with reader(broker, topic, group_id=new_name("g"),
                interceptor_classes=[interceptor(fails)]) as consumer:
        with pytest.raises(type(failure), match="planted"):
            POLLS[name](consumer)
        assert consumer.position(part) == 0 and consumer.commit()[part].offset == 0
        found = []
        while len(found) < SPAN:
            found += POLLS[name](consumer)
        assert found == list(range(SPAN))


def test_records_of_a_failed_async_poll_are_returned_by_the_next_one(broker):
    topic = filled(broker, [b"%d" % number for number in range(SPAN)])

    async def work():
        part, found = TopicPartition(topic, 0), []
        async with aio.Consumer(
                bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest",
                interceptor_classes=[interceptor(Fails(ValueError("planted")))]) as consumer:
            await consumer.assign([part])
            with pytest.raises(ValueError, match="planted"):
                await consumer.poll(20.0)
            assert await consumer.position(part) == 0
            while len(found) < SPAN:
                found += [record.offset for record in await consumer.poll(20.0)]
        assert found == list(range(SPAN))

    asyncio.run(work())


def test_records_of_an_interrupted_deserializer_are_returned_by_the_next_poll(broker):
    topic = filled(broker, [b"%d" % number for number in range(SPAN)])
    fails = Fails(KeyboardInterrupt("planted"))

    def value(data):
        if data == b"%d" % (SPAN // 2):
            fails()
        return int(data)

    with reader(broker, topic, value_deserializer=value) as consumer:
        with pytest.raises(KeyboardInterrupt):
            collect(consumer, SPAN)
        part = TopicPartition(topic, 0)
        first = consumer.position(part)
        assert first <= SPAN // 2
        assert [one.value for one in collect(consumer, SPAN - first)] == list(range(first, SPAN))


# Share groups.


def share_consumer(broker, **settings):
    return ShareConsumer(bootstrap_servers=broker.bootstrap, group_id=new_group(broker), **settings)


@pytest.mark.parametrize("mode", ["implicit", "explicit"])
@pytest.mark.parametrize("by_columns", [False, True])
def test_share_records_of_a_poll_that_raised_are_released(broker, monkeypatch, mode, by_columns):
    topic = new_topic(broker)
    put(broker, topic, rows(10))
    fails = Fails(ValueError("planted"))
    real = arrow.record_batch
    monkeypatch.setattr(arrow, "record_batch", lambda native, *given: (
        native.count and fails() or real(native, *given)))
    with share_consumer(broker, share_acknowledgement_mode=mode,
                        interceptor_classes=[interceptor(fails)]) as consumer:
        consumer.subscribe([topic])
        with pytest.raises(ValueError, match="planted"):
            for _ in range(30):
                consumer.poll_arrow(1.0) if by_columns else consumer.poll(1.0)
        found = take(consumer, 10)
        assert [(one.offset, consumer.delivery_count(one)) for one in found] == [
            (number, 2) for number in range(10)]
        if mode == "explicit":
            consumer.acknowledge(found)


def test_share_records_of_a_poll_whose_acknowledgement_callback_raised_are_released(broker):
    topic = new_topic(broker)
    put(broker, topic, rows(10))
    with share_consumer(broker) as consumer:
        consumer.subscribe([topic])
        take(consumer, 10)
        consumer.set_acknowledgement_commit_callback(Fails(ValueError("planted")))
        found = []
        # Records arrive together with the result of the previous poll's acknowledgements.
        while True:
            put(broker, topic, rows(1))
            try:
                found += consumer.poll(0.2)
            except ValueError:
                break
        end = 10 + len(found)
        put(broker, topic, rows(1))
        while not found or found[-1].offset < end:
            found += consumer.poll(1.0)
        offsets = [one.offset for one in found]
        assert sorted(set(offsets)) == list(range(10, offsets[-1] + 1))


def test_share_records_whose_deserializer_is_interrupted_are_released(broker):
    topic = new_topic(broker)
    put(broker, topic, rows(10))
    fails = Fails(KeyboardInterrupt("planted"))

    def value(data):
        if data == b"value 4":
            fails()
        return data

    with share_consumer(broker, value_deserializer=value) as consumer:
        consumer.subscribe([topic])
        with pytest.raises(KeyboardInterrupt):
            take(consumer, 10)
        assert [one.offset for one in take(consumer, 10)] == list(range(10))


def test_a_deserialization_error_survives_pickling():
    made = errors.RecordDeserializationError.at(TopicPartition("t", 1), 7, "planted")
    again = pickle.loads(pickle.dumps(made))
    assert (str(again), again.partition, again.offset) == (str(made), ("t", 1), 7)
    assert isinstance(again, errors.SerializationError) and isinstance(again, ValueError)

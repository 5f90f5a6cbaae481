"""The producer against a running broker (--against kafka: Apache Kafka), read by librdkafka."""

import asyncio
import threading
import time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pylog._native.client.batch_builder import RowError, murmur2

from pylog.client import errors
from pylog.client.config.settings import CODECS
from pylog.client.producer.aio_producer import Producer as AioProducer
from pylog.client.producer.producer import Producer
from tests.client.reading import new_topic, read_topic

NOW = 1_700_000_000_000


@pytest.fixture(scope="module")
def bootstrap(target):
    return target.bootstrap


@pytest.fixture(scope="module")
def producer(bootstrap):
    with Producer(bootstrap_servers=bootstrap, linger_ms=1) as made:
        yield made


def values_of(bootstrap, topic, partitions=1):
    found = read_topic(bootstrap, topic, partitions)
    return {p: [row[2] for row in rows] for p, rows in found.items()}


# ---- records


def test_a_record_arrives_with_all_that_it_has(bootstrap, producer):
    topic = new_topic(bootstrap)
    headers = [("a", b"1"), ("null", None), ("a", b"2")]
    metadata = producer.send(topic, b"value", b"key", timestamp=NOW, headers=headers).result(20)
    assert metadata == (topic, 0, 0, NOW)
    assert read_topic(bootstrap, topic, 1) == {0: [(0, b"key", b"value", NOW, headers)]}


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_is_read_back(bootstrap, codec):
    topic = new_topic(bootstrap)
    with Producer(bootstrap_servers=bootstrap, compression_type=codec, batch_size=2000) as producer:
        wanted = [b"value %d " % i * 10 for i in range(200)]
        deliveries = [producer.send(topic, value) for value in wanted]
    assert [d.result(0).offset for d in deliveries] == list(range(200))
    assert values_of(bootstrap, topic) == {0: wanted}


def test_nulls_and_texts_are_sent_as_they_are(bootstrap, producer):
    topic = new_topic(bootstrap)
    producer.send(topic, None, b"tombstone")
    producer.send(topic, "grün", "schlüssel")
    producer.send(topic, memoryview(b"view"), bytearray(b"array"))
    producer.flush(20)
    assert [row[1:3] for row in read_topic(bootstrap, topic, 1)[0]] == [
        (b"tombstone", None), ("schlüssel".encode(), "grün".encode()), (b"array", b"view")]


def test_keys_are_partitioned_as_by_java_in_order(bootstrap, producer):
    topic = new_topic(bootstrap, 5)
    for i in range(300):
        producer.send(topic, b"%d" % i, b"key-%d" % (i % 17))
    producer.flush(20)
    for partition, rows in read_topic(bootstrap, topic, 5).items():
        assert all(murmur2(key) % 5 == partition for _, key, *_ in rows)
        numbers = [int(row[2]) for row in rows]
        assert numbers == sorted(numbers)


def test_null_keys_stay_together_and_move_on_by_batch(bootstrap):
    topic = new_topic(bootstrap, 3)
    with Producer(bootstrap_servers=bootstrap, batch_size=2000, linger_ms=1000) as producer:
        placed = [producer.send(topic, b"x" * 90) for _ in range(200)]
        producer.flush(20)
    partitions = [delivery.result().partition for delivery in placed]
    changes = sum(a != b for a, b in zip(partitions, partitions[1:]))
    assert set(partitions) == {0, 1, 2} and 5 <= changes <= 20


def test_an_unknown_partition_is_rejected(bootstrap, producer):
    topic = new_topic(bootstrap, 2)
    assert producer.send(topic, b"x", partition=1).result(20).partition == 1
    with pytest.raises(ValueError, match="no partition 2"):
        producer.send(topic, b"x", partition=2)
    with pytest.raises(ValueError):
        producer.send(topic, b"x", partition=-2)
    assert [p.partition for p in producer.partitions_for(topic)] == [0, 1]


@pytest.mark.parametrize("name, places", [
    ("roundrobin", [0, 1, 2, 0, 1, 2]), ("consistent", [1, 1, 1, 1, 1, 1]),
    (lambda topic, key, partitions, available: partitions[-1], [2] * 6),
])
def test_partitioner_is_given_by_name_or_function(bootstrap, name, places):
    topic = new_topic(bootstrap, 3)
    with Producer(bootstrap_servers=bootstrap, partitioner_class=name) as producer:
        found = [producer.send(topic, b"x").result(20).partition for _ in range(6)]
    if name == "consistent":
        assert len(set(found)) == 1
    else:
        assert found == places


def test_callbacks_get_metadata_or_the_error(bootstrap, producer):
    topic, told = new_topic(bootstrap, **{"max.message.bytes": "1000"}), []
    producer.send(topic, b"fits", on_delivery=lambda *outcome: told.append(outcome)).result(20)
    producer.send(topic, b"x" * 5000, on_delivery=lambda *outcome: told.append(outcome))
    failed = producer.send(topic, b"x" * 5000)
    assert isinstance(failed.exception(20), errors.MessageTooLargeError)
    producer.flush(20)
    (first, none), (nothing, error) = told
    assert (first.topic, first.offset, none) == (topic, 0, None)
    assert nothing is None and isinstance(error, errors.MessageTooLargeError)
    # The sequence continues after the rejected records.
    assert producer.send(topic, b"after").result(20).offset == 1


def test_batches_above_a_topics_limit_are_split(bootstrap):
    topic = new_topic(bootstrap, **{"max.message.bytes": "3000"})
    wanted = [b"%03d" % i * 30 for i in range(200)]
    with Producer(bootstrap_servers=bootstrap, linger_ms=50) as producer:
        deliveries = [producer.send(topic, value) for value in wanted]
        table = producer.send_arrow(pa.table({"value": wanted}), topic)
    assert [d.result(0).offset for d in deliveries] == list(range(200))
    assert sum(count for *_, count in table.result(0)) == 200
    assert values_of(bootstrap, topic) == {0: wanted * 2}


def test_callback_may_send_and_a_failing_one_has_no_effect(bootstrap, producer):
    topic, more = new_topic(bootstrap), []

    def again(metadata, error):
        more.append(producer.send(topic, b"second"))
        raise RuntimeError("the application's")

    producer.send(topic, b"first", on_delivery=again).result(20)
    assert more[0].result(20).offset == 1


def test_record_above_max_request_size_is_rejected_immediately(producer):
    with pytest.raises(errors.MessageTooLargeError):
        producer.send("anything", b"x" * 2_000_000)


def test_non_bytes_value_needs_a_serializer(bootstrap, producer):
    topic = new_topic(bootstrap)
    with pytest.raises((errors.SerializationError, TypeError)):
        producer.send(topic, 5)
    with Producer(bootstrap_servers=bootstrap, value_serializer=lambda v: b"%d" % v) as other:
        other.send(topic, 5).result(20)
        with pytest.raises(errors.SerializationError):
            other.send(topic, object())
    assert values_of(bootstrap, topic) == {0: [b"5"]}


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks_determine_the_known_metadata(bootstrap, acks):
    topic = new_topic(bootstrap)
    with Producer(bootstrap_servers=bootstrap, acks=acks) as producer:
        offset = producer.send(topic, b"x").result(20).offset
        for _ in range(1000):
            producer.send(topic, b"y" * 100)
    assert offset == (-1 if acks == "0" else 0)
    for _ in range(50):
        if len(values_of(bootstrap, topic)[0]) == 1001:
            break
        time.sleep(0.1)
    assert len(values_of(bootstrap, topic)[0]) == 1001


def test_linger_gathers_and_flush_does_not_wait_for_it(bootstrap):
    topic = new_topic(bootstrap)
    with Producer(bootstrap_servers=bootstrap, linger_ms=30_000) as producer:
        delivery = producer.send(topic, b"x")
        time.sleep(0.2)
        assert not delivery.done()
        started = time.monotonic()
        producer.flush(20)
        assert delivery.done() and time.monotonic() - started < 10


def test_many_threads_share_a_producer(bootstrap, producer):
    topic = new_topic(bootstrap, 2)

    def work(number):
        for i in range(500):
            producer.send(topic, b"%d" % i, b"thread-%d" % number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    producer.flush(20)
    found = {}
    for rows in read_topic(bootstrap, topic, 2).values():
        for _, key, value, *_ in rows:
            found.setdefault(key, []).append(int(value))
    assert found == {b"thread-%d" % n: list(range(500)) for n in range(4)}


def test_a_full_buffer_blocks_and_then_raises(bootstrap):
    topic = new_topic(bootstrap)
    with Producer(bootstrap_servers=bootstrap, buffer_memory=40_000, max_block_ms=20_000,
                  batch_size=10_000) as producer:
        for _ in range(3000):
            producer.send(topic, b"x" * 1000)
        producer.flush(30)
        assert producer._core.accumulator.bytes_used == 0
    assert len(values_of(bootstrap, topic)[0]) == 3000


def test_missing_topic_is_reported_after_max_block():
    with Producer(bootstrap_servers="127.0.0.1:1", max_block_ms=300) as producer:
        with pytest.raises(errors.KafkaTimeoutError):
            producer.send("t", b"x")


def test_unanswered_transaction_is_reported_after_max_block():
    with Producer(bootstrap_servers="127.0.0.1:1", max_block_ms=300,
                  transactional_id="t") as producer:
        with pytest.raises(errors.KafkaTimeoutError, match="not done within 0.3 s: .*127.0.0.1:1"):
            producer.init_transactions()


def test_a_closed_producer_sends_nothing(bootstrap):
    producer = Producer(bootstrap_servers=bootstrap)
    producer.close()
    producer.close()
    with pytest.raises(errors.ClosedError):
        producer.send("t", b"x")


def test_immediate_close_fails_pending_records(bootstrap):
    topic = new_topic(bootstrap)
    producer = Producer(bootstrap_servers=bootstrap, linger_ms=30_000)
    producer.partitions_for(topic)
    delivery = producer.send(topic, b"x")
    producer.close(0)
    assert isinstance(delivery.exception(5), errors.ClosedError)


def test_interceptors_see_records_and_outcomes(bootstrap):
    topic, seen = new_topic(bootstrap), []

    class Stamp:
        def on_send(self, topic, value, **rest):
            return {"value": value + b"!", "headers": [("by", b"stamp")]}

        def on_acknowledgement(self, metadata, error):
            seen.append((metadata.offset, error))

    with Producer(bootstrap_servers=bootstrap, interceptor_classes=[Stamp]) as producer:
        producer.send(topic, b"hello")
    assert [row[2:3] + row[4:] for row in read_topic(bootstrap, topic, 1)[0]] == [
        (b"hello!", [("by", b"stamp")])]
    assert seen == [(0, None)]


@pytest.mark.parametrize("bad", [
    {"acks": "1", "enable.idempotence": True}, {"transactional.id": "t", "acks": "0"},
    {"enable.idempotence": True, "max.in.flight.requests.per.connection": 6},
    {"delivery.timeout.ms": 10}, {"partitioner.class": "nobody"},
    {"transactional.id": "t", "enable.idempotence": False},
])
def test_incompatible_settings_are_rejected(bad):
    with pytest.raises(errors.ConfigError):
        Producer({"bootstrap.servers": "127.0.0.1:1", **bad})


def test_the_asyncio_producer_does_the_same(bootstrap):
    topic = new_topic(bootstrap)

    async def work():
        async with AioProducer(bootstrap_servers=bootstrap, buffer_memory=60_000) as producer:
            first = await producer.send_and_wait(topic, b"0", b"k", timestamp=NOW)
            assert first == (topic, 0, 0, NOW)
            deliveries = [await producer.send(topic, b"x" * 1000) for _ in range(500)]
            assert (await deliveries[-1]).offset == 500
            table = pa.table({"value": [b"a", None, b"c"]})
            assert sum(row[3] for row in await (await producer.send_arrow(table, topic))) == 3
            await producer.flush()

    asyncio.run(work())
    found = values_of(bootstrap, topic)[0]
    assert len(found) == 504 and found[-3:] == [b"a", None, b"c"]


# ---- tables

_bytes = st.one_of(st.none(), st.binary(max_size=30), st.binary(min_size=200, max_size=300))
# librdkafka, which reads here, ends a header's name at the first zero.
_name = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)
_headers = st.lists(st.tuples(_name, _bytes), max_size=2)
_row = st.tuples(_bytes, _bytes, st.integers(0, NOW), _headers)


def table_of(rows, kind):
    headers = pa.list_(pa.struct([("key", pa.utf8()), ("value", pa.binary())]))
    if kind == "map":
        headers = pa.map_(pa.utf8(), pa.binary())
        given = [row[3] for row in rows]
    else:
        given = [[{"key": k, "value": v} for k, v in row[3]] for row in rows]
    blob = pa.large_binary() if kind == "large" else pa.binary()
    return pa.table({
        "key": pa.array([row[0] for row in rows], blob),
        "value": pa.array([row[1] for row in rows], blob),
        "timestamp": pa.array([row[2] for row in rows], pa.timestamp("ms")),
        "headers": pa.array(given, headers),
    })


@settings(max_examples=15, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(_row, min_size=1, max_size=60), st.sampled_from(["plain", "large", "map"]),
       st.sampled_from(CODECS), st.integers(1, 4), st.integers(200, 2000), st.data())
def test_random_table_is_read_back_in_partition_order(
        bootstrap, rows, kind, codec, partitions, batch_bytes, draw):
    topic = new_topic(bootstrap, partitions)
    table = table_of(rows, kind)
    cut = draw.draw(st.integers(0, len(rows)))
    # Real tables have slices and chunks.
    table = pa.concat_tables([table.slice(0, cut), table.slice(cut)])
    with Producer(bootstrap_servers=bootstrap, compression_type=codec) as producer:
        delivery = producer.send_arrow(table, topic, batch_bytes=batch_bytes)
        assert sum(count for *_, count in delivery.result(20)) == len(rows) == delivery.row_count
    found = {p: [(k, v, t, h) for _, k, v, t, h in got]
             for p, got in read_topic(bootstrap, topic, partitions).items()}
    for partition, got in found.items():
        assert [row for row in got if row[0] is not None] == [
            row for row in rows
            if row[0] is not None and murmur2(row[0]) % partitions == partition]
    loose = [row for got in found.values() for row in got if row[0] is None]
    assert sorted(map(repr, loose)) == sorted(repr(row) for row in rows if row[0] is None)


def test_a_tables_columns_may_have_any_name_and_a_partition_column_decides(bootstrap, producer):
    topic = new_topic(bootstrap, 3)
    table = pa.table({"name": ["a", "b", "c", "d"], "where": [2, 0, None, 2],
                      "kind": pa.array(["x", "y", "x", None]).dictionary_encode(),
                      "when": [NOW, NOW + 1, None, NOW + 3]})
    producer.send_arrow(table, topic, value="name", key="kind", partition="where",
                        timestamp="when").result(20)
    found = {p: [(k, v) for _, k, v, *_ in rows]
             for p, rows in read_topic(bootstrap, topic, 3).items()}
    wanted = {2: [(b"x", b"a")], 0: [(b"y", b"b")], 1: []}
    wanted[murmur2(b"x") % 3].append((b"x", b"c"))
    wanted[2].append((None, b"d"))
    assert found == wanted


def test_arrays_batches_and_streams_are_tables_too(bootstrap, producer):
    topic = new_topic(bootstrap)
    batch = pa.record_batch({"value": [b"1", b"2"]})
    producer.send_arrow(batch, topic, key=pa.array([b"k", None])).result(20)
    reader = pa.RecordBatchReader.from_batches(batch.schema, iter([batch, batch]))
    assert producer.send_arrow(reader, topic).row_count == 4
    strings = pa.record_batch({"text": pa.array(["v"], pa.string_view())})
    producer.send_arrow(strings, topic, value="text").result(20)
    fixed = pa.record_batch({"value": pa.array([b"abcd"], pa.binary(4))})
    producer.send_arrow(fixed, topic).result(20)
    empty = pa.table({"value": pa.array([], pa.binary())})
    assert producer.send_arrow(empty, topic).result(20) == []
    found = [(row[1], row[2]) for row in read_topic(bootstrap, topic, 1)[0]]
    assert found == [(b"k", b"1"), (None, b"2"), *[(None, b"1"), (None, b"2")] * 2,
                     (None, b"v"), (None, b"abcd")]


def test_records_and_tables_keep_the_order_of_the_calls(bootstrap):
    topic = new_topic(bootstrap)
    with Producer(bootstrap_servers=bootstrap, linger_ms=10_000) as producer:
        producer.send(topic, b"0")
        producer.send_arrow(pa.table({"value": [b"1", b"2"]}), topic)
        producer.send(topic, b"3")
    assert values_of(bootstrap, topic) == {0: [b"0", b"1", b"2", b"3"]}


def test_unsendable_tables_are_rejected(producer, bootstrap):
    topic = new_topic(bootstrap, 2)
    with pytest.raises(errors.ConfigError, match="no column"):
        producer.send_arrow(pa.table({"value": [b"x"]}), topic, key="nothing")
    with pytest.raises(errors.ConfigError, match="neither"):
        producer.send_arrow(pa.table({"other": [b"x"]}), topic)
    with pytest.raises(TypeError, match="binary or string"):
        producer.send_arrow(pa.table({"value": [1]}), topic)
    with pytest.raises(TypeError, match="not Arrow"):
        producer.send_arrow([1, 2], topic)
    with pytest.raises(RowError, match="row 1"):
        producer.send_arrow(pa.table({"value": [b"x", b"y"], "partition": [0, 7]}), topic)
    with pytest.raises(RowError, match="row 0"):
        producer.send_arrow(pa.table({"value": [b"x" * 1_100_000]}), topic)


def test_custom_partitioner_is_called_for_every_row(bootstrap):
    topic = new_topic(bootstrap, 3)
    with Producer(bootstrap_servers=bootstrap,
                  partitioner_class=lambda topic, key, all_, _: int(key) % len(all_)) as producer:
        producer.send_arrow(pa.table({"key": ["4", "2", "0"], "value": ["a", "b", "c"]}),
                            topic).result(20)
    assert values_of(bootstrap, topic, 3) == {0: [b"c"], 1: [b"a"], 2: [b"b"]}


def test_a_table_larger_than_the_buffer_is_sent_in_bounded_memory(bootstrap):
    topic = new_topic(bootstrap, 2)
    values = pa.array(np.arange(300_000).astype("S100"), pa.binary())
    with Producer(bootstrap_servers=bootstrap, buffer_memory=2_000_000) as producer:
        delivery = producer.send_arrow(pa.table({"value": values}), topic)
        assert sum(row[3] for row in delivery.result(60)) == 300_000
        assert producer._core.accumulator.bytes_used == 0

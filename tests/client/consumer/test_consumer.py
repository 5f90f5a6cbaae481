"""Reading by partition: records, columns, positions, resets, commits."""

import threading
import time

import pytest

from pylog.client import Admin, Consumer, NewTopic, OffsetAndMetadata, TopicPartition, errors
from tests.client.support import (
    BASE_MS, CODECS, as_rows, collect, new_name, new_topic, put, reader, rows,
)

BROKER_SETTINGS = {"group.initial.rebalance.delay.ms": "0"}


@pytest.fixture(scope="module")
def filled(broker):
    """Return a topic of 500 records in one partition."""
    topic = new_topic(broker)
    put(broker, topic, rows(500))
    return topic


def test_records_are_read_back_unchanged(broker, filled):
    with reader(broker, filled) as consumer:
        found = collect(consumer, 500)
    assert as_rows(found) == rows(500)
    assert [one.offset for one in found] == list(range(500))
    assert {(one.topic, one.partition) for one in found} == {(filled, 0)}


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_is_read(broker, codec):
    topic = new_topic(broker)
    put(broker, topic, rows(120), codec=codec)
    with reader(broker, topic) as consumer:
        assert as_rows(collect(consumer, 120)) == rows(120)


def test_arrow_has_the_records_of_all_partitions(broker):
    topic = new_topic(broker, 3)
    for partition in range(3):
        put(broker, topic, rows(100, 100 * partition), partition)
    with reader(broker, topic) as consumer:
        tables = []
        while sum(one.num_rows for one in tables) < 300:
            tables.append(consumer.poll_arrow(5.0))
            assert tables[-1].num_rows, "no more records came"
        empty = consumer.poll_arrow(0.05)
    assert empty.num_rows == 0 and empty.schema == tables[0].schema
    found = [row for one in tables for row in one.to_pylist()]
    found.sort(key=lambda row: (row["partition"], row["offset"]))
    assert [(row["key"], row["value"], int(row["timestamp"].timestamp() * 1000),
             [(header["key"], header["value"]) for header in row["headers"]])
            for row in found] == rows(300)
    assert {row["topic"] for row in found} == {topic}


def test_arrow_returns_the_requested_columns(broker, filled):
    with reader(broker, filled) as consumer:
        found = consumer.poll_arrow(10.0, max_records=7, columns=["value", "offset"])
    assert found.schema.names == ["offset", "value"] and found.num_rows == 7


def test_arrow_ends_a_batch_before_it_is_too_large(broker):
    topic = new_topic(broker)
    put(broker, topic, [(None, bytes(size), BASE_MS, []) for size in (400, 400, 400, 5000, 1)])
    with reader(broker, topic) as consumer:
        sizes = []
        while sum(sizes) < 5:
            sizes.append(consumer.poll_arrow(10.0, max_bytes=1000).num_rows)
        assert sizes == [2, 1, 1, 1]


def test_numpy_decodes_values_of_fixed_width(broker):
    topic = new_topic(broker)
    put(broker, topic, [(None, number.to_bytes(8, "little"), BASE_MS, []) for number in range(90)])
    with reader(broker, topic) as consumer:
        found = consumer.poll_numpy(10.0, value_dtype="<i8")
        assert found["value"].tolist() == list(range(90))
        assert found["offset"].tolist() == list(range(90))
        assert consumer.poll_numpy(0.05) == {}


def test_poll_returns_at_most_max_records(broker, filled):
    with reader(broker, filled, max_poll_records=30) as consumer:
        assert len(consumer.poll(10.0)) == 30
        assert [one.offset for one in consumer.poll(10.0, max_records=2)] == [30, 31]


def test_iteration_returns_single_records(broker, filled):
    with reader(broker, filled) as consumer:
        for number, record in enumerate(consumer):
            assert record.offset == number
            if number == 499:
                break


def test_seeks_move_the_next_record(broker, filled):
    part = TopicPartition(filled, 0)
    with reader(broker, filled) as consumer:
        assert consumer.poll(10.0, 1)[0].offset == 0
        consumer.seek(part, 321)
        assert consumer.position(part) == 321
        assert consumer.poll(10.0, 1)[0].offset == 321
        consumer.seek_to_beginning(part)
        assert consumer.poll(10.0, 1)[0].offset == 0
        consumer.seek_to_end()
        assert consumer.position(part) == 500
        assert consumer.poll(0.3) == []


def test_paused_partition_returns_nothing_and_loses_nothing(broker):
    topic = new_topic(broker, 2)
    put(broker, topic, rows(60), 0)
    put(broker, topic, rows(60, 60), 1)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with reader(broker, topic) as consumer:
        begun = consumer.poll(10.0, 5)
        paused = TopicPartition(begun[0].topic, begun[0].partition)
        consumer.pause(paused)
        assert consumer.paused() == {paused}
        other = second if paused == first else first
        found = collect(consumer, 60)
        assert {one.partition for one in found} == {other.partition}
        assert consumer.poll(0.3) == []
        consumer.resume(paused)
        rest = collect(consumer, 55)
        assert [one.offset for one in rest] == list(range(5, 60))


def test_commit_during_iteration_covers_the_returned_records(broker):
    topic, group = new_topic(broker), new_name("group")
    put(broker, topic, rows(30))
    for begin in (0, 10, 20):
        with reader(broker, topic, group_id=group, enable_auto_commit=False) as consumer:
            for record in consumer:
                if record.offset == begin + 9:
                    consumer.commit()
                    break
            if begin < 20:
                assert next(iter(consumer)).offset == begin + 10


def test_iteration_and_poll_continue_from_each_other(broker):
    topic = new_topic(broker)
    part = TopicPartition(topic, 0)
    put(broker, topic, rows(30))
    with reader(broker, topic) as consumer:
        stream = iter(consumer)
        assert [next(stream).offset for _ in range(3)] == [0, 1, 2]
        assert [one.offset for one in consumer.poll(5.0, 2)] == [3, 4]
        assert next(stream).offset == 5 and next(iter(consumer)).offset == 6
        consumer.pause(part)
        consumer.resume(part)
        assert next(stream).offset == 7
        consumer.seek(part, 20)
        assert next(stream).offset == 20 and consumer.position(part) == 21
        assert collect(consumer, 9)[-1].offset == 29


def test_without_an_offset_reading_starts_by_the_reset_setting(broker):
    topic = new_topic(broker)
    put(broker, topic, rows(10))
    part = TopicPartition(topic, 0)
    with reader(broker, topic, group_id=new_name("g")) as consumer:
        assert consumer.position(part) == 0
    with _with_reset(broker, "latest") as consumer:
        consumer.assign([part])
        assert consumer.position(part) == 10
    with _with_reset(broker, "none") as consumer:
        consumer.assign([part])
        with pytest.raises(errors.NoOffsetForPartitionError):
            consumer.poll(10.0)


def _with_reset(broker, policy):
    return Consumer({"bootstrap.servers": broker.bootstrap, "auto.offset.reset": policy,
                     "group.id": new_name("g")})


def test_a_position_outside_the_log_is_reset(broker):
    topic = new_topic(broker)
    put(broker, topic, rows(100))
    part = TopicPartition(topic, 0)
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        assert admin.delete_records({part: 40}) == {part: 40}
    with reader(broker, topic) as consumer:
        assert consumer.beginning_offsets([part]) == {part: 40}
        consumer.seek(part, 3)
        assert consumer.poll(10.0, 1)[0].offset == 40
        consumer.seek(part, 1000)
        assert consumer.poll(10.0, 1)[0].offset == 40
    with _with_reset(broker, "none") as consumer:
        consumer.assign([part])
        consumer.seek(part, 3)
        with pytest.raises(errors.OffsetOutOfRangeError):
            consumer.poll(10.0)


@pytest.mark.parametrize(("policy", "expected"), [("earliest", 30), ("none", None)])
def test_position_is_not_used_for_a_recreated_topic(broker, policy, expected):
    """A longer log than before must not hide that its first records are new."""
    topic = new_topic(broker)
    put(broker, topic, rows(20))
    part = TopicPartition(topic, 0)
    with Consumer(bootstrap_servers=broker.bootstrap, auto_offset_reset=policy,
                  metadata_max_age_ms=200, allow_auto_create_topics=False) as consumer, \
            Admin(bootstrap_servers=broker.bootstrap) as admin:
        consumer.assign([part])
        consumer.seek(part, 0)
        assert len(collect(consumer, 20)) == 20
        consumer.pause(part)
        admin.delete_topics([topic])
        end_s = time.monotonic() + 30
        while topic in admin.list_topics():
            assert time.monotonic() < end_s
        admin.create_topics([NewTopic(topic, 1)])
        put(broker, topic, rows(30, 1000))
        consumer.resume(part)
        if expected is None:
            with pytest.raises(errors.OffsetOutOfRangeError, match="deleted and created again"):
                collect(consumer, 1)
            consumer.seek(part, 0)
        assert as_rows(collect(consumer, 30)) == rows(30, 1000)


def test_offsets_are_found_by_time(broker, filled):
    part = TopicPartition(filled, 0)
    with reader(broker) as consumer:
        found = consumer.offsets_for_times({part: BASE_MS + 1000 * 77 - 1})[part]
        assert (found.offset, found.timestamp) == (77, BASE_MS + 77_000)
        assert consumer.offsets_for_times({part: BASE_MS * 2}) == {part: None}
        assert consumer.end_offsets([part]) == {part: 500}


def test_lag_is_the_number_of_unread_records(broker, filled):
    with reader(broker, filled) as consumer:
        part = TopicPartition(filled, 0)
        assert consumer.lag(part) == {part: 500}
        collect(consumer, 500)
        consumer.seek(part, 480)
        assert consumer.lag() == {part: 20}


def test_committed_offsets_are_stored_and_resumed(broker, filled):
    group, part = new_name("g"), TopicPartition(filled, 0)
    with reader(broker, filled, group_id=group, enable_auto_commit=False) as consumer:
        assert consumer.committed([part]) == {part: None}
        consumer.poll(10.0, 25)
        assert consumer.commit()[part].offset == 25
        assert consumer.committed([part])[part].offset == 25
    with reader(broker, filled, group_id=group, enable_auto_commit=False) as consumer:
        assert consumer.poll(10.0, 1)[0].offset == 25
        consumer.commit({part: OffsetAndMetadata(200, "noted")})
        found = consumer.committed([part])[part]
        assert (found.offset, found.metadata) == (200, "noted")
        done = threading.Event()
        told = []
        consumer.commit_async({part: 300}, lambda *given: (told.append(given), done.set()))
        assert done.wait(10) and told[0][1] is None
        assert consumer.committed([part])[part].offset == 300


def test_closing_commits_automatically(broker, filled):
    group, part = new_name("g"), TopicPartition(filled, 0)
    with reader(broker, filled, group_id=group) as consumer:
        consumer.poll(10.0, 42)
    with reader(broker, filled, group_id=group) as consumer:
        assert consumer.committed([part])[part].offset == 42


def test_commits_run_while_polling(broker, filled):
    group, part = new_name("g"), TopicPartition(filled, 0)
    with reader(broker, filled, group_id=group, auto_commit_interval_ms=50) as consumer, \
            reader(broker, group_id=group) as other:
        consumer.poll(10.0, 42)
        end_s = time.monotonic() + 10
        # If the first poll takes long, the start position may be committed first.
        while (found := other.committed([part])[part]) is None or found.offset != 42:
            assert time.monotonic() < end_s, found
            consumer.pause(part)
            consumer.poll(0.05)


class Interceptor:
    def __init__(self):
        self.consumed, self.committed, self.closed = 0, [], False

    def on_consume(self, records):
        self.consumed += len(records)
        return records[:1]

    def on_commit(self, offsets):
        self.committed.append(offsets)

    def close(self):
        self.closed = True


def test_interceptors_see_records_and_commits(broker, filled):
    seen = Interceptor()
    with reader(broker, filled, group_id=new_name("g"), interceptor_classes=[seen]) as consumer:
        assert len(consumer.poll(10.0, 9)) == 1
        consumer.commit()
    assert seen.consumed == 9 and seen.closed
    assert seen.committed[0][TopicPartition(filled, 0)].offset == 9


def test_an_interceptor_that_returns_nothing_loses_no_records(broker, filled):
    class Forgetful:
        def on_consume(self, records):
            return None

    with reader(broker, filled, interceptor_classes=[Forgetful()]) as consumer:
        with pytest.raises(TypeError, match="Forgetful.on_consume returned None"):
            while True:
                consumer.poll(1.0, 3)
        assert consumer.position(TopicPartition(filled, 0)) == 0


def test_undeserializable_value_blocks_until_a_seek(broker):
    topic = new_topic(broker)
    put(broker, topic, [(None, value, BASE_MS, []) for value in (b"1", b"2", b"x", b"4")])
    with reader(broker, topic, value_deserializer=int) as consumer:
        assert [one.value for one in collect(consumer, 2)] == [1, 2]
        for _ in range(2):
            with pytest.raises(errors.SerializationError) as caught:
                consumer.poll(10.0)
            assert (caught.value.partition, caught.value.offset) == ((topic, 0), 2)
        consumer.seek(TopicPartition(topic, 0), 3)
        assert [one.value for one in collect(consumer, 1)] == [4]


def test_wakeup_ends_a_waiting_poll(broker):
    topic = new_topic(broker)
    with reader(broker, topic) as consumer:
        assert consumer.poll(0.1) == []
        timer = threading.Timer(0.2, consumer.wakeup)
        timer.start()
        began_s = time.monotonic()
        with pytest.raises(errors.WakeupError):
            consumer.poll(20.0)
        assert time.monotonic() - began_s < 5
        put(broker, topic, rows(1))
        assert len(collect(consumer, 1)) == 1


def test_closed_consumer_raises(broker, filled):
    consumer = reader(broker, filled)
    consumer.close()
    consumer.close()
    with pytest.raises(errors.ClosedError):
        consumer.poll(0)


def test_poll_with_zero_timeout_returns_immediately(broker, filled):
    with reader(broker, filled) as consumer:
        for _ in range(50):
            began_s = time.monotonic()
            found = consumer.poll(0)
            assert time.monotonic() - began_s < 1
            if found:
                return
            time.sleep(0.1)
    raise AssertionError("nothing was ever fetched")


def test_prefetched_bytes_are_bounded(broker):
    topic = new_topic(broker, 4)
    for partition in range(4):
        put(broker, topic, [(None, bytes(1000), BASE_MS, [])] * 2000, partition)
    with reader(broker, topic, queued_max_messages_kbytes=256,
                max_partition_fetch_bytes=100_000) as consumer:
        consumer.poll(10.0, 1)
        time.sleep(0.5)
        assert 0 < consumer._core.queue.queued_bytes < 256 * 1024 + 4 * 110_000
        assert len(collect(consumer, 7999)) == 7999


def test_an_idle_consumer_names_its_partitions_once(broker, monkeypatch):
    from pylog.client.consumer import fetcher

    topic, sent = new_topic(broker, 3), []
    build = fetcher._Node._request

    def spied(self, *given):
        sent.append(build(self, *given))
        return sent[-1]

    monkeypatch.setattr(fetcher._Node, "_request", spied)
    with reader(broker, topic, fetch_max_wait_ms=50) as consumer:
        end_s = time.monotonic() + 20
        while len(sent) < 8 and time.monotonic() < end_s:
            consumer.poll(0.1)
    named = [sum(len(row.partitions) for row in request.topics) for request in sent]
    assert sum(named) == 3 and named[-3:] == [0, 0, 0]
    assert sent[-1].session_id != 0 and sent[-1].session_epoch > 1


def test_records_that_come_later_are_awaited(broker):
    topic = new_topic(broker)
    with reader(broker, topic) as consumer:
        assert consumer.poll(0.2) == []
        timer = threading.Timer(0.3, put, (broker, topic, rows(3)))
        timer.start()
        began_s = time.monotonic()
        assert consumer.poll(20.0)
        assert time.monotonic() - began_s < 10
        timer.join()


def test_unknown_topic_is_reported(broker):
    with reader(broker, allow_auto_create_topics=False) as consumer:
        with pytest.raises(errors.KafkaTimeoutError, match="No such topic"):
            consumer.partitions_for(new_name("nowhere"), timeout=1.0)


def test_mismatching_calls_are_rejected(broker, filled):
    with reader(broker, filled) as consumer:
        with pytest.raises(errors.IllegalStateError):
            consumer.subscribe([filled])
        with pytest.raises(errors.IllegalStateError):
            consumer.seek(TopicPartition("other", 0), 1)
        with pytest.raises(errors.IllegalStateError):
            consumer.commit()


@pytest.mark.kafka
def test_read_committed_skips_aborted_records(kafka):
    from confluent_kafka import Producer

    topic = new_topic(kafka)
    producer = Producer({"bootstrap.servers": kafka.bootstrap,
                         "transactional.id": new_name("tx")})
    producer.init_transactions(30)
    for number, word in enumerate((b"kept", b"aborted", b"kept too", b"open")):
        producer.begin_transaction()
        for _ in range(10):
            producer.produce(topic, word)
        producer.flush(30)
        if number < 3:
            (producer.abort_transaction if number == 1 else producer.commit_transaction)(30)
    with reader(kafka, topic, isolation_level="read_committed") as consumer:
        found = collect(consumer, 20)
        assert [one.value for one in found] == [b"kept"] * 10 + [b"kept too"] * 10
        assert consumer.poll(0.5) == []
        part = TopicPartition(topic, 0)
        assert consumer.end_offsets([part])[part] == consumer.position(part)
    with reader(kafka, topic) as consumer:
        assert len(collect(consumer, 40)) == 40
    producer.abort_transaction(30)

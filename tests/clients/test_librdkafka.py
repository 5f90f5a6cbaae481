"""kcat and confluent-kafka: librdkafka writes and reads back byte for byte."""

import subprocess
import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.clients.corpus import Row, corpus
from tests.wire.talk import create_topic, unique

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
ACKS = ["0", "1", "all"]
CREATE_TIME = 1


def _produce(bootstrap: str, topic: str, rows: list[Row], **options) -> list[int]:
    """Send all rows to partition 0 and return their delivered offsets (-1 with acks=0)."""
    offsets: list[int] = []
    errors = []

    def delivered(error, message):
        errors.append(error) if error else offsets.append(message.offset())

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **options})
    for row in rows:
        producer.produce(topic, row.value, row.key, 0, on_delivery=delivered,
                         timestamp=row.timestamp_ms, headers=list(row.headers))
    assert producer.flush(30) == 0
    assert errors == []
    return offsets


def _consume(bootstrap: str, topic: str, count: int, offset: int = 0, **options) -> list[Row]:
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False,
        "auto.offset.reset": "error", **options})
    try:
        consumer.assign([TopicPartition(topic, 0, offset)])
        rows: list[Row] = []
        end_s = time.monotonic() + 30
        while len(rows) < count and time.monotonic() < end_s:
            for message in consumer.consume(count - len(rows), 1.0):
                assert message.error() is None, message.error()
                assert message.offset() == offset + len(rows)
                kind, timestamp_ms = message.timestamp()
                assert kind == CREATE_TIME
                rows.append(Row(message.key(), message.value(), tuple(message.headers() or ()),
                                timestamp_ms))
        return rows
    finally:
        consumer.close()


@pytest.mark.parametrize("acks", ACKS)
@pytest.mark.parametrize("codec", CODECS)
def test_confluent_kafka_reads_back_what_it_wrote(target, codec, acks):
    topic, rows = unique("confluent"), corpus()
    create_topic(target.port, topic)
    offsets = _produce(target.bootstrap, topic, rows,
                       **{"compression.type": codec, "acks": acks})
    if acks != "0":
        assert offsets == list(range(len(rows)))
    assert _consume(target.bootstrap, topic, len(rows)) == rows


@pytest.mark.parametrize("codec", CODECS)
def test_an_idempotent_producer_reads_back_what_it_wrote(target, codec):
    topic, rows = unique("idempotent"), corpus()
    create_topic(target.port, topic)
    offsets = _produce(target.bootstrap, topic, rows, **{
        "compression.type": codec, "enable.idempotence": True, "batch.num.messages": 7})
    assert offsets == list(range(len(rows)))
    assert _consume(target.bootstrap, topic, len(rows)) == rows


def test_consumer_can_start_at_every_offset(target):
    topic, rows = unique("seek"), corpus(30)
    create_topic(target.port, topic)
    for start in range(0, len(rows), 5):
        _produce(target.bootstrap, topic, rows[start:start + 5],
                 **{"compression.type": CODECS[start // 5 % 5]})
    for offset in range(0, len(rows), 4):
        expected = rows[offset:offset + 3]
        assert _consume(target.bootstrap, topic, len(expected), offset) == expected


def test_small_fetches_return_every_record(target):
    topic, rows = unique("small-fetch"), corpus()
    create_topic(target.port, topic)
    _produce(target.bootstrap, topic, rows, **{"batch.num.messages": 3})
    options = {"fetch.message.max.bytes": 1000, "fetch.max.bytes": 1000,
               "message.max.bytes": 1000, "fetch.wait.max.ms": 20}
    assert _consume(target.bootstrap, topic, len(rows), **options) == rows


def test_watermarks_and_times_are_found(target):
    topic = unique("watermarks")
    create_topic(target.port, topic)
    rows = [Row(b"k", b"v", (), 1_760_000_000_000 + 1000 * number) for number in range(10)]
    _produce(target.bootstrap, topic, rows)
    consumer = Consumer({"bootstrap.servers": target.bootstrap, "group.id": "unused"})
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10) == (0, 10)
    found = consumer.offsets_for_times(
        [TopicPartition(topic, 0, 1_760_000_003_500)], timeout=10)[0]
    assert found.offset == 4
    consumer.close()


def test_the_admin_client_creates_lists_and_deletes_topics(target):
    topic = unique("admin")
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    admin.create_topics([NewTopic(topic, 3, 1, config={"retention.ms": "60000"})])[topic].result(20)
    deadline_s = time.monotonic() + 10
    while time.monotonic() < deadline_s:
        metadata = admin.list_topics(timeout=10)
        if topic in metadata.topics:
            break
        time.sleep(0.05)
    assert len(metadata.topics[topic].partitions) == 3
    admin.delete_topics([topic])[topic].result(20)
    deadline_s = time.monotonic() + 10
    while topic in admin.list_topics(timeout=10).topics and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert topic not in admin.list_topics(timeout=10).topics


@pytest.mark.parametrize("codec", CODECS)
def test_kcat_reads_back_the_lines_it_wrote(target, codec):
    topic = unique("kcat")
    create_topic(target.port, topic)
    lines = "".join(f"key{number}:value {number} {'x' * number}\n" for number in range(500))
    common = ["kcat", "-b", target.bootstrap, "-t", topic, "-p", "0", "-K", ":"]
    subprocess.run([*common, "-P", "-z", codec, "-X", "acks=all"], input=lines, text=True,
                   check=True, timeout=30)
    read = subprocess.run([*common, "-C", "-o", "beginning", "-e", "-q"], capture_output=True,
                          text=True, check=True, timeout=30)
    assert read.stdout == lines


def test_kcat_lists_the_topic_and_its_leader(target):
    topic = unique("kcat-list")
    create_topic(target.port, topic, partitions=2)
    listed = subprocess.run(["kcat", "-b", target.bootstrap, "-L", "-t", topic],
                            capture_output=True, text=True, check=True, timeout=30).stdout
    assert f'topic "{topic}" with 2 partitions' in listed
    assert "partition 1, leader 1, replicas: 1, isrs: 1" in listed

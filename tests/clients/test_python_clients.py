"""kafka-python and aiokafka: pure Python clients write and read back byte for byte."""

import asyncio

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from tests.clients.corpus import Row, corpus
from tests.wire.talk import create_topic, unique

CODECS = [None, "gzip", "snappy", "lz4", "zstd"]
# Both clients reject a header without a value and a null value with a null key; the tests of
# librdkafka and the raw ones cover those.
ROWS = [Row(row.key, row.value, tuple((name, value) for name, value in row.headers
                                      if value is not None), row.timestamp_ms)
        for row in corpus() if not (row.key is None and row.value is None)]


def _read(bootstrap: str, topic: str, offset: int, count: int) -> list[Row]:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, group_id=None,
                             enable_auto_commit=False, consumer_timeout_ms=20000)
    try:
        where = TopicPartition(topic, 0)
        consumer.assign([where])
        consumer.seek(where, offset)
        rows: list[Row] = []
        for message in consumer:
            assert message.offset == offset + len(rows)
            rows.append(Row(message.key, message.value, tuple(message.headers),
                            message.timestamp))
            if len(rows) == count:
                break
        return rows
    finally:
        consumer.close()


@pytest.mark.parametrize("acks", [0, 1, "all"])
@pytest.mark.parametrize("codec", CODECS)
def test_kafka_python_reads_back_what_it_wrote(target, codec, acks):
    topic = unique("kafka-python")
    create_topic(target.port, topic)
    producer = KafkaProducer(bootstrap_servers=target.bootstrap, compression_type=codec, acks=acks,
                             enable_idempotence=False, linger_ms=5)
    for row in ROWS:
        producer.send(topic, row.value, row.key, list(row.headers), 0, row.timestamp_ms)
    producer.flush(30)
    producer.close()
    assert _read(target.bootstrap, topic, 0, len(ROWS)) == ROWS
    assert _read(target.bootstrap, topic, 11, 5) == ROWS[11:16]


def test_kafka_python_with_idempotence_reads_back_what_it_wrote(target):
    topic = unique("kafka-python-idempotent")
    create_topic(target.port, topic)
    producer = KafkaProducer(bootstrap_servers=target.bootstrap, acks="all",
                             enable_idempotence=True, linger_ms=1)
    sent = [producer.send(topic, row.value, row.key, list(row.headers), 0, row.timestamp_ms)
            for row in ROWS]
    assert [one.get(20).offset for one in sent] == list(range(len(ROWS)))
    producer.close()
    assert _read(target.bootstrap, topic, 0, len(ROWS)) == ROWS


async def _aiokafka(bootstrap: str, topic: str, codec, acks, idempotent: bool) -> list[Row]:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, compression_type=codec, acks=acks,
                                enable_idempotence=idempotent)
    await producer.start()
    try:
        sent = [await producer.send(topic, row.value, row.key, 0, row.timestamp_ms,
                                    list(row.headers)) for row in ROWS]
        await asyncio.gather(*sent)
    finally:
        await producer.stop()
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    await consumer.start()
    try:
        where = AioTopicPartition(topic, 0)
        consumer.assign([where])
        consumer.seek(where, 0)
        rows: list[Row] = []
        while len(rows) < len(ROWS):
            message = await asyncio.wait_for(consumer.getone(), 20)
            assert message.offset == len(rows)
            rows.append(Row(message.key, message.value, tuple(message.headers),
                            message.timestamp))
        return rows
    finally:
        await consumer.stop()


@pytest.mark.parametrize("codec, acks, idempotent", [
    *((codec, "all", False) for codec in CODECS), (None, 0, False), (None, 1, False),
    ("lz4", 1, False), (None, "all", True), ("zstd", "all", True)])
def test_aiokafka_reads_back_what_it_wrote(target, codec, acks, idempotent):
    topic = unique("aiokafka")
    create_topic(target.port, topic)
    assert asyncio.run(_aiokafka(target.bootstrap, topic, codec, acks, idempotent)) == ROWS

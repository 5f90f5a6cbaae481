"""Correct programs: a type checker must report nothing here.

Not run, and not collected: tests/client/test_typing.py checks it.
"""

import asyncio
import json
from dataclasses import dataclass
from typing import assert_type

from pylog.client import (
    Acknowledge, Admin, ConfigResource, Consumer, Delivery, NewTopic, OffsetAndMetadata, Producer,
    RebalanceListener, Record, RecordMetadata, ResourceType, ShareConsumer, TopicPartition, aio,
    errors, scan,
)
from pylog.client.serialization import (
    Deserializer, Format, Int64, Json, Msgspec, Pydantic, Serializer, Text,
)
from pylog.testing import Broker, Topic


@dataclass
class Order:
    number: int


class Upper:
    """A format of the application, without a base class."""

    def serialize(self, topic: str, value: str) -> bytes:
        return f"{topic}: {value}".upper().encode()

    def deserialize(self, data: bytes) -> str:
        return data.decode().lower()


def consumers() -> None:
    plain = Consumer(bootstrap_servers="localhost:9092", group_id="g", auto_offset_reset="earliest",
                     isolation_level="read_committed")
    assert_type(plain.poll(1.0), list[Record[bytes, bytes]])
    numbers = Consumer(bootstrap_servers=["a:9092", "b:9092"], value_deserializer=Int64())
    assert_type(numbers.poll(), list[Record[bytes, int]])
    both = Consumer(bootstrap_servers="a:9092", key_deserializer=Text(),
                    value_deserializer=Msgspec(Order))
    assert_type(both.poll()[0].key, str | None)
    assert_type(both.poll()[0].value, Order | None)
    functions = Consumer(bootstrap_servers="a:9092", value_deserializer=bytes.decode)
    assert_type(functions.poll(), list[Record[bytes, str]])
    own = Consumer(bootstrap_servers="a:9092", value_deserializer=Upper())
    assert_type(own.poll(), list[Record[bytes, str]])
    values: list[dict[str, int] | None] = [
        record.value for record in Consumer(
            bootstrap_servers="a:9092", value_deserializer=json.loads).poll()]
    dotted = Consumer({"bootstrap.servers": "a:9092", "enable.auto.commit": False})
    assert_type(dotted.poll(), list[Record[bytes, bytes]])
    text: dict[str, object] = {"bootstrap.servers": "a:9092", "linger.ms": "5"}
    assert_type(Consumer.from_settings(text).poll(), list[Record[bytes, bytes]])
    Consumer.from_properties("client.properties").close()
    print(values)


class Listener(RebalanceListener):
    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        print(partitions)


def reading(consumer: Consumer[str, Order]) -> None:
    part = TopicPartition("orders", 0)
    consumer.subscribe(["orders"], listener=Listener())
    consumer.subscribe(pattern="^orders-.*", on_assign=lambda parts: print(parts[0].topic))
    consumer.assign([part])
    for batch in consumer.batches(100, timeout=1.0):
        for record in batch:
            if record.value is not None:
                print(record.value.number + record.offset, record.headers)
        consumer.commit({part: batch[-1].offset + 1})
        consumer.commit({part: OffsetAndMetadata(5, "why")})
    consumer.commit_async(callback=lambda offsets, failure: print(offsets, failure))
    for record in consumer:
        consumer.store_offsets(record)
    consumer.store_offsets(consumer.poll(1.0, max_records=10))
    table = consumer.poll_arrow(1.0, columns=["key", "value"])
    print(table.num_rows, consumer.poll_numpy(value_dtype="<i8")["value"].sum())
    times = consumer.offsets_for_times({part: 0})
    found = times[part]
    print(found.offset if found is not None else None)


def producers() -> None:
    with Producer(bootstrap_servers="a:9092", acks="all", compression_type="zstd") as producer:
        delivery: Delivery = producer.send("orders", "one", key=b"k", headers={"source": b"shop"})
        assert_type(delivery.result(timeout=10), RecordMetadata)
        assert_type(producer.send_and_wait("orders", b"two", timeout=5.0).offset, int)
        producer.send("orders", None, headers=[("source", None)], on_delivery=delivered)
        producer.send("orders", bytearray(b"three"), on_delivery=lambda metadata, error: None)
    numbers = Producer(bootstrap_servers="a:9092", key_serializer=str.encode,
                       value_serializer=Int64())
    numbers.send("numbers", 5, "key")
    Producer(bootstrap_servers="a:9092", value_serializer=Upper()).send("words", "x", b"key")
    Producer(bootstrap_servers="a:9092", value_serializer=Pydantic(Order)).send("o", Order(1))
    Producer(bootstrap_servers="a:9092", value_serializer=Json()).send("o", {"number": 1})


def delivered(metadata: RecordMetadata | None, failure: errors.KafkaError | None) -> None:
    print(metadata.offset if metadata is not None else failure)


def transactions(producer: Producer, consumer: Consumer) -> None:
    producer.init_transactions(timeout=10)
    with producer.transaction(consumer):
        for record in consumer.poll(1.0):
            producer.send("totals", record.value, record.key)
    producer.begin_transaction()
    producer.send_offsets_to_transaction(consumer.positions(), consumer.group_metadata(), 5.0)
    producer.commit_transaction()


def formats() -> tuple[Format[int], Serializer[int], Deserializer[int]]:
    number = Int64()
    return number, number, number


def queues() -> None:
    with ShareConsumer(bootstrap_servers="a:9092", group_id="g",
                       value_deserializer=Text()) as consumer:
        consumer.subscribe(["orders"])
        for record in consumer.poll(1.0):
            assert_type(record, Record[bytes, str])
            consumer.acknowledge(record, Acknowledge.RELEASE)
        consumer.acknowledge(consumer.poll_arrow(1.0, columns=["value", "delivery_count"]))


def administration() -> None:
    with Admin(bootstrap_servers="a:9092") as admin:
        admin.create_topics([NewTopic("orders", 3), "other"])
        admin.incremental_alter_configs(
            {ConfigResource(ResourceType.TOPIC, "orders"): {"retention.ms": "1000"}})
        admin.delete_topics(["orders"])


async def everything() -> None:
    async with aio.Consumer(bootstrap_servers="a:9092", value_deserializer=Int64()) as consumer, \
            aio.Producer(bootstrap_servers="a:9092", value_serializer=Int64()) as producer:
        await consumer.assign([TopicPartition("orders", 0)])
        for record in await consumer.poll(1.0):
            delivery = await producer.send("totals", record.value)
            assert_type(await delivery, RecordMetadata)
        assert_type(await producer.send_and_wait("totals", 5, timeout=1.0), RecordMetadata)
        async for batch in consumer.batches(10, 1.0):
            assert_type(batch, list[Record[bytes, int]])
        async for rows in aio.scan("orders", columns=["value"], bootstrap_servers="a:9092"):
            print(rows.num_rows)
        await producer.commit_transaction(timeout=5.0)


def columns() -> None:
    reader = scan("orders", since="2026-01-01", columns=["key", "value"],
                  bootstrap_servers="a:9092")
    print(reader.read_all().num_rows)


def broker_in_a_test(pylog_broker: Broker, pylog_topic: Topic) -> None:
    with Producer(bootstrap_servers=pylog_broker.bootstrap) as producer:
        producer.send(pylog_topic.name, "one")


asyncio.run(everything())

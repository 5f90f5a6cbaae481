"""Shared by the client's tests: topics, and records written without the client's producer.

Owns: nothing.
Invariants: names of topics and groups are new in each test: brokers are shared.
"""

import asyncio
import itertools
import time

from pylog._native.records import batch
from pylog.client import Consumer, TopicPartition, errors
from pylog.client.config.settings import CODECS, Settings
from pylog.client.network.cluster import Cluster
from pylog.protocol import messages

# Newer than every retention time, and not in the future.
BASE_MS = time.time_ns() // 10**9 * 1000 - 3_600_000
WAIT_S = 30.0
_numbers = itertools.count()


def new_name(stem: str) -> str:
    """Return a name that no other test uses."""
    return f"{stem}-{next(_numbers)}-{time.time_ns() % 10**9}"


def new_topic(broker, partitions: int = 1, stem: str = "topic") -> str:
    name = new_name(stem)
    asyncio.run(_create(broker.bootstrap, name, partitions))
    return name


async def _create(bootstrap: str, name: str, partitions: int) -> None:
    create = messages.CreateTopicsRequest
    async with Cluster(Settings("admin", bootstrap_servers=bootstrap)) as cluster:
        answer = await cluster.send_any(create(topics=[create.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1)]))
        assert answer.topics[0].error_code == 0, answer
        await cluster.topic(name)


def rows(count: int, start: int = 0) -> list[tuple]:
    """Return (key, value, timestamp, headers): every fifth key and every seventh value is null."""
    return [(None if number % 5 == 4 else b"k%d" % number,
             None if number % 7 == 6 else b"value %d" % number,
             BASE_MS + 1000 * number, [("n", b"%d" % number)] if number % 2 else [])
            for number in range(start, start + count)]


def put(broker, topic: str, given: list[tuple], partition: int = 0, codec: str = "none",
        batch_records: int = 50) -> None:
    """Append rows to one partition."""
    asyncio.run(_put(broker.bootstrap, topic, given, partition, CODECS.index(codec),
                     batch_records))


async def _put(bootstrap, topic, given, partition, codec, batch_records) -> None:
    produce = messages.ProduceRequest
    async with Cluster(Settings("admin", bootstrap_servers=bootstrap)) as cluster:
        info = await cluster.topic(topic)
        leader = await cluster.leader(topic, partition)
        for at in range(0, len(given), batch_records):
            records = batch.build(given[at:at + batch_records], codec=codec)
            request = produce(acks=-1, timeout_ms=30_000, topic_data=[produce.TopicProduceData(
                name=topic, topic_id=info.id, partition_data=[produce.PartitionProduceData(
                    index=partition, records=records)])])

            async def append(node=leader.leader, request=request):
                answer = await cluster.send(node, request)
                errors.raise_for(answer.responses[0].partition_responses[0].error_code)

            await cluster.retry(append)  # A new topic's leader may not have become leader yet.


def reader(broker, topic: str | None = None, **settings) -> Consumer:
    """Return a consumer that starts at the beginning, of all partitions if a topic is given."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "auto.offset.reset": "earliest"},
                        **settings)
    if topic is not None:
        consumer.assign([TopicPartition(topic, number)
                         for number in consumer.partitions_for(topic)])
    return consumer


def collect(consumer, count: int, wait_s: float = WAIT_S) -> list:
    """Return `count` records; fail if there are fewer."""
    found: list = []
    end_s = time.monotonic() + wait_s
    while len(found) < count:
        assert time.monotonic() < end_s, f"{len(found)} of {count} records in {wait_s} s"
        found += consumer.poll(0.2)
    return found


def as_rows(found: list) -> list[tuple]:
    return [(one.key, one.value, one.timestamp, list(one.headers)) for one in found]


def poll_until(consumers, condition, what: str, wait_s: float = WAIT_S) -> list:
    """Poll the consumers in turn until a condition holds; return the records received."""
    found: list = []
    end_s = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < end_s, f"waited {wait_s} s for: {what}"
        for consumer in consumers:
            found += consumer.poll(0.05)
    return found

"""Read one topic once with one client, in a separate process: `python -m bench.client.readers`.

Owns: nothing.
Invariants: the clock runs from the first returned records to the last; every record reaches Python:
  in a column of a batch, or as an object whose value is accessed once (some clients create it only
  then); prints one JSON line.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import subprocess
import sys
import time

from bench.client.records import BATCH_BYTES, values
from bench.loads import CONSUMED
from bench.programs import rdkafka_performance

BATCH = 5000
PARTITIONS = 6
IDLE_S = 20.0
FLOOR_BATCHES = 24
FETCH = {"fetch.max.bytes": 52_428_800, "max.partition.fetch.bytes": 1_048_576}


class Clock:
    """Counts the records after the first batch, which starts the clock."""

    def __init__(self, wanted: int, seconds: float):
        self.wanted, self.seconds = wanted, seconds
        self.count = -1
        self.size = 0
        self.started_s = self.cpu_s = self.ended_s = 0.0
        self.last_s = time.perf_counter()

    def add(self, count: int, size: int = 0) -> bool:
        """Return True while more records remain."""
        now_s = time.perf_counter()
        if not count:
            if now_s - self.last_s > IDLE_S:
                raise SystemExit("no more records came")
            return True
        self.last_s = now_s
        if self.count < 0:
            self.started_s, self.cpu_s, self.count = now_s, time.process_time(), 0
            self.wanted -= count
            return True
        self.count += count
        self.size += size
        self.ended_s = now_s
        return self.count < self.wanted and now_s - self.started_s < self.seconds

    def line(self) -> str:
        return json.dumps({"records": self.count, "seconds": self.ended_s - self.started_s,
                           "cpu_s": time.process_time() - self.cpu_s})


def looked(values: list) -> tuple[int, int]:
    """Return (number of records, their bytes)."""
    return len(values), sum(map(len, values))


def pylog_consumer(bootstrap: str, topic: str):
    from pylog.client import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest",
                         **FETCH})
    consumer.assign([TopicPartition(topic, number) for number in consumer.partitions_for(topic)])
    return consumer


def pylog_arrow(bootstrap: str, topic: str, clock: Clock) -> None:
    with pylog_consumer(bootstrap, topic) as consumer:
        while clock.add(consumer.poll_arrow(1.0).num_rows):
            pass


def pylog_numpy(bootstrap: str, topic: str, clock: Clock) -> None:
    with pylog_consumer(bootstrap, topic) as consumer:
        while clock.add(len(consumer.poll_numpy(1.0).get("offset", ()))):
            pass


def pylog_records(bootstrap: str, topic: str, clock: Clock) -> None:
    with pylog_consumer(bootstrap, topic) as consumer:
        while clock.add(*looked([one.value for one in consumer.poll(1.0, BATCH)])):
            pass


def pylog_aio(bootstrap: str, topic: str, clock: Clock) -> None:
    async def work() -> None:
        from pylog.client import TopicPartition
        from pylog.client.aio import Consumer

        async with Consumer({"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest",
                             **FETCH}) as consumer:
            numbers = await consumer.partitions_for(topic)
            await consumer.assign([TopicPartition(topic, number) for number in numbers])
            while clock.add(*looked([one.value for one in await consumer.poll(1.0, BATCH)])):
                pass

    asyncio.run(work())


def confluent(bootstrap: str, topic: str, clock: Clock, **more) -> None:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench",
                         "auto.offset.reset": "earliest", "enable.auto.commit": False,
                         **FETCH, **more})
    numbers = consumer.list_topics(topic, 10).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in numbers])
    while clock.add(*looked([one.value() for one in consumer.consume(BATCH, 1.0)])):
        pass
    print(clock.line(), flush=True)  # Closing the consumer waits, and the measurement is complete.


def confluent_tuned(bootstrap: str, topic: str, clock: Clock) -> None:
    """By default librdkafka pauses for a second when 100,000 records are queued for a partition."""
    confluent(bootstrap, topic, clock, **{"queued.min.messages": 1_000_000,
                                          "fetch.queue.backoff.ms": 1})


def librdkafka_c(bootstrap: str, topic: str, clock: Clock) -> None:
    """Run librdkafka's own load program with its batch API: no Python, no object per record."""
    numbers = [part for number in range(PARTITIONS) for part in ("-p", str(number))]
    began_s = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [rdkafka_performance(), "-C", "-t", topic, "-b", bootstrap, *numbers, "-o", "beginning",
         "-c", str(clock.wanted), "-B", "1000", "-X", "queued.min.messages=1000000",
         "-X", "fetch.queue.backoff.ms=1"], capture_output=True, text=True, check=True)
    totals = CONSUMED.findall(done.stdout + done.stderr)[-1]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    clock.count, clock.started_s, clock.ended_s = int(totals[0]), 0.0, int(totals[2]) / 1000
    cpu_s = used.ru_utime + used.ru_stime - began_s.ru_utime - began_s.ru_stime
    clock.cpu_s = time.process_time() - cpu_s


def kafka_python(bootstrap: str, topic: str, clock: Clock) -> None:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest",
                             enable_auto_commit=False, max_poll_records=BATCH,
                             fetch_max_bytes=FETCH["fetch.max.bytes"],
                             max_partition_fetch_bytes=FETCH["max.partition.fetch.bytes"])
    partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)]
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    while clock.add(*looked([one.value for rows in consumer.poll(1000).values()
                             for one in rows])):
        pass


def aiokafka(bootstrap: str, topic: str, clock: Clock) -> None:
    async def work() -> None:
        from aiokafka import AIOKafkaConsumer, TopicPartition

        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest",
                                    enable_auto_commit=False,
                                    fetch_max_bytes=FETCH["fetch.max.bytes"],
                                    max_partition_fetch_bytes=FETCH["max.partition.fetch.bytes"])
        await consumer.start()
        try:
            await consumer._client.force_metadata_update()
            found = consumer._client.cluster.partitions_for_topic(topic)
            while not found:
                await consumer._client.add_topic(topic)
                found = consumer._client.cluster.partitions_for_topic(topic)
            partitions = [TopicPartition(topic, number) for number in found]
            consumer.assign(partitions)
            await consumer.seek_to_beginning(*partitions)
            while True:
                found = await consumer.getmany(timeout_ms=1000, max_records=BATCH)
                if not clock.add(*looked([one.value for rows in found.values() for one in rows])):
                    break
        finally:
            await consumer.stop()

    asyncio.run(work())


def floor(bootstrap: str, topic: str, clock: Clock) -> None:
    from bench.client.floor import read

    _, size, codec = topic.split("-")
    made = values(BATCH_BYTES // (int(size) + 12) * FLOOR_BATCHES, int(size), random.Random(5))
    read(codec, made, BATCH_BYTES, clock)


READERS = {
    "floor": floor,
    "pylog arrow": pylog_arrow, "pylog numpy": pylog_numpy, "pylog records": pylog_records,
    "pylog aio records": pylog_aio, "confluent-kafka": confluent,
    "confluent-kafka tuned": confluent_tuned, "librdkafka in C": librdkafka_c,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
}


def main(name: str, bootstrap: str, topic: str, wanted: str, seconds: str) -> None:
    clock = Clock(int(wanted), float(seconds))
    READERS[name](bootstrap, topic, clock)
    print(clock.line(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

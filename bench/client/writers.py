"""Write to one topic with one client, in a separate process: `python -m bench.client.writers`.

Owns: nothing.
Invariants: the clock runs from the first record sent until all are acknowledged with acks=all; all
  clients write the same values, whose generation is not timed; prints one JSON line.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time

from bench.client.records import values

DISTINCT = 20_000
TABLE_ROWS = 200_000
LINGER_MS = 5


class Clock:
    """Counts sent records until the time is up; call `line` when all are acknowledged."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        self.count = 0
        self.start()

    def start(self) -> None:
        self.started_s, self.cpu_s = time.perf_counter(), time.process_time()

    def goes_on(self, count: int) -> bool:
        self.count += count
        return time.perf_counter() - self.started_s < self.seconds

    def line(self) -> str:
        return json.dumps({"records": self.count, "seconds": time.perf_counter() - self.started_s,
                           "cpu_s": time.process_time() - self.cpu_s})


def pylog_arrow(bootstrap: str, topic: str, codec: str, values: list[bytes],
                seconds: float) -> Clock:
    import pyarrow as pa
    from pylog.client import Producer

    table = pa.table({"value": pa.array(values * (TABLE_ROWS // len(values)), pa.binary())})
    with Producer(bootstrap_servers=bootstrap, compression_type=codec) as producer:
        producer.partitions_for(topic)
        clock = Clock(seconds)
        while True:
            producer.send_arrow(table, topic)
            if not clock.goes_on(len(table)):
                break
        producer.flush()
        return clock


def pylog_records(bootstrap: str, topic: str, codec: str, values: list[bytes],
                  seconds: float) -> Clock:
    from pylog.client import Producer

    with Producer(bootstrap_servers=bootstrap, compression_type=codec) as producer:
        producer.partitions_for(topic)
        clock, send = Clock(seconds), producer.send
        while True:
            for value in values:
                send(topic, value)
            if not clock.goes_on(len(values)):
                break
        producer.flush()
        return clock


def confluent(bootstrap: str, topic: str, codec: str, values: list[bytes],
              seconds: float) -> Clock:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec,
                         "linger.ms": LINGER_MS, "queue.buffering.max.messages": 1_000_000})
    producer.list_topics(topic, 10)
    clock = Clock(seconds)
    while True:
        for value in values:
            while True:
                try:
                    producer.produce(topic, value)
                    break
                except BufferError:
                    producer.poll(0.01)
        producer.poll(0)
        if not clock.goes_on(len(values)):
            break
    producer.flush()
    return clock


def kafka_python(bootstrap: str, topic: str, codec: str, values: list[bytes],
                 seconds: float) -> Clock:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=bootstrap, linger_ms=LINGER_MS, acks="all",
                             compression_type=None if codec == "none" else codec)
    producer.partitions_for(topic)
    clock = Clock(seconds)
    while True:
        for value in values:
            producer.send(topic, value)
        if not clock.goes_on(len(values)):
            break
    producer.flush()
    return clock


def aiokafka(bootstrap: str, topic: str, codec: str, values: list[bytes],
             seconds: float) -> Clock:
    async def work() -> Clock:
        from aiokafka import AIOKafkaProducer

        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=LINGER_MS, acks="all",
                                    compression_type=None if codec == "none" else codec)
        await producer.start()
        await producer.partitions_for(topic)
        clock = Clock(seconds)
        while True:
            for value in values[:2000]:
                await producer.send(topic, value)
            if not clock.goes_on(2000):
                break
        await producer.flush()
        await producer.stop()
        return clock

    return asyncio.run(work())


def floor(bootstrap: str, topic: str, codec: str, values: list[bytes], seconds: float) -> Clock:
    from bench.client.floor import write
    from pylog.client.config.settings import ROWS

    clock = Clock(seconds)
    write(codec, values, ROWS["batch.size"].default, clock)
    return clock


WRITERS = {"floor": floor, "pylog arrow": pylog_arrow, "pylog records": pylog_records,
           "confluent-kafka": confluent, "kafka-python": kafka_python, "aiokafka": aiokafka}


def main(name: str, bootstrap: str, topic: str, codec: str, size: str, seconds: str) -> None:
    made = values(DISTINCT, int(size), random.Random(int(size)))
    clock = WRITERS[name](bootstrap, topic, codec, made, float(seconds))
    print(clock.line(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

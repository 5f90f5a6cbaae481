"""Recovery after kill -9, beside Apache Kafka: `python -m bench.recovery [--partitions 2000]`.

Both brokers get the same records, spread over all partitions, and are killed before any checkpoint.
Measures the next start: time until the first and until the last partition responds, and the
broker's CPU.

Owns: the brokers it starts, their directories, its topic.
Invariants: brokers run one at a time; all records acknowledged before the kill exist after it;
  files are in the page cache for both, so the disk is not measured.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from bench.brokers import RELAXED, PylogBroker
from bench.kafka import KafkaBroker
from bench.machine import machine_line

MB = 1_000_000
TOPIC = "recovered"
VALUE = bytes(range(256)) * 40
WAIT_S = 600.0
# A load must end before the first checkpoint, or the broker recovers less.
CHECKPOINT_S = 60.0
SETTINGS = {
    "kafka": {"log.flush.offset.checkpoint.interval.ms": "600000"}, "pylog": RELAXED}


def load(bootstrap: str, partitions: int, megabytes: int) -> int:
    """Produce the load and return the number of acknowledged records."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, partitions, 1, config={
        "retention.ms": "-1"})])[TOPIC].result(120)
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "acks": 1, "linger.ms": 50,
                         "batch.size": 1 << 18, "queue.buffering.max.kbytes": 1 << 19})
    count = megabytes * MB // len(VALUE)
    for number in range(count):
        while True:
            try:
                producer.produce(TOPIC, VALUE, partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(WAIT_S) == 0
    return count


def ends(admin: AdminClient, partitions: list) -> dict:
    """Return partition -> end offset, for partitions that respond."""
    found = {}
    asked = admin.list_offsets({TopicPartition(TOPIC, number): OffsetSpec.latest()
                                for number in partitions}, request_timeout=30)
    for partition, future in asked.items():
        try:
            found[partition.partition] = future.result(60).offset
        except KafkaException:
            continue
    return found


def recover(broker, partitions: int, count: int) -> dict:
    """Start the killed broker, and check that no acknowledged record is missing."""
    began_s = time.monotonic()
    broker.start()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    left, total, first_s = list(range(partitions)), 0, None
    while left:
        found = ends(admin, left)
        if found and first_s is None:
            first_s = time.monotonic() - began_s
        total += sum(found.values())
        left = [number for number in left if number not in found]
        if time.monotonic() - began_s > WAIT_S:
            raise TimeoutError(f"{len(left)} partitions of {broker.name} are not back")
    assert total == count, (total, count)
    return {"first_s": first_s, "all_s": time.monotonic() - began_s, "cpu_s": broker.cpu_seconds()}


def run(kind, partitions: int, megabytes: int) -> dict:
    with tempfile.TemporaryDirectory(prefix="bench-recovery-") as root:
        broker = kind(Path(root) / "data", overrides=SETTINGS[kind.name])
        with broker:
            began_s = time.monotonic()
            count = load(broker.bootstrap, partitions, megabytes)
            loaded_s = time.monotonic() - began_s
            broker.kill()
            done = recover(broker, partitions, count)
        if kind.name == "pylog" and loaded_s > CHECKPOINT_S:
            print(f"the load took {loaded_s:.0f} s: a part of it was checkpointed", flush=True)
        return done


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.recovery", description=__doc__.split(":")[0])
    parser.add_argument("--partitions", type=int, default=2000)
    parser.add_argument("--mb", type=int, default=2000)
    parser.add_argument("--no-kafka", action="store_true")
    options = parser.parse_args()
    print(machine_line())
    print("| broker | partitions | MB | first s | all s | CPU s |")
    print("|---|--:|--:|--:|--:|--:|")
    for kind in [PylogBroker] if options.no_kafka else [KafkaBroker, PylogBroker]:
        done = run(kind, options.partitions, options.mb)
        print(f"| {kind.name} | {options.partitions} | {options.mb} | {done['first_s']:.2f} | "
              f"{done['all_s']:.2f} | {done['cpu_s']:.2f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Compaction beside Apache Kafka: `python -m bench.compaction [--mb 500] [--codecs none,lz4]`.

Both brokers get the same records in a topic that is not compacted yet. Then the topic becomes
compacted, and the broker's work until the log is small is counted; it has no other load.

Owns: the brokers it starts, their directories, its topics.
Invariants: brokers run one at a time, in turn; a result is bytes of dirty log per CPU second of the
  broker, so pauses of a waiting cleaner do not count.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from bench.brokers import PylogBroker
from bench.kafka import KafkaBroker

MB = 1_000_000
TOPIC = "compacted"
SEGMENT_BYTES = 50 << 20
RECORD_BYTES = 1000
SETTINGS = {"log.cleaner.backoff.ms": "100", "log.cleaner.threads": "1"}
WAIT_S = 300.0
QUIET_S = 2.0


def load(bootstrap: str, megabytes: int, keys: int, codec: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1, 1, config={
        "segment.bytes": str(SEGMENT_BYTES), "cleanup.policy": "delete",
        "min.cleanable.dirty.ratio": "0.01", "file.delete.delay.ms": "100"})])[TOPIC].result()
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec,
                         "linger.ms": 20, "batch.size": 1 << 18, "acks": 1})
    dice = random.Random(1)
    # Half of each value compresses, as text would.
    values = [dice.randbytes(RECORD_BYTES // 2) + bytes(RECORD_BYTES // 2) for _ in range(64)]
    for number in range(megabytes * MB // RECORD_BYTES):
        while True:
            try:
                producer.produce(TOPIC, values[number & 63], b"%016d" % dice.randrange(keys))
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


def log_bytes(broker) -> int:
    return sum(path.stat().st_size for path in Path(broker.data_dir).rglob(f"{TOPIC}-0/*.log"))


def compact(broker) -> dict:
    """Return bytes before and after, CPU seconds of the broker and wall seconds between."""
    before, begin_s, begin_cpu = log_bytes(broker), time.monotonic(), broker.cpu_seconds()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    resource = ConfigResource(ConfigResource.Type.TOPIC, TOPIC, incremental_configs=[
        ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result()
    smallest, since_s, cpu = before, begin_s, begin_cpu
    while time.monotonic() - since_s < QUIET_S or smallest > before / 2:
        if time.monotonic() - begin_s > WAIT_S:
            raise TimeoutError(f"{broker.name} has not compacted {before} bytes in {WAIT_S} s")
        time.sleep(0.05)
        now = log_bytes(broker)
        if now != smallest:
            smallest, since_s, cpu = now, time.monotonic(), broker.cpu_seconds()
    return {"mb": before / MB, "left_mb": smallest / MB, "cpu_s": cpu - begin_cpu,
            "wall_s": since_s - begin_s, "mb_per_cpu_s": before / MB / (cpu - begin_cpu)}


def run(kind, megabytes: int, keys: int, codec: str) -> dict:
    with tempfile.TemporaryDirectory(prefix="bench-compaction-") as root:
        with kind(Path(root) / "data", overrides=SETTINGS) as broker:
            load(broker.bootstrap, megabytes, keys, codec)
            time.sleep(1.0)
            return compact(broker)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.compaction", description=__doc__.split(":")[0])
    parser.add_argument("--mb", type=int, default=500)
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--codecs", default="none,lz4,zstd")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--no-kafka", action="store_true")
    options = parser.parse_args()
    kinds = [PylogBroker] if options.no_kafka else [KafkaBroker, PylogBroker]
    print("| codec | broker | log MB | left MB | wall s | CPU s | MB per CPU s |")
    print("|---|---|--:|--:|--:|--:|--:|")
    for codec in options.codecs.split(","):
        speeds = {}
        for turn in range(options.rounds):
            for kind in kinds if turn % 2 == 0 else kinds[::-1]:
                done = run(kind, options.mb, options.keys, codec)
                speeds.setdefault(kind.name, []).append(done["mb_per_cpu_s"])
                print(f"| {codec} | {kind.name} | {done['mb']:.0f} | {done['left_mb']:.1f} | "
                      f"{done['wall_s']:.2f} | {done['cpu_s']:.2f} | "
                      f"{done['mb_per_cpu_s']:.0f} |", flush=True)
        if len(speeds) == 2:
            ratio = statistics.median(speeds["pylog"]) / statistics.median(speeds["kafka"])
            print(f"\n{codec}: pylog does {ratio:.1f} times as much per CPU second\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

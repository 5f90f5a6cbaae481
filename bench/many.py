"""Many partitions and segments on one broker: `python -m bench.many`.

Owns: the order of steps on one new broker per side; removes everything afterwards.
Invariants: each result is of a completed step: the clock stops after every partition was read.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from bench import loads
from bench.brokers import PylogBroker
from bench.kafka import KafkaBroker
from bench.machine import commit_line, machine_line
from bench.programs import cache_dir, load_client

TOPIC_PARTITIONS = 1000
SETTLE_S = 3
SEGMENT_MS = 1


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.many",
                                     description=__doc__.split("\n")[0])
    parser.add_argument("--partitions", type=int, default=10_000, help="a multiple of 1,000")
    parser.add_argument("--segments", type=int, default=2, help="of each partition")
    parser.add_argument("--sides", default="pylog", help="pylog, kafka or both")
    parser.add_argument("--quick", action="store_true", help="1,000 partitions")
    return parser.parse_args(argv)


def _descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def _state(broker, idle: int, count: int) -> str:
    time.sleep(SETTLE_S)
    kib = (broker.rss_bytes() - idle) / 1024 / count
    return f"{kib:.2f} KiB of RSS each, {_descriptors(broker.pid)} descriptors"


class Steps:
    """Runs one broker through all steps; each step prints a line."""

    def __init__(self, broker, partitions: int, segments: int):
        self.broker = broker
        self.partitions = partitions
        self.segments = segments
        self.topics = [f"many-{number}" for number in range(partitions // TOPIC_PARTITIONS)]

    def _tell(self, what: str, text: str) -> None:
        print(f"  {self.broker.name:6} {what:34} {text}", flush=True)

    def _timed(self, what: str, step) -> None:
        begin_s, cpu_s = time.monotonic(), self.broker.cpu_seconds()
        more = step()
        self._tell(what, f"{time.monotonic() - begin_s:.2f} s, broker CPU "
                         f"{self.broker.cpu_seconds() - cpu_s:.2f} s{more or ''}")

    def _create(self) -> None:
        for topic in self.topics:
            loads.create_topic(self.broker, topic, TOPIC_PARTITIONS,
                               {"segment.ms": str(SEGMENT_MS)} if self.segments > 1 else {})

    def _write(self) -> None:
        for topic in self.topics:
            loads.raw_produce(self.broker, topic, TOPIC_PARTITIONS, 8, 1, 1, 100,
                              requests=TOPIC_PARTITIONS)

    def _serve(self) -> str:
        """Measure the time until every partition can be read."""
        first = self.broker.start_s
        cpu_s = self.broker.cpu_seconds()
        for topic in self.topics:
            loads.wait_leaders(self.broker, topic, TOPIC_PARTITIONS)
        total = time.monotonic() - self.broker.spawned_at_s
        return (f"first answer {first:.2f} s (CPU till then {cpu_s:.2f} s), all readable "
                f"{total:.2f} s, broker CPU {self.broker.cpu_seconds():.2f} s")

    def run(self) -> None:
        broker, count = self.broker, self.partitions
        time.sleep(SETTLE_S)
        idle = broker.rss_bytes()
        self._tell("empty", f"{idle / 1e6:.1f} MB of RSS, {_descriptors(broker.pid)} descriptors")
        self._timed(f"create {count:,} partitions", self._create)
        self._tell("idle partitions", _state(broker, idle, count))
        for number in range(self.segments):
            self._timed(f"a record to each, {number + 1}", self._write)
            self._tell("partitions with a segment" if number == 0 else "with one more",
                       _state(broker, idle, count))
        self._restart("clean", idle)
        self._timed("a record to each", self._write)
        self._restart("kill -9", idle)

    def _restart(self, how: str, idle: int) -> None:
        begin_s = time.monotonic()
        if how == "clean":
            self.broker.stop()
            self._tell("stop", f"{time.monotonic() - begin_s:.2f} s")
        else:
            self.broker.kill()
        self.broker.start()
        self._tell(f"start, {how}", self._serve())
        self._tell(f"idle after it, {how}", _state(self.broker, idle, self.partitions))


def main(argv: list[str]) -> int:
    """Run the steps on each side. Exit status 1 if a load failed."""
    options = _arguments(argv)
    partitions = TOPIC_PARTITIONS if options.quick else options.partitions
    if partitions % TOPIC_PARTITIONS or partitions <= 0 or options.segments <= 0:
        print(f"{partitions} partitions: not a multiple of {TOPIC_PARTITIONS}", file=sys.stderr)
        return 2
    print(f"{machine_line()}, commit {commit_line()}", flush=True)
    for client in ("produce", "fetch"):
        load_client(client)
    cache_dir().mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="many-", dir=cache_dir()))
    kinds = {"pylog": PylogBroker, "kafka": KafkaBroker}
    try:
        for side in options.sides.split(","):
            with kinds[side](folder / side) as broker:
                Steps(broker, partitions, options.segments).run()
            shutil.rmtree(folder / side, ignore_errors=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

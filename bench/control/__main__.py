"""`python -m bench.control [--only NAME] [--rounds N] [--no-kafka]`: one table, both brokers.

Owns: the brokers and their data directories while it runs.
Invariants: the brokers run one after the other, never at the same time, and the order alternates;
  Kafka gets each load untimed first, because a JVM compiles during the first run; a load that fails
  or takes too long is reported without a result, and the other loads continue.
Comparable pairs: `pylog` acknowledges from the page cache, as `kafka` does by default.
  `pylog-flush` is pylog's default, which acknowledges a commit when it is on disk; it is compared
  with a Kafka that flushes after each message.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from bench import report
from bench.brokers import KAFKA_FLUSH_EACH, RELAXED, PylogBroker
from bench.control import (
    exactly_once, groups, joining, metadata, offsets, shares, transactions,
)
from bench.control.table import SIDES, render
from bench.kafka import KafkaBroker, KafkaMissing, kafka_version
from bench.loads import LoadFailed
from bench.machine import commit_line, machine_line, touch_free_memory
from bench.process import BrokerFailed
from bench.programs import ProgramMissing, cache_dir, load_client

SECTION = "The control plane"
# A large backlog: the time to accept a thousand simultaneous connections is not measured here.
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "socket.listen.backlog.size": "1024"}
TOUCHED_BYTES = 6 << 30
BROKERS = {"kafka": (KafkaBroker, {}), "pylog": (PylogBroker, RELAXED),
           "kafka-flush": (KafkaBroker, KAFKA_FLUSH_EACH), "pylog-flush": (PylogBroker, {})}
UNFLUSHED = SIDES[:2]
FAILURES = (LoadFailed, BrokerFailed, KafkaMissing, subprocess.TimeoutExpired, OSError,
            AssertionError, EOFError)


class Load(NamedTuple):
    """run: broker -> results. warm: number of untimed runs for Kafka."""

    run: object
    sides: tuple
    warm: int = 1


LOADS = {
    "metadata": Load(metadata.clients, UNFLUSHED, 0),  # The load warms up itself.
    "unknown": Load(metadata.unknown, UNFLUSHED),
    "heartbeats": Load(groups.heartbeats, UNFLUSHED),
    "consumer-heartbeats": Load(groups.consumer_heartbeats, UNFLUSHED),
    "large-group": Load(groups.large_group, SIDES, 3),
    "joining": Load(joining.joining, UNFLUSHED),
    "commits": Load(offsets.commits, SIDES, 2),
    "restart": Load(offsets.restart, SIDES[:2] + SIDES[3:], 0),
    "share": Load(shares.load, UNFLUSHED, 2),
    "start-ids": Load(transactions.start, UNFLUSHED, 0),
    "transactional": Load(exactly_once.writing, UNFLUSHED, 0),  # The load alternates internally.
    "transactions": Load(exactly_once.committing, SIDES),
    "read-committed": Load(exactly_once.reading, UNFLUSHED, 0),
}


def _figures(side: str, name: str) -> dict:
    make, overrides = BROKERS[side]
    with tempfile.TemporaryDirectory(prefix="control-", dir=cache_dir()) as root, \
            make(Path(root) / "data", 0, {**SETTINGS, **overrides}) as broker:
        if side.startswith("kafka"):
            for _ in range(LOADS[name].warm):  # Let the JVM compile.
                LOADS[name].run(broker)
        return LOADS[name].run(broker)


class Run:
    """One run: collects samples[load][side][key] = [value per round]."""

    def __init__(self, sides: list):
        self.sides = sides
        self.samples: dict = {}
        self.failures: list[str] = []
        self._turn = 0

    def load(self, name: str) -> None:
        sides = [side for side in LOADS[name].sides if side in self.sides]
        self._turn += 1
        for side in sides if self._turn % 2 else sides[::-1]:  # Alternate the order.
            self._one(name, side)

    def _one(self, name: str, side: str) -> None:
        begin_s = time.monotonic()
        try:
            figures = _figures(side, name)
        except FAILURES as failure:
            text = " ".join(f"{type(failure).__name__}: {failure}".split())[-500:]
            self.failures.append(f"{name}, {side}: {text}")  # The other loads continue.
            print(f"  {name:12} {side:12} FAILED {text}", flush=True)
            return
        for text in figures.pop("failures", ()):
            self.failures.append(f"{name}, {side}: {text}")
        for key, value in figures.items():
            self.samples.setdefault(name, {}).setdefault(side, {}).setdefault(
                key, []).append(value)
        shown = " ".join(f"{key}={value:.4g}" for key, value in figures.items())
        print(f"  {name:12} {side:12} {time.monotonic() - begin_s:5.1f} s  {shown}", flush=True)


def _report(run: Run, head: list[str]) -> str:
    body = [*head, "", render(run.samples, kafka_version())]
    if run.failures:
        body += ["", "Loads without a figure:", *(f"- {line}" for line in run.failures)]
    text = "\n".join(body) + "\n"
    report.save(text, {"head": head, "samples": run.samples, "failures": run.failures}, "-control")
    return text


def main(argv: list[str]) -> int:
    """Run the chosen loads and print the table. Exit status 1 if a load failed."""
    parser = argparse.ArgumentParser(prog="python -m bench.control")
    parser.add_argument("--only", choices=LOADS, action="append")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--no-kafka", action="store_true")
    options = parser.parse_args(argv)
    sides = [side for side in options.sides.split(",")
             if not (options.no_kafka and side.startswith("kafka"))]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        for client in ("replay", "group", "latency"):
            load_client(client)
    except ProgramMissing as missing:
        print(missing, file=sys.stderr)
        return 1
    head = [f"`{' '.join(['python -m bench.control', *argv])}`, {options.rounds} round(s), "
            f"commit {commit_line()}", machine_line()]
    print("\n".join(head), flush=True)
    cache_dir().mkdir(parents=True, exist_ok=True)
    touch_free_memory(TOUCHED_BYTES)
    run = Run(sides)
    try:
        for _ in range(options.rounds):
            for name in options.only or LOADS:
                run.load(name)
    finally:
        text = _report(run, head)
    if not options.only and sides == list(SIDES):
        report.publish(SECTION, text)
    print(f"\n{text}")
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

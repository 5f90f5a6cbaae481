"""Explain the slowest records end to end: `python -m bench.outliers`, as root.

Owns: one instance of the kernel's tracer (tracefs) and the brokers while it runs.
Invariants: the load is that of `e2e` in bench.vs; the tracer instance is always removed; each of
  the slowest records has one cause, its longest span (bench.causes).
"""

import argparse
import os
import re
import struct
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench import causes, loads, placement
from bench.brokers import RELAXED, PylogBroker, started
from bench.kafka import KafkaBroker
from bench.machine import commit_line, machine_line
from bench.process import BrokerProcess

TRACER = Path("/sys/kernel/tracing/instances")
NUMBERS = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
SCHEDULED = ("sched/sched_switch", "sched/sched_waking")
CALLED = ("raw_syscalls/sys_enter", "raw_syscalls/sys_exit")
BUFFER_KB = 256 << 10  # per processor
RATE_PER_S = 500
SLOWEST = 100
WARM_S = 3
CLIENT = "latency"  # the kernel's name of the load's threads
TIMES = struct.Struct("qq")


@contextmanager
def tracer(broker: BrokerProcess) -> Iterator[Path]:
    """Trace context switches, wakeups, and the system calls of broker and load; yield the
    instance's folder. Always removes the instance.
    """
    own = TRACER / f"pylog-{os.getpid()}"
    own.mkdir()
    try:
        (own / "trace_clock").write_text("mono")
        (own / "buffer_size_kb").write_text(str(BUFFER_KB))
        followed = " || ".join([f'COMM == "{CLIENT}"',
                                *(f"common_pid == {thread}" for thread in _threads(broker))])
        for name in CALLED:
            (own / "events" / name / "filter").write_text(followed)
        for name in SCHEDULED + CALLED:
            (own / "events" / name / "enable").write_text("1")
        yield own
    finally:
        (own / "tracing_on").write_text("0")
        own.rmdir()


def _threads(broker: BrokerProcess) -> dict[int, str]:
    return {int(thread.name): (thread / "comm").read_text().strip()
            for thread in Path(f"/proc/{broker.pid}/task").iterdir()}


def _numbers() -> dict[int, str]:
    """Return system calls by number, as defined in this machine's headers."""
    if not NUMBERS.exists():
        return {}
    found = re.findall(r"#define __NR_(\w+) (\d+)", NUMBERS.read_text())
    return {int(number): name for name, number in found}


def _records(times: Path) -> list[tuple[int, int]]:
    """Return the send and receive time of each record in µs, slowest first."""
    pairs = [(sent // 1000, received // 1000)
             for sent, received in TIMES.iter_unpack(times.read_bytes())]
    return sorted(pairs, key=lambda pair: pair[0] - pair[1])


def _lost(own: Path) -> int:
    """Return the number of events that the tracer dropped."""
    return sum(int(count) for stats in own.glob("per_cpu/*/stats")
               for count in re.findall(r"^(?:overrun|dropped events): (\d+)", stats.read_text(),
                                       re.M))


@dataclass(frozen=True)
class Explained:
    """line: the load's own results. by_cause: ms of the slowest records. own_us: of every record in
    order, without waits for processors that other processes had. missing: events the tracer
    dropped.
    """

    line: dict
    by_cause: dict[str, list[float]]
    own_us: list[int]
    missing: int


def explained(broker: BrokerProcess, topic: str, seconds: float) -> Explained:
    """Run one load while tracing."""
    loads.create_topic(broker, f"{topic}-before", 1)
    loads.latency(broker, f"{topic}-before", RATE_PER_S, WARM_S)   # A JVM compiles.
    loads.create_topic(broker, topic, 1)
    times = broker.data_dir.parent / f"{topic}.times"
    with tracer(broker) as own:
        line = loads.native("latency", broker, topic, RATE_PER_S, seconds, 100, -1, times)
        (own / "tracing_on").write_text("0")
        with open(own / "trace", encoding="utf-8", errors="replace") as lines:
            timeline = causes.Timeline.of(filter(None, map(causes.event, lines)))
        missing = _lost(own)
    ours = {**{thread: f"{broker.name}'s {name}" for thread, name in _threads(broker).items()},
            line["sender"]: "the client's sender", line["receiver"]: "the client's receiver"}
    numbers = _numbers()
    by_cause: dict[str, list[float]] = defaultdict(list)
    own_us = []
    for place, (sent, received) in enumerate(_records(times)):
        spans = causes.way(timeline, line["receiver"], sent, received, numbers)
        own_us.append(received - sent - causes.others_us(spans, ours))
        if place < SLOWEST:
            name = causes.cause(spans, timeline.names, ours)
            by_cause[name].append((received - sent) / 1e3)
    return Explained(line, by_cause, sorted(own_us), missing)


def _rank(values: list[int], share: float) -> int:
    return values[int(share * (len(values) - 1))]


def table(found: dict[str, list[float]]) -> str:
    """Return a table of causes, the most frequent first."""
    lines = ["| cause | of the slowest | ms: median | most |", "|---|--:|--:|--:|"]
    for name, took_ms in sorted(found.items(), key=lambda item: (-len(item[1]), item[0])):
        lines.append(f"| {name} | {len(took_ms)} | {median(took_ms):.2f} | {max(took_ms):.2f} |")
    return "\n".join(lines)


def _side(name: str, folder: Path) -> BrokerProcess:
    made = {"kafka": KafkaBroker, "pylog": PylogBroker}[name]
    return made(folder / name / "data", overrides=RELAXED if name == "pylog" else {})


def main(argv: list[str]) -> int:
    """Print a table of causes for each broker."""
    parser = argparse.ArgumentParser(prog="python -m bench.outliers")
    parser.add_argument("--sides", default="pylog")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--placement", default="free", choices=list(placement.placements()))
    options = parser.parse_args(argv)
    if not os.access(TRACER, os.W_OK):
        print(f"the kernel's tracer needs root and tracefs at {TRACER.parent}", file=sys.stderr)
        return 1
    sides = options.sides.split(",")
    print(f"`python -m bench.outliers {' '.join(argv)}`, commit {commit_line()}\n{machine_line()}",
          flush=True)
    where = placement.placements()[options.placement]
    with started("outliers", sides, _side) as brokers, placement.pinned(where):
        for name, broker in brokers.items():
            placement.pin(broker.pid, where.broker)
            found = explained(broker, "outliers", options.seconds)
            line, own = found.line, [_rank(found.own_us, share) for share in (.5, .99, .999, 1)]
            print(f"\n{name}: p50 {line['p50_us']:.0f} µs, p99 {line['p99_us']:.0f}, "
                  f"p99.9 {line['p999_us']:.0f}, longest {line['max_us']:.0f}; without waits for "
                  f"processors that others had {own[0]}, {own[1]}, {own[2]} and {own[3]}; "
                  f"{found.missing:,} events of the tracer lost\n\n{table(found.by_cause)}",
                  flush=True)
    print(f"\nload {os.getloadavg()[0]:.1f} at the end")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Many consumers of one topic's tail: `python -m bench.fanout`.

Invariants: all consumers run in one native program (csrc/tails.c), because a process per consumer
would make the clients' own cost grow; sides alternate; a consumer checks that it receives every
offset in order, or the load fails.
"""

import argparse
import os
import sys
from pathlib import Path
from statistics import median

from bench import loads, placement
from bench.brokers import RELAXED, PylogBroker, started
from bench.kafka import KafkaBroker
from bench.machine import commit_line, machine_line
from bench.process import BrokerProcess

CONSUMERS = "1,4,16,64,250,500"
PARTITIONS = 6
BATCH_RECORDS = 10
RECORD_BYTES = 1024
FIGURES = ("cpu_s", "cpu_s_per_gb", "answer_bytes", "p50_us", "p99_us")


def _side(name: str, folder: Path) -> BrokerProcess:
    """Create kafka, pylog, or pylog with settings: "pylog fetch.batching.max.ms=0"."""
    kind, *settings = name.split()
    overrides = dict(setting.split("=", 1) for setting in settings)
    if kind == "kafka":
        return KafkaBroker(folder / "kafka", overrides=overrides)
    place = folder / name.replace(" ", "-")
    return PylogBroker(place, overrides={**RELAXED, **overrides})


def consume_tails(broker: BrokerProcess, consumers: int, rate: float, batch: int, seconds: float,
                  serial: int) -> dict[str, float]:
    """Return FIGURES of `consumers` while `rate` bytes/s are produced in batches of `batch`."""
    topic = f"tails-{serial}"
    loads.create_topic(broker, topic, PARTITIONS)
    before = broker.cpu_seconds()
    line = loads.native("tails", broker, topic, PARTITIONS, consumers, rate, batch, RECORD_BYTES,
                        seconds)
    used = broker.cpu_seconds() - before
    loads.delete_topic(broker, topic)
    return {**{key: line[key] for key in ("answer_bytes", "p50_us", "p99_us")},
            "cpu_s": used, "cpu_s_per_gb": used / (line["consumed_bytes"] / loads.GB)}


def _table(found: dict[int, dict[str, list[dict]]], sides: list[str]) -> str:
    lines = ["| consumers | " + " | ".join(
        f"{side}: CPU s, s/GB, answer KB, p50 ms, p99 ms" for side in sides) + " |",
        "|--:|" + "---|" * len(sides)]
    for count, by_side in found.items():
        cells = []
        for side in sides:
            value = {key: median(row[key] for row in by_side[side]) for key in FIGURES}
            cells.append(
                f"{value['cpu_s']:.2f}, {value['cpu_s_per_gb']:.3f}, "
                f"{value['answer_bytes'] / 1e3:.0f}, {value['p50_us'] / 1e3:.1f}, "
                f"{value['p99_us'] / 1e3:.1f}")
        lines.append(f"| {count} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    """Print one line per number of consumers."""
    parser = argparse.ArgumentParser(prog="python -m bench.fanout")
    parser.add_argument("--sides", default="kafka,pylog")
    parser.add_argument("--consumers", default=CONSUMERS)
    parser.add_argument("--mb-s", type=float, default=20)
    parser.add_argument("--batch-records", type=int, default=BATCH_RECORDS)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--placement", default="free", choices=list(placement.placements()))
    options = parser.parse_args(argv)
    sides = options.sides.split(",")
    print(f"`python -m bench.fanout {' '.join(argv)}`, commit {commit_line()}\n{machine_line()}",
          flush=True)
    where = placement.placements()[options.placement]
    found: dict[int, dict[str, list[dict]]] = {}
    serial = 0
    with started("fanout", sides, _side) as brokers, placement.pinned(where):
        for broker in brokers.values():
            placement.pin(broker.pid, where.broker)
        for count in map(int, options.consumers.split(",")):
            rows = found[count] = {name: [] for name in sides}
            for turn in range(options.rounds):
                for name in sides if turn % 2 == 0 else sides[::-1]:
                    serial += 1
                    rows[name].append(consume_tails(
                        brokers[name], count, options.mb_s * 1e6, options.batch_records,
                        options.seconds, serial))
            print(_table({count: rows}, sides).splitlines()[-1], flush=True)
    print(f"\n{_table(found, sides)}\nload {os.getloadavg()[0]:.1f} at the end")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

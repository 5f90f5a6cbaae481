"""`python -m bench.coordinator [--only NAME] [--no-kafka]`: one table, both brokers in one run.

Owns: the brokers and their data directories while it runs.
Called by: make, people.
Invariants: (1) the brokers run one after the other, never at once; (2) Kafka gets the same untimed
  load first, because a JVM compiles while it works.
Like with like: `relaxed` acknowledges from the page cache, as Kafka does by default; the other
column is pylog's default, which acknowledges a commit when it is on disk.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from bench.brokers import RELAXED, PylogBroker
from bench.coordinator.loads import LOADS
from bench.kafka import KafkaBroker
from bench.vs import commit_line, machine_line

SETTINGS = {"group.initial.rebalance.delay.ms": "0"}
SIDES = {"kafka": (KafkaBroker, {}), "pylog relaxed": (PylogBroker, RELAXED),
         "pylog": (PylogBroker, {})}
WARMED = {"kafka"}


def _figures(side: str, name: str, root: Path) -> dict:
    make, overrides = SIDES[side]
    with make(root / "data", 0, {**SETTINGS, **overrides}) as broker:
        if side in WARMED and name != "restart":
            LOADS[name](broker)
        return LOADS[name](broker)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.coordinator")
    parser.add_argument("--only", choices=LOADS, action="append")
    parser.add_argument("--no-kafka", action="store_true")
    options = parser.parse_args(argv)
    sides = [side for side in SIDES if not (options.no_kafka and side == "kafka")]
    print(f"{machine_line()}\n{commit_line()}\n")
    print("| figure | " + " | ".join(sides) + " |\n|---|" + "---|" * len(sides))
    for name in options.only or LOADS:
        columns = {}
        for side in sides:
            with tempfile.TemporaryDirectory(prefix="bench-coordinator-") as root:
                columns[side] = _figures(side, name, Path(root))
        for figure in columns[sides[0]]:
            cells = [f"{columns[side][figure]:,.3g}" if columns[side][figure] < 100
                     else f"{columns[side][figure]:,.0f}" for side in sides]
            print(f"| {figure} | " + " | ".join(cells) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

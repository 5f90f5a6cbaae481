"""Compare small requests with bare epoll loops, pinned: `python -m bench.bare`.

Invariants: the server and the client share one processor, or have one each; the sides alternate,
and rounds continue until the ratio to the grouping loop is steady, or ROUNDS_MAX is reached.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

from bench import loads, placement
from bench.brokers import RELAXED, PylogBroker, started
from bench.kafka import KafkaBroker
from bench.machine import commit_line, machine_line
from bench.process import BrokerProcess
from bench.programs import load_client

ROUNDS_MAX = 15
SHAPES = {"1": (1, 1), "8": (8, 1), "64": (64, 1), "512": (512, 1), "8x5": (8, 5)}
SIDES = "each,group,short,pylog"
TEXT = {"each": "bare epoll: recv, CRC, pwrite, send", "group": "the same, one write a turn",
        "short": "the same, turns as short as a reactor's"}
# The loops work the same way: two reactors on one processor alternate, each with half of the
# requests.
ALONE = {"num.network.threads": "1"}
LOOPS = {"group": "grouping loop", "short": "grouping loop of short turns"}


class BareLoop(BrokerProcess):
    """Runs csrc/loops.c in place of a broker."""

    def __init__(self, data_dir: Path, kind: str):
        super().__init__(data_dir)
        self.name = kind

    def _start(self) -> None:
        # Do not redirect the output to a file: the program prints its port there.
        self.process = subprocess.Popen(
            [load_client("loops"), self.name, str(self.data_dir / "file")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def stop(self, wait_s: float = 60.0) -> int | None:
        if self.process is not None and self.process.poll() is None:
            self.process.communicate(timeout=wait_s)
        return super().stop(wait_s)


def _side(name: str, folder: Path) -> BrokerProcess:
    if name == "kafka":
        return KafkaBroker(folder / name)
    if name == "pylog":
        return PylogBroker(folder / name, overrides={**RELAXED, **ALONE})
    return BareLoop(folder / name, name)


def _load(broker: BrokerProcess, shape: tuple[int, int], requests: int,
          idempotent: bool) -> float:
    """Return CPU seconds per million requests of one 100-byte record to one partition."""
    topic = "bare"
    figures = loads.raw_produce(broker, topic, 1, *shape, 1, 100, requests=requests,
                                 idempotent=idempotent)
    return figures["cpu_s_per_million_requests"]


def _steady(found: dict[str, list[float]]) -> bool:
    if "group" not in found or "pylog" not in found:
        return len(next(iter(found.values()))) >= placement.ROUNDS_LEAST
    return placement.is_steady(placement.ratios(found["pylog"], found["group"]))


def measure(brokers: dict[str, BrokerProcess], where: placement.Placement, shape: tuple[int, int],
            requests: int, rounds_max: int, idempotent: bool) -> dict[str, list[float]]:
    """Return a list of values for each side, one per round."""
    found: dict[str, list[float]] = {name: [] for name in brokers}
    with placement.pinned(where):
        for broker in brokers.values():
            placement.pin(broker.pid, where.broker)
            _load(broker, shape, requests // 4, idempotent)
        for turn in range(rounds_max):
            order = list(brokers) if turn % 2 == 0 else list(brokers)[::-1]
            for name in order:
                found[name].append(_load(brokers[name], shape, requests, idempotent))
            if _steady(found):
                break
    return found


def _table(where: str, samples: dict[str, dict[str, list[float]]], sides: list[str]) -> str:
    lines = [f"\n{where}: server CPU s per million one-record requests; load "
             f"{os.getloadavg()[0]:.1f} at the end\n",
             "| connections × in flight | " + " | ".join(samples) + " |",
             "|---|" + "--:|" * len(samples)]
    for name in sides:
        cells = [f"{median(found[name]):.2f}" for found in samples.values()]
        lines.append(f"| {TEXT.get(name, name)} | " + " | ".join(cells) + " |")
    for loop in [name for name in LOOPS if {"pylog", name} <= set(sides)]:
        cells = []
        for found in samples.values():
            each = placement.ratios(found["pylog"], found[loop])
            apart = placement.spread(each)
            steady = "" if placement.is_steady(each) else ", not steady"
            cells.append(f"{median(each):.2f} (±{(apart or 0) / 2:.1%} of {len(each)}{steady})")
        lines.append(f"| pylog / {LOOPS[loop]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    """Print a table for each placement."""
    parser = argparse.ArgumentParser(prog="python -m bench.bare")
    parser.add_argument("--sides", default=SIDES, help=f"of {SIDES},kafka")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--placement", default="same", help="same, apart, free")
    parser.add_argument("--requests", type=int, default=60_000)
    parser.add_argument("--rounds-max", type=int, default=ROUNDS_MAX)
    parser.add_argument("--idempotent", action="store_true", help="each connection a producer")
    options = parser.parse_args(argv)
    sides = options.sides.split(",")
    print(f"`python -m bench.bare {' '.join(argv)}`, commit {commit_line()}\n{machine_line()}",
          flush=True)
    with started("bare", sides, _side) as brokers:
        for name in set(sides) & {"pylog", "kafka"}:
            loads.create_topic(brokers[name], "bare", 1)
        for where in options.placement.split(","):
            samples = {
                shape: measure(brokers, placement.placements()[where], SHAPES[shape],
                               options.requests, options.rounds_max, options.idempotent)
                for shape in options.shapes.split(",")}
            print(_table(where, samples, sides), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

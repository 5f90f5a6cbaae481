"""Measure growth of cost: `python -m bench.growth [--only NAME] [--short]`: one table per curve.

Owns: the brokers and their data directories while it runs.
Invariants: each curve has new brokers, the sides alternate within it, and the order alternates from
  point to point; each side gets the first point untimed before, because a JVM compiles during the
  first run; a point that fails is reported without a result, and the other points continue.
"""

import argparse
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from bench import report
from bench.brokers import RELAXED, PylogBroker, started
from bench.growth import page
from bench.growth.curves import CURVES, FULL, SHORT, Curve, Scale, Side, measured
from bench.kafka import KafkaBroker, KafkaMissing, classpath, kafka_version
from bench.loads import LoadFailed
from bench.machine import commit_line, machine_line, touch_free_memory
from bench.process import BrokerFailed, BrokerProcess
from bench.programs import ProgramMissing, load_client

SIDES = "kafka,pylog"
TOUCHED_BYTES = 6 << 30
CLIENTS = ("produce", "fetch", "latency", "replay", "tails", "cold")
EXPECTED = (LoadFailed, BrokerFailed, subprocess.TimeoutExpired, OSError, EOFError)


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.growth")
    parser.add_argument("--only", choices=CURVES, action="append")
    parser.add_argument("--points", type=int, nargs="+", help="of the curve, for its own")
    parser.add_argument("--sides", default=SIDES, help='"pylog name=value" has that setting')
    parser.add_argument("--short", action="store_true", help="smaller loads, fewer points")
    parser.add_argument("--rounds", type=int, help="default 3, with --short 1")
    parser.add_argument("--publish", action="store_true",
                        help="replace its sections of bench/results/growth.md, and its picture")
    return parser.parse_args(argv)


class Run:
    """One run: collects samples[curve][point][side][figure] = [value per round]."""

    def __init__(self, sides: list[str], scale: Scale, rounds: int):
        self.sides, self.scale, self.rounds = sides, scale, rounds
        self.samples: dict = {}
        self.failures: dict[str, list[str]] = {}

    def curve(self, name: str, points: tuple[int, ...]) -> None:
        curve = CURVES[name]
        own = self.samples[name] = {point: {side: {} for side in self.sides} for point in points}
        self.failures[name] = []
        touch_free_memory(TOUCHED_BYTES)

        def made(side: str, folder: Path) -> BrokerProcess:
            return _broker(side, folder, dict(curve.settings))

        with started("growth", self.sides, made) as brokers:
            sides = {side: Side(broker, self.scale) for side, broker in brokers.items()}
            for side in self.sides:
                self._point(curve, name, sides[side], side, points[0])  # Let the JVM compile.
            turn = 0
            for _ in range(self.rounds):
                for point in points:
                    turn += 1
                    # Alternate the order.
                    for side in self.sides if turn % 2 else self.sides[::-1]:
                        found = self._point(curve, name, sides[side], side, point)
                        for key, at in found.items():
                            own[point][side].setdefault(key, []).append(at)

    def _point(self, curve: Curve, name: str, side: Side, label: str, point: int) -> dict:
        begin_s = time.monotonic()
        try:
            if not side.broker.alive():
                raise BrokerFailed("the broker ended before")
            figures = measured(curve, side, point)
        except EXPECTED as failure:
            text = " ".join(f"{type(failure).__name__}: {failure}".split())[-300:]
            # The other points continue.
            self.failures[name].append(f"{label}, {point:,} {curve.growing}: {text}")
            print(f"  {name:12} {label:8} {point:>9,} FAILED {text}", flush=True)
            return {}
        shown = " ".join(f"{key}={at:.4g}" for key, at in figures.items())
        print(f"  {name:12} {label:8} {point:>9,} {time.monotonic() - begin_s:5.1f} s  {shown}",
              flush=True)
        return figures


def _broker(side: str, folder: Path, overrides: dict) -> BrokerProcess:
    kind, *own = side.split()
    overrides |= dict(setting.split("=", 1) for setting in own)
    place = folder / side.replace(" ", "-").replace("=", "-")
    if kind == "kafka":
        return KafkaBroker(place, overrides=overrides)
    return PylogBroker(place, overrides={**RELAXED, **overrides})


def _publish(run: Run, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        report.publish(CURVES[name].title, text, page.PAGE)
    if len(texts) == len(CURVES):
        page.PICTURE.write_text(page.picture(run.samples))


def main(argv: list[str]) -> int:
    """Run the chosen curves and print their tables. Exit status 1 if a point failed."""
    options = _arguments(argv)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        classpath()
        for client in CLIENTS:
            load_client(client)
    except (KafkaMissing, ProgramMissing) as missing:
        print(missing, file=sys.stderr)
        return 1
    rounds = options.rounds or (1 if options.short else 3)
    head = [f"`{' '.join(['python -m bench.growth', *argv])}`, {rounds} round(s), commit "
            f"{commit_line()}, Apache Kafka {kafka_version()}.", f"{machine_line()}."]
    print("\n".join(head), flush=True)
    run = Run(options.sides.split(","), SHORT if options.short else FULL, rounds)
    texts: dict[str, str] = {}
    try:
        for name in options.only or CURVES:
            curve = CURVES[name]
            points = options.points or (curve.short if options.short else curve.points)
            run.curve(name, tuple(points))
            texts[name] = page.section(
                curve, run.samples[name], run.sides,
                [*head, f"Load {os.getloadavg()[0]:.1f} at the end."], run.failures[name])
    finally:
        text = "\n".join(f"## {CURVES[name].title}\n\n{its}" for name, its in texts.items())
        report.save(text, {"head": head, "samples": run.samples, "failures": run.failures},
                    "-growth")
    if options.publish:
        _publish(run, texts)
    print(f"\n{text}")
    return 1 if any(run.failures.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

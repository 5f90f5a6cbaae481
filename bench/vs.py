"""pylog beside Apache Kafka on one machine in one run: `python -m bench.vs`, `make bench-vs`.

Owns: the order of rounds.
Invariants: the sides alternate, and the order alternates from round to round; a value is the median
  over rounds of one run; a load that fails is reported without a result; broker and clients are
  pinned: to one processor, and then, for a second ratio, to one each; rounds continue until the
  ratio of CPU is steady, up to the maximum; a load that writes much gets memory that the machine
  already has, because the host of a virtual machine reclaims freed memory, and getting it back cost
  a load up to 2.5 times its own CPU; loads that write little skip this, because returning the
  memory blocks a processor for 10 to 20 ms at a time, seconds later.
"""

import argparse
import fnmatch
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Container
from pathlib import Path

from bench import loads, placement, report, table
from bench.kafka import KafkaMissing, classpath, kafka_version
from bench.machine import commit_line, machine_line, touch_free_memory
from bench.process import BrokerFailed
from bench.programs import ProgramMissing, cache_dir, load_client, rdkafka_performance
from bench.scenarios import FULL, QUICK, SCENARIOS, Scale, Side
from bench.secured import SECURED, certificate
from pylog._native.server import tls

LOADS = SCENARIOS | SECURED
SECTION = "Records: produce, fetch, latency, start"
SECTION_SECURED = "Security: TLS, logins, ACLs"
SIDES = "kafka,pylog"
PLACEMENTS = "same,apart"
ROUNDS_MAX = 9
TOUCHED_BYTES = 6_000_000_000
EXPECTED = (loads.LoadFailed, BrokerFailed, subprocess.TimeoutExpired, OSError)


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.vs", description=__doc__.split("\n")[0])
    parser.add_argument("--only", action="append", default=[], metavar="NAME",
                        help="a load, a prefix or a pattern of loads; repeatable")
    parser.add_argument("--rounds", type=int, default=None,
                        help="at least so many; default 3, with --quick 1")
    parser.add_argument("--rounds-max", type=int, default=None,
                        help=f"until ratios are steady; default {ROUNDS_MAX}, with --quick 1")
    parser.add_argument("--placement", default=PLACEMENTS, metavar="WHERE",
                        help="of same, apart, free; the second one gives a second ratio")
    parser.add_argument("--quick", action="store_true", help="small sizes, about five minutes")
    parser.add_argument("--sides", default=SIDES)
    parser.add_argument("--partitions", type=int, help="of the load partitions-10k")
    parser.add_argument("--list", action="store_true", help="name the loads and end")
    return parser.parse_args(argv)


def _chosen(patterns: list[str]) -> list[str]:
    if not patterns:
        return list(LOADS)
    names = []
    for pattern in patterns:
        exact = [name for name in LOADS if name == pattern]
        found = exact or [name for name in LOADS if fnmatch.fnmatch(name, f"{pattern}*")]
        if not found:
            raise SystemExit(f"no load named {pattern}; --list names them")
        names += [name for name in found if name not in names]
    return names


class Run:
    """One placement of a run: collects samples[scenario][side][key] = [value per round]."""

    def __init__(self, sides: list[Side], scale: Scale, folder: Path,
                 where: placement.Placement, floors: bool):
        self.sides = sides
        self.scale = scale
        self.folder = folder
        self.where = where
        self.floors = floors
        self.samples: dict = {}
        self.failures: list[str] = []

    def scenario(self, name: str, rounds: int, rounds_max: int) -> None:
        last = min(max(rounds, rounds_max), LOADS[name].rounds_max)
        with placement.pinned(self._where(name)):
            for turn in range(last):
                # Alternate the order.
                self._round(name, self.sides if turn % 2 == 0 else self.sides[::-1])
                if turn + 1 >= rounds and table.is_steady(self.samples.get(name, {})):
                    return

    def _where(self, name: str) -> placement.Placement:
        return self.where if LOADS[name].pinned else placement.placements()["free"]

    def _round(self, name: str, order: list[Side]) -> None:
        for side in order:
            side.placement = self._where(name)
            self._one(name, side)
        try:
            if self.floors:
                self._floors(name)
        except EXPECTED as failure:
            self.failures.append(f"floor of {name}: {failure}")

    def _one(self, name: str, side: Side) -> None:
        os.sync()
        if LOADS[name].writes:
            # Otherwise the load pays for memory that the host reclaimed.
            touch_free_memory(min(self.scale.touched_bytes, TOUCHED_BYTES))
        begin_s = time.monotonic()
        try:
            figures = LOADS[name].run(side)
        except EXPECTED as failure:
            text = " ".join(str(failure).split())[-600:]
            self.failures.append(f"{name}, {side.name}: {text}")
            print(f"  {name:26} {side.name:6} {self._where(name).name} FAILED {text}", flush=True)
            return
        for key, value in figures.items():
            self._keep(name, side.name, key, value)
        shown = " ".join(f"{key}={table.number(value)}" for key, value in figures.items())
        print(f"  {name:26} {side.name:6} {self._where(name).name:5} "
              f"{time.monotonic() - begin_s:5.1f} s  {shown}", flush=True)

    def _keep(self, name: str, side: str, key: str, value: float) -> None:
        self.samples.setdefault(name, {}).setdefault(side, {}).setdefault(key, []).append(value)

    def _floors(self, name: str) -> None:
        """Run the bare loops with the unit sizes that our side (else Kafka's) used in this run."""
        seen = self.samples.get(name, {})
        source = seen.get("pylog") or seen.get("kafka")
        for key, kind, unit, piece in LOADS[name].floors if source else ():
            size = min(source.get(unit, [0])[-1], 1 << 24 if kind == "sendfile" else 1 << 27)
            if size:
                value = loads.floor(kind, size, piece, self.scale.floor_bytes, self.folder,
                                    certificate(kind, self.folder))
                # The table's GB are of record values; the bare loop moved the bytes around them.
                share = 1.0 if kind == "answer" else source.get("wire_share", [1.0])[-1]
                self._keep(name, "floor", key, value * share)


def _text(runs: list[Run], names: Container[str], head: list[str]) -> str:
    """Return head and table of these loads."""
    second = runs[1] if len(runs) > 1 else None
    where = f"Broker and clients: {runs[0].where.name}" + (
        f"; in the second ratio: {second.where.name}" if second else "")
    failures = [line for run in runs for line in run.failures]
    body = [*head, f"{where}. Load {os.getloadavg()[0]:.1f} at the end.", "",
            table.render(_part(runs[0], names), kafka_version(),
                         _part(second, names) if second else {})]
    if failures:
        body += ["", "Loads without a figure:", *(f"- {line}" for line in failures)]
    return "\n".join(body) + "\n"


def _part(run: Run, names: Container[str]) -> dict:
    return {name: samples for name, samples in run.samples.items() if name in names}


def _report(runs: list[Run], options: argparse.Namespace, head: list[str]) -> str:
    text = _text(runs, LOADS, head)
    report.save(text, {"head": head, "quick": options.quick,
                       "failures": [line for run in runs for line in run.failures],
                       "samples": {run.where.name: run.samples for run in runs}})
    return text


def _placements(options: argparse.Namespace) -> list[placement.Placement]:
    known = placement.placements()
    names = [name for name in options.placement.split(",") if name in known]
    if not names:
        raise SystemExit(f"--placement {options.placement}: this machine has {', '.join(known)}")
    return [known[name] for name in names]


def sections(options: argparse.Namespace, rounds: int) -> dict[str, list[str]]:
    """Return the sections of the docs that this run may replace, with their loads: it ran all of
    these loads on both brokers, and has a median.
    """
    chosen = set(_chosen(options.only))
    if options.sides != SIDES or rounds < 2:
        return {}
    return {title: list(table) for title, table in
            ((SECTION, SCENARIOS), (SECTION_SECURED, SECURED)) if chosen.issuperset(table)}


def main(argv: list[str]) -> int:
    """Run the chosen loads and print the table. Exit status 1 if a load failed."""
    options = _arguments(argv)
    if options.list:
        print("\n".join(LOADS))
        return 0
    names = _chosen(options.only)
    rounds = options.rounds or (1 if options.quick else 3)
    rounds_max = options.rounds_max or (rounds if options.quick else ROUNDS_MAX)
    scale = QUICK if options.quick else FULL
    if options.partitions:
        scale.partitions = options.partitions
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        classpath()
        rdkafka_performance()
        for client in ("produce", "fetch", "latency", "floor", "floor_tls", "cold", "handshakes",
                       "logins", "group"):
            load_client(client)
    except (KafkaMissing, ProgramMissing) as missing:
        print(missing, file=sys.stderr)
        return 1
    command = " ".join(["python -m bench.vs", *argv])
    head = [f"`{command}`, {rounds} round(s), commit {commit_line()}", machine_line()]
    if not SECURED.keys().isdisjoint(names):
        head.append(f"TLS of pylog: {tls.library()}.")
    print("\n".join(head), flush=True)
    cache_dir().mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="vs-", dir=cache_dir()))
    sides = [Side(name, folder, scale) for name in options.sides.split(",")]
    runs = [Run(sides, scale, folder, where, floors=index == 0)
            for index, where in enumerate(_placements(options))]
    touch_free_memory(scale.touched_bytes)
    try:
        for name in names:
            for run in runs if LOADS[name].pinned else runs[:1]:
                run.scenario(name, rounds, rounds_max)
    finally:
        for side in sides:
            side.stop()
        text = _report(runs, options, head)
        shutil.rmtree(folder, ignore_errors=True)
    for title, its in sections(options, rounds).items():
        report.publish(title, _text(runs, its, head))
    print(f"\n{text}")
    return 1 if any(run.failures for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

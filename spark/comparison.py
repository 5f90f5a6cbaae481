"""Compare Spark with pylog and Apache Kafka in one run: each engine, reading and writing.

    python -m spark.comparison                          100 B and 1 KiB records, both brokers
    python -m spark.comparison --short                  one round of a million records
    python -m spark.comparison --records 20000000 --sizes "100 B" --paths read

Owns: a broker of each kind with its data in a temporary directory, one Spark session.
Invariants: one session and both brokers run throughout, and each round alternates between the
  brokers, so that other load on the machine and the JVM's warm-up affect both equally; every path
  runs once on a small topic before its rounds; the published result is the fastest round, its CPU
  time the lowest of all rounds; every written topic is counted, then deleted.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import Observation
from pyspark.sql import functions as f

from bench.brokers import PylogBroker
from bench.kafka import KafkaBroker
from bench.machine import machine_line
from bench.process import cpu_seconds
from pylog.client import Admin
from spark import cluster, floor, load
from spark.plan import Plan, record_bytes
from spark.records import Content
from spark.session import session
from spark.validate import TUNED

PARTITIONS = 6
GENERATORS = 2
SIZES = {"100 B": 100, "1 KiB": 1024}
WARM = 100_000
SHORT = 1_000_000
WRITE_TUNED = {"linger.ms": "20", "batch.size": "262144", "max.request.size": "4194304",
               "buffer.memory": "67108864"}
KINDS = {"pylog": PylogBroker, "kafka": KafkaBroker}
# The baseline of each path, and the goal.
GOALS = [("read, pylog, all columns", "read, stock connector, defaults", 5.0),
         ("read, pylog, all columns", "read, stock connector, tuned", 2.0),
         ("read, pylog, offsets only", "read, stock connector, tuned", 2.0),
         ("write, format pylog", "write, stock connector, tuned", 4.0),
         ("write, load engine of pylog", "write, stock connector, tuned", 4.0)]


class Figure(NamedTuple):
    """The results of one path on one broker."""

    took_s: float
    spark_s: float
    broker_s: float

    def least(self, other: Figure) -> Figure:
        return Figure(*map(min, self, other))


def main(argv: list[str]) -> int:
    options = arguments().parse_args(argv)
    if options.short:
        options.records, options.rounds = min(options.records, SHORT), 1
    directory = Path(tempfile.mkdtemp(prefix="pylog-bench-spark-"))
    head = machine_line()
    spark = session("bench", master="local[2]", settings={"spark.driver.memory": "2g"})
    for kind in (floor.RowFloor, floor.ArrowFloor):
        spark.dataSource.register(kind)
    found: dict[tuple[str, str, str], Figure] = {}
    try:
        with contextlib.ExitStack() as stack:
            brokers = {name: stack.enter_context(KINDS[name](directory / name))
                       for name in options.brokers.split(",")}
            for label in options.sizes.split(","):
                count = options.records if SIZES[label] == 100 else options.records // 5
                measure(found, spark, brokers, label, count, options, directory)
    finally:
        spark.stop()
        shutil.rmtree(directory, ignore_errors=True)
    text = f"{head}\n{options.records} records, best of {options.rounds}\n\n" + table(
        found, options) + "\n" + goals(found)
    print(text)
    if options.out:
        Path(options.out).write_text(text)
    return 0


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m spark.comparison")
    parser.add_argument("--records", type=int, default=5_000_000, help="of 100 B; a fifth of 1 KiB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--brokers", default="pylog,kafka")
    parser.add_argument("--sizes", default="100 B,1 KiB")
    parser.add_argument("--paths", default="", help="only those whose names begin so")
    parser.add_argument("--short", action="store_true", help="one round of a million records")
    parser.add_argument("--out", default="", metavar="FILE")
    return parser


def measure(found: dict[Any, Figure], spark: Any, brokers: dict[str, Any], label: str, count: int,
            options: argparse.Namespace, directory: Path) -> None:
    """Run the paths after a warm-up, alternating between the brokers."""
    pids = {broker.pid for broker in brokers.values()}
    content = Content(1, str(SIZES[label]))
    works = {name: Paths(spark, broker, content, count, directory)
             for name, broker in brokers.items()}
    wanted = [what for what in works[next(iter(works))].known() if what.startswith(options.paths)]
    for one in works.values():
        one.fill(any(what.startswith("read") for what in wanted))
        for what in wanted:
            one.known()[what](WARM)
        one.tidy()
    print(f"{label}: every path ran once on {WARM} records", flush=True)
    for number in range(options.rounds):
        for what in wanted:
            for name in list(brokers)[::1 if number % 2 else -1]:
                work = works[name].known()[what]
                spark_s, broker_s = spark_cpu_seconds(pids), cpu_seconds(brokers[name].pid)
                begun_s = time.monotonic()
                done = work(count)
                took_s = time.monotonic() - begun_s
                assert done == count, (name, what, done, count)
                figure = Figure(took_s, spark_cpu_seconds(pids) - spark_s,
                                cpu_seconds(brokers[name].pid) - broker_s)
                key = label, what, name
                found[key] = figure.least(found.get(key, figure))
                print(f"{number} {name:6} {label:6} {what:34} {count / took_s / 1e6:6.2f} M/s "
                      f"Spark {figure.spark_s:6.2f} broker {figure.broker_s:6.2f} CPU s",
                      flush=True)
                works[name].tidy()


class Paths:
    """The read and write paths on one broker; each function takes a count and returns the amount
    done.
    """

    def __init__(self, spark: Any, broker: Any, content: Content, count: int, directory: Path):
        self.spark, self.content, self.directory = spark, content, directory
        self.settings = {"bootstrap.servers": broker.bootstrap}
        size = content.sizes
        self.topics = {count: f"read-{size}", WARM: f"warm-{size}"}
        self._written: list[str] = []
        self._number = 0

    def known(self) -> dict[str, Callable[[int], int]]:
        return {
            "generator alone": self.generated,
            "write, dropped by Spark itself": lambda count: self.dropped(count, "noop"),
            "write, dropped in Python, batches": lambda count: self.dropped(count, "arrow-floor"),
            "write, dropped in Python, rows": lambda count: self.dropped(count, "row-floor"),
            "write, load engine of pylog": lambda count: self.loaded(count, "pylog", {}),
            "write, format pylog": lambda count: self.wrote(count, "pylog", {}),
            "write, stock connector, defaults": lambda count: self.wrote(count, "kafka", {}),
            "write, stock connector, tuned": lambda count: self.wrote(count, "kafka", WRITE_TUNED),
            "read, stock connector, defaults": lambda count: self.read(count, "kafka", {}),
            "read, stock connector, tuned": lambda count: self.read(count, "kafka", TUNED),
            "read, pylog, all columns": lambda count: self.read(count, "pylog", {}),
            "read, pylog, value column":
                lambda count: self.read(count, "pylog", {}, "value BINARY"),
            "read, pylog, offsets only":
                lambda count: self.read(count, "pylog", {}, "partition INT, offset LONG"),
        }

    def fill(self, whole: bool) -> None:
        for count, topic in self.topics.items():
            if whole or count == WARM:
                self.loaded(count, "pylog", {}, topic)
        self._written.clear()

    def tidy(self) -> None:
        """Delete every topic that was written."""
        if self._written:
            with Admin.from_settings(self.settings) as admin:
                admin.delete_topics(self._written)
            self._written.clear()

    def _new_topic(self) -> str:
        self._number += 1
        topic = f"write-{self.content.sizes}-{self._number}"
        cluster.create_topic(self.settings, topic, PARTITIONS)
        self._written.append(topic)
        return topic

    def _plan(self, count: int, topic: str, engine: str, more: dict[str, str]) -> Plan:
        return Plan(topic, {**self.settings, **more}, self.content, records=count,
                    generators=GENERATORS, engine=engine)

    def generated(self, count: int) -> int:
        """Generate content in the executors and keep it there; Spark only receives counts."""
        plan = self._plan(count, "none", "pylog", {})

        def made(batches: Any) -> Any:
            import pyarrow as pa

            for one in load._tables(plan, batches):
                yield pa.RecordBatch.from_pydict({"rows": pa.array([one.num_rows], pa.int64())})

        rows = self._generators().mapInArrow(made, "rows LONG").collect()
        return sum(row[0] for row in rows)

    def _generators(self) -> Any:
        return self.spark.range(0, GENERATORS, 1, GENERATORS)

    def loaded(self, count: int, engine: str, more: dict[str, str], into: str = "") -> int:
        topic = into or self._new_topic()
        if into:
            cluster.create_topic(self.settings, topic, PARTITIONS)
        load.load(self._plan(count, topic, engine, more), str(self.directory / "manifest"),
                  spark=self.spark)
        return sum(cluster.ends(self.settings, topic).values())

    def wrote(self, count: int, kind: str, more: dict[str, str]) -> int:
        """Write a Spark frame, generated in the executors, through the format."""
        topic = self._new_topic()
        plan = self._plan(count, topic, "kafka", more)
        writer = self._frame(plan).write.format(kind).mode("append").option("topic", topic)
        for name, value in plan.settings.items():
            writer = writer.option(f"kafka.{name}", value)
        writer.save()
        return sum(cluster.ends(self.settings, topic).values())

    def dropped(self, count: int, kind: str) -> int:
        """Write the same frame to a no-op sink: the lower bound of every sink."""
        counted = Observation()
        frame = self._frame(self._plan(count, "none", "kafka", {}))
        frame.observe(counted, f.count(f.lit(1)).alias("rows")).write.format(kind).mode(
            "append").save()
        return int(counted.get["rows"])

    def _frame(self, plan: Plan) -> Any:
        return self._generators().mapInArrow(
            lambda batches: load._tables(plan, batches), "value BINARY, key BINARY")

    def read(self, count: int, kind: str, more: dict[str, str], schema: str = "") -> int:
        reader = (self.spark.read.format(kind).option("subscribe", self.topics[count])
                  .option("kafka.bootstrap.servers", self.settings["bootstrap.servers"]))
        for key, value in more.items():
            reader = reader.option(key, value)
        return int((reader.schema(schema) if schema else reader).load().count())


def spark_cpu_seconds(brokers: set[int]) -> float:
    """Return the CPU time of the JVM and its Python workers, including finished ones."""
    tick, rows = os.sysconf("SC_CLK_TCK"), {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                rows[int(entry)] = (int(text[1]), sum(map(int, text[11:15])) / tick)

    def below(pid: int) -> bool:
        while pid in rows and pid not in brokers:
            pid = rows[pid][0]
            if pid == os.getpid():
                return True
        return False

    return sum(seconds for pid, (_, seconds) in rows.items() if below(pid))


def table(found: dict[Any, Figure], options: argparse.Namespace) -> str:
    """Return Markdown with the brokers side by side."""
    brokers = list(dict.fromkeys(key[2] for key in found))
    head = "".join(f" {name}: M records/s | MB/s | Spark CPU s | broker CPU s |"
                   for name in brokers)
    lines = [f"| records | path |{head}", "|---|---|" + "--:|" * 4 * len(brokers)]
    for label, what in dict.fromkeys(key[:2] for key in found):
        count = options.records if SIZES[label] == 100 else options.records // 5
        cells = ""
        for name in brokers:
            one = found[label, what, name]
            rate = count / one.took_s
            size = rate * record_bytes(Content(1, str(SIZES[label])))
            cells += (f" {rate / 1e6:.2f} | {size / 1e6:.0f} | {one.spark_s:.2f} | "
                      f"{one.broker_s:.2f} |")
        lines.append(f"| {label} | {what} |{cells}")
    return "\n".join(lines) + "\n"


def goals(found: dict[Any, Figure]) -> str:
    """Return the ratios between the paths: wall time, and CPU time of Spark and broker together."""
    lines = []
    for label, name in dict.fromkeys((key[0], key[2]) for key in found):
        for what, than, goal in GOALS:
            ours, theirs = found.get((label, what, name)), found.get((label, than, name))
            if ours is not None and theirs is not None:
                cpu = (theirs.spark_s + theirs.broker_s) / (ours.spark_s + ours.broker_s)
                lines.append(f"{name}, {label}: {what}: {theirs.took_s / ours.took_s:.1f} times "
                             f"{than} (CPU {cpu:.1f}); goal {goal:g}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

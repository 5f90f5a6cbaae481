"""Spark against pylog and Apache Kafka in one run: each engine, reading and writing.

    python -m bench.spark                          100 B and 1 KiB records, both brokers
    python -m bench.spark --records 500000 --brokers pylog --rounds 2

Owns: a broker of each kind with its data in a temporary directory, one Spark session.
Called by: a person; `make bench-spark`.
Invariants: (1) one session and one set of topics for both brokers; (2) a figure is the best of its
  rounds, its CPU seconds the broker's of that round; (3) every topic that was written is counted.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.brokers import PylogBroker
from bench.kafka import KafkaBroker
from bench.process import cpu_seconds
from bench.vs import machine_line
from spark import cluster, load
from spark.plan import Plan, record_bytes
from spark.records import Content
from spark.session import session
from spark.validate import TUNED

PARTITIONS = 6
GENERATORS = 2
SIZES = {"100 B": 100, "1 KiB": 1024}
WRITE_TUNED = {"linger.ms": "20", "batch.size": "262144", "max.request.size": "4194304",
               "buffer.memory": "67108864"}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.spark")
    parser.add_argument("--records", type=int, default=1_000_000, help="of 100 B; a fifth of 1 KiB")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--brokers", default="pylog,kafka")
    parser.add_argument("--sizes", default="100 B,1 KiB")
    parser.add_argument("--out", default="", metavar="FILE")
    options = parser.parse_args(argv)
    directory = Path(tempfile.mkdtemp(prefix="pylog-bench-spark-"))
    spark = session("bench", master="local[2]", settings={"spark.driver.memory": "2g"})
    kinds = {"pylog": PylogBroker, "kafka": KafkaBroker}
    rows: list[tuple[str, str, str, float, float, float]] = []
    try:
        for name in options.brokers.split(","):
            with kinds[name](directory / name) as broker:
                for label in options.sizes.split(","):
                    count = options.records if SIZES[label] == 100 else options.records // 5
                    rows += measured(spark, broker, name, label, count, options.rounds, directory)
    finally:
        spark.stop()
        shutil.rmtree(directory, ignore_errors=True)
    text = f"{machine_line()}\n\n{table(rows)}"
    print(text)
    if options.out:
        Path(options.out).write_text(text)
    return 0


def measured(spark: Any, broker: Any, name: str, label: str, count: int, rounds: int,
             directory: Path) -> list[Any]:
    """(broker, size, what, records/s, MB/s, broker CPU s) of every path."""
    content = Content(1, str(SIZES[label]))
    works = paths(spark, broker, content, label, count, directory)
    rows = []
    for what, work in works:
        best = None
        for _ in range(rounds):
            before_s, begun_s = cpu_seconds(broker.pid), time.monotonic()
            done = work()
            took_s = time.monotonic() - begun_s
            assert done == count, (what, done, count)  # Keeps (3).
            figures = (count / took_s, cpu_seconds(broker.pid) - before_s)
            best = max(best or figures, figures)
        rows.append((name, label, what, best[0], best[0] * record_bytes(content) / 1e6, best[1]))
        print(f"{name:6} {label:6} {what:40} {best[0] / 1e6:6.2f} M/s {best[1]:6.2f} CPU s",
              flush=True)
    return rows


def paths(spark: Any, broker: Any, content: Content, label: str, count: int, directory: Path
          ) -> list[tuple[str, Any]]:
    settings = {"bootstrap.servers": broker.bootstrap}
    topic = f"read-{SIZES[label]}"
    numbers = iter(range(1000))

    def wrote(engine: str, more: dict[str, str], into: str = "") -> int:
        target = into or f"write-{SIZES[label]}-{next(numbers)}"
        cluster.create_topic(settings, target, PARTITIONS)
        before = sum(cluster.ends(settings, target).values())
        plan = Plan(target, {**settings, **more}, content, records=count, generators=GENERATORS,
                    engine=engine)
        load.load(plan, str(directory / "manifest"), spark=spark)
        return sum(cluster.ends(settings, target).values()) - before

    def counted(kind: str, more: dict[str, str], schema: str = "") -> int:
        reader = (spark.read.format(kind).option("kafka.bootstrap.servers", broker.bootstrap)
                  .option("subscribe", topic))
        for key, value in more.items():
            reader = reader.option(key, value)
        return (reader.schema(schema) if schema else reader).load().count()

    def made() -> int:
        plan = Plan("none", settings, content, records=count, generators=GENERATORS)
        return spark.range(0, GENERATORS, 1, GENERATORS).mapInArrow(
            lambda batches: load._tables(plan, batches), "value BINARY, key BINARY").count()

    wrote("pylog", {}, topic)
    return [
        ("generator alone", made),
        ("write, pylog's producer in mapInArrow", lambda: wrote("pylog", {})),
        ("write, stock connector, defaults", lambda: wrote("kafka", {})),
        ("write, stock connector, tuned", lambda: wrote("kafka", WRITE_TUNED)),
        ("read + count, stock connector, defaults", lambda: counted("kafka", {})),
        ("read + count, stock connector, tuned", lambda: counted("kafka", TUNED)),
        ("read + count, pylog", lambda: counted("pylog", {})),
        ("read + count, pylog, value column", lambda: counted("pylog", {}, "value BINARY")),
        ("read + count, pylog, offsets only",
         lambda: counted("pylog", {}, "partition INT, offset LONG")),
    ]


def table(rows: list[Any]) -> str:
    """Markdown, brokers beside each other."""
    brokers = list(dict.fromkeys(row[0] for row in rows))
    head = "".join(f" {name}: M records/s | MB/s | broker CPU s |" for name in brokers)
    lines = [f"| records | path |{head}", "|---|---|" + "--:|" * 3 * len(brokers)]
    found = {(row[1], row[2], row[0]): row for row in rows}
    for label, what in dict.fromkeys((row[1], row[2]) for row in rows):
        cells = ""
        for name in brokers:
            row = found[label, what, name]
            cells += f" {row[3] / 1e6:.2f} | {row[4]:.0f} | {row[5]:.2f} |"
        lines.append(f"| {label} | {what} |{cells}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Read a loaded topic back through Spark, and verify every record.

    python -m pylog.spark.validate --bootstrap localhost:9092 --topic load --manifest manifest/ \
        --report report.html --json verdict.json
    python -m pylog.spark.validate ... --stream --checkpoint state/     # continues after a kill

Owns: the checkpoint directory of a streaming run (Spark's checkpoint, and the summaries).
Invariants: the exit code is 0 only for a good verdict, 1 for a bad one, 2 without a verdict; a
  summary is saved under its batch's number before Spark commits the batch, so that a killed run
  neither duplicates nor omits anything.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # Run by spark-submit: not as a package.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    __package__ = "spark"

from . import cluster, load, report, summary
from .plan import Outcome, PlanError, made_directory, read_outcome
from .records import Content, ContentError
from .session import SetupError, check_streaming, session
from .summary import Expected
from .verdict import Verdict, percentiles, timeline, verdict

ENGINES = ["pylog", "source", "kafka"]
# The stock connector's defaults read 500 records at a time.
TUNED = {"kafka.max.poll.records": "20000", "kafka.max.partition.fetch.bytes": "4194304",
         "kafka.fetch.max.bytes": "67108864"}
GAPS_ASKED_MAX = 2000
FOLLOW_LOOK_S = 2.0


def main(argv: list[str] | None = None) -> int:
    options = arguments().parse_args(argv)
    try:
        expected, outcome = expectation(options)
        found, seconds = validate(options, expected)
        if options.manifest:
            acknowledged(found, options.manifest)
    except (PlanError, ContentError, SetupError, cluster.ClusterError) as failure:
        print(f"validate: {failure}", file=sys.stderr)
        return 2
    except Exception as failure:  # The first line of an exception that Spark wraps.
        print(f"validate: failed: {cluster.first_line(failure)}", file=sys.stderr)
        return 2
    report_verdict(options, found, outcome, seconds)
    return 0 if found.good else 1


def report_verdict(options: argparse.Namespace, found: Verdict, outcome: Outcome | None,
                   seconds: float,
         more: Iterable[tuple[str, str]] = ()) -> None:
    """Write and print the result. more: (name, text) of the environment."""
    rows = [("validation", f"engine {options.engine}, " + (
        "by Structured Streaming" if options.stream else "in one batch")), *more]
    if options.json:
        Path(options.json).write_text(found.json(
            topic=options.topic, engine=options.engine, read_in_s=round(seconds, 3),
            circumstances=dict(rows)))
    if options.report:
        Path(options.report).write_text(
            report.html(options.topic, found, outcome, seconds, rows))
    print("\n".join(found.lines()))
    print(f"  read in {seconds:.1f} s: {found.records / seconds:.0f} records/s, "
          f"{found.bytes / seconds / 1e6:.1f} MB/s (engine {options.engine})")
    if found.faults["foreign"] and found.faults["foreign"] == found.records:
        print("validate: no record is of this seed with these sizes and keys: wrong seed?",
              file=sys.stderr)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pylog.spark.validate", description=(
            "Read a topic that load has written, through Spark, and check every record. Give "
            "--manifest, or --seed and --records with the options of the load's content. Exit code "
            "0: every record exists once and is intact; 1: at least one fault; 2: no verdict."))
    add = parser.add_argument
    add("--bootstrap", required=True, metavar="HOST:PORT", help="broker; several with commas")
    add("--topic", required=True, help="topic to check")
    add("--engine", choices=ENGINES, default="pylog", help=(
        "pylog: tasks read and check columns; source: read through the data source pylog; kafka: "
        "read through Spark's Kafka connector (default: %(default)s)"))
    add("--manifest", default="", metavar="DIRECTORY", help="manifest that load has written")
    load.content(parser)
    add("--records", type=int, default=0, metavar="N", help="number of records of the load")
    add("--generators", type=int, default=2, metavar="N",
        help="number of generators of the load (default: %(default)s)")
    add("--from-start", action="store_true",
        help="read from the start of the topic instead of the start of the load")
    add("--stream", action="store_true",
        help="read all available records with Structured Streaming")
    add("--follow", type=float, default=0.0, metavar="SECONDS", help=(
        "read with Structured Streaming until all expected records are read, or no record has "
        "arrived for this long"))
    add("--checkpoint", default="", metavar="DIRECTORY",
        help="checkpoint of a stream; another run continues from it")
    add("--offsets-per-trigger", type=int, default=0, metavar="N",
        help="most records of a micro-batch (default: no limit)")
    add("--isolation", default="read_committed", choices=["read_committed", "read_uncommitted"],
        help="which records of transactions to read (default: %(default)s)")
    add("--min-partitions", type=int, default=0, metavar="N", help="least number of tasks")
    add("--option", action="append", default=[], metavar="NAME=VALUE",
        help="option of the data source; repeat for several")
    add("--json", default="", metavar="FILE", help="write the verdict as JSON")
    add("--report", default="", metavar="FILE", help="write the verdict as one HTML file")
    add("--master", default="", metavar="URL", help="Spark master (default: local[*])")
    return parser


def expectation(options: argparse.Namespace) -> tuple[Expected, Outcome | None]:
    """Return the plan from the manifest, unless arguments override it. Raises PlanError."""
    if options.manifest:
        outcome = read_outcome(options.manifest)
        content = outcome.plan.content
        if options.seed is not None:
            content = Content(options.seed, content.sizes, content.keys, content.skew,
                              content.headers)
        return Expected(content, outcome.counts), outcome
    if not options.records or options.seed is None:
        raise PlanError("give --manifest, or --seed and --records as the load had them")
    content = Content(options.seed, options.sizes, options.keys, options.skew, options.headers)
    total, parts = options.records, options.generators
    return Expected(content, {generator: total // parts + (generator < total % parts)
                              for generator in range(parts)}), None


def acknowledged(found: Verdict, manifest: str) -> None:
    """Add the acknowledgement latencies to the verdict, if the manifest's batches are available."""
    import numpy as np
    import pyarrow.dataset as ds

    paths = sorted(map(str, Path(manifest).glob("batches/*.parquet")))
    if not paths:
        return
    rows = ds.dataset(paths).to_table(
        ["generator", "first_sequence", "batch_records", "sent_ms", "acked_ms"],
        filter=ds.field("generator") >= 0)
    took = rows["acked_ms"].to_numpy() - rows["sent_ms"].to_numpy()
    counts = np.bincount(summary.bucket(took), weights=rows["batch_records"].to_numpy(),
                         minlength=summary.LATENCY_BUCKETS).astype(np.int64)
    found.acks, found.ack_ms = counts.tolist(), percentiles(counts)
    found.timeline = timeline(found, *[rows[name].to_numpy() for name in (
        "generator", "first_sequence", "batch_records", "sent_ms", "acked_ms")])


def validate(options: argparse.Namespace, expected: Expected, spark: Any = None,
             begins: dict[int, int] | None = None, busy: Callable[[], bool] = lambda: False
             ) -> tuple[Verdict, float]:
    """Return (verdict, seconds of reading). spark: an existing session, else a new one is created.
    begins: start of the load, if there is no manifest yet. busy: returns True while a load that is
    being followed continues.
    """
    options.stream = options.stream or options.follow > 0
    if options.stream and options.engine != "kafka":
        check_streaming()
    for path in filter(None, (options.json, options.report)):
        made_directory(str(Path(path).parent))
    settings = {"bootstrap.servers": options.bootstrap}
    stable = {**settings, "isolation.level": options.isolation}
    ends = cluster.ends(stable, options.topic)
    if begins is None:
        begins = _begins(options, settings)
    own = spark is None
    spark = spark or session(f"pylog validation of {options.topic}", master=options.master,
                             connector=options.engine == "kafka")
    begun_s = time.monotonic()
    try:
        rows = (_streamed(spark, options, expected, begins, busy) if options.stream else
                _read_once(spark, options, expected, begins, ends))
    finally:
        seconds = time.monotonic() - begun_s
        if own:
            spark.stop()
    if options.follow:
        ends = cluster.ends(stable, options.topic)
    planned = {number: (begins[number], ends[number]) for number in ends}
    if options.stream:
        planned = _planned_by_stream(planned, rows)
    return verdict(
        expected, rows, planned,
        lambda gaps: cluster.explained(settings, options.topic, gaps[:GAPS_ASKED_MAX]),
        lambda: cluster.is_compacted(settings, options.topic)), seconds


def _begins(options: argparse.Namespace, settings: dict[str, str]) -> dict[int, int]:
    begins = cluster.starts(settings, options.topic)
    if not options.manifest or options.from_start:
        return begins
    loaded = read_outcome(options.manifest)
    return {number: max(at, loaded.starts.get(number, 0)) for number, at in begins.items()}


def _columns(expected: Expected) -> list[str]:
    columns = ["key", "value", "partition", "offset", "timestamp"]
    return [*columns, "headers"] if expected.content.headers else columns


def _given(options: argparse.Namespace, expected: Expected) -> dict[str, str]:
    """Return the options that all readers share."""
    made = {"kafka.bootstrap.servers": options.bootstrap, "subscribe": options.topic,
            "kafka.isolation.level": options.isolation}
    if expected.content.headers:
        made["includeHeaders"] = "true"
    if options.engine == "kafka":
        made.update(TUNED)
    if options.min_partitions:
        made["minPartitions"] = str(options.min_partitions)
    made.update(pair.split("=", 1) for pair in options.option if "=" in pair)
    return made


def _source(reader: Any, options: argparse.Namespace, expected: Expected, **more: str) -> Any:
    """Return a frame of a batch or streaming reader."""
    made = reader.format("kafka" if options.engine == "kafka" else "pylog")
    for name, value in {**_given(options, expected), **more}.items():
        made = made.option(name, value)
    columns = _columns(expected)
    if options.engine != "kafka":
        made = made.schema(_schema(columns))
    return made.load().select(*columns)


def _schema(columns: list[str]) -> Any:
    """The Python API has no column pruning: the schema selects the columns."""
    from pyspark.sql.types import StructField, StructType

    from pylog.client.spark.splits import COLUMNS, HEADERS

    every = StructType([*COLUMNS, StructField("headers", HEADERS)])
    return StructType([every[name] for name in columns])


def _stretches(spark: Any, options: argparse.Namespace, expected: Expected, **more: str) -> Any:
    """Return summaries, computed by the tasks that read the records, so that no record passes
    through the JVM.

    Planning and reading are the source's own; its tasks pass their columns to the checks in the
    same process instead of to Spark.
    """
    from pyspark.sql.datasource import CaseInsensitiveDict

    from pylog.client.spark.source import PylogSource

    given = CaseInsensitiveDict({**_given(options, expected), **more})
    reader = PylogSource(given).reader(_schema(_columns(expected)))
    parts = reader.partitions()

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from summary.summaries(expected, reader.read(parts[number]))

    return spark.range(0, len(parts), 1, len(parts)).mapInArrow(work, summary.SCHEMA)


def _summed(frame: Any, expected: Expected) -> Any:
    return frame.mapInArrow(
        lambda batches: summary.summaries(expected, batches), summary.SCHEMA)


def _read_once(spark: Any, options: argparse.Namespace, expected: Expected,
               begins: dict[int, int], ends: dict[int, int]) -> list[dict[str, Any]]:
    bounds = {"startingOffsets": _offsets(options.topic, begins),
              "endingOffsets": _offsets(options.topic, ends)}
    rows = (_stretches(spark, options, expected, **bounds) if options.engine == "pylog" else
            _summed(_source(spark.read, options, expected, **bounds), expected))
    with tempfile.TemporaryDirectory(prefix="pylog-validate-") as directory:
        rows.write.parquet(f"{directory}/summaries")
        return _kept(directory)


def _streamed(spark: Any, options: argparse.Namespace, expected: Expected,
              begins: dict[int, int], busy: Callable[[], bool]) -> list[dict[str, Any]]:
    more = {"startingOffsets": _offsets(options.topic, begins)}
    if options.offsets_per_trigger:
        more["maxOffsetsPerTrigger"] = str(options.offsets_per_trigger)
    frame = _source(spark.readStream, options, expected, **more)
    directory = options.checkpoint or tempfile.mkdtemp(prefix="pylog-validate-")

    def keep(frame: Any, number: int) -> None:
        frame.write.mode("overwrite").parquet(f"{directory}/summaries/batch={number}")

    trigger = {"processingTime": "0 seconds"} if options.follow else {"availableNow": True}
    query = (_summed(frame, expected).writeStream.foreachBatch(keep)
             .option("checkpointLocation", f"{directory}/spark").trigger(**trigger).start())
    if options.follow:
        _follow(query, options.follow, expected, directory, busy)
    query.awaitTermination()
    return _kept(directory)


def _follow(query: Any, patience_s: float, expected: Expected, directory: str,
            busy: Callable[[], bool]) -> None:
    """Stop the query once all expected records are read and no more arrive, or nothing arrived for
    the timeout and no load is running.
    """
    wanted, seen, last_s = sum(expected.counts.values()), -1, time.monotonic()
    while not query.awaitTermination(FOLLOW_LOOK_S):
        records = sum(row["records"] for row in _kept(directory) if row["kind"] == "range")
        if records != seen or busy():
            seen, last_s = records, time.monotonic()
        elif records >= wanted or time.monotonic() - last_s > patience_s:
            query.stop()


def _kept(directory: str) -> list[dict[str, Any]]:
    import pyarrow.dataset as ds

    # Skip _temporary: those files are unfinished, or a killed run left them.
    saved = Path(directory) / "summaries"
    paths = sorted(map(str, [*saved.glob("*.parquet"), *saved.glob("batch=*/*.parquet")]))
    if not paths:
        return []
    rows: list[dict[str, Any]] = []
    for batch in ds.dataset(paths).to_batches():
        rows += batch.to_pylist()
    return rows


def _planned_by_stream(planned: dict[int, tuple[int, int]], rows: list[dict[str, Any]]
                       ) -> dict[int, tuple[int, int]]:
    """Extend the planned offsets to what the stream read: it reads everything that is available
    when it starts.
    """
    found = dict(planned)
    for row in rows:
        if row["kind"] == "range":
            start, end = found.get(row["partition"], (row["first_offset"], 0))
            found[row["partition"]] = (min(start, row["first_offset"]),
                                       max(end, row["end_offset"]))
    return found


def _offsets(topic: str, offsets: dict[int, int]) -> str:
    import json

    return json.dumps({topic: {str(number): at for number, at in offsets.items()}})


if __name__ == "__main__":
    sys.exit(main())

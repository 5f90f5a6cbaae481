"""Load a topic through Spark with records that spark.validate can recompute.

    python -m pylog.spark.load --bootstrap localhost:9092 --topic load --create --partitions 6 \
        --records 1000000 --sizes uniform:50:150 --keys 1000 --manifest manifest/
    spark-submit --master spark://host:7077 spark/load.py --engine kafka ...

Owns: the manifest's directory while it runs.
Invariants: the exit code is 0 only if every record was acknowledged as --acks requires; each
  generator uses one task and one producer, so its records reach a partition in order.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # Run by spark-submit: not as a package.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    __package__ = "spark"

from . import cluster, records
from .plan import Outcome, Plan, PlanError, blocks, made_directory, rate_of, record_bytes
from .records import Content, ContentError
from .session import SetupError, session

TABLES_UNDER_WAY_MAX = 8
TRANSACTION_BLOCKS = 16
BATCH_BYTES = 262_144
MANIFEST = ("generator INT, first_sequence LONG, records LONG, bytes LONG, partition INT, "
            "base_offset LONG, batch_records LONG, sent_ms LONG, acked_ms LONG")


def main(argv: list[str] | None = None) -> int:
    options = arguments().parse_args(argv)
    try:
        plan = plan_of(options)
        if options.create:
            cluster.create_topic(plan.settings, plan.topic, options.partitions)
        outcome = load(plan, options.manifest, options.master)
    except (PlanError, ContentError, SetupError, cluster.ClusterError) as failure:
        print(f"load: {failure}", file=sys.stderr)
        return 2
    except Exception as failure:  # The first line of an exception that Spark wraps.
        print(f"load: failed: {cluster.first_line(failure)}", file=sys.stderr)
        return 1
    print(summary_text(outcome))
    return 0


def arguments(prog: str = "python -m pylog.spark.load", what: str = (
        "Write records that validate can recompute, through Spark. Give --records or --duration."),
        alone: bool = True) -> argparse.ArgumentParser:
    """alone: False if another command supplies broker, topic and manifest."""
    parser = argparse.ArgumentParser(prog=prog, description=what)
    add = parser.add_argument
    add("--bootstrap", required=alone, metavar="HOST:PORT", help="broker; several with commas")
    add("--topic", required=alone, default="trial", help="topic to write to")
    if alone:
        add("--create", action="store_true", help="create the topic if it does not exist")
    add("--partitions", type=int, default=6, metavar="N",
        help="partitions of a topic that the job creates (default: %(default)s)")
    add("--engine", choices=["pylog", "kafka"], default="pylog",
        help="pylog: the producer of pylog; kafka: Spark's Kafka connector (default: %(default)s)")
    add("--records", type=int, default=0, metavar="N", help="number of records")
    add("--duration", type=float, default=0.0, metavar="SECONDS", help="length of the load")
    add("--generators", type=int, default=2, metavar="N",
        help="tasks that generate records (default: %(default)s)")
    content(parser)
    add("--rate", default="0", help="limit of records per second: N; of megabytes per second: NMB; "
        "ramp:LOW:HIGH:SECONDS or burst:LOW:HIGH:PERIOD:LENGTH (no limit)")
    add("--compression", default="none", choices=["none", "gzip", "snappy", "lz4", "zstd"],
        help="compression of the batches (default: %(default)s)")
    add("--acks", default="all", choices=["all", "1", "0"],
        help="acknowledgements of the producer (default: %(default)s)")
    add("--transactional", action="store_true",
        help="write in transactions; only with --engine pylog")
    add("--config", action="append", default=[], metavar="NAME=VALUE",
        help="setting of the producer; repeat for several")
    add("--manifest", required=alone, metavar="DIRECTORY",
        help="directory for the description of the load and its acknowledged batches")
    add("--master", default="", metavar="URL", help="Spark master (default: local[*])")
    return parser


def content(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that define the records' content; spark.validate has them too."""
    add = parser.add_argument
    add("--seed", type=int, default=None, metavar="N", help="seed of the content")
    add("--sizes", default="100", help="bytes of a value: N, uniform:LOW:HIGH or "
        "normal:MEAN:DEVIATION (default: %(default)s)")
    add("--keys", type=int, default=0, metavar="N",
        help="number of different keys; 0: records without a key (default: %(default)s)")
    add("--skew", type=float, default=0.0, metavar="EXPONENT",
        help="Zipf exponent of the keys' frequencies (default: %(default)s)")
    add("--headers", action="store_true", help="records with one header")


def plan_of(options: argparse.Namespace) -> Plan:
    made = Content(options.seed or 0, options.sizes, options.keys, options.skew, options.headers)
    settings = {"bootstrap.servers": options.bootstrap, "acks": options.acks,
                "compression.type": options.compression,
                "delivery.timeout.ms": "600000", "max.block.ms": "600000"}
    if options.acks == "0":
        settings["enable.idempotence"] = "false"
    settings.update(pair.split("=", 1) for pair in options.config if "=" in pair)
    if options.engine == "pylog":
        _known(settings)
    return Plan(
        topic=options.topic, settings=settings, content=made, records=options.records,
        duration_s=options.duration, generators=options.generators, engine=options.engine,
        rate=rate_of(options.rate, record_bytes(made)), transactional=options.transactional)


def _known(settings: dict[str, str]) -> None:
    """Check here rather than in an executor, where Spark wraps the exception. Raises PlanError."""
    from pylog.client.config.settings import PRODUCER, Settings
    from pylog.client.errors import ConfigError

    try:
        Settings(PRODUCER, settings)
    except ConfigError as failure:
        raise PlanError(str(failure)) from None


def load(plan: Plan, manifest: str, master: str = "", spark: Any = None) -> Outcome:
    """Run a plan. spark: an existing session, else a new one is created. Raises the exceptions that
    main() prints as one line.
    """
    starts = cluster.ends(plan.settings, plan.topic)
    made_directory(manifest)
    own = spark is None
    spark = spark or session(f"pylog load of {plan.topic}", master=master,
                             connector=plan.engine == "kafka")
    try:
        frame = spark.range(0, plan.generators, 1, plan.generators)
        started_ms = round(time.time() * 1000)
        write = _through_connector if plan.engine == "kafka" else _through_pylog
        counts, size = write(spark, frame, plan, manifest)
        ended_ms = round(time.time() * 1000)
    finally:
        if own:
            spark.stop()
    outcome = Outcome(plan, counts, started_ms, ended_ms, size, starts,
                      cluster.ends(plan.settings, plan.topic))
    outcome.write(manifest)
    return outcome


def summary_text(outcome: Outcome) -> str:
    """Return a one-line summary."""
    total, seconds = sum(outcome.counts.values()), (outcome.ended_ms - outcome.started_ms) / 1000
    return (f"loaded {total} records, {outcome.bytes / 1e6:.1f} MB of values in {seconds:.1f} s: "
            f"{total / seconds:.0f} records/s, {outcome.bytes / seconds / 1e6:.1f} MB/s "
            f"(engine {outcome.plan.engine}, seed {outcome.plan.content.seed})")


# ---- pylog's producer in executors


def _through_pylog(spark: Any, frame: Any, plan: Plan, manifest: str) -> tuple[dict[int, int], int]:
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    rows = frame.mapInArrow(lambda batches: _produce(plan, batches), MANIFEST)
    seen = Observation("acknowledged")
    sums = [F.sum(F.when(F.col("generator") == number, F.col("batch_records"))).alias(str(number))
            for number in range(plan.generators)]
    rows.observe(seen, *sums).write.mode("overwrite").parquet(f"{manifest}/batches")
    counts = {number: seen.get[str(number)] or 0 for number in range(plan.generators)}
    return counts, _values_bytes(plan, counts)


def _produce(plan: Plan, batches: Iterator[Any]) -> Iterator[Any]:
    """For each generator id of the batches: generate, send, wait, and yield acknowledged records.
    """
    for batch in batches:
        for generator in batch.column(0).to_pylist():
            yield from _generate(plan, generator)


def _generate(plan: Plan, generator: int) -> Iterator[Any]:
    from pylog.client import Producer

    settings: dict[str, Any] = {
        "batch.size": BATCH_BYTES, "max.request.size": 4 << 20, "buffer.memory": 64 << 20,
        **plan.settings}
    if plan.transactional:
        settings["transactional.id"] = f"{plan.topic}-load-{generator}"
    with Producer.from_settings(settings) as producer:
        if plan.transactional:
            producer.init_transactions()
        under_way: deque[_Sent] = deque()
        count = 0
        for made in blocks(plan, generator, time.monotonic, time.sleep):
            if plan.transactional and count % TRANSACTION_BLOCKS == 0:
                if count:
                    producer.commit_transaction()
                producer.begin_transaction()
            under_way.append(_Sent(producer, plan, generator, made))
            count += 1
            while len(under_way) > TABLES_UNDER_WAY_MAX or under_way and under_way[0].acked_ms:
                yield under_way.popleft().rows()
        if plan.transactional and count:
            producer.commit_transaction()
        for sent in under_way:
            yield sent.rows()


class _Sent:
    """A block in flight."""

    def __init__(self, producer: Any, plan: Plan, generator: int, made: records.Made):
        self.generator, self.first, self.count = generator, int(made.sequences[0]), len(
            made.sequences)
        self.bytes, self.acked_ms = len(made.data), 0
        block = table(plan.content, generator, made)
        self.sent_ms = round(time.time() * 1000)
        self.delivery = producer.send_arrow(block, plan.topic)
        self.delivery.when_done(self._note)

    def _note(self) -> None:
        self.acked_ms = round(time.time() * 1000)

    def rows(self) -> Any:
        """Return the block's manifest row. Raises if a batch was not acknowledged."""
        import pyarrow as pa

        rows = self.delivery.result()
        count = len(rows)

        def same(value: int, kind: Any) -> Any:
            return pa.repeat(pa.scalar(value, kind), count)

        return pa.RecordBatch.from_arrays([
            same(self.generator, pa.int32()), same(self.first, pa.int64()),
            same(self.count, pa.int64()), same(self.bytes, pa.int64()),
            pa.array([row[1] for row in rows], pa.int32()),
            pa.array([row[2] for row in rows], pa.int64()),
            pa.array([row[3] for row in rows], pa.int64()),
            same(self.sent_ms, pa.int64()),
            same(self.acked_ms or round(time.time() * 1000), pa.int64()),
        ], ["generator", "first_sequence", "records", "bytes", "partition", "base_offset",
            "batch_records", "sent_ms", "acked_ms"])


def table(made_of: Content, generator: int, made: records.Made) -> Any:
    """Return a block as an Arrow batch with value, key and, if the content has them, headers."""
    import numpy as np
    import pyarrow as pa

    count = len(made.sequences)
    columns = {"value": pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(made.offsets), pa.py_buffer(made.data)])}
    if made.key_data is None:
        columns["key"] = pa.nulls(count, pa.binary())
    else:
        ends = np.arange(0, (count + 1) * records.KEY_BYTES, records.KEY_BYTES, dtype=np.int32)
        columns["key"] = pa.Array.from_buffers(
            pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(made.key_data)])
    if made_of.headers:
        inner = np.empty(count, records.HEADER_VALUE)
        inner["generator"], inner["sequence"] = generator, made.sequences
        ends = np.arange(0, (count + 1) * inner.itemsize, inner.itemsize, dtype=np.int32)
        value = pa.Array.from_buffers(
            pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(inner)])
        items = pa.StructArray.from_arrays(
            [pa.repeat(pa.scalar(records.HEADER_KEY), count), value], ["key", "value"])
        columns["headers"] = pa.ListArray.from_arrays(
            pa.array(np.arange(count + 1, dtype=np.int32)), items)
    return pa.RecordBatch.from_pydict(columns)


# ---- Spark's own connector


def _through_connector(spark: Any, frame: Any, plan: Plan, manifest: str
                       ) -> tuple[dict[int, int], int]:
    shape = "value BINARY, key BINARY"
    if plan.content.headers:
        shape += ", headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
    before = cluster.ends(plan.settings, plan.topic)
    started_ms = round(time.time() * 1000)
    writer = frame.mapInArrow(lambda batches: _tables(plan, batches), shape).write.format("kafka")
    for name, value in plan.settings.items():
        writer = writer.option(f"kafka.{name}", value)
    if plan.content.headers:
        writer = writer.option("includeHeaders", "true")
    writer.option("topic", plan.topic).save()
    counts = {generator: plan.limit(generator) or 0 for generator in range(plan.generators)}
    size = _values_bytes(plan, counts)
    after = cluster.ends(plan.settings, plan.topic)
    ended_ms = round(time.time() * 1000)
    # The connector reports nothing about its batches: one row per partition represents all of them.
    rows = [(-1, 0, sum(counts.values()), size, partition, before.get(partition, 0),
             after[partition] - before.get(partition, 0), started_ms, ended_ms)
            for partition in sorted(after)]
    spark.createDataFrame(rows, MANIFEST).coalesce(1).write.mode("overwrite").parquet(
        f"{manifest}/batches")
    return counts, size


def _values_bytes(plan: Plan, counts: dict[int, int]) -> int:
    import numpy as np

    total = 0
    if plan.content.sizes.isdigit():
        return sum(counts.values()) * int(plan.content.sizes)
    for generator, count in counts.items():
        for start in range(0, count, 1 << 20):
            sequences = np.arange(start, min(count, start + (1 << 20)))
            total += int(records.sizes(plan.content, generator, sequences).sum())
    return total


def _tables(plan: Plan, batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        for generator in batch.column(0).to_pylist():
            for made in blocks(plan, generator, time.monotonic, time.sleep):
                yield table(plan.content, generator, made)


if __name__ == "__main__":
    sys.exit(main())

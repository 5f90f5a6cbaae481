"""A pipeline of orders: decode, deduplicate, join products, write totals and Parquet files.

    python -m pylog.spark.pipeline --bootstrap localhost:9092 --from raw --to totals \
        --products products.csv --parquet orders/ --checkpoint state/ --report progress.html

Owns: the checkpoint directory, the directory of Parquet files, the journal next to the report.
Invariants: each readable order that is not late is in the Parquet files exactly once, even after
  kills; the totals are computed from the rows of the Parquet files, so both agree; the total of a
  window is written once, after the watermark has passed it.
Source: Structured Streaming Programming Guide (watermarks, several stateful operators, file sink).
"""

from __future__ import annotations

import argparse
import csv
import signal
import sys
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # Run by spark-submit: not as a package.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    __package__ = "spark"

from . import cluster
from .plan import PlanError, made_directory
from .progress import Journal
from .session import SetupError, check_streaming, session

ORDER = "id STRING, at TIMESTAMP, product STRING, amount INT"
ROW = "id STRING, at TIMESTAMP, product STRING, category STRING, amount INT, cents LONG"
LOOK_S = 1.0
NO_DATA_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"


def main(argv: list[str] | None = None) -> int:
    options = arguments().parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        check_streaming()
        listed = products(options.products)
        given = {"bootstrap.servers": options.bootstrap}
        cluster.ends(given, options.source)
        cluster.create_topic(given, options.target, options.partitions)
        journal = Journal(options.report)
        for directory in (options.parquet, options.checkpoint):
            if "://" not in directory:
                made_directory(directory)
        spark = session(f"pipeline from {options.source} to {options.target}",
                        master=options.master, connector=False,
                        settings={"spark.sql.shuffle.partitions": str(options.tasks)})
        try:
            run(Pipeline(spark, options, listed), options.once, journal)
        finally:
            spark.stop()
    except (PlanError, SetupError, cluster.ClusterError) as failure:
        print(f"pipeline: {failure}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # The checkpoint has the position.
        return 0
    except Exception as failure:  # The first line of an exception that Spark wraps.
        print(f"pipeline: failed: {cluster.first_line(failure)}", file=sys.stderr)
        return 1
    return 0


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pylog.spark.pipeline", description=(
            "Read JSON orders from a topic, keep each order once, write the rows to Parquet files "
            "and the totals per window to a topic. A killed job continues from its checkpoint."))
    add = parser.add_argument
    add("--bootstrap", required=True, metavar="HOST:PORT", help="broker; several with commas")
    add("--from", dest="source", required=True, metavar="TOPIC", help="topic with the JSON orders")
    add("--to", dest="target", required=True, metavar="TOPIC",
        help="topic for the totals; created if it does not exist")
    add("--partitions", type=int, default=2, metavar="N",
        help="partitions of a topic that the job creates (default: %(default)s)")
    add("--products", required=True, metavar="FILE",
        help="CSV file with the columns product, category and cents")
    add("--parquet", required=True, metavar="DIRECTORY", help="directory for the Parquet files")
    add("--checkpoint", required=True, metavar="DIRECTORY",
        help="directory for Spark's position and state; another run continues from it")
    add("--delay", type=int, default=600, metavar="SECONDS",
        help="how far behind the newest order an order or its duplicate may be"
             " (default: %(default)s)")
    add("--window", type=int, default=60, metavar="SECONDS",
        help="length of the window of a total (default: %(default)s)")
    add("--per-trigger", type=int, default=100_000, metavar="RECORDS",
        help="most records of a micro-batch (default: %(default)s)")
    add("--tasks", type=int, default=2, metavar="N",
        help="tasks of each step that keeps state; fixed by the checkpoint (default: %(default)s)")
    add("--every", type=float, default=1.0, metavar="SECONDS",
        help="interval between checks for new records (default: %(default)s)")
    add("--once", action="store_true", help="process all available records, then end")
    add("--report", default="", metavar="FILE",
        help="write the progress as a page (.html) or a picture (.svg)")
    add("--master", default="", metavar="URL", help="Spark master (default: local[*])")
    return parser


def products(path: str) -> list[tuple[str, str, int]]:
    """Return the product list that orders are joined with. Raises PlanError."""
    try:
        with open(path, newline="") as file:
            return [(row["product"], row["category"], int(row["cents"]))
                    for row in csv.DictReader(file)]
    except (OSError, KeyError, ValueError, TypeError) as failure:
        raise PlanError(f"cannot read the product list {path}: {failure}") from None


class Pipeline:
    """The steps of the pipeline, each a frame derived from the previous one. listed: of `products`.
    """

    def __init__(self, spark: Any, options: argparse.Namespace,
                 listed: list[tuple[str, str, int]]):
        self.spark = spark
        self.options = options
        self.products = spark.createDataFrame(
            listed, "product STRING, category STRING, price LONG")
        self.trigger = ({"availableNow": True} if options.once else
                        {"processingTime": f"{round(options.every * 1000)} milliseconds"})
        self.delay = f"{options.delay} seconds"

    def decoded(self) -> Any:
        """Decode the raw topic's orders. Unreadable records are counted and stay in the topic."""
        from pyspark.sql import functions as f

        source = (self.spark.readStream.format("pylog")
                  .option("kafka.bootstrap.servers", self.options.bootstrap)
                  .option("subscribe", self.options.source).option("startingOffsets", "earliest")
                  .option("maxOffsetsPerTrigger", self.options.per_trigger)
                  .option("kafka.isolation.level", "read_committed")
                  .option("valueFormat", "json").option("valueSchema", ORDER)
                  .option("expandValue", "true").option("mode", "permissive")
                  .schema(f"{ORDER}, _corrupt_value BINARY"))
        is_order = f.col("id").isNotNull() & f.col("at").isNotNull()
        return (source.load()
                .observe("decoded", f.count_if(~is_order).alias("unreadable"))
                .where(is_order).drop("_corrupt_value"))

    def unique(self, orders: Any) -> Any:
        """Keep each id once. The state holds the ids that the watermark has not passed."""
        return orders.withWatermark("at", self.delay).dropDuplicatesWithinWatermark(["id"])

    def enriched(self, orders: Any) -> Any:
        """Add category and value; a product that is not listed has the category unknown and value
        0.
        """
        from pyspark.sql import functions as f

        return (orders.join(f.broadcast(self.products), "product", "left")
                .select("id", "at", "product",
                        f.coalesce("category", f.lit("unknown")).alias("category"), "amount",
                        (f.coalesce("price", f.lit(0)) * f.col("amount")).alias("cents"))
                .observe("enriched", f.count(f.lit(1)).alias("written")))

    def rows(self) -> Any:
        """Start the query that writes each order once to the Parquet files."""
        return (self.enriched(self.unique(self.decoded())).writeStream.queryName("rows")
                .format("parquet").option("path", self.options.parquet)
                .option("checkpointLocation", f"{self.options.checkpoint}/rows")
                .trigger(**self.trigger).start())

    def totals(self) -> Any:
        """Start the query that sums the rows that `rows` has committed, and writes each window
        once.
        """
        from pyspark.sql import functions as f

        sums = (self.spark.readStream.schema(ROW).parquet(self.options.parquet)
                .withWatermark("at", self.delay)
                .groupBy(f.window("at", f"{self.options.window} seconds"), "category")
                .agg(f.count("id").alias("orders"), f.sum("amount").alias("units"),
                     f.sum("cents").alias("cents"))
                .observe("summed", f.count(f.lit(1)).alias("written")))
        start = f.date_format("window.start", "yyyy-MM-dd'T'HH:mm:ss'Z'")
        value = f.struct("window.start", "window.end", "category", "orders", "units", "cents")
        writer = (sums.select(f.concat_ws("@", "category", start).alias("key"),
                              value.alias("value"))
                  .writeStream.queryName("totals").format("pylog")
                  .option("kafka.bootstrap.servers", self.options.bootstrap)
                  .option("topic", self.options.target).option("valueFormat", "json")
                  .option("exactlyOnceId", f"totals-of-{self.options.target}")
                  .option("checkpointLocation", f"{self.options.checkpoint}/totals")
                  .trigger(**self.trigger))
        # Keeps totals complete: a batch without rows would advance this query's watermark past
        # that of a busy `rows`, whose next rows could then be too late for their totals.
        self.spark.conf.set(NO_DATA_BATCHES, str(self.options.once).lower())
        try:
            return writer.start()
        finally:
            self.spark.conf.unset(NO_DATA_BATCHES)


def run(pipeline: Pipeline, once: bool, journal: Journal) -> None:
    """Run both queries in parallel until one fails or a signal stops them; with `once` one after
    the other. Raises the exception of a failed query.
    """
    if once:
        for start in (pipeline.rows, pipeline.totals):
            follow([start()], journal)
    else:
        # `totals` needs the log of the Parquet files, which `rows` creates before it returns.
        follow([pipeline.rows(), pipeline.totals()], journal)


def follow(queries: list[Any], journal: Journal) -> None:
    """Wait until one query has ended."""
    try:
        while not any([query.awaitTermination(LOOK_S / len(queries)) for query in queries]):
            journal.note(query.recentProgress for query in queries)
    finally:
        journal.note(query.recentProgress for query in queries)
        for query in queries:
            query.stop()


if __name__ == "__main__":
    sys.exit(main())

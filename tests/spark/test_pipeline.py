"""The pipeline's result equals the independently computed one, whichever process is killed."""

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from pylog.client import Admin, TopicPartition
from spark import cluster, committed, orders, pipeline
from spark.orders import Load
from spark.progress import Journal
from spark.session import CHECKOUT
from tests.client.reading import await_markers

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]
LOAD = Load(orders=900, per_trigger=150)
IDLE_LOOKS, LOOK_S = 250, 0.02
HOUR_MS = 3_600_000
# Spark gives a Python worker ten seconds to start, which may be too short on a busy machine. The
# query then fails and must be started again.
TOO_BUSY, STARTS_MAX = "Python worker failed to connect back", 8


def batches(log):
    """Return the batch numbers in one of Spark's logs."""
    return {int(path.name.partition(".")[0]) for path in log.glob("[0-9]*")}


class Place:
    """Topics and directories of one pipeline, and how much of its load was sent."""

    def __init__(self, bootstrap, directory, load=LOAD):
        self.bootstrap, self.load = bootstrap, load
        self.raw, self.totals = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("raw", "totals"))
        self.rows, self.state = directory / "orders", directory / "state"
        self.products, self.report = directory / "products.csv", directory / "progress.html"
        cluster.create_topic({"bootstrap.servers": bootstrap}, self.raw, load.partitions)
        orders.write_products(str(self.products))
        self.records, self.sent = list(orders.records(load)), 0

    def send(self, share):
        """Send the load up to this share of it."""
        end = round(len(self.records) * share)
        orders.send(self.bootstrap, self.raw, self.records[self.sent:end])
        self.sent = end

    def arguments(self, *more):
        return ["--bootstrap", self.bootstrap, "--from", self.raw, "--to", self.totals,
                "--products", str(self.products), "--parquet", str(self.rows), "--checkpoint",
                str(self.state), "--per-trigger", str(self.load.per_trigger), "--report",
                str(self.report), *more]

    def pipeline(self, spark, *more, once=True):
        given = self.arguments(*more, *["--once"] * once)
        options = pipeline.arguments().parse_args(given)
        cluster.create_topic({"bootstrap.servers": self.bootstrap}, self.totals, 2)
        return pipeline.Pipeline(spark, options, pipeline.products(options.products))

    def run(self, spark):
        """Read all available records."""
        finished(lambda: pipeline.run(self.pipeline(spark), True, Journal(str(self.report))))

    def wrong(self):
        await_markers(self.bootstrap, self.totals, 2)
        return orders.wrong(self.load, self.bootstrap, self.totals, str(self.rows))

    def is_open(self, query):
        """Return True if a planned batch is not committed."""
        state = self.state / query
        return bool(batches(state / "offsets") - batches(state / "commits"))

    def has_files_of_no_batch(self):
        return bool(set(map(str, self.rows.glob("*.parquet"))) -
                    set(committed.committed(str(self.rows))))

    def has_rows_not_noted(self):
        return bool(batches(self.rows / committed.LOG) -
                    batches(self.state / "rows" / "commits"))

    def has_decided_what_is_not_noted(self):
        group = f"totals-of-{self.totals}"
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            found = admin.list_consumer_group_offsets(group)
        place = TopicPartition(self.totals, 0)
        return place in found and found[place].offset > len(
            batches(self.state / "totals" / "commits"))

    def has_read_all(self):
        """Return True if everything sent was read, and no batch is in progress."""
        offsets = self.state / "rows" / "offsets"
        last = max(batches(offsets), default=None)
        if last is None or self.is_open("rows") or self.is_open("totals"):
            return False
        ends = json.loads((offsets / str(last)).read_text().splitlines()[-1])[self.raw]
        return sum(ends.values()) == self.sent


def finished(work):
    """Run once or, on a busy machine, again."""
    for _ in range(STARTS_MAX):
        try:
            return work()
        except StreamingQueryException as failure:
            if TOO_BUSY not in str(failure):
                raise
    pytest.fail("too busy a machine for Spark")


def forget(log):
    """Remove the newest entry of one of Spark's logs: the state after a kill just before it."""
    newest = max(batches(log))
    for path in log.iterdir():
        if re.fullmatch(rf"\.?{newest}(\.\w+)*", path.name):  # including its checksum
            path.unlink()


@pytest.fixture
def place(target, tmp_path):
    return Place(target.bootstrap, tmp_path)


def test_a_raw_topic_becomes_the_rows_and_totals_that_were_computed_apart(spark, place):
    place.send(1.0)
    place.run(spark)
    assert place.wrong() == []
    noted = [batch for batch in Journal(str(place.report)).batches.values()
             if batch.query == "rows"]
    found = {field: sum(getattr(batch, field) for batch in noted)
             for field in ("read", "unreadable", "doubled", "late", "written")}
    assert found["read"] == len(place.records)
    assert found["unreadable"] == sum(record.order is None for record in place.records)
    assert found["written"] == len(orders.rows(place.load))
    assert found["read"] == sum(found.values()) - found["read"]
    assert noted[0].behind and not noted[-1].behind


@pytest.mark.slow
def test_batch_with_uncommitted_files_writes_them_again(spark, place):
    place.send(0.5)
    finished(lambda: pipeline.follow([place.pipeline(spark).rows()], Journal("")))
    forget(place.rows / committed.LOG)
    forget(place.state / "rows" / "commits")
    assert place.has_files_of_no_batch()
    place.send(1.0)
    place.run(spark)
    assert place.wrong() == []


def test_batches_that_were_committed_and_not_noted_are_written_once(spark, place):
    place.send(0.6)
    place.run(spark)
    for query in ("rows", "totals"):
        forget(place.state / query / "commits")
        assert place.is_open(query)
    place.send(1.0)
    place.run(spark)
    assert place.wrong() == []


def test_row_that_a_busy_query_accepts_is_counted_in_its_total(spark, place):
    load = Load(window_s=3600)
    job, continuous = (place.pipeline(spark, "--window", str(load.window_s), "--every", "0",
                                      once=once) for once in (True, False))

    def process(query):
        """Process all available data with a continuous query."""
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    for hour in (0, 8, 4):  # The last order is late only by the order of the batch before it.
        order = orders.Order(f"at-{hour}", orders.START_MS + hour * HOUR_MS, "p0", 1)
        record = orders.Record(0, order.id.encode(), order.value(), order)
        orders.send(place.bootstrap, place.raw, [record])
        # As while more records wait: no batch without records follows.
        spark.conf.set(pipeline.NO_DATA_BATCHES, "false")
        finished(lambda: pipeline.follow([job.rows()], Journal("")))
        spark.conf.unset(pipeline.NO_DATA_BATCHES)
        finished(lambda: process(continuous.totals()))
    finished(lambda: pipeline.run(job, True, Journal("")))
    rows = orders.read_rows(str(place.rows))
    assert len(rows) == 3
    await_markers(place.bootstrap, place.totals, 2)
    found = orders.read_totals(place.bootstrap, place.totals, load.window_s)
    assert sorted(found) == sorted(orders.totals(load, rows)) and len(found) == 2


def test_invalid_product_list_is_reported_in_one_line_with_exit_code_2(place, capsys):
    place.products.write_text("name,price\np0,1\n")
    assert pipeline.main(place.arguments()) == 2
    said = capsys.readouterr().err.strip()
    assert "cannot read the product list" in said and "\n" not in said


MOMENTS = {
    "rows begun": lambda place: place.is_open("rows"),
    "files written": Place.has_files_of_no_batch,
    "rows committed": Place.has_rows_not_noted,
    "totals begun": lambda place: place.is_open("totals"),
    "totals decided": Place.has_decided_what_is_not_noted,
}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("where, moments", [
    ("local[2]", list(MOMENTS)), ("standalone", ["files written", "totals begun"])])
def test_a_driver_that_is_killed_at_any_of_its_steps_changes_nothing(
        target, tmp_path, request, where, moments):
    master = where if where == "local[2]" else request.getfixturevalue("standalone")
    place = Place(target.bootstrap, tmp_path, Load(orders=3000, per_trigger=200))
    command = [sys.executable, "-m", "spark.pipeline", *place.arguments("--master", master)]
    said = Path(tmp_path / "driver.out")
    for number, name in enumerate(moments, 1):
        place.send(number / (len(moments) + 1))
        hit = any(killed([*command, "--every", "0"], said, place, MOMENTS[name])
                  for _ in range(STARTS_MAX))
        assert hit, "too busy a machine for Spark"
    place.send(1.0)
    while started([*command, "--once"], said).wait():
        assert TOO_BUSY in said.read_text(), said.read_text()[-4000:]
    assert place.wrong() == []


def started(command, said):
    with open(said, "wb") as out:
        return subprocess.Popen(command, cwd=CHECKOUT, stdout=out, stderr=subprocess.STDOUT,
                                start_new_session=True)


def killed(command, said, place, moment):
    """Kill a working driver at that moment. If the driver has read everything before, kill it then,
    because the moment may be too short to observe. Returns True if it was killed.
    """
    driver, idle = started(command, said), itertools.count()
    while driver.poll() is None and not moment(place):
        if place.has_read_all() and next(idle) > IDLE_LOOKS:
            break
        time.sleep(LOOK_S)
    has_ended = driver.poll() is not None
    assert not has_ended or TOO_BUSY in said.read_text(), said.read_text()[-4000:]
    with contextlib.suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    return not has_ended

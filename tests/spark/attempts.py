"""A driver whose first batch runs several attempts of the same task at once: in a retried stage, or
by speculation. Writes the lines of files to a topic, exactly once.

    python -m tests.spark.attempts KIND MASTER BOOTSTRAP DIRECTORY TOPIC

DIRECTORY has the input below lines/. The attempts report their progress by files in it: N-M means
that the M-th attempt of task N has read its rows.
"""

import sys
import threading
import time
from pathlib import Path

from pyspark import TaskContext

from pylog.client import Admin
from spark.cluster import ends
from spark.session import session

SINK = "attempts"
WAIT_S = 120
SETTINGS = {
    "stage": {"spark.sql.shuffle.partitions": "4"},
    "speculation": {
        "spark.sql.shuffle.partitions": "2", "spark.speculation": "true",
        "spark.speculation.interval": "100ms", "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "1s", "spark.speculation.multiplier": "1.5"},
}


def await_file(path):
    end_s = time.monotonic() + WAIT_S
    while not path.exists():
        assert time.monotonic() < end_s, f"{path.name} does not appear"
        time.sleep(0.05)


def claim(directory, number):
    """Return the number of this attempt of the task, from 0."""
    for attempt in range(100):
        try:
            (directory / f"{number}-{attempt}").touch(exist_ok=False)
        except FileExistsError:
            continue
        return attempt
    raise AssertionError("too many attempts")


def held(kind, directory):
    """Return a function for mapInArrow that delays the tasks of the first batch."""
    hold = {"stage": in_retried_stage, "speculation": in_speculation}[kind]

    def run(batches):
        rows = list(batches)
        context = TaskContext.get()
        if context.getLocalProperty("streaming.sql.batchId") == "0":
            number = context.partitionId()
            hold(directory, number, claim(directory, number))
        yield from rows

    return run


def in_retried_stage(directory, number, attempt):
    """Three tasks run at once. Task 3 cannot fetch its rows, so Spark retries the stage while the
    first attempt of task 0 still runs."""
    if number == 1 and attempt == 0:
        for other in ("0-0", "2-0"):
            await_file(directory / other)
        for path in directory.glob("local/**/shuffle_*"):
            path.unlink()
        (directory / "deleted").touch()
    elif number == 2:
        await_file(directory / "deleted")
    elif number == 0:
        await_file(directory / ("0-1" if attempt == 0 else "first attempt is done"))
    elif number == 3:
        await_file(directory / "second attempt is done")


def in_speculation(directory, number, attempt):
    """Both attempts of task 1 write at the same time."""
    if number == 1:
        await_file(directory / "1-1")


def pace_attempts(directory, bootstrap, topic):
    """The second attempt of task 0 writes after Spark has accepted the first, and before the batch
    is committed.
    """
    settings = {"bootstrap.servers": bootstrap}
    await_file(directory / "0-1")
    before = None
    while (written := sum(ends(settings, topic).values())) != before or not written:
        before = written
        time.sleep(2)
    (directory / "first attempt is done").touch()
    end_s = time.monotonic() + 20
    with Admin(settings) as admin:
        while time.monotonic() < end_s and 2 > sum(
                row.transactional_id.startswith(f"{SINK}-task-0-")
                for row in admin.list_transactions(["Ongoing"])):
            time.sleep(0.1)
    (directory / "second attempt is done").touch()


def main(kind, master, bootstrap, directory, topic):
    directory = Path(directory)
    spark = session("attempts", master=master, connector=False, settings={
        "spark.local.dir": str(directory / "local"), **SETTINGS[kind]})
    lines = (spark.readStream.format("text").option("maxFilesPerTrigger", 1)
             .load(str(directory / "lines")))
    tasks = int(SETTINGS[kind]["spark.sql.shuffle.partitions"])
    rows = lines.repartition(tasks, "value").mapInArrow(held(kind, directory), "value STRING")
    if kind == "stage":
        threading.Thread(target=pace_attempts, args=(directory, bootstrap, topic),
                         daemon=True).start()
    query = (rows.writeStream.format("pylog").option("kafka.bootstrap.servers", bootstrap)
             .option("topic", topic).option("exactlyOnceId", SINK)
             .option("checkpointLocation", str(directory / "state"))
             .trigger(availableNow=True).start())
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])

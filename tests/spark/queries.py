"""A streaming query without Spark: makes the calls that Spark makes, on driver and in tasks."""

import pickle

import pyarrow as pa
from pyspark.sql.types import StructType

from pylog.client.spark.epoch_decision import Task
from pylog.client.spark.source import PylogSource
from tests.client.reading import await_markers, new_topic, read_topic

PARTITIONS = 2
SCHEMA = StructType().add("value", "binary").add("partition", "integer")


class Query:
    """Spark's calls for one checkpoint. name: of the query; sink: its exactlyOnceId."""

    def __init__(self, bootstrap, name="q", **more):
        self.bootstrap, self.name = bootstrap, name
        self.topic = new_topic(bootstrap, PARTITIONS)
        self.sink = f"sink-{self.topic}"
        self.options = {"kafka.bootstrap.servers": bootstrap, "topic": self.topic,
                        "exactlyOnceId": self.sink, **more}

    def writer(self):
        return PylogSource(self.options).streamWriter(SCHEMA, False)

    def plan(self):
        """Begin a batch and return the serialized writer for its tasks."""
        return pickle.dumps(self.writer())

    def run(self, plan, batch, number, rows, attempt=0):
        """Run one task and return its commit message."""
        batches = [pa.RecordBatch.from_pydict({
            "value": [b"%d-%s" % (batch, row) for row in rows],
            "partition": pa.array([number % PARTITIONS] * len(rows), pa.int32())})] * bool(rows)
        done = pickle.loads(plan).write_task(
            iter(batches), Task(self.name, batch, number, attempt))
        return pickle.loads(pickle.dumps(done))

    def tasks(self, plan, batch, split=((b"a", b"b"), (b"c",))):
        return [self.run(plan, batch, number, rows) for number, rows in enumerate(split)]

    def whole(self, batch):
        """Run a batch from beginning to end."""
        answers = self.tasks(self.plan(), batch)
        self.writer().commit(answers, batch)
        return answers

    def seen(self):
        """Return the committed values, sorted."""
        await_markers(self.bootstrap, self.topic, PARTITIONS)
        found = read_topic(self.bootstrap, self.topic, PARTITIONS)
        return sorted(row[2].decode() for rows in found.values() for row in rows)


def drive(query, checkpoint, batches, steps):
    """A driver: runs batches from the checkpoint on. It reports each step through the pipe, and
    waits for permission to continue.
    """
    def reach(step):
        steps.send(step)
        steps.recv()

    for batch in range(int(checkpoint.read_text()) if checkpoint.exists() else 0, batches):
        reach("begin")
        plan = query.plan()
        reach("planned")
        answers = []
        for number, rows in enumerate(((b"a", b"b"), (b"c",))):
            answers.append(query.run(plan, batch, number, rows))
            reach("written")
        query.writer().commit(answers, batch)
        reach("committed")
        noted = checkpoint.with_suffix(".new")
        noted.write_text(str(batch + 1))
        noted.rename(checkpoint)
    steps.send("done")

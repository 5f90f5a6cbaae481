"""Write DataFrame rows to topics: column batches, built natively in the Python worker.

Owns: one producer per task.
Invariants: a task ends only when each of its rows is acknowledged according to `acks`; memory is
  bounded by buffer.memory, GATHERED_BYTES and one Spark batch; with exactlyOnceId, a task's rows
  are in a transaction that only the driver ends; without rows there is no transaction.
Source: Structured Streaming + Kafka Integration Guide (columns of a sink). Without exactlyOnceId,
  delivery is at least once: a task that Spark retries writes its rows again.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import (
    DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage,
)

from pylog.client.errors import ConfigError, KafkaError
from pylog.client.producer.producer import Producer
from pylog.client.producer.producer import prepared
from pylog.client.producer.transaction_manager import Prepared
from pylog.client.spark.encoding import Encoders, check_types
from pylog.client.spark.epoch_decision import Decision, Task, is_decided
from pylog.client.spark.formats import Formats
from pylog.client.spark.transaction_committer import Begun, Committer

_COLUMNS = ("key", "value", "headers", "partition", "timestamp")
TABLES_UNDER_WAY_MAX = 8
GATHERED_BYTES = 4 << 20
# The brokers' default maximum: a batch must finish within it.
TRANSACTION_TIMEOUT_MS = 900_000


@dataclass
class Written(WriterCommitMessage):
    """The result of one task."""

    records: int


@dataclass
class Part(Written):
    """The result of one task of a batch that is committed as a whole.

    part: None without rows; is_decided: an earlier run decided the batch, and nothing was written.
    """

    task: Task
    right: Prepared
    part: Prepared | None
    is_decided: bool = False


class _Writing:
    """Shared part of all writers."""

    def __init__(self, settings: dict[str, Any], topic: str, formats: Formats, schema: Any):
        names = schema.fieldNames()
        if "value" not in names:
            raise ConfigError("a column named value is needed")
        if not topic and "topic" not in names:
            raise ConfigError("the option topic or a column named topic is needed")
        unknown = set(names) - {*_COLUMNS, "topic"}
        if unknown:
            raise ConfigError(f"unknown columns: {', '.join(sorted(unknown))}; expected topic, "
                              f"{', '.join(_COLUMNS)}")
        self.settings = settings
        self.topic = topic
        self.formats = formats
        check_types(formats, schema)

    def run(self, batches: Iterator[Any]) -> Written:
        with Producer.from_settings(self.settings) as producer:
            return Written(self.send(producer, self.gathered(batches)))

    def send(self, producer: Producer, tables: Iterable[tuple[str, Any]]) -> int:
        """Send tables and wait for all acknowledgements. Returns the row count."""
        count = 0
        under_way: deque[Any] = deque()
        for topic, table in tables:
            under_way.append(producer.send_arrow(table, topic))
            count += table.num_rows
            while len(under_way) > TABLES_UNDER_WAY_MAX:
                under_way.popleft().result()
        for delivery in under_way:
            delivery.result()
        return count

    def gathered(self, batches: Iterator[Any]) -> Iterator[tuple[str, Any]]:
        """Yield larger tables per topic: Spark's batches are small, and each table closes its
        batches.
        """
        import pyarrow as pa

        encoders = Encoders(self.formats)
        waiting: dict[str, list[Any]] = {}
        size = 0
        for batch in batches:
            for topic, rows in self._by_topic(batch):
                rows = encoders.encoded(rows, topic)
                waiting.setdefault(topic, []).append(rows)
                size += rows.nbytes
            if size >= GATHERED_BYTES:
                for topic, parts in waiting.items():
                    yield topic, pa.Table.from_batches(parts)
                waiting.clear()
                size = 0
        for topic, parts in waiting.items():
            yield topic, pa.Table.from_batches(parts)

    def _by_topic(self, batch: Any) -> Iterator[tuple[str, Any]]:
        import pyarrow.compute as pc

        columns = batch.select([name for name in batch.schema.names if name != "topic"])
        if self.topic:
            yield self.topic, columns
            return
        topics = batch.column("topic")
        if topics.null_count:
            raise ConfigError("the column topic holds a null, and there is no option topic")
        names = pc.unique(topics).to_pylist()
        for name in names:
            rows = columns if len(names) == 1 else columns.filter(pc.equal(topics, name))
            yield name, rows


class BatchWriter(_Writing, DataSourceArrowWriter):
    """`df.write.format("pylog")`."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return self.run(iterator)


class StreamWriter(_Writing, DataSourceStreamArrowWriter):
    """`df.writeStream.format("pylog")`."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return self.run(iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:
        """Do nothing: all rows are already acknowledged."""

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Do nothing: written rows stay, and Spark retries the batch."""


class ExactlyOnceWriter(_Writing, DataSourceStreamArrowWriter):
    """`df.writeStream.format("pylog").option("exactlyOnceId", …)`.

    For each batch, Spark creates one on the driver and pickles it for the tasks. It creates another
    one for the end of the batch, which has only the tasks' results.
    """

    def __init__(self, settings: dict[str, Any], topic: str, formats: Formats, schema: Any,
                 sink: str):
        if not topic:
            raise ConfigError("exactlyOnceId needs the option topic, where it records the batch")
        super().__init__({"transaction.timeout.ms": TRANSACTION_TIMEOUT_MS, **settings}, topic,
                         formats, schema)
        self.sink = sink
        self.committer = Committer(self.settings, sink, topic)
        self._begun: Begun | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Begin the batch when Spark pickles the writer for its tasks. No earlier run can decide
        now.
        """
        if self._begun is None:
            self._begun = self.committer.begin()
        return {**self.__dict__, "committer": None}

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return self.write_task(iterator, current_task())

    def write_task(self, iterator: Iterator[Any], task: Task) -> Part:
        """Write one task's rows in a transaction that only the driver ends."""
        assert self._begun is not None, "a writer reaches its tasks by being pickled"
        right, last = self._begun
        if is_decided(last, self.sink, task.query, task.batch):
            for _ in iterator:
                pass  # Spark reuses a worker only if it has read all of its rows.
            return Part(0, task, right, None, is_decided=True)
        # Begin after the first rows have arrived: a leftover task of a killed run receives none.
        tables = self.gathered(iterator)
        first = next(tables, None)
        if first is None:
            return Part(0, task, right, None)
        id_ = task.transactional_id(self.sink, right)
        with Producer.from_settings({**self.settings, "transactional.id": id_}) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            try:
                count = self.send(producer, itertools.chain([first], tables))
                return Part(count, task, right, prepared(producer))
            except BaseException as failure:
                _abort(producer, failure)
                raise

    def commit(self, messages: list[Any], batchId: int) -> None:
        """Commit all parts of the batch. If this raises, the batch's next run resolves the outcome.
        """
        parts = _parts(messages)
        if any(part.is_decided for part in parts):
            self.committer.finish(batchId)
        elif parts:
            assert all(part.task.batch == batchId for part in parts), (batchId, parts)
            self.committer.commit(parts[0].right, Decision(
                batchId, parts[0].task.query, tuple(part.part for part in parts if part.part)))

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Abort the batch's parts. After a failed commit the batch may be decided; then keep them.
        """
        parts = _parts(messages)
        if parts and not any(part.is_decided for part in parts):
            self.committer.abort(parts[0].right, batchId,
                                 [part.part for part in parts if part.part])


def current_task() -> Task:
    """Return the task of this worker's micro-batch. Raises ConfigError."""
    from pyspark import TaskContext

    context = TaskContext.get()
    batch = context and context.getLocalProperty("streaming.sql.batchId")
    if context is None or not batch:
        raise ConfigError("exactlyOnceId is for the micro-batches of a streaming query")
    return Task(context.getLocalProperty("sql.streaming.queryId") or "", int(batch),
                context.partitionId(), context.taskAttemptId())


def _parts(messages: list[Any]) -> list[Part]:
    """Return the messages of successful tasks; a failed task's is None."""
    return [message for message in messages if message is not None]


def _abort(producer: Producer, failure: BaseException) -> None:
    try:
        producer.abort_transaction()
    except KafkaError as also:
        failure.add_note(f"The task's transaction could not be aborted: {also}")

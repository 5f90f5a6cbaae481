"""Rows of a DataFrame into topics: batches of columns, built natively in the Python worker.

Owns: one producer per task.
Called by: client.spark.source.
Invariants: (1) a task ends only when each of its rows is acknowledged as `acks` asks; (2) memory is
  bounded by buffer.memory, GATHERED_BYTES and one batch of Spark's.
Source: Structured Streaming + Kafka Integration Guide (columns of a sink); delivery is at least
  once: a task that Spark tries again writes its rows again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import (
    DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage,
)

from pylog.client.errors import ConfigError
from pylog.client.producer import Producer
from pylog.client.spark.encoding import Encoders, check_types
from pylog.client.spark.formats import Formats

_COLUMNS = ("key", "value", "headers", "partition", "timestamp")
TABLES_UNDER_WAY_MAX = 8
GATHERED_BYTES = 4 << 20


@dataclass
class Written(WriterCommitMessage):
    """What one task wrote."""

    records: int


class _Writing:
    """What both writers do."""

    def __init__(self, settings: dict[str, Any], topic: str, formats: Formats, schema: Any):
        names = schema.fieldNames()
        if "value" not in names:
            raise ConfigError("a column named value is needed")
        if not topic and "topic" not in names:
            raise ConfigError("the option topic or a column named topic is needed")
        unknown = set(names) - {*_COLUMNS, "topic"}
        if unknown:
            raise ConfigError(f"columns without a meaning: {', '.join(sorted(unknown))}; "
                              f"there are topic, {', '.join(_COLUMNS)}")
        self.settings = settings
        self.topic = topic
        self.formats = formats
        check_types(formats, schema)

    def run(self, batches: Iterator[Any]) -> Written:
        """Keeps (1)."""
        count = 0
        encoders = Encoders(self.formats)
        with Producer(self.settings) as producer:
            under_way: deque[Any] = deque()
            for topic, table in self._gathered(batches, encoders):
                under_way.append(producer.send_arrow(table, topic))
                count += table.num_rows
                while len(under_way) > TABLES_UNDER_WAY_MAX:
                    under_way.popleft().result()
            for delivery in under_way:
                delivery.result()
        return Written(count)

    def _gathered(self, batches: Iterator[Any], encoders: Encoders) -> Iterator[tuple[str, Any]]:
        """Tables per topic: Spark's batches are small, and each table ends its partitions' own."""
        import pyarrow as pa

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
        """All rows are acknowledged by now."""

    def abort(self, messages: list[Any], batchId: int) -> None:
        """What was written stays: Spark tries the batch again."""

"""Sinks that discard their input: the cost of Spark itself up to a Python sink.

Owns: nothing.
Invariants: every row reaches the sink's Python worker, which discards it.
Source: PySpark's Python Data Source API (4.2): DataSourceWriter receives rows,
  DataSourceArrowWriter the Arrow batches that contain them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import (
    DataSource, DataSourceArrowWriter, DataSourceWriter, WriterCommitMessage,
)


class RowsDropped(DataSourceWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class BatchesDropped(DataSourceArrowWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class RowFloor(DataSource):
    """`df.write.format("row-floor")`"""

    @classmethod
    def name(cls) -> str:
        return "row-floor"

    def writer(self, schema: Any, overwrite: bool) -> Any:
        return RowsDropped()


class ArrowFloor(DataSource):
    """`df.write.format("arrow-floor")`"""

    @classmethod
    def name(cls) -> str:
        return "arrow-floor"

    def writer(self, schema: Any, overwrite: bool) -> Any:
        return BatchesDropped()

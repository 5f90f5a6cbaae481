"""Sinks that drop what they are given: what Spark alone costs on the way to a Python sink.

Owns: nothing.
Invariants: (1) every row reaches the sink's Python worker, where nothing is done with it.
Source: PySpark's Python Data Source API (4.2): DataSourceWriter gets rows, DataSourceArrowWriter
  the Arrow batches that they came in.
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

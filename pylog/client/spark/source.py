"""The data source "pylog" of Spark's Python Data Source API: batch and streaming reads and writes.

Owns: the readers of batches.
Invariants: a batch never reads past its planned offsets; pickled objects contain options and offset
  ranges, never a connection.
Source: PySpark's Python Data Source API, Structured Streaming + Kafka Integration Guide.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import (
    DataSource, DataSourceReader, DataSourceStreamReader, InputPartition,
)
from pyspark.sql.types import StructType

from pylog.client.errors import ConfigError
from pylog.client.spark.filters import Pushed
from pylog.client.spark.formats import checked, columns, with_schemas
from pylog.client.spark.options import ReadOptions, read_options, write_options
from pylog.client.spark.planning import Planner
from pylog.client.spark.splits import ALL_COLUMNS, COLUMNS, Split, read_split


class PylogSource(DataSource):
    """`spark.read.format("pylog")`; select columns with `.schema("partition INT, offset LONG")`."""

    @classmethod
    def name(cls) -> str:
        return "pylog"

    def schema(self) -> StructType | str:
        options = _settled(self._read_options(False, ends=False))
        made: StructType | str = columns(options.formats, StructType(
            ALL_COLUMNS.fields if options.headers else COLUMNS.fields))
        return made

    def reader(self, schema: StructType) -> DataSourceReader:
        options = _settled(self._read_options(False))
        kind = FilteredReader if options.push_filters else BatchReader
        return kind(options, checked(options.formats, schema, ALL_COLUMNS))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = _settled(self._read_options(True))
        return stream_reader_class()(options, checked(options.formats, schema, ALL_COLUMNS))

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        from pylog.client.spark.writing import BatchWriter

        if overwrite:
            raise ConfigError("a topic cannot be overwritten: use .mode(\"append\"), and delete "
                              "its records with `pylog topics` or Admin.delete_records before")
        options = write_options(self.options)
        if options.exactly_once_id:
            raise ConfigError("exactlyOnceId is for writeStream: duplicates of a batch written "
                              "twice cannot be detected")
        return BatchWriter(options.settings, options.topic, options.formats, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        from pylog.client.spark.writing import ExactlyOnceWriter, StreamWriter

        settings, topic, forms, sink = write_options(self.options)
        if sink:
            return ExactlyOnceWriter(settings, topic, forms, schema, sink)
        return StreamWriter(settings, topic, forms, schema)

    def _read_options(self, streaming: bool, ends: bool = True) -> ReadOptions:
        return read_options(self.options, streaming and ends, round(time.time() * 1000))


def stream_reader_class() -> type[Any]:
    """Return StreamReader. Raises ConfigError if PySpark has no admission control (before 4.2)."""
    try:
        from pylog.client.spark.stream_reader import StreamReader
    except ModuleNotFoundError as missing:
        if missing.name != "pyspark.sql.streaming.datasource":
            raise
        import pyspark

        raise ConfigError("Streaming reads need PySpark 4.2, and this is "
                          f"{pyspark.__version__}. Install it with: "
                          "pip install 'pyspark>=4.2,<4.3'") from None
    return StreamReader


def _settled(options: ReadOptions) -> ReadOptions:
    topics = list(options.topics) or sorted({tp.topic for tp in options.assigned})
    return replace(options, formats=with_schemas(options.formats, topics))


class BatchReader(DataSourceReader):
    """A batch read; planning fixes its offsets."""

    def __init__(self, options: ReadOptions, schema: StructType):
        self.options = options
        self.schema = schema

        self.pushed = Pushed()

    def partitions(self) -> list[InputPartition]:
        with Planner(self.options) as planner:
            offset_ranges = self.pushed.cut(planner.offset_ranges(), planner)
            return [Split(part) for part in planner.split(offset_ranges)] or [Split(None)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_split(self.options, self.schema, partition)


class FilteredReader(BatchReader):
    """A batch read with filter pushdown.

    Opt-in: Spark 4.2 keeps one plan for all queries of a DataFrame, the last one that received
    filters.
    """

    def pushFilters(self, filters: list[Any]) -> list[Any]:
        """Return the filters that Spark must still apply."""
        return [each for each in filters if not self.pushed.take(each)]

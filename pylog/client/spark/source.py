"""The data source "pylog" of Spark's Python Data Source API: batch and streaming, in and out.

Owns: the readers; a streaming reader keeps one consumer for planning.
Invariants: (1) the offsets of a streaming query are the connector's JSON, {topic: {partition:
  next offset}}, so exact across restarts; (2) a batch never goes past the offsets it was planned
  with; (3) what pickles is options and stretches, never a connection.
Source: PySpark's Python Data Source API (4.2), Structured Streaming + Kafka Integration Guide.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.datasource import (
    DataSource, DataSourceReader, DataSourceStreamReader, InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows, SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    ArrayType, BinaryType, IntegerType, LongType, StringType, StructField, StructType,
    TimestampType,
)

from pylog.client.errors import ConfigError
from pylog.client.offsets import TopicPartition
from pylog.client.spark.batches import Shape, batches
from pylog.client.spark.decoding import decoders
from pylog.client.spark.filters import Pushed
from pylog.client.spark.formats import checked, columns, with_schemas
from pylog.client.spark.options import ReadOptions, read_options, write_options
from pylog.client.spark.planning import Offsets, Planner
from pylog.client.spark.ranges import RangeReader, Stretch, lost

HEADERS = ArrayType(StructType([StructField("key", StringType(), False),
                                StructField("value", BinaryType())]), False)
COLUMNS = StructType([
    StructField("key", BinaryType()), StructField("value", BinaryType()),
    StructField("topic", StringType()), StructField("partition", IntegerType()),
    StructField("offset", LongType()), StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
])
ALL_COLUMNS = StructType([*COLUMNS.fields, StructField("headers", HEADERS)])


class PylogSource(DataSource):
    """`spark.read.format("pylog")`; some columns only: `.schema("partition INT, offset LONG")`."""

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
        return StreamReader(options, checked(options.formats, schema, ALL_COLUMNS))

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        from pylog.client.spark.writing import BatchWriter

        if overwrite:
            raise ConfigError("a topic cannot be overwritten: use .mode(\"append\"), and delete "
                              "its records with `pylog topics` or Admin.delete_records before")
        options = write_options(self.options)
        if options.exactly_once_id:
            raise ConfigError("exactlyOnceId is for writeStream: a batch that is written twice has "
                              "nothing that says so")
        return BatchWriter(options.settings, options.topic, options.formats, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        from pylog.client.spark.writing import ExactlyOnceWriter, StreamWriter

        settings, topic, forms, sink = write_options(self.options)
        if sink:
            return ExactlyOnceWriter(settings, topic, forms, schema, sink)
        return StreamWriter(settings, topic, forms, schema)

    def _read_options(self, streaming: bool, ends: bool = True) -> ReadOptions:
        return read_options(self.options, streaming and ends, round(time.time() * 1000))


def _settled(options: ReadOptions) -> ReadOptions:
    topics = list(options.topics) or sorted({tp.topic for tp in options.assigned})
    return replace(options, formats=with_schemas(options.formats, topics))


@dataclass
class Split(InputPartition):
    """The work of one task; None: nothing to read."""

    stretch: Stretch | None


def _read(options: ReadOptions, schema: StructType, split: InputPartition) -> Iterator[Any]:
    stretch = split.stretch if isinstance(split, Split) else None
    if stretch is None:
        return
    settings = {"check.crcs": True, **options.settings}
    shape = Shape(schema, stretch)
    shape.decode_with(decoders(options.formats, shape.schema, set(ALL_COLUMNS.fieldNames())))
    yield from batches(RangeReader(settings, stretch, options.fail_on_data_loss), shape)


class BatchReader(DataSourceReader):
    """One read: the offsets are fixed when it is planned."""

    def __init__(self, options: ReadOptions, schema: StructType):
        self.options = options
        self.schema = schema

        self.pushed = Pushed()

    def partitions(self) -> list[InputPartition]:
        with Planner(self.options) as planner:
            stretches = self.pushed.cut(planner.stretches(), planner)
            return [Split(stretch) for stretch in planner.split(stretches)] or [Split(None)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(self.options, self.schema, partition)


class FilteredReader(BatchReader):
    """A read that filters reach. Spark 4.2 keeps one plan for all queries of a frame, the last one
    that filters reached: so a reader like this is only made for who asks for it."""

    def pushFilters(self, filters: list[Any]) -> list[Any]:
        """Those that Spark must look at still."""
        return [each for each in filters if not self.pushed.take(each)]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query; on executors only `read` is called."""

    def __init__(self, options: ReadOptions, schema: StructType):
        self.options = options
        self.schema = schema
        self._planner: Planner | None = None
        self._target: Offsets | None = None
        self._triggered_s = -math.inf

    @property
    def planner(self) -> Planner:
        if self._planner is None:
            self._planner = Planner(self.options)
        return self._planner

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_planner": None}  # Keeps (3).

    def initialOffset(self) -> dict[str, Any]:
        return to_json(self.planner.starts(self.planner.partitions()))

    def getDefaultReadLimit(self) -> ReadLimit:
        least, most = self.options.offsets_per_trigger_min, self.options.offsets_per_trigger
        if most:
            return ReadMaxRows(most)
        return ReadMinRows(least) if least else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self.planner.latest(self.planner.partitions())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begun, ends = from_json(start), self._ends()
        gone = begun.keys() - ends.keys()
        if gone and self.options.fail_on_data_loss and self._target is None:
            tp = min(gone)
            raise lost(Stretch(*tp, 0, 0), begun[tp], "the partition is gone")
        for tp in gone:
            ends[tp] = begun[tp]
        starts = {**self.planner.earliest(ends.keys() - begun.keys()), **begun}
        for tp, end in ends.items():
            # A topic that was made anew ends before the query's position.
            if end < starts[tp] and self.options.fail_on_data_loss:
                raise lost(Stretch(*tp, 0, 0), starts[tp], f"the log ends at {end}")
            ends[tp] = max(end, starts[tp])
        if self._waits(sum(ends[tp] - starts[tp] for tp in ends), limit):
            return start
        if isinstance(limit, ReadMaxRows):
            ends = limited(starts, ends, limit.max_rows)
        return to_json(ends)

    def _waits(self, waiting: int, limit: ReadLimit) -> bool:
        """Whether a batch is not worth it yet. Neither AvailableNow nor Once waits."""
        least, now_s = self.options.offsets_per_trigger_min, time.monotonic()
        if (least and self._target is None and not isinstance(limit, ReadAllAvailable)
                and waiting < least
                and now_s - self._triggered_s < self.options.trigger_delay_ms / 1000):
            return True
        self._triggered_s = now_s
        return False

    def _ends(self) -> Offsets:
        if self._target is not None:
            return dict(self._target)
        return self.planner.latest(self.planner.partitions())

    def reportLatestOffset(self) -> dict[str, Any]:
        return to_json(self.planner.latest(self.planner.partitions()))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begun, ends = from_json(start), from_json(end)
        starts = {**self.planner.earliest(ends.keys() - begun.keys()), **begun}
        stretches = [Stretch(*tp, starts[tp], ends[tp]) for tp in sorted(ends)
                     if starts[tp] < ends[tp]]
        return [Split(stretch) for stretch in self.planner.split(stretches)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(self.options, self.schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """The checkpoint is Spark's; no group is informed."""

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.close()
            self._planner = None


def limited(starts: Offsets, ends: Offsets, rows_max: int) -> Offsets:
    """Ends with at most rows_max rows in all, shared by what each partition has waiting."""
    waiting = {tp: ends[tp] - starts[tp] for tp in ends}
    total = sum(waiting.values())
    if total <= rows_max:
        return ends
    shares = {tp: rows_max * rows // total for tp, rows in waiting.items()}
    left = rows_max - sum(shares.values())
    for tp in sorted(waiting, key=lambda tp: (-(rows_max * waiting[tp] % total), tp)):
        if left and shares[tp] < waiting[tp]:
            shares[tp] += 1
            left -= 1
    return {tp: starts[tp] + share for tp, share in shares.items()}


def to_json(offsets: Offsets) -> dict[str, Any]:
    made: dict[str, dict[str, int]] = {}
    for tp, offset in sorted(offsets.items()):
        made.setdefault(tp.topic, {})[str(tp.partition)] = offset
    return made


def from_json(given: dict[str, Any]) -> Offsets:
    return {TopicPartition(topic, int(number)): int(offset)
            for topic, rows in given.items() for number, offset in rows.items()}

"""One task of a read: the columns of a topic and the Arrow batches of an offset range.

Owns: nothing.
Invariants: pickled objects contain options and offset ranges, never a connection.
Source: the schema of Spark's Kafka connector.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import (
    ArrayType, BinaryType, IntegerType, LongType, StringType, StructField, StructType,
    TimestampType,
)

from pylog.client.spark.batches import Shape, batches
from pylog.client.spark.decoding import decoders
from pylog.client.spark.options import ReadOptions
from pylog.client.spark.ranges import OffsetRange, RangeReader

HEADERS = ArrayType(StructType([StructField("key", StringType(), False),
                                StructField("value", BinaryType())]), False)
COLUMNS = StructType([
    StructField("key", BinaryType()), StructField("value", BinaryType()),
    StructField("topic", StringType()), StructField("partition", IntegerType()),
    StructField("offset", LongType()), StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
])
ALL_COLUMNS = StructType([*COLUMNS.fields, StructField("headers", HEADERS)])


@dataclass
class Split(InputPartition):
    """The work of one task; None: nothing to read."""

    offset_range: OffsetRange | None


def read_split(options: ReadOptions, schema: StructType, split: InputPartition) -> Iterator[Any]:
    """Yield the Arrow batches of a task."""
    offset_range = split.offset_range if isinstance(split, Split) else None
    if offset_range is None:
        return
    settings = {"check.crcs": True, **options.settings}
    shape = Shape(schema, offset_range)
    shape.decode_with(decoders(options.formats, shape.schema, set(ALL_COLUMNS.fieldNames())))
    yield from batches(RangeReader(settings, offset_range, options.fail_on_data_loss), shape)

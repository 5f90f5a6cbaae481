"""Filters that Spark pushes down: those the reader applies, and the ranges left to read.

Owns: nothing.
Invariants: every row that is read satisfies each filter not returned to Spark; no row that
  satisfies all filters is omitted.
Source: PySpark's DataSourceReader.pushFilters (4.1); KIP-79 (offsets by time).
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Any

from pyspark.sql import datasource as spark

from pylog.client.spark.planning import Planner
from pylog.client.spark.ranges import OffsetRange
from pylog.client.types import TopicPartition

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_TEXTS = {spark.StringStartsWith: str.startswith, spark.StringEndsWith: str.endswith,
          spark.StringContains: str.__contains__}
_COMPARED = {
    spark.EqualTo: lambda value, given: value == given,
    spark.EqualNullSafe: lambda value, given: value == given,
    spark.GreaterThan: lambda value, given: value > given,
    spark.GreaterThanOrEqual: lambda value, given: value >= given,
    spark.LessThan: lambda value, given: value < given,
    spark.LessThanOrEqual: lambda value, given: value <= given,
    spark.In: lambda value, given: value in given,
}
_NEVER_NULL = ("topic", "partition", "offset", "timestamp", "timestampType")


class Pushed:
    """The filters of a query. Can be pickled."""

    def __init__(self) -> None:
        self._places: list[Any] = []  # on topic or partition
        self._low, self._high = 0, 1 << 63
        self._since_ms = 0

    def take(self, given: Any) -> bool:
        """Add a filter. Returns True if Spark need not apply it to the rows that are read."""
        name = _column(given)
        if isinstance(given, spark.IsNotNull):
            return name in _NEVER_NULL
        if name in ("topic", "partition"):
            if _is_constant(given, str if name == "topic" else int):
                self._places.append(given)
                return True
        elif name == "offset" and _is_constant(given, int):
            return self._take_offset(given)
        elif name == "timestamp":
            self._take_time(given)
        return False

    def _take_offset(self, given: Any) -> bool:
        low, high, exact = self._low, self._high, True
        if isinstance(given, (spark.EqualTo, spark.EqualNullSafe)):
            low, high = given.value, given.value + 1
        elif isinstance(given, spark.GreaterThan):
            low = given.value + 1
        elif isinstance(given, spark.GreaterThanOrEqual):
            low = given.value
        elif isinstance(given, spark.LessThan):
            high = given.value
        elif isinstance(given, spark.LessThanOrEqual):
            high = given.value + 1
        elif isinstance(given, spark.In) and given.value:
            low, high = min(given.value), max(given.value) + 1
            exact = high - low == len(set(given.value))
        else:
            return False
        self._low, self._high = max(self._low, low), min(self._high, high)
        return exact

    def _take_time(self, given: Any) -> None:
        """Use only lower time bounds: producers set timestamps, so a later record may be older."""
        if not isinstance(given, (spark.EqualTo, spark.EqualNullSafe, spark.GreaterThan,
                                  spark.GreaterThanOrEqual)):
            return
        if isinstance(given.value, datetime.datetime) and given.value.tzinfo is not None:
            micros = (given.value - _EPOCH) // datetime.timedelta(microseconds=1)
            # Records have whole ms: start at the first one at or after the bound.
            after = isinstance(given, spark.GreaterThan)
            since = micros // 1000 + 1 if after else -(-micros // 1000)
            self._since_ms = max(self._since_ms, since)

    def cut(self, offset_ranges: Iterable[OffsetRange], planner: Planner) -> list[OffsetRange]:
        """Return the part of the ranges that the filters leave."""
        left = []
        for offset_range in offset_ranges:
            offset_range = offset_range._replace(start=max(offset_range.start, self._low),
                                                 end=min(offset_range.end, self._high))
            if offset_range.start < offset_range.end and all(
                    holds(each, getattr(offset_range, _column(each))) for each in self._places):
                left.append(offset_range)
        if not self._since_ms or not left:
            return left
        # No record before the first one at or after the bound can match.
        found = planner.consumer.offsets_for_times({
            TopicPartition(offset_range.topic, offset_range.partition): self._since_ms
            for offset_range in left})
        began = [(offset_range, found[TopicPartition(offset_range.topic, offset_range.partition)])
                 for offset_range in left]
        left = [offset_range._replace(start=max(offset_range.start, at.offset))
                for offset_range, at in began if at]
        return [offset_range for offset_range in left if offset_range.start < offset_range.end]


def holds(given: Any, value: Any) -> bool:
    """Return True if a filter that `_is_constant` accepted holds for a value."""
    if isinstance(given, spark.Not):
        return not holds(given.child, value)
    if type(given) in _TEXTS:
        return bool(_TEXTS[type(given)](value, given.value))
    return bool(_COMPARED[type(given)](value, given.value))


def _column(given: Any) -> str:
    while isinstance(given, spark.Not):
        given = given.child
    attribute: tuple[str, ...] = getattr(given, "attribute", ())
    return attribute[0] if len(attribute) == 1 else ""


def _is_constant(given: Any, kind: type) -> bool:
    """Return True if the filter compares only with values of this type."""
    while isinstance(given, spark.Not):
        given = given.child
    if type(given) in _TEXTS:
        return kind is str and type(given.value) is str
    if type(given) not in _COMPARED:
        return False
    values = given.value if isinstance(given, spark.In) else (given.value,)
    return all(type(value) is kind for value in values)

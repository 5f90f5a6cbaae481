"""Filters that Spark pushes down: which of them a plan fulfils, and what is left to read.

Owns: nothing.
Called by: client.spark.source, on the driver.
Invariants: (1) a filter that is not given back to Spark holds for each row that is read, exactly;
  (2) nothing that fulfils all filters is left out.
Source: PySpark's DataSourceReader.pushFilters (4.1); KIP-79 (offsets by time).
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Any

from pyspark.sql import datasource as spark

from pylog.client.offsets import TopicPartition
from pylog.client.spark.planning import Planner
from pylog.client.spark.ranges import Stretch

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
    """What a query asks for. Pickles."""

    def __init__(self) -> None:
        self._places: list[Any] = []  # of topic or partition
        self._low, self._high = 0, 1 << 63
        self._since_ms = 0

    def take(self, one: Any) -> bool:
        """Whether Spark need not look at this filter again. Keeps (1) and (2)."""
        name = _column(one)
        if isinstance(one, spark.IsNotNull):
            return name in _NEVER_NULL
        if name in ("topic", "partition"):
            if _is_told(one, str if name == "topic" else int):
                self._places.append(one)
                return True
        elif name == "offset" and _is_told(one, int):
            return self._take_offset(one)
        elif name == "timestamp":
            self._take_time(one)
        return False

    def _take_offset(self, one: Any) -> bool:
        low, high, exact = self._low, self._high, True
        if isinstance(one, (spark.EqualTo, spark.EqualNullSafe)):
            low, high = one.value, one.value + 1
        elif isinstance(one, spark.GreaterThan):
            low = one.value + 1
        elif isinstance(one, spark.GreaterThanOrEqual):
            low = one.value
        elif isinstance(one, spark.LessThan):
            high = one.value
        elif isinstance(one, spark.LessThanOrEqual):
            high = one.value + 1
        elif isinstance(one, spark.In) and one.value:
            low, high = min(one.value), max(one.value) + 1
            exact = high - low == len(set(one.value))
        else:
            return False
        self._low, self._high = max(self._low, low), min(self._high, high)
        return exact

    def _take_time(self, one: Any) -> None:
        """Lower bounds only: a later record may be older, since producers set the time."""
        if not isinstance(one, (spark.EqualTo, spark.EqualNullSafe, spark.GreaterThan,
                                spark.GreaterThanOrEqual)):
            return
        if isinstance(one.value, datetime.datetime) and one.value.tzinfo is not None:
            micros = (one.value - _EPOCH) // datetime.timedelta(microseconds=1)
            # Records have whole ms: the first one at or after the bound.
            since = micros // 1000 + 1 if isinstance(one, spark.GreaterThan) else -(-micros // 1000)
            self._since_ms = max(self._since_ms, since)

    def cut(self, stretches: Iterable[Stretch], planner: Planner) -> list[Stretch]:
        """What is left of the stretches."""
        left = []
        for one in stretches:
            one = one._replace(start=max(one.start, self._low), end=min(one.end, self._high))
            if one.start < one.end and all(
                    holds(each, getattr(one, _column(each))) for each in self._places):
                left.append(one)
        if not self._since_ms or not left:
            return left
        # Before the first record that is as young there is none that is.
        found = planner.consumer.offsets_for_times({
            TopicPartition(one.topic, one.partition): self._since_ms for one in left})
        began = [(one, found[TopicPartition(one.topic, one.partition)]) for one in left]
        left = [one._replace(start=max(one.start, at.offset)) for one, at in began if at]
        return [one for one in left if one.start < one.end]


def holds(one: Any, value: Any) -> bool:
    """Whether a filter that `_is_told` took is true of a value."""
    if isinstance(one, spark.Not):
        return not holds(one.child, value)
    if type(one) in _TEXTS:
        return bool(_TEXTS[type(one)](value, one.value))
    return bool(_COMPARED[type(one)](value, one.value))


def _column(one: Any) -> str:
    while isinstance(one, spark.Not):
        one = one.child
    attribute: tuple[str, ...] = getattr(one, "attribute", ())
    return attribute[0] if len(attribute) == 1 else ""


def _is_told(one: Any, kind: type) -> bool:
    """Whether the filter compares with values of this type and nothing else."""
    while isinstance(one, spark.Not):
        one = one.child
    if type(one) in _TEXTS:
        return kind is str and type(one.value) is str
    if type(one) not in _COMPARED:
        return False
    values = one.value if isinstance(one, spark.In) else (one.value,)
    return all(type(value) is kind for value in values)

"""The streaming reader of the data source "pylog": positions, limits of a batch, lost records.

Owns: one consumer for planning.
Invariants: the positions of a streaming query are only in Spark's checkpoint, so they are exact
  across restarts; lost records are an error, or at least a warning.
Source: PySpark's Python Data Source API, whose admission control begins with 4.2.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Set
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows, SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pylog.client.spark.checkpoint import Offsets, Positions
from pylog.client.spark.options import ReadOptions
from pylog.client.spark.planning import Planner
from pylog.client.spark.ranges import OffsetRange, data_loss
from pylog.client.spark.splits import Split, read_split
from pylog.client.types import TopicPartition
from pylog.protocol.codec import ZERO_UUID

_LOG = logging.getLogger("pylog.client")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query; executors call only `read`."""

    def __init__(self, options: ReadOptions, schema: StructType):
        self.options = options
        self.schema = schema
        self._planner: Planner | None = None
        self._target: Positions | None = None
        self._triggered_s = -math.inf
        self._replaced_ids: set[bytes] = set()
        self._warned: set[str] = set()

    @property
    def planner(self) -> Planner:
        if self._planner is None:
            self._planner = Planner(self.options)
        return self._planner

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_planner": None}  # A connection cannot be pickled.

    def initialOffset(self) -> dict[str, Any]:
        return self.planner.start_positions().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        least, most = self.options.offsets_per_trigger_min, self.options.offsets_per_trigger
        if most:
            return ReadMaxRows(most)
        return ReadMinRows(least) if least else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self.planner.end_positions(optional=self.options.named_topics())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begun = Positions.from_json(start)
        latest = self._latest(begun)
        starts, ends = self._checked(begun, latest)
        if self._target is not None:
            ends = _up_to_target(starts, ends, latest.topic_ids, self._target)
        if self._waits(sum(ends[tp] - starts[tp] for tp in ends), limit):
            return start
        if isinstance(limit, ReadMaxRows):
            ends = limited(starts, ends, limit.max_rows)
        return Positions.of(ends, {**begun.topic_ids, **latest.topic_ids}).to_json()

    def _latest(self, begun: Positions) -> Positions:
        """Return the current end positions of the existing topics."""
        found = self.planner.end_positions(optional=begun.topics())
        # Right after a topic was re-created, some brokers still list the old one.
        stale = {topic for topic, topic_id in found.topic_ids.items()
                 if topic_id in self._replaced_ids}
        ends = {tp: end for tp, end in found.offsets.items() if tp.topic not in stale}
        ends.update({tp: at for tp, at in begun.offsets.items() if tp.topic in stale})
        latest = Positions.of(ends, {**found.topic_ids, **{
            topic: begun.topic_ids[topic] for topic in stale & begun.topic_ids.keys()}})
        behind = {tp: at for tp, at in begun.offsets.items() if latest.offsets.get(tp, at) < at}
        if behind and self.options.settings.get("isolation.level") == "read_committed":
            # Records hidden by an open transaction are not lost.
            there = self.planner.high_watermarks(behind)
            latest.offsets.update({tp: at for tp, at in behind.items() if there.get(tp, 0) >= at
                                   and begun.topic_ids.get(tp.topic) in (
                                       None, latest.topic_ids.get(tp.topic))})
        return latest

    def _checked(self, begun: Positions, latest: Positions) -> tuple[Offsets, Offsets]:
        """Return where the next batch starts and could end. Reports lost records."""
        starts = dict(begun.offsets)
        for topic in sorted(begun.recreated_topics(latest)):
            self._report_loss(f"Topic {topic} was deleted and re-created",
                              "reading the new topic from its start")
            if topic in begun.topic_ids:
                self._replaced_ids.add(begun.topic_ids[topic])
            starts = {tp: at for tp, at in starts.items() if tp.topic != topic}
        added = self.planner.earliest(latest.offsets.keys() - starts.keys())
        for tp, earliest in sorted(added.items()):
            if earliest > 0:
                self._report_loss(f"The log of the new partition {tp} starts at {earliest}, not 0",
                                  "reading it from there")
        starts.update(added)
        ends = {}
        for tp, at in sorted(starts.items()):
            end = latest.offsets.get(tp)
            if end is None:
                self._report_loss(f"Partition {tp} no longer exists (position {at})",
                                  "keeping its position")
            elif end < at:
                self._report_loss(f"The log of {tp} ends at {end}, before the position {at}",
                                  f"continuing at {end}")
                starts[tp] = end
            ends[tp] = at if end is None else end
        return starts, ends

    def _report_loss(self, what: str, action: str) -> None:
        """Raise DataLossError, or log each loss once if the options allow data loss."""
        if self.options.fail_on_data_loss:
            raise data_loss(what)
        if what not in self._warned:
            self._warned.add(what)
            _LOG.warning("%s: data may have been lost; %s (failOnDataLoss is false)", what, action)

    def _waits(self, waiting: int, limit: ReadLimit) -> bool:
        """Return True if a batch should wait for more records. AvailableNow and Once never wait."""
        least, now_s = self.options.offsets_per_trigger_min, time.monotonic()
        if (least and self._target is None and not isinstance(limit, ReadAllAvailable)
                and waiting < least
                and now_s - self._triggered_s < self.options.trigger_delay_ms / 1000):
            return True
        self._triggered_s = now_s
        return False

    def reportLatestOffset(self) -> dict[str, Any]:
        return self.planner.end_positions(optional=self.options.named_topics()).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begun, ends = Positions.from_json(start), Positions.from_json(end)
        recreated = begun.recreated_topics(ends)
        starts = {tp: at for tp, at in begun.offsets.items() if tp.topic not in recreated}
        starts.update(self._log_starts(ends.offsets.keys() - starts.keys()))
        offset_ranges = [OffsetRange(*tp, starts[tp], ends.offsets[tp],
                                     topic_id=ends.topic_ids.get(tp.topic, ZERO_UUID))
                         for tp in sorted(ends.offsets) if starts[tp] < ends.offsets[tp]]
        return [Split(offset_range) for offset_range in self.planner.split(offset_ranges)]

    def _log_starts(self, partitions: Set[TopicPartition]) -> Offsets:
        """Return the start offsets of partitions without a position.

        0 makes records deleted before a batch runs again an error.
        """
        starts = dict.fromkeys(partitions, 0)
        if partitions and not self.options.fail_on_data_loss:
            there = self.planner.partitions(optional=self.options.named_topics())
            starts.update(self.planner.earliest(partitions & there.keys()))
        return starts

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_split(self.options, self.schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark's checkpoint has the positions; no consumer group is used."""

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.close()
            self._planner = None


def _up_to_target(starts: Offsets, ends: Offsets, topic_ids: dict[str, bytes], target: Positions
                  ) -> Offsets:
    """Limit ends to a target that was fixed earlier. Topics and partitions created later have no
    rows in this query.
    """
    return {tp: min(end, max(starts[tp], target.offsets.get(tp, 0)))
            if target.topic_ids.get(tp.topic) == topic_ids.get(tp.topic) else starts[tp]
            for tp, end in ends.items()}


def limited(starts: Offsets, ends: Offsets, rows_max: int) -> Offsets:
    """Return ends with at most rows_max rows in total, in proportion to each partition's backlog.
    """
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

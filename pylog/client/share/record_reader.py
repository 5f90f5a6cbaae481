"""Convert acquired data to records or columns and track the records as acquired.

Owns: the delivery counts of the last poll's records.
Invariants: only acquired records are returned: a batch may contain records of other members; every
  acquired offset is tracked, as a gap if it has no record; unreadable records are rejected, records
  that a deserializer rejects are released, and the error is raised after all valid records; if a
  poll raises or is interrupted, the records it acquired are released by the next call; a record is
  accepted implicitly only after the application received it.
Source: KIP-932; Kafka's ShareCompletedFetch, for unreadable records.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable
from typing import Any

from pylog.protocol.counts import counted
from pylog._native.client.columns import ColumnReader, Fetched, Record, RecordsError, records
from pylog.client.columns import arrow
from pylog.client.arguments import several
from pylog.client.callbacks import deserializer_of, intercepted
from pylog.client.share.acknowledgements import Acknowledge
from pylog.client.errors import IllegalStateError, RecordDeserializationError, error
from pylog.client.types import TopicPartition
from pylog.client.share.session import Acquired
from pylog.client.share.core import Sharing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pylog.client.interfaces import ShareColumnName

CHUNK_RECORDS = 10_000
COLUMNS: tuple[ShareColumnName, ...] = (*arrow.COLUMNS, "delivery_count")


class ShareRecords:
    """The part of a share consumer that runs on the application's thread."""

    def __init__(self, core: Sharing):
        self.core = core
        self.callback: Callable[..., Any] | None = None
        settings = core.settings
        self._key = deserializer_of(settings["key.deserializer"])
        self._value = deserializer_of(settings["value.deserializer"])
        self._check_crc = settings["check.crcs"]
        self._interceptors = [found for found in core.interceptors
                              if hasattr(found, "on_consume")]
        self._counts: dict[TopicPartition, list[tuple[int, int, int]]] = {}
        # The remaining records of the current iteration.
        self._rest: collections.deque[Record[Any, Any]] = collections.deque()
        # The record that the iteration yielded last. Set by a single assignment, so that a
        # KeyboardInterrupt before it leaves the record unaccepted.
        self.received: Record[Any, Any] | None = None

    def records(self, acquired: Iterable[Acquired]) -> list[Record[Any, Any]]:
        """Return the acquired records. Raises KafkaError if there are only errors."""
        out: list[Record[Any, Any]] = []
        for item in self._begin(acquired):
            found, broken = self._read(item)
            mine = list(_mine(found, item.ranges))
            offsets = {record.offset for record in mine}
            self._track(item, offsets, broken)
            out += self._deserialized(item.tp, mine)
        if out:
            out = intercepted(self._interceptors, out)
        self.run_callback()
        return self._good(out)

    def _begin(self, acquired: Iterable[Acquired]) -> list[Acquired]:
        items = list(acquired)
        self._counts = {item.tp: item.ranges for item in items}
        return items

    def _good(self, out: Any) -> Any:
        """Return `out`. Raises the stored failure if `out` is empty, so that valid records come
        first.
        """
        if not len(out):
            self.core.raise_failure()
        return out

    def _fetched(self, item: Acquired, source: int) -> Fetched:
        return Fetched(item.data, source=source, next_offset=item.ranges[0][0],
                       check_crc=self._check_crc)

    def _read(self, item: Acquired) -> tuple[list[Record[Any, Any]], RecordsError | None]:
        fetched, found = self._fetched(item, 0), []
        try:
            while not fetched.exhausted:
                found += records(fetched, *item.tp, CHUNK_RECORDS)
        except RecordsError as broken:
            return found, broken
        return found, None

    def _track(self, item: Acquired, offsets: set[int], broken: RecordsError | None,
               released: bool = False) -> None:
        """Track an item's offsets. offsets: records read. released: release the others."""
        gaps = [] if len(offsets) == sum(last - first + 1 for first, last, _ in item.ranges) else [
            offset for first, last, _ in item.ranges for offset in range(first, last + 1)
            if offset not in offsets]
        unread: list[int] = []
        if broken is not None:
            unread = [offset for offset in gaps if offset >= broken.offset]
            self.core.fail(error(
                broken.code, f"{broken}; {counted(len(unread), 'record')} rejected", str(item.tp)))
        elif released:
            unread = [offset for offset in gaps if offset > max(offsets, default=-1)]
        self.core.add_acquired(item, gaps)
        kind = Acknowledge.RELEASE if released else Acknowledge.REJECT
        for offset in unread:
            self.core.delivered[item.tp].acknowledge(offset, kind)

    def _deserialized(self, tp: TopicPartition, found: list[Record[Any, Any]]
                      ) -> list[Record[Any, Any]]:
        key, value = self._key, self._value
        if key is None and value is None:
            return found
        good = []
        for record in found:
            try:
                if key is not None and record.key is not None:
                    record.key = key(record.key)
                if value is not None and record.value is not None:
                    record.value = value(record.value)
            except Exception as refused:  # The application's deserializer may raise anything.
                made = RecordDeserializationError.at(tp, record.offset, refused, "it is released")
                made.__cause__ = refused
                self.core.delivered[tp].acknowledge(record.offset, Acknowledge.RELEASE)
                self.core.fail(made)
            else:
                good.append(record)
        return good

    def arrow(self, acquired: Iterable[Acquired], columns: Iterable[str]) -> Any:
        """Return a pyarrow.RecordBatch; no rows if nothing was acquired. Raises KafkaError."""
        batch = self._batch(self._begin(acquired), _ordered(columns))
        self.run_callback()
        return self._good(batch)

    def _batch(self, items: list[Acquired], wanted: list[str]) -> Any:
        import numpy as np
        import pyarrow as pa

        reader = ColumnReader(headers="headers" in wanted)
        read, counts = [], []
        for source, item in enumerate(items):
            fetched, count, broken = self._fetched(item, source), 0, None
            try:
                while not fetched.exhausted and not reader.full:
                    count += reader.read(fetched, CHUNK_RECORDS)
            except RecordsError as failure:
                broken = failure
            read.append((item, count, broken, not fetched.exhausted and broken is None))
        made = reader.finish()
        offsets: Any = np.frombuffer(memoryview(made.offsets), dtype=np.int64)
        start = 0
        for item, count, broken, is_cut in read:
            mine = offsets[start:start + count]
            found = np.zeros(count, np.int16)
            for first, last, deliveries in item.ranges:
                found[(mine >= first) & (mine <= last)] = deliveries
            self._track(item, set(mine[found > 0].tolist()), broken, is_cut)
            counts.append(found)
            start += count
        batch = arrow.record_batch(made, [item.tp for item in items],
                                   [name for name in wanted if name != "delivery_count"])
        of_each: Any = np.concatenate(counts) if counts else np.zeros(0, np.int16)
        if "delivery_count" in wanted:
            batch = pa.RecordBatch.from_arrays(
                [*batch.columns, pa.array(of_each)],
                schema=batch.schema.append(pa.field("delivery_count", pa.int16(), False)))
        if not of_each.all():
            batch = batch.filter(pa.array(of_each > 0))  # Drops records of other members.
        return batch

    def iterate(self, found: Iterable[Record[Any, Any]]) -> None:
        """Set the records of a poll that next_record() returns. Only records that the application
        has received are accepted implicitly.
        """
        for record in found:
            delivered = self.core.delivered.get(TopicPartition(record.topic, record.partition))
            if delivered is not None:
                delivered.later.add(record.offset)
        self._rest = collections.deque(found)

    def next_record(self) -> Record[Any, Any] | None:
        """Return the next record of an iteration; None if another poll is needed.

        The caller must set `received` when it yields the record.
        """
        self.accept_received()
        if self.core.undelivered:
            return None
        while self._rest:
            record = self._rest[0]
            delivered = self.core.delivered.get(TopicPartition(record.topic, record.partition))
            if delivered is not None and record.offset in delivered.later:
                return record
            self._rest.popleft()
        return None

    def accept_received(self) -> None:
        """Let the next poll or commit accept the record that an iteration yielded last."""
        record = self.received
        if record is not None:
            delivered = self.core.delivered.get(TopicPartition(record.topic, record.partition))
            if delivered is not None:
                delivered.later.discard(record.offset)
            self.received = None

    def release_rest(self) -> None:
        """End an iteration before a poll: release its remaining records to other members."""
        self.accept_received()
        if not self._rest:
            return
        for delivered in self.core.delivered.values():
            delivered.kinds.update(dict.fromkeys(delivered.later, int(Acknowledge.RELEASE)))
            delivered.later.clear()
        self._rest.clear()

    def delivery_count(self, record: Record[Any, Any]) -> int:
        """Return the delivery count of a record of the last poll. Raises IllegalStateError."""
        for first, last, count in self._counts.get(
                TopicPartition(record.topic, record.partition), ()):
            if first <= record.offset <= last:
                return count
        raise IllegalStateError(f"{record.topic}-{record.partition} at {record.offset} is not "
                                f"from the last poll")

    def acknowledge(self, given: Any, kind: Acknowledge) -> None:
        """Acknowledge one record, several, or a batch with topic, partition and offset."""
        kind = Acknowledge(kind)
        if hasattr(given, "schema"):
            rows = list(zip(*(given.column(name).to_pylist()
                              for name in ("topic", "partition", "offset"))))
        else:
            found = [given] if isinstance(given, Record) else given
            rows = [(record.topic, record.partition, record.offset) for record in found]
        for topic, partition, offset in rows:
            self.core.acknowledge(TopicPartition(topic, partition), offset, kind)

    def run_callback(self) -> None:
        """Call the callback with the outcomes of acknowledgements since the last call."""
        outcomes = self.core.outcomes
        while outcomes:
            outcome = outcomes.popleft()
            if self.callback is not None:
                self.callback(outcome.tp, [(batch.first, batch.last) for batch in outcome.batches],
                              outcome.error)


def _ordered(columns: Iterable[str]) -> list[str]:
    wanted = set(several("columns", columns))
    return [*arrow.ordered(wanted - {"delivery_count"}),
            *(["delivery_count"] if "delivery_count" in wanted else [])]


def _mine(found: list[Record[Any, Any]], ranges: list[tuple[int, int, int]]
          ) -> Iterable[Record[Any, Any]]:
    """Yield the records within the acquired ranges. Both inputs are ascending."""
    index = 0
    for record in found:
        while index < len(ranges) and ranges[index][1] < record.offset:
            index += 1
        if index == len(ranges):
            return
        if record.offset >= ranges[index][0]:
            yield record

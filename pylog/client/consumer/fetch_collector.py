"""Convert fetched data to records or columns and advance the positions.

Owns: the column readers.
Invariants: a position moves exactly past the records returned; if the application did not receive
  them, `undelivered_poll` keeps them out of commits until Consuming.restore_undelivered() moves it
  back; an error is raised in a separate
  call, after all valid records before it; a record that a deserializer rejects stays until the
  application seeks past it.
Source: pylog._native.client.columns.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from pylog._native.client.columns import (
    ColumnReader, Columns, Fetched, Record, RecordsError, records,
)
from pylog.client.errors import KafkaError, RecordDeserializationError, error
from pylog.client.network.metrics import Records
from pylog.client.consumer.fetch_buffer import CompletedFetch, FetchBuffer
from pylog.client.consumer.subscription_state import NO_POLL

Deserializer = Callable[[bytes], Any] | None


class FetchCollector:
    """Return `records` or `columns`, on one thread at a time."""

    def __init__(self, queue: FetchBuffer, failed: Callable[[CompletedFetch], None],
                 key: Deserializer, value: Deserializer):
        """failed: handles an item that is an error, and raises it if the application must see it.
        """
        self.queue = queue
        self.failed = failed
        self.key = key
        self.value = value
        self.counts = Records()
        self.poll = 0  # Number of the current poll.
        # Number of a poll that moves positions, until its caller has the records. Set before and
        # reset after by single assignments, so that a KeyboardInterrupt at any point keeps it.
        self.undelivered_poll = NO_POLL
        self._readers: dict[tuple[bool, int], ColumnReader] = {}

    def records(self, records_max: int) -> list[Record[Any, Any]]:
        """Return up to records_max available records. Raises KafkaError."""
        out: list[Record[Any, Any]] = []
        queue, records_max = self.queue, operator.index(records_max)
        queue.sweep()
        while len(out) < records_max:
            item = queue.head()
            if item is None:
                break
            state, fetched = item.state, item.fetched
            if fetched is None:
                if out:
                    break  # Return the records before the error first.
                queue.done(item)
                self.failed(item)
                continue
            try:
                found = records(fetched, state.topic, state.partition, records_max - len(out))
            except RecordsError as broken:
                if out:
                    break
                fetched = None
                raise _corrupt(item, broken) from None
            if self.key is not None or self.value is not None:
                good, failure = self._deserialize(found)
                if failure is not None:
                    offset = found[good].offset
                    self._stop_at(item, offset)
                    self.counts.batch(state.topic, good, 0)
                    if not (out or good):
                        # An exception keeps local variables alive; it must not keep the buffer.
                        fetched = None
                        raise RecordDeserializationError.at(state.tp, offset, failure) from failure
                    return out + found[:good]
            self._advance(item, fetched, len(found))
            out = out + found if out else found
        return out

    def _deserialize(self, found: list[Record[Any, Any]]) -> tuple[int, Exception | None]:
        """Deserialize records. Returns (number of successful records, exception of the next
        record).
        """
        key, value = self.key, self.value
        for index, record in enumerate(found):
            try:
                if key is not None and record.key is not None:
                    record.key = key(record.key)
                if value is not None and record.value is not None:
                    record.value = value(record.value)
            except Exception as failure:  # The application's deserializer may raise anything.
                return index, failure
        return len(found), None

    def _stop_at(self, item: CompletedFetch, offset: int) -> None:
        """Return the records before `offset`; the next call reads that record again."""
        if item.epoch == item.state.epoch:
            item.state.save_position(self.poll)
            item.state.position = offset
        item.fetched, item.start = None, offset

    def forget_read(self) -> None:
        """Read records again that were parsed but not returned."""
        self._readers.clear()
        item = self.queue.head()
        if item is not None and item.state.position is not None:
            item.fetched, item.start = None, item.state.position

    def columns(self, records_max: int, headers: bool, bytes_max: int) -> Columns | None:
        """Return up to records_max records as columns; None without records. Raises KafkaError.

        bytes_max: of keys, of values and of headers. A longer first record is returned by itself.
        """
        reader = self._readers.get((headers, bytes_max))
        if reader is None:
            reader = self._readers[headers, bytes_max] = ColumnReader(
                headers=headers, bytes_max=bytes_max)
        queue, records_max = self.queue, operator.index(records_max)
        queue.sweep()
        while reader.count < records_max:
            item = queue.head()
            if item is None:
                break
            fetched = item.fetched
            if fetched is None:
                if reader.count:
                    break  # Return the records before the error first.
                queue.done(item)
                self.failed(item)
                continue
            try:
                count = reader.read(fetched, records_max - reader.count)
                if reader.full and not reader.count:
                    return self._alone(item, headers)
            except RecordsError as broken:
                if reader.count:
                    break
                fetched = None
                raise _corrupt(item, broken) from None
            self._advance(item, fetched, count)
            if reader.full:
                break
        return reader.finish() if reader.count else None

    def _alone(self, item: CompletedFetch, headers: bool) -> Columns:
        """Return a single record longer than bytes_max."""
        reader = ColumnReader(headers=headers)
        # Not in a local variable: an exception would keep it, and the buffer, alive.
        assert item.fetched is not None
        reader.read(item.fetched, 1)
        self._advance(item, item.fetched, 1)
        return reader.finish()

    def _advance(self, item: CompletedFetch, fetched: Fetched, count: int) -> None:
        """Move the position past `count` records."""
        state = item.state
        left = fetched.bytes_left
        self.counts.batch(state.topic, count, max(0, item.bytes_left - left))
        item.bytes_left = left
        if item.epoch == state.epoch:
            state.save_position(self.poll)
            state.position = fetched.next_offset
            if fetched.leader_epoch >= 0:
                state.record_epoch = fetched.leader_epoch
        if fetched.exhausted:
            self.queue.done(item)


def _corrupt(item: CompletedFetch, broken: RecordsError) -> KafkaError:
    return error(broken.code, f"{broken}; seek past offset {broken.offset} to continue",
                 str(item.state.tp))

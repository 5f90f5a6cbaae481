"""Makes records or columns of what was fetched, and moves the positions on.

Owns: the column readers.
Invariants: (1) a position moves past exactly what was handed out: Consuming.take_back() moves it
  back when the application did not get what was taken; (2) an error comes after all good records
  before it, in a call of its own; (3) what a deserializer refuses stays where it is until the
  application seeks past it.
Source: pylog._native.columns.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from pylog._native.columns import ColumnReader, Columns, Fetched, Record, RecordsError, records
from pylog.client.errors import KafkaError, RecordDeserializationError, error
from pylog.client.network.metrics import Records
from pylog.client.consumer.fetch_buffer import CompletedFetch, FetchBuffer

Deserializer = Callable[[bytes], Any] | None


class FetchCollector:
    """`records` or `columns`, from one thread at a time."""

    def __init__(self, queue: FetchBuffer, failed: Callable[[CompletedFetch], None],
                 key: Deserializer, value: Deserializer):
        """failed: decides about an item that is an error; raises it where that is the outcome."""
        self.queue = queue
        self.failed = failed
        self.key = key
        self.value = value
        self.counts = Records()
        self.poll = 0       # The number of the poll that takes.
        self._readers: dict[tuple[bool, int], ColumnReader] = {}

    def records(self, records_max: int) -> list[Record]:
        """Up to records_max records, as many as are there. Raises KafkaError."""
        out: list[Record] = []
        queue, records_max = self.queue, operator.index(records_max)
        queue.sweep()
        while len(out) < records_max:
            item = queue.head()
            if item is None:
                break
            state, fetched = item.state, item.fetched
            if fetched is None:
                if out:
                    break  # Keeps (2).
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
                        # An exception keeps the locals; the buffer must not live as long.
                        fetched = None
                        raise RecordDeserializationError.at(state.tp, offset, failure) from failure
                    return out + found[:good]
            self._advance(item, fetched, len(found))
            out = out + found if out else found
        return out

    def _deserialize(self, found: list[Record]) -> tuple[int, Exception | None]:
        """(how many records were read, what the next one's deserializer raised)."""
        key, value = self.key, self.value
        for place, record in enumerate(found):
            try:
                if key is not None and record.key is not None:
                    record.key = key(record.key)
                if value is not None and record.value is not None:
                    record.value = value(record.value)
            except Exception as failure:  # Whatever an application's deserializer raises.
                return place, failure
        return len(found), None

    def _stop_at(self, item: CompletedFetch, offset: int) -> None:
        """Hands out the records before `offset`, which is read again next. Keeps (1), (3)."""
        if item.epoch == item.state.epoch:
            item.state.handed_on(self.poll)
            item.state.position = offset
        item.fetched, item.start = None, offset

    def forget_read(self) -> None:
        """Has what was read and not handed out read again. Keeps (1)."""
        self._readers.clear()
        item = self.queue.head()
        if item is not None and item.state.position is not None:
            item.fetched, item.start = None, item.state.position

    def columns(self, records_max: int, headers: bool, bytes_max: int) -> Columns | None:
        """Up to records_max records as columns; None: nothing is there. Raises KafkaError.

        bytes_max: of keys, of values and of headers; a first record that is longer comes alone.
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
                    break  # Keeps (2).
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
        """One record that is longer than bytes_max."""
        reader = ColumnReader(headers=headers)
        # Not in a local: an exception keeps those, and the buffer must not live as long.
        assert item.fetched is not None
        reader.read(item.fetched, 1)
        self._advance(item, item.fetched, 1)
        return reader.finish()

    def _advance(self, item: CompletedFetch, fetched: Fetched, count: int) -> None:
        """Keeps (1)."""
        state = item.state
        left = fetched.bytes_left
        self.counts.batch(state.topic, count, max(0, item.bytes_left - left))
        item.bytes_left = left
        if item.epoch == state.epoch:
            state.handed_on(self.poll)
            state.position = fetched.next_offset
            if fetched.leader_epoch >= 0:
                state.record_epoch = fetched.leader_epoch
        if fetched.exhausted:
            self.queue.done(item)


def _corrupt(item: CompletedFetch, broken: RecordsError) -> KafkaError:
    return error(broken.code, f"{broken}; seek past offset {broken.offset} to go on",
                 str(item.state.tp))

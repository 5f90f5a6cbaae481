"""Return the records of a poll one at a time.

Owns: the records that were not returned yet.
Invariants: a partition's position is after its last returned record, so a commit between records
  loses none; a record is not returned if its partition was sought, revoked or put back since the
  poll.
Source: none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pylog._native.client.columns import Record
from pylog.client.consumer.fetch_collector import FetchCollector
from pylog.client.consumer.subscription_state import PartitionState
from pylog.client.types import TopicPartition


class _Part(NamedTuple):
    """A partition's records: its state and epoch, index of the last record, and the offset after
    it.
    """

    state: PartitionState
    epoch: int
    last: int
    end: int
    end_epoch: int


class Iteration:
    """rest: an iterator over the records of the latest poll."""

    def __init__(self, collector: FetchCollector,
                 states: Mapping[TopicPartition, PartitionState], found: list[Record[Any, Any]]):
        self._collector = collector
        lasts = {(record.topic, record.partition): index for index, record in enumerate(found)}
        self._parts: dict[tuple[str, int], _Part] = {}
        for key, index in lasts.items():
            state = states.get(TopicPartition(*key))
            if state is not None and state.poll == collector.poll and state.position is not None:
                self._parts[key] = _Part(state, state.epoch, index, state.position,
                                         state.record_epoch)
                state.position, state.record_epoch = state.before, state.before_epoch
        self.rest = self._records(found)

    def _records(self, found: list[Record[Any, Any]]) -> Iterator[Record[Any, Any]]:
        """Yield the records that are still valid and advance positions."""
        parts, collector = self._parts, self._collector
        for index, record in enumerate(found):
            part = parts.get((record.topic, record.partition))
            if part is None or part.epoch != part.state.epoch or part.state.revoking:
                continue
            state = part.state
            collector.poll += 1  # Requesting a record implies that the previous one was processed.
            state.save_position(collector.poll)
            if index == part.last:
                state.position, state.record_epoch = part.end, part.end_epoch
            else:
                state.position = record.offset + 1
            yield record

    def put_back(self, state: PartitionState | None = None) -> None:
        """Fetch unreturned records again, of one partition or of all. Call on the loop."""
        for part in self._parts.values():
            if state in (None, part.state) and part.epoch == part.state.epoch \
                    and part.state.position != part.end:
                part.state.refetch()


def check_batches(size: int, timeout: float) -> None:
    """Raise ValueError if batches(size, timeout) could yield nothing or would not wait."""
    if size < 1:
        raise ValueError(f"a batch has at least one record, not {size}")
    if timeout <= 0:
        raise ValueError(f"batches() waits for records: timeout is above 0, not {timeout:g}")

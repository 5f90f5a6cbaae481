"""What a poll gave, handed out record by record.

Owns: the records that were not handed out yet.
Invariants: (1) a partition's position is behind the last record of it that was handed out, so that
  a commit amid the records loses none; (2) a record of a partition that was sought in, revoked or
  put back since is not handed out.
Source: none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pylog._native.columns import Record
from pylog.client.consumer.fetch_collector import FetchCollector
from pylog.client.consumer.subscription_state import PartitionState
from pylog.client.types import TopicPartition


class _Part(NamedTuple):
    """A partition's records: of which state and epoch, the place of the last, what is after it."""

    state: PartitionState
    epoch: int
    last: int
    end: int
    end_epoch: int


class Iteration:
    """rest: an iterator over the records of the poll that has just been made."""

    def __init__(self, collector: FetchCollector,
                 states: Mapping[TopicPartition, PartitionState], found: list[Record]):
        self._collector = collector
        lasts = {(record.topic, record.partition): place for place, record in enumerate(found)}
        self._parts: dict[tuple[str, int], _Part] = {}
        for key, place in lasts.items():
            state = states.get(TopicPartition(*key))
            if state is not None and state.poll == collector.poll and state.position is not None:
                self._parts[key] = _Part(state, state.epoch, place, state.position,
                                         state.record_epoch)
                state.position, state.record_epoch = state.before, state.before_epoch
        self.rest = self._records(found)

    def _records(self, found: list[Record]) -> Iterator[Record]:
        """Keeps (1), (2)."""
        parts, collector = self._parts, self._collector
        for place, record in enumerate(found):
            part = parts.get((record.topic, record.partition))
            if part is None or part.epoch != part.state.epoch or part.state.revoking:
                continue
            state = part.state
            collector.poll += 1     # Who asks for a record has handled the one before.
            state.handed_on(collector.poll)
            if place == part.last:
                state.position, state.record_epoch = part.end, part.end_epoch
            else:
                state.position = record.offset + 1
            yield record

    def put_back(self, state: PartitionState | None = None) -> None:
        """Has what was not handed out fetched again, of one partition or of all. On the loop."""
        for part in self._parts.values():
            if state in (None, part.state) and part.epoch == part.state.epoch \
                    and part.state.position != part.end:
                part.state.go_back()

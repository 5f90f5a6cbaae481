"""Acquired records of a share group member and their acknowledgements.

Owns: the acquired records, by partition.
Invariants: an offset is held once, until it is acknowledged; a renewed one stays held; ranges are
  ascending and do not overlap, as the broker requires.
Source: KIP-932; KIP-1222 (renewal).
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Acknowledge(enum.IntEnum):
    """How a record was processed: accepted; released to other members; rejected permanently; or
    still being processed (RENEW).
    """

    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


GAP = 0  # No record at this offset: a marker, or removed by compaction.


class Batch(NamedTuple):
    """A range of offsets with the same acknowledgement, both ends included."""

    first: int
    last: int
    kind: int


class DeliveredRecords:
    """Acquired records of one partition.

    node_id: the broker that they were acquired from. later: offsets of records that an iteration
    has not returned yet; they are not acknowledged implicitly.
    """

    def __init__(self, node_id: int):
        self.node_id = node_id
        self.ranges: list[tuple[int, int]] = []
        self.kinds: dict[int, int] = {}
        self.renewed: set[int] = set()
        self.later: set[int] = set()

    def add(self, ranges: Iterable[tuple[int, int]], gaps: Iterable[int] = ()) -> None:
        """Add acquired ranges. gaps: offsets within them that have no record.

        An offset already held was acquired again after its lock expired; its old acknowledgement is
        dropped.
        """
        added = list(ranges)
        for first, last in added:
            self._drop(first, last)
        # A single assignment: an interrupt must not leave a part of the ranges.
        self.ranges = sorted([*self.ranges, *added])
        assert all(one[1] < other[0] for one, other in zip(self.ranges, self.ranges[1:])), \
            self.ranges  # The ranges are ascending and disjoint.
        self.kinds.update(dict.fromkeys(gaps, GAP))

    def _drop(self, first: int, last: int) -> None:
        left = []
        for start, end in self.ranges:
            if end < first or start > last:
                left.append((start, end))
                continue
            again = range(max(start, first), min(end, last) + 1)
            self.renewed.difference_update(again)
            self.later.difference_update(again)
            for offset in again:
                self.kinds.pop(offset, None)
            left += [(start, first - 1)] * (start < first) + [(last + 1, end)] * (end > last)
        self.ranges = left

    def has(self, offset: int) -> bool:
        index = bisect_right(self.ranges, offset, key=lambda found: found[0]) - 1
        return index >= 0 and offset <= self.ranges[index][1]

    def acknowledge(self, offset: int, kind: Acknowledge) -> bool:
        """Set an offset's acknowledgement; the last call wins. Returns False if it is not held."""
        if not self.has(offset):
            return False
        self.kinds[offset] = kind
        return True

    @property
    def unacknowledged_count(self) -> int:
        """Return the number of records without any acknowledgement."""
        return (sum([last - first + 1 for first, last in self.ranges])
                - len(self.kinds.keys() | self.renewed))

    def take(self, default: Acknowledge | None) -> list[Batch]:
        """Return the acknowledgements to send and remove their records.

        default: for records without an acknowledgement; None keeps them.
        """
        sent, left = [], []
        for batch in self._batches(default):
            if batch.kind >= 0:
                sent.append(batch)
            if batch.kind in (-1, Acknowledge.RENEW):
                left.append((batch.first, batch.last))
            if batch.kind == Acknowledge.RENEW:
                self.renewed.update(range(batch.first, batch.last + 1))
            elif batch.kind >= 0 and self.renewed:
                self.renewed.difference_update(range(batch.first, batch.last + 1))
        self.ranges, self.kinds = left, {}
        return sent

    def _batches(self, default: Acknowledge | None) -> Iterator[Batch]:
        """Yield all held offsets. kind -1: kept."""
        default_kind = -1 if default is None else int(default)
        kinds = self.kinds
        if self.later:
            kinds = dict.fromkeys(self.later, -1) | kinds
        for first, last in self.ranges:
            if not kinds:
                yield Batch(first, last, default_kind)
                continue
            start, kind = first, kinds.get(first, default_kind)
            for offset in range(first + 1, last + 1):
                found = kinds.get(offset, default_kind)
                if found != kind:
                    yield Batch(start, offset - 1, kind)
                    start, kind = offset, found
            yield Batch(start, last, kind)

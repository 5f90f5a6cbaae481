"""What a member of a share group has in hand: the records that polls gave, and what became of each.

Owns: the records in hand, by partition.
Invariants: (1) an offset is in hand once, until it is acknowledged; a renewed one stays; (2) ranges
  ascend and do not overlap, as the broker wants them.
Source: KIP-932; KIP-1222 (renewal).
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Acknowledge(enum.IntEnum):
    """What becomes of a record: it is done, others may have it, nobody gets it any more, or it is
    still worked on."""

    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


GAP = 0     # There is no record at an offset: a marker, or what compaction has removed.


class Batch(NamedTuple):
    """Offsets of one kind, both ends included."""

    first: int
    last: int
    kind: int


class InHand:
    """Records of one partition. node_id: the broker that they were acquired from. later: offsets of
    records that an iteration has not handed out yet, of which nothing is said by itself."""

    def __init__(self, node_id: int):
        self.node_id = node_id
        self.ranges: list[tuple[int, int]] = []
        self.kinds: dict[int, int] = {}
        self.renewed: set[int] = set()
        self.later: set[int] = set()

    def add(self, ranges: Iterable[tuple[int, int]], gaps: Iterable[int] = ()) -> None:
        """gaps: offsets within the ranges at which there is no record.

        What was in hand already, for longer than its time, comes anew: what was said of it is void.
        """
        for first, last in ranges:
            self._drop(first, last)
            self.ranges.append((first, last))
        self.ranges.sort()
        assert all(one[1] < other[0] for one, other in zip(self.ranges, self.ranges[1:])), \
            self.ranges                               # Keeps (2).
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
        place = bisect_right(self.ranges, offset, key=lambda found: found[0]) - 1
        return place >= 0 and offset <= self.ranges[place][1]

    def acknowledge(self, offset: int, kind: Acknowledge) -> bool:
        """Whether it was in hand. The last word counts."""
        if not self.has(offset):
            return False
        self.kinds[offset] = kind
        return True

    @property
    def unsaid(self) -> int:
        """How many nobody has said anything about, ever."""
        return (sum([last - first + 1 for first, last in self.ranges])
                - len(self.kinds.keys() | self.renewed))

    def take(self, default: Acknowledge | None) -> list[Batch]:
        """What is to be acknowledged, which then is no longer in hand. Keeps (1).

        default: for records of which nothing was said; None: they stay.
        """
        taken, left = [], []
        for batch in self._batches(default):
            if batch.kind >= 0:
                taken.append(batch)
            if batch.kind in (-1, Acknowledge.RENEW):
                left.append((batch.first, batch.last))
            if batch.kind == Acknowledge.RENEW:
                self.renewed.update(range(batch.first, batch.last + 1))
            elif batch.kind >= 0 and self.renewed:
                self.renewed.difference_update(range(batch.first, batch.last + 1))
        self.ranges, self.kinds = left, {}
        return taken

    def _batches(self, default: Acknowledge | None) -> Iterator[Batch]:
        """All that is in hand. kind -1: it stays."""
        unsaid = -1 if default is None else int(default)
        kinds = self.kinds
        if self.later:
            kinds = dict.fromkeys(self.later, -1) | kinds
        for first, last in self.ranges:
            if not kinds:
                yield Batch(first, last, unsaid)
                continue
            start, kind = first, kinds.get(first, unsaid)
            for offset in range(first + 1, last + 1):
                found = kinds.get(offset, unsaid)
                if found != kind:
                    yield Batch(start, offset - 1, kind)
                    start, kind = offset, found
            yield Batch(start, last, kind)

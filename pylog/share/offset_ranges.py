"""Ranges of share partition offsets with the same state.

Owns: the state of a contiguous range of offsets.
Invariants: a range is never empty; states_of() returns each offset with the state of its range.
Source: KIP-932 (states, delivery count).
"""

from collections.abc import Iterable
from typing import NamedTuple

# Numbered as in records of `__share_group_state`.
AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVING, ARCHIVED = range(5)
DONE = frozenset((ACKNOWLEDGED, ARCHIVED))
NOBODY = ""


class StateBatch(NamedTuple):
    """The stored state of an offset range; `last` is inclusive."""

    first: int
    last: int
    state: int
    deliveries: int


class Range:
    """A range of offsets with the same state.

    batch: (first, last) of the batch that the records were first acquired in. before: (state,
    member) to roll back to if the current write fails. is_rejected: archiving because a member
    rejected it.
    """

    __slots__ = ("batch", "before", "count", "deadline_ms", "first", "is_rejected", "last",
                 "member", "state")

    def __init__(self, first: int, last: int, state: int, count: int,
                 batch: tuple[int, int] | None = None, member: str = NOBODY,
                 deadline_ms: int = 0):
        assert first <= last, (first, last)
        self.first = first
        self.last = last
        self.state = state
        self.count = count
        self.batch = (first, last) if batch is None else batch
        self.member = member
        self.deadline_ms = deadline_ms
        self.before: tuple[int, str] | None = None
        self.is_rejected = False

    @property
    def is_free(self) -> bool:
        return self.state == AVAILABLE and self.before is None

    @property
    def size(self) -> int:
        return self.last - self.first + 1

    def cut(self, at: int) -> "Range":
        """End the range before `at`; return the rest."""
        assert self.first < at <= self.last and self.before is None, (self.first, at, self.last)
        rest = Range(at, self.last, self.state, self.count, self.batch, self.member,
                     self.deadline_ms)
        rest.is_rejected = self.is_rejected
        self.last = at - 1
        return rest

    def joins(self, after: "Range") -> bool:
        """Return True if `after` can be merged into this range."""
        return self.last + 1 == after.first and self.batch == after.batch \
            and self.state == after.state and self.count == after.count \
            and self.member == after.member and self.deadline_ms == after.deadline_ms \
            and self.before is None and after.before is None \
            and self.is_rejected == after.is_rejected


def states_of(rows: Iterable[Range]) -> list[StateBatch]:
    """Return the states to write for ascending ranges; adjacent equal states are merged."""
    found: list[StateBatch] = []
    first = state = deliveries = -1
    last = -2
    for row in rows:
        if row.first == last + 1 and row.state == state and row.count == deliveries:
            last = row.last
            continue
        if first >= 0:
            found.append(StateBatch(first, last, state, deliveries))
        first, last, state, deliveries = row.first, row.last, row.state, row.count
    if first >= 0:
        found.append(StateBatch(first, last, state, deliveries))
    return found

"""Offsets of a share partition that share their state.

Owns: what is known of some neighbouring offsets.
Invariants: (1) a range is never empty; (2) states_of() says of each offset what its range says.
Source: KIP-932 (states, delivery count).
"""

from collections.abc import Iterable
from typing import NamedTuple

# As records of `__share_group_state` number them.
AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVING, ARCHIVED = range(5)
DONE = frozenset((ACKNOWLEDGED, ARCHIVED))
NOBODY = ""


class StateBatch(NamedTuple):
    """Offsets first to last, as they are kept."""

    first: int
    last: int
    state: int
    deliveries: int


class Range:
    """Offsets that share their state. batch: (first, last) of the records that were acquired with
    them at first; before: (state, member) while a write is under way; is_rejected: archiving
    because a member said so."""

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
        """Ends it before `at`; the rest of it."""
        assert self.first < at <= self.last and self.before is None, (self.first, at, self.last)
        rest = Range(at, self.last, self.state, self.count, self.batch, self.member,
                     self.deadline_ms)
        rest.is_rejected = self.is_rejected
        self.last = at - 1
        return rest

    def joins(self, after: "Range") -> bool:
        """Whether the two are one."""
        return self.last + 1 == after.first and self.batch == after.batch \
            and self.state == after.state and self.count == after.count \
            and self.member == after.member and self.deadline_ms == after.deadline_ms \
            and self.before is None and after.before is None \
            and self.is_rejected == after.is_rejected


def states_of(rows: Iterable[Range]) -> list[StateBatch]:
    """What is to be written of ranges that ascend: one row for neighbours that are equal there."""
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

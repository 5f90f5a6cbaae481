"""What a member says of the records that it acquired, as runs of one type.

Owns: nothing.
Invariants: (1) runs ascend, and neighbours in one span differ in type; (2) nothing is done per
  record: a member may speak of each one by itself, but mostly says the same of many.
Source: KIP-932 (AcknowledgementBatch).
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

# As a client numbers its acknowledgements; a gap has no record.
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
_SAME = re.compile(rb"(.)\1*", re.DOTALL)
# (first offset, last offset, types: one for all, or one each)
Row = tuple[int, int, Sequence[int]]


class Span(NamedTuple):
    """Offsets without a gap. runs: (first, last, type)."""

    first: int
    last: int
    runs: list[tuple[int, int, int]]


def spans(rows: Iterable[Row]) -> list[Span]:
    """Rows that ascend, those that adjoin in one. Keeps (1)."""
    found: list[Span] = []
    runs: list[tuple[int, int, int]] = []
    begin = end = -1
    for first, last, types in rows:
        if not runs:
            begin = first
        elif first != end + 1:
            found.append(Span(begin, end, runs))
            begin, runs = first, []
        end = last
        made = [(first, last, types[0])] if len(types) == 1 else _runs(first, bytes(types))
        if runs and runs[-1][2] == made[0][2]:
            made[0] = runs.pop()[0], made[0][1], made[0][2]
        runs += made
    if runs:
        found.append(Span(begin, end, runs))
    return found


def _runs(first: int, types: bytes) -> list[tuple[int, int, int]]:
    """Of one type each; `first` is the offset of the first type."""
    return [(first + same.start(), first + same.end() - 1, types[same.start()])
            for same in _SAME.finditer(types)]

"""Acknowledgements of acquired records, as runs of the same type.

Owns: nothing.
Invariants: runs ascend, and adjacent runs of a span differ in type; there is no work per record,
  because members usually acknowledge many records the same way, although they may differ for each.
Source: KIP-932 (AcknowledgementBatch).
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

# The numbers of the protocol; a gap has no record.
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
_SAME = re.compile(rb"(.)\1*", re.DOTALL)
# (first offset, last offset, types: one for all offsets, or one per offset)
Row = tuple[int, int, Sequence[int]]


class Span(NamedTuple):
    """A contiguous offset range. runs: (first, last, type)."""

    first: int
    last: int
    runs: list[tuple[int, int, int]]


def spans(rows: Iterable[Row]) -> list[Span]:
    """Convert ascending rows to spans; adjacent rows are merged."""
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
    """Yield runs of one type. `first` is the offset of the first type."""
    return [(first + same.start(), first + same.end() - 1, types[same.start()])
            for same in _SAME.finditer(types)]

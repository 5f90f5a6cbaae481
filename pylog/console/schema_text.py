"""Schemas as text, and the difference of two of them.

Owns: nothing.
Invariants: a schema is shown as stored if it is not JSON; a difference of long schemas stays
  bounded: it compares lines only.
"""

from __future__ import annotations

import difflib
import json
from typing import NamedTuple

SAME, ADDED, REMOVED = "same", "added", "removed"
LINES_MAX = 5000


class Line(NamedTuple):
    """kind: SAME, ADDED or REMOVED."""

    kind: str
    text: str


def readable(text: str) -> str:
    """Return a schema with indentation if it is JSON."""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return text


def difference(old: str, new: str) -> list[Line]:
    """Return the lines of both schemas in order. Longer schemas are cut after LINES_MAX lines."""
    before = readable(old).splitlines()[:LINES_MAX]
    after = readable(new).splitlines()[:LINES_MAX]
    lines = []
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=len(before) > 1000)
    for _, low, high, first, last in matcher.get_opcodes():
        if before[low:high] == after[first:last]:
            lines += [Line(SAME, text) for text in before[low:high]]
            continue
        lines += [Line(REMOVED, text) for text in before[low:high]]
        lines += [Line(ADDED, text) for text in after[first:last]]
    return lines

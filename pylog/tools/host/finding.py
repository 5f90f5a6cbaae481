"""One result of a check.

Owns: nothing.
Invariants: (1) status is one of the four.
Source: none.
"""

from __future__ import annotations

from typing import NamedTuple

OK, WARN, FAIL, SKIP = "ok", "warn", "fail", "skip"


class Finding(NamedTuple):
    """subject: what was looked at, where there are several. advice: what to do about it."""

    check: str
    subject: str
    status: str
    detail: str
    advice: str = ""

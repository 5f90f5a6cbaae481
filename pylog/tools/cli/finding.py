"""One result of a check.

Owns: nothing.
Invariants: status is one of the four.
Source: none.
"""

from __future__ import annotations

from typing import NamedTuple

OK, WARN, FAIL, SKIP = "ok", "warn", "fail", "skip"


class Finding(NamedTuple):
    """subject: the checked object, if there are several. advice: what to do."""

    check: str
    subject: str
    status: str
    detail: str
    advice: str = ""

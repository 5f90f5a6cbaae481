"""Points in time as people write them, and offsets that may be written as times.

Owns: nothing.
Invariants: (1) a time without a zone is local time; (2) all times inside are milliseconds since
  1970, as in records.
Source: ISO 8601 as datetime reads it.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

import click

_AGO = re.compile(r"-((?:\d+(?:\.\d+)?(?:ms|s|m|h|d|w))+)")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
SECONDS_MAX = 100_000_000_000  # A plain number above is milliseconds, below seconds.


def moment(text: str, now_ms: int) -> int:
    """Milliseconds of `-10m`, `2026-11-01T10:00`, `now`, or a plain number of s or ms.

    Raises click.BadParameter.
    """
    ago = _AGO.fullmatch(text)
    if ago:
        return now_ms - round(sum(float(number) * _MS[unit]
                                  for number, unit in _PART.findall(ago[1])))
    if text == "now":
        return now_ms
    if text.isdigit():
        return int(text) if int(text) >= SECONDS_MAX else int(text) * 1000
    try:
        found = datetime.fromisoformat(text)
        # Keeps (1): without a zone this takes the local one.
        return round(found.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is no time: 2026-11-01T10:00, -10m, -1h30m, now, or seconds since 1970"
        ) from None


def shown(ms: int | None) -> str:
    """A time in UTC, or a dash."""
    if ms is None or ms < 0:
        return "-"
    try:
        found = datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(ms)
    return f"{found:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"

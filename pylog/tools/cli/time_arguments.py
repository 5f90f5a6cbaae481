"""Parse times on the command line, and offsets that can be given as times.

Owns: nothing.
Invariants: a time without a zone is local time; internal times are milliseconds since 1970, as in
  records.
Source: ISO 8601 as datetime parses it.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

import click

_AGO = re.compile(r"-((?:\d+(?:\.\d+)?(?:ms|s|m|h|d|w))+)")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
SECONDS_MAX = 100_000_000_000  # A plain number above this is milliseconds, below it seconds.


def moment(text: str, now_ms: int) -> int:
    """Return the milliseconds of `-10m`, `2026-11-01T10:00`, `now`, or a plain number of s or ms.

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
        # astimezone() adds the local zone to a time without one.
        return round(found.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is not a time: expected 2026-11-01T10:00, -10m, -1h30m, now, or seconds "
            f"since 1970"
        ) from None


def shown(ms: int | None) -> str:
    """Return a time in UTC, or a dash."""
    if ms is None or ms < 0:
        return "-"
    try:
        found = datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(ms)
    return f"{found:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"

"""ISO 8601 durations, for `auto.offset.reset=by_duration:PT1H`.

Owns: nothing.
Invariants: accepts what Java's Duration.parse accepts, except negative durations.
Source: KIP-1106; ISO 8601.
"""

from __future__ import annotations

import re

BY_DURATION = "by_duration"
_TEXT = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:[.,](\d{1,9}))?S)?)?",
                   re.IGNORECASE)


def milliseconds(text: str) -> int:
    """Return the milliseconds of `P3D`, `PT1H30M`, `PT0.5S`. Raises ValueError."""
    found = _TEXT.fullmatch(text.strip())
    if found is None or not any(found.groups()) or text.upper().endswith("T"):
        raise ValueError(f"{text!r} is not a duration; PT1H is an hour, P7D a week")
    days, hours, minutes, seconds, rest = found.groups()
    whole = ((int(days or 0) * 24 + int(hours or 0)) * 60 + int(minutes or 0)) * 60
    return (whole + int(seconds or 0)) * 1000 + int(f"{rest or 0:0<3}"[:3])


def rounded(seconds: float | None) -> str:
    """Format an expired time limit for messages: 2.5 s, 30 s, 0.05 s."""
    assert seconds is not None, "no limit is never reached"
    return f"{round(seconds, 1 if seconds >= 1 else 3):.10g} s"


def before(policy: str, now_ms: int) -> int:
    """Return the time that `by_duration:<duration>` means."""
    return now_ms - milliseconds(policy.partition(":")[2])

"""JSON text as Java's Jackson writes it, because stored schemas are hashed as text.

Owns: nothing.
Invariants: compact output; the order of keys is the order of the source; equal values have equal
  texts.
Source: Jackson's JsonGenerator; Double.toString of Java.
"""

from __future__ import annotations

import json
import re
from typing import Any

_ESCAPED = re.compile(r'[\x00-\x1f"\\]')
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f",
            "\r": "\\r"}
# Java prints smaller and larger numbers with an exponent.
_PLAIN_MIN, _PLAIN_MAX = 1e-3, 1e7


def parse(text: str) -> Any:
    """Return the value of a JSON text. Raises ValueError."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("the JSON text is nested too deeply") from None


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


def quoted(text: str) -> str:
    """Return a JSON string."""
    return f'"{_ESCAPED.sub(_escape, text)}"'


def _escape(match: re.Match[str]) -> str:
    found = match[0]
    return _ESCAPES.get(found) or f"\\u{ord(found):04X}"


def text_of(value: Any, is_sorted: bool = False) -> str:
    """Return compact JSON. is_sorted: keys of objects in alphabetical order."""
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, dict):
        rows = sorted(value.items()) if is_sorted else value.items()
        return "{" + ",".join(
            f"{quoted(key)}:{text_of(one, is_sorted)}" for key, one in rows) + "}"
    if isinstance(value, list):
        return "[" + ",".join(text_of(one, is_sorted) for one in value) + "]"
    if isinstance(value, float):
        return _double(value)
    return json.dumps(value)


def _double(value: float) -> str:
    """Return a number as Double.toString does."""
    size = abs(value)
    if size == 0 or _PLAIN_MIN <= size < _PLAIN_MAX:
        return f"{value!r}" if "e" not in repr(value) else f"{value:.20f}".rstrip("0")
    mantissa, _, exponent = f"{value!r}".partition("e")
    if not exponent:
        digits = mantissa.lstrip("-").rstrip("0").rstrip(".").replace(".", "")
        power = len(mantissa.lstrip("-").partition(".")[0]) - 1
        if size < 1:
            digits = mantissa.lstrip("-").replace("0.", "", 1)
            power = -1 - (len(digits) - len(digits.lstrip("0")))
            digits = digits.lstrip("0")
        digits = digits.rstrip("0") or "0"
        sign = "-" if value < 0 else ""
        return f"{sign}{digits[0]}.{digits[1:] or '0'}E{power}"
    return f"{mantissa}{'' if '.' in mantissa else '.0'}E{int(exponent)}"

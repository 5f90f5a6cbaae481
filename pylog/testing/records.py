"""Records as tests write and read them, and the differences between two lists.

Owns: nothing.
Invariants: only the fields of an expectation are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

FIELDS = ("partition", "offset", "timestamp", "key", "value", "headers")
SHOWN_MAX = 120
LINES_MAX = 60
PAIRS_MAX = 250_000


class Record(NamedTuple):
    """One record of a topic. timestamp: in ms since 1970. headers: ((name, value), ...)."""

    partition: int
    offset: int
    timestamp: int
    key: Any
    value: Any
    headers: tuple = ()


class Expected(dict):
    """The fields that a record must have. Other fields may have any value."""


def record(**fields: Any) -> Expected:
    """Return the expectation for one record: `record(value=b"x", partition=2)`."""
    unknown = fields.keys() - set(FIELDS)
    if unknown:
        raise TypeError(f"a record has no {', '.join(sorted(unknown))}: {', '.join(FIELDS)}")
    if "headers" in fields:
        fields["headers"] = headers_of(fields["headers"])
    return Expected(fields)


def as_bytes(item: Any) -> Any:
    """Encode text as UTF-8; return anything else unchanged."""
    return item.encode() if isinstance(item, str) else item


def headers_of(given: Any) -> tuple:
    """Convert pairs or a dict to ((name, value), ...), with values as bytes."""
    pairs = given.items() if isinstance(given, dict) else given or ()
    return tuple([(name, as_bytes(value)) for name, value in pairs])


def expectation(item: Any, decoded: bool) -> Expected:
    """Convert a test's item to an Expected: an Expected, a Record, a (key, value) pair, or a value.

    decoded: values are decoded before the comparison, so text is not encoded.
    """
    convert = (lambda given: given) if decoded else as_bytes
    if isinstance(item, Expected):
        return Expected({name: convert(value) if name in ("key", "value") else value
                         for name, value in item.items()})
    if isinstance(item, Record):
        return Expected(item._asdict())
    if isinstance(item, tuple) and len(item) == 2:
        return Expected(key=convert(item[0]), value=convert(item[1]))
    return Expected(value=convert(item))


def matches(found: Record, expected: Expected) -> bool:
    return all(getattr(found, name) == value for name, value in expected.items())


def difference(found: Sequence[Record], expected: Sequence[Expected], any_order: bool) -> list[str]:
    """Return lines that describe the differences; none if there are none."""
    if any_order:
        return _difference_of_sets(found, expected)
    if len(found) == len(expected) and all(map(matches, found, expected)):
        return []
    fields = _fields(expected)
    lines: list[str] = []
    equal: list[str] = []
    for row, one in _aligned(found, expected):
        if row is not None and one is not None:
            equal.append(f"    {_line(row._asdict(), fields)}")
            continue
        lines += _shortened(equal)
        equal = []
        lines.append(_missing(one, fields) if row is None else _surplus(row, fields))
    return lines + _shortened(equal)


def _aligned(found: Sequence[Record], expected: Sequence[Expected]):
    """Return (Record, Expected) for matches, in order, and (None, Expected) or (Record, None) for
    the others.
    """
    first = 0
    while first < min(len(found), len(expected)) and matches(found[first], expected[first]):
        first += 1
    last = 0
    while last < min(len(found), len(expected)) - first \
            and matches(found[-1 - last], expected[-1 - last]):
        last += 1
    pairs = list(zip(found[:first], expected[:first]))
    pairs += _middle(found[first:len(found) - last], expected[first:len(expected) - last])
    return pairs + list(zip(found[len(found) - last:], expected[len(expected) - last:]))


def _middle(found: Sequence[Record], expected: Sequence[Expected]) -> list:
    """Align by the longest common subsequence; see _aligned(). Does not align very long lists."""
    if len(found) * len(expected) > PAIRS_MAX:
        return [(None, one) for one in expected] + [(row, None) for row in found]
    longest = [[0] * (len(found) + 1) for _ in range(len(expected) + 1)]
    for i in reversed(range(len(expected))):
        for j in reversed(range(len(found))):
            longest[i][j] = longest[i + 1][j + 1] + 1 if matches(found[j], expected[i]) \
                else max(longest[i + 1][j], longest[i][j + 1])
    pairs: list = []
    i = j = 0
    while i < len(expected) or j < len(found):
        if i < len(expected) and j < len(found) and matches(found[j], expected[i]):
            pairs.append((found[j], expected[i]))
            i, j = i + 1, j + 1
        elif j == len(found) or i < len(expected) and longest[i + 1][j] >= longest[i][j + 1]:
            pairs.append((None, expected[i]))
            i += 1
        else:
            pairs.append((found[j], None))
            j += 1
    return pairs


def _difference_of_sets(found: Sequence[Record], expected: Sequence[Expected]) -> list[str]:
    left = list(found)
    missing = []
    # Match the expectations with the most fields first, because fewer records satisfy them.
    for row in sorted(expected, key=len, reverse=True):
        index = next((at for at, one in enumerate(left) if matches(one, row)), None)
        if index is None:
            missing.append(row)
        else:
            del left[index]
    fields = _fields(expected)
    return ([_missing(row, fields) for row in missing] + [_surplus(row, fields) for row in left])


def _fields(expected: Iterable[Expected]) -> list[str]:
    named = {name for row in expected for name in row} or {"key", "value"}
    return [name for name in FIELDS if name in named]


def _missing(row: Expected, fields: list[str]) -> str:
    return f"  - {_line(row, fields)}"


def _surplus(row: Record, fields: list[str]) -> str:
    where = f"partition {row.partition}, offset {row.offset}"
    return f"  + {_line(row._asdict(), fields)}    <- {where}"


def _line(values: dict, fields: list[str]) -> str:
    return " ".join([f"{name}={_cut(values[name])}" for name in fields if name in values])


def _cut(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}... ({len(text)} characters)"


def _shortened(lines: list[str]) -> list[str]:
    """Return the equal lines next to a difference, without the middle of long runs."""
    if len(lines) <= 6:
        return lines
    return [*lines[:3], f"    ... {len(lines) - 6} more as expected ...", *lines[-3:]]


def difference_text(where: str, lines: list[str], found: int, expected: int) -> str:
    """Return the message of a failed assertion."""
    if len(lines) > LINES_MAX:
        lines = [*lines[:LINES_MAX], f"  ... {len(lines) - LINES_MAX} more lines ..."]
    return "\n".join([f"{where}: {found} records, {expected} expected (- expected, + found)",
                      *lines])


def decoded(rows: Iterable[Record], key: Callable | None, value: Callable | None) -> list[Record]:
    """Apply functions to keys and values; null stays None."""
    def through(function: Callable | None, data: Any) -> Any:
        return data if function is None or data is None else function(data)

    return [row._replace(key=through(key, row.key), value=through(value, row.value))
            for row in rows]

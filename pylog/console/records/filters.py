"""The filter of a search: from the query string of a page to a compiled predicate.

Owns: the compiled predicate of each Filter.
Invariants: every part of a filter is in the query string, so a search is a link; a text that cannot
  be understood raises FilterError with the field and the reason; a regular expression takes time
  proportional to the record.
Source: RFC 8259 (JSON), RE2.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from pylog._native.client.search import Test
from pylog.client.columns.rows import Row

PATTERN_CHARACTERS_MAX = 1000
PATTERN_BYTES_MAX = 8 << 20  # Of the memory of one compiled expression.
INT64_MAX = 2**63 - 1
RANGES_MAX = 10_000
NEWEST, OLDEST = "newest", "oldest"
ORDERS = (NEWEST, OLDEST)
# Names of a query that make a filter. A name may be repeated: its values are alternatives.
TEXTS = ("key", "key_prefix", "key_contains", "value", "header", "json", "key_json", "key_regex",
         "value_regex")
NUMBERS = ("size_min", "size_max", "batch_min", "batch_max", "producer_id")
RANGES = ("partition", "since", "until", "offset_from", "offset_until")
SWITCHES = ("tombstone", "no_key", "uncommitted", "all_partitions")
NAMES = (*TEXTS, *NUMBERS, *RANGES, *SWITCHES, "order", "limit", "left")

_STEP = re.compile(r"""\.([^\s.\[\]=!<>"']+)|\[(\d{1,9})\]|\[("(?:[^"\\]|\\.)*")\]""")
_OPERATOR = re.compile(r"\s*(==|!=|<=|>=|<|>|=|contains\b|exists\b)\s*")
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d{1,9})?")
_HEADER = re.compile(r"(==|~=|=|~)")


class FilterError(ValueError):
    """A part of a filter cannot be understood. field: its name in the query."""

    def __init__(self, field: str, given: str, remedy: str):
        super().__init__(f"{field}: {given}")
        self.field = field
        self.given = given
        self.remedy = remedy


@dataclass
class Filter:
    """A search. tests: compared in native code; patterns: (field, expression) compared afterwards.

    partitions: None for all. left: ranges to search instead of those that the other fields give.
    """

    tests: list[Test] = field(default_factory=list)
    patterns: list[tuple[str, list[Any]]] = field(default_factory=list)
    partitions: list[int] | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    offset_from: int | None = None
    offset_until: int | None = None
    order: str = NEWEST
    limit: int = 0
    committed: bool = True
    whole_key: bytes | None = None
    all_partitions: bool = False
    left: dict[int, list[tuple[int, int]]] | None = None

    @property
    def is_empty(self) -> bool:
        """Return True if every record matches."""
        return not self.tests and not self.patterns

    @staticmethod
    def part_of(test: Test) -> Literal["key", "value"] | None:
        """Return the part of a record whose content a test compares."""
        if test.op == "is_null":
            return None
        if test.field in ("key", "key_json"):
            return "key"
        return "value" if test.field in ("value", "value_json") else None

    def matches(self, row: Row) -> bool:
        """Return True if the regular expressions match a record that the tests selected."""
        for name, expressions in self.patterns:
            data = row.key if name == "key" else row.value
            if data is None or not any(one.search(data) for one in expressions):
                return False
        return True


def parse(query: Iterable[tuple[str, str]]) -> Filter:
    """Return the filter of a query's (name, value) pairs. Ignores other names and empty values.

    Raises FilterError.
    """
    given: dict[str, list[str]] = {}
    for name, value in query:
        if name in NAMES and value != "":
            given.setdefault(name, []).append(value)
    made = Filter()
    _add_tests(made, given)
    for name in ("key", "value"):
        texts = given.get(f"{name}_regex")
        if texts:
            made.patterns.append((name, [_pattern(f"{name}_regex", text) for text in texts]))
    if "partition" in given:
        made.partitions = sorted({_whole("partition", part, 2**31 - 1)
                                  for text in given["partition"] for part in text.split(",")})
    for name in ("since", "until"):
        if name in given:
            setattr(made, f"{name}_ms", time_of(name, given[name][-1]))
    for name in ("offset_from", "offset_until"):
        if name in given:
            setattr(made, name, _whole(name, given[name][-1], INT64_MAX))
    made.order = given.get("order", [NEWEST])[-1]
    if made.order not in ORDERS:
        raise FilterError("order", made.order, f"Choose {' or '.join(ORDERS)}.")
    if "limit" in given:
        made.limit = _whole("limit", given["limit"][-1], 2**31 - 1)
    made.committed = "uncommitted" not in given
    made.all_partitions = "all_partitions" in given
    if len(given.get("key", ())) == 1:
        made.whole_key = given["key"][0].encode()
    if "left" in given:
        made.left = ranges_of(given["left"][-1])
    return made


def _add_tests(made: Filter, given: dict[str, list[str]]) -> None:
    """Add the native tests, the cheapest first: a record that fails one is not read further."""
    groups: list[list[Test]] = []
    low, high = _bounds(given, "batch_min", "batch_max")
    if (low, high) != (0, INT64_MAX):
        groups.append([Test(0, "batch_bytes", "between", low=low, high=high)])
    low, high = _bounds(given, "size_min", "size_max")
    if (low, high) != (0, INT64_MAX):
        groups.append([Test(0, "record_bytes", "between", low=low, high=high)])
    if "producer_id" in given:
        numbers = [_whole("producer_id", text, INT64_MAX) for text in given["producer_id"]]
        groups.append([Test(0, "producer_id", "between", low=one, high=one) for one in numbers])
    if "tombstone" in given:
        groups.append([Test(0, "value", "is_null")])
    if "no_key" in given:
        groups.append([Test(0, "key", "is_null")])
    groups.append([Test(0, "key", "==", text.encode()) for text in given.get("key", ())]
                  + [Test(0, "key", "prefix", text.encode())
                     for text in given.get("key_prefix", ())]
                  + [Test(0, "key", "contains", text.encode())
                     for text in given.get("key_contains", ())])
    groups.append([header_test(text) for text in given.get("header", ())])
    groups.append([json_test("key_json", text) for text in given.get("key_json", ())])
    # Each line of `json` is a condition of its own.
    groups += [[json_test("value_json", text)] for text in given.get("json", ())]
    groups.append([Test(0, "value", "contains", text.encode()) for text in given.get("value", ())])
    for number, group in enumerate(filter(None, groups)):
        made.tests += [test._replace(group=number) for test in group]


def _bounds(given: dict[str, list[str]], low: str, high: str) -> tuple[int, int]:
    return (_whole(low, given[low][-1], INT64_MAX) if low in given else 0,
            _whole(high, given[high][-1], INT64_MAX) if high in given else INT64_MAX)


def _whole(name: str, text: str, most: int) -> int:
    text = text.strip()
    if not text.isdecimal() or len(text) > 19 or int(text) > most:
        raise FilterError(name, text[:100], f"Enter a whole number from 0 to {most}.")
    return int(text)


def header_test(text: str) -> Test:
    """Return the test of `name`, `name=value` or `name~part`."""
    name, operator, value = (*_HEADER.split(text, maxsplit=1), "", "")[:3]
    name = name.strip()
    if not name:
        raise FilterError("header", text[:100], "Write name, name=value or name~part of the value.")
    if not operator:
        return Test(0, "header", "exists", name=name.encode())
    return Test(0, "header", "contains" if operator.startswith("~") else "==",
                value.strip().encode(), name=name.encode())


def json_test(name: str, text: str) -> Test:
    """Return the test of `$.customer.id == 7` and the like. name: value_json or key_json."""
    shown = "json" if name == "value_json" else name
    remedy = ('Write a path, an operator and a JSON value: $.customer.id == 7, $.tags contains '
              '"new", $.items[0]["unit price"] >= 9.5, $.error exists.')
    at, path = 1, []
    if not text.startswith("$"):
        raise FilterError(shown, text[:100], remedy)
    while found := _STEP.match(text, at):
        member, index, quoted = found.groups()
        path.append(int(index) if index else (member or json.loads(quoted)).encode())
        at = found.end()
    found = _OPERATOR.match(text, at)
    if found is None:
        if text[at:].strip():
            raise FilterError(shown, text[:100], remedy)
        operator, rest = "exists", ""
    else:
        operator, rest = found[1], text[found.end():].strip()
    if operator == "exists":
        if rest:
            raise FilterError(shown, text[:100], remedy)
        return Test(0, name, "exists", path=tuple(path))  # type: ignore[arg-type]
    value, kind = _operand(shown, rest, remedy)
    return Test(0, name, "==" if operator == "=" else operator,  # type: ignore[arg-type]
                value, path=tuple(path), kind=kind)  # type: ignore[arg-type]


def _operand(name: str, text: str, remedy: str) -> tuple[bytes, str]:
    """Return a JSON value as (bytes, kind). Text without quotes is a string."""
    if _NUMBER.fullmatch(text):
        return text.encode(), "number"
    if text in ("true", "false", "null"):
        return text.encode(), "literal"
    if text.startswith('"'):
        try:
            text = json.loads(text)
        except ValueError:
            raise FilterError(name, text[:100], remedy) from None
    elif not text:
        raise FilterError(name, "nothing to compare with", remedy)
    return text.encode(), "string"


def _pattern(name: str, text: str) -> Any:
    import re2  # Load the library only when it is needed.

    if len(text) > PATTERN_CHARACTERS_MAX:
        raise FilterError(name, f"{len(text)} characters",
                          f"Write at most {PATTERN_CHARACTERS_MAX}.")
    options = re2.Options()
    options.max_mem = PATTERN_BYTES_MAX
    options.log_errors = False
    try:
        return re2.compile(text, options)
    except (re2.error, UnicodeError) as failure:
        raise FilterError(name, text[:100], f"It is not an expression of RE2: {failure}.") from None


def time_of(name: str, text: str) -> int:
    """Return ms since 1970 of ms or ISO 8601 text; without a zone: the console's local time."""
    text = text.strip()
    if text.isdecimal() and 9 < len(text) < 16:
        return int(text)
    try:
        return round(datetime.datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise FilterError(name, text[:100], "Write a time as 2026-05-31T14:30, with a zone such as "
                          "Z or +02:00 if it is not local, or in ms since 1970.") from None


# ---- ranges that are not searched yet


def ranges_of(text: str) -> dict[int, list[tuple[int, int]]]:
    """Return the ranges in a text such as `0:100-200,0:300-350,1:5-50`. Raises FilterError."""
    found: dict[int, list[tuple[int, int]]] = {}
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,10}):(\d{1,19})-(\d{1,19})", part)
        if match is None:
            raise FilterError("left", part[:100], "Start the search again from its form.")
        partition, start, end = map(int, match.groups())
        if start < end <= INT64_MAX and partition < 2**31:
            found.setdefault(partition, []).append((start, end))
    if sum(map(len, found.values())) > RANGES_MAX:
        raise FilterError("left", f"more than {RANGES_MAX} ranges",
                          "Start the search again from its form.")
    return {partition: joined(rows) for partition, rows in found.items()}


def joined(rows: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges in order, without overlaps: a record must not be found twice."""
    made: list[tuple[int, int]] = []
    for start, end in sorted(rows):
        if made and start <= made[-1][1]:
            made[-1] = made[-1][0], max(end, made[-1][1])
        else:
            made.append((start, end))
    return made


def ranges_text(ranges: dict[int, list[tuple[int, int]]]) -> str:
    """Return the text for ranges_of()."""
    return ",".join(f"{partition}:{start}-{end}" for partition, rows in sorted(ranges.items())
                    for start, end in sorted(rows))

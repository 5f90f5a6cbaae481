"""Masks of fields: what users who are not exempt see instead of the values.

Owns: the rules of console.masking.file.
Invariants: only TopicMask makes a Visible, and pages, events and files are made of nothing else;
  fail closed: on a topic with rules, a value that is neither JSON nor decoded to JSON shows only
  its size, and a rule without a path hides the whole value; a mask is applied on the server, before
  any page, event or file.

The file is TOML:

    [[rule]]
    topics = ["payments", "cards-*"]
    path = "$.card.number"      # fields of objects; [*] is every item of a list
    action = "last4"            # hide, hash, last4 or replace
    replacement = "..."         # with replace
    exempt = ["User:auditor"]   # these see the plain value

`part = "key"` masks the key instead of the value. `part = "header"` masks headers: `header` names
them, and all are masked without it. Names of topics, users and headers may contain * and ?.
"""

from __future__ import annotations

import fnmatch
import hmac
import json
import re
import secrets
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pylog.config.errors import ConfigError

if TYPE_CHECKING:
    from pylog.client.columns.rows import Row
    from pylog.console.values.row_decoding import Decoded

SETTING = "console.masking.file"
KEY, VALUE, HEADER = PARTS = ("key", "value", "header")
HASH_CHARACTERS = 16
# Without a key, the hash of a short value, such as a card number, could be found by trying all.
# Equal values have equal hashes until the console restarts.
_HASH_KEY = secrets.token_bytes(32)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\*)\]")
_NAMES = {"topics", "path", "action", "replacement", "exempt", "part", "header"}


@dataclass(frozen=True)
class Rule:
    """One rule. steps: names of fields, "*" for every item of a list; none: the whole part."""

    topics: tuple[str, ...]
    steps: tuple[str, ...]
    action: str
    replacement: str
    exempt: tuple[str, ...]
    part: str
    headers: tuple[str, ...] = ("*",)

    def applies(self, topic: str, principal: str) -> bool:
        return _matches(topic, self.topics) and not _matches(f"User:{principal}", self.exempt)


class Visible:
    """The bytes of a key, value or header that the user may see. Only TopicMask makes one.

    data: None for null; JSON if the bytes were decoded. name: how they were decoded, else "".
    error: why they could not be decoded, else "". size: of the bytes in the record. raw: those
    bytes, None if something in them is hidden.
    """

    __slots__ = ("data", "error", "name", "raw", "size")

    def __init__(self, data: bytes | None, raw: bytes | None, size: int, name: str = "",
                 error: str = ""):
        self.data = data
        self.raw = raw
        self.size = size
        self.name = name
        self.error = error

    def __repr__(self) -> str:
        return f"Visible({self.size} bytes)"


class VisibleRow(NamedTuple):
    """A record as the user may see it."""

    partition: int
    offset: int
    timestamp: int
    key: Visible
    value: Visible
    headers: list[tuple[str, Visible]]
    bytes: int


class Masks:
    """All rules. The empty one masks nothing."""

    def __init__(self, rules: Sequence[Rule] = ()):
        self._rules = tuple(rules)

    def of(self, topic: str, principal: str) -> TopicMask:
        """Return what this user may not see of a topic."""
        return TopicMask([rule for rule in self._rules if rule.applies(topic, principal)])


class TopicMask:
    """The rules that apply to one user on one topic."""

    def __init__(self, rules: Sequence[Rule]):
        self._rules = {part: [rule for rule in rules if rule.part == part] for part in PARTS}

    def hides(self, part: str) -> bool:
        """Return True if rules cover this part, so that a search in it would reveal values."""
        return bool(self._rules[part])

    @property
    def hides_something(self) -> bool:
        return any(self._rules.values())

    def row(self, row: Row, decoded: Mapping[str, Decoded] | None = None) -> VisibleRow:
        """Return a record as the user may see it. decoded: its parts that are decoded."""
        found = decoded or {}
        return VisibleRow(
            row.partition, row.offset, row.timestamp, self.key(row.key, found.get(KEY)),
            self.value(row.value, found.get(VALUE)),
            [(name, self.header(name, data)) for name, data in row.headers], row.bytes)

    def key(self, data: bytes | None, decoded: Decoded | None = None) -> Visible:
        """Return the key as the user may see it."""
        return _visible(data, decoded, self._rules[KEY])

    def value(self, data: bytes | None, decoded: Decoded | None = None) -> Visible:
        """Return the value as the user may see it."""
        return _visible(data, decoded, self._rules[VALUE])

    def header(self, name: str, data: bytes | None) -> Visible:
        """Return the content of a header as the user may see it."""
        return _visible(data, None, [rule for rule in self._rules[HEADER]
                                     if _matches(name, rule.headers)])


def _visible(data: bytes | None, decoded: Decoded | None, rules: list[Rule]) -> Visible:
    if data is None:
        return Visible(None, None, 0)
    raw = None if rules else data
    if decoded is None:
        return Visible(_masked(data, rules), raw, len(data))
    if decoded.text is None:
        # The reason may quote the value.
        return Visible(_masked(data, rules), raw, len(data), decoded.name,
                       "it could not be decoded" if rules else decoded.error)
    return Visible(_masked(decoded.text.encode(), rules), raw, len(data), decoded.name)


def _masked(data: bytes, rules: list[Rule]) -> bytes:
    if not rules:
        return data
    hidden = f"(hidden: {len(data)} bytes)".encode()
    whole = [rule for rule in rules if not rule.steps]
    if whole:
        return hidden if whole[0].action == "hide" else _ACTIONS[whole[0].action](
            data.decode(errors="replace"), whole[0]).encode()
    try:
        value = json.loads(data)
        for rule in rules:
            value = _replaced(value, rule.steps, rule)
        return json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return hidden


def load(path: str) -> Masks:
    """Read the rules of a file, none for an empty path. Raises ConfigError, OSError."""
    if not path:
        return Masks()
    with open(path, "rb") as file:
        try:
            given = tomllib.load(file)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{SETTING}={path}: {error}") from None
    rows = given.pop("rule", [])
    if given or not isinstance(rows, list):
        raise ConfigError(f"{SETTING}={path}: expected [[rule]] tables only")
    return Masks([_rule(row, f"{SETTING}={path}, rule {number}")
                  for number, row in enumerate(rows, 1)])


def _rule(row: Any, place: str) -> Rule:
    """Return a rule of the file. Raises ConfigError."""
    unknown = set(row) - _NAMES
    if unknown:
        raise ConfigError(f"{place}: unknown key {sorted(unknown)[0]}; there are: "
                          f"{', '.join(sorted(_NAMES))}")
    action, part = row.get("action", "hide"), row.get("part", VALUE)
    if action not in _ACTIONS:
        raise ConfigError(f"{place}: action={action}; there are: {', '.join(_ACTIONS)}")
    if part not in PARTS:
        raise ConfigError(f"{place}: part={part}; expected key, value or header")
    if "header" in row and part != HEADER:
        raise ConfigError(f"{place}: header needs part={HEADER}")
    return Rule(_texts(row.get("topics"), f"{place}: topics"), _steps(row.get("path", "$"), place),
                action, str(row.get("replacement", "…")),
                _texts(row.get("exempt", []), f"{place}: exempt"), part,
                _texts(row.get("header", "*"), f"{place}: header"))


def _texts(given: Any, place: str) -> tuple[str, ...]:
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"{place}: expected a list of texts")
    return tuple(texts)


def _steps(path: Any, place: str) -> tuple[str, ...]:
    """Return the steps of `$.a.b[*].c`. Raises ConfigError."""
    rest = path[1:] if isinstance(path, str) and path.startswith("$") else None
    if rest is None or _STEP.sub("", rest):
        raise ConfigError(f"{place}: path={path}; expected a path such as $.customer.cards[*].pan")
    return tuple(name or every for name, every in _STEP.findall(rest))


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _replaced(value: Any, steps: Sequence[str], rule: Rule) -> Any:
    """Return a JSON value with a rule's field masked. Other values stay the same."""
    if not steps:
        return _ACTIONS[rule.action](value, rule)
    if isinstance(value, list):
        # A list in the place of an object: hide the field in each of its items.
        rest = steps[1:] if steps[0] == "*" else steps
        return [_replaced(item, rest, rule) for item in value]
    if isinstance(value, dict):
        if steps[0] == "*":
            return {name: _replaced(item, steps[1:], rule) for name, item in value.items()}
        if steps[0] in value:
            return {**value, steps[0]: _replaced(value[steps[0]], steps[1:], rule)}
    return value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _last4(value: Any, rule: Rule) -> str:
    text = _text(value)
    return f"…{text[-4:]}" if len(text) > 8 else "…"


_ACTIONS: dict[str, Callable[[Any, Rule], str]] = {
    "hide": lambda value, rule: "(hidden)",
    "hash": lambda value, rule: hmac.digest(
        _HASH_KEY, _text(value).encode(errors="replace"), "sha256").hex()[:HASH_CHARACTERS],
    "last4": _last4,
    "replace": lambda value, rule: rule.replacement,
}

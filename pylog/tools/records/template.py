"""Print records with a template such as `%t [%p] %o: %k %s\\n`, like kcat's -f.

Owns: the table of % directives.
Invariants: keys and values are written as unchanged bytes; nothing is added, not even a newline.
Source: kcat's manual, for the letters; compared with a kcat in tests/tools.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

import click

Part = Callable[[Any], bytes]

_TOKEN = re.compile(r"%(.?)|\\x([0-9a-fA-F]{2})|\\(.)", re.DOTALL)
_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "\\": b"\\", "0": b"\0"}


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _headers(record: Any) -> bytes:
    return b",".join([key.encode() + b"=" + (b"NULL" if value is None else bytes(value))
                      for key, value in record.headers])


LETTERS: dict[str, tuple[str, Part]] = {
    "s": ("the value", lambda record: record.value or b""),
    "S": ("its length, -1 for none", lambda record: b"%d" % _length(record.value)),
    "R": ("the same as 4 bytes", lambda record: struct.pack(">i", _length(record.value))),
    "k": ("the key", lambda record: record.key or b""),
    "K": ("its length", lambda record: b"%d" % _length(record.key)),
    "T": ("the time in ms", lambda record: b"%d" % record.timestamp),
    "h": ("the headers", _headers),
    "t": ("the topic", lambda record: record.topic.encode()),
    "p": ("the partition", lambda record: b"%d" % record.partition),
    "o": ("the offset", lambda record: b"%d" % record.offset),
    "%": ("a %", lambda record: b"%"),
}


def compiled(text: str) -> Callable[[Any], bytes]:
    """Return a function that formats a record as bytes. Raises click.BadParameter."""
    parts: list[Part] = []
    at = 0
    for found in _TOKEN.finditer(text):
        if found.start() > at:
            parts.append(_plain(text[at:found.start()].encode()))
        parts.append(_part(found))
        at = found.end()
    if at < len(text):
        parts.append(_plain(text[at:].encode()))
    return lambda record: b"".join([part(record) for part in parts])


def _part(found: re.Match[str]) -> Part:
    letter, digits, escape = found.groups()
    if digits is not None:
        return _plain(bytes.fromhex(digits))
    if escape is not None:
        return _plain(_ESCAPES.get(escape, found[0].encode()))
    if letter not in LETTERS:
        known = ", ".join(f"%{one} {meaning}" for one, (meaning, _) in LETTERS.items())
        raise click.BadParameter(f"%{letter} is not a field; expected one of {known}")
    return LETTERS[letter][1]


def _plain(data: bytes) -> Part:
    return lambda record: data

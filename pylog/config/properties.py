"""Parses Java .properties text: lines, continuations, escapes.

Owns: nothing.
Invariants: the result is the same as from java.util.Properties, also for repeated keys (the last
  value wins).
Source: the file format in java.util.Properties' documentation. Rejected because of import time:
  javaproperties (23 ms, this module 0.6) and jproperties (1.3 ms, but it treats a comment after an
  empty continuation as a key). Neither returns line numbers, which our messages need.
"""

from .errors import ConfigError

_BLANK = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse(text: str, path: str) -> dict[str, tuple[str, int]]:
    """Return key -> (value, line number of the entry, from 1).

    path: of the file, for messages. Raises ConfigError.
    """
    entries = {}
    for number, line in _logical_lines(text):
        key, value = _split(line)
        location = f"{path}:{number}"
        entries[_unescape(key, location)] = (_unescape(value, location), number)
    return entries


def _logical_lines(text: str):
    """Yield lines without comments, with continuations joined, and the number of the first line."""
    held, first = None, 0
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for number, raw in enumerate(lines, 1):
        line = raw.lstrip(_BLANK)
        if held is None:
            if not line or line[0] in "#!":
                continue
            held, first = "", number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2 and number < len(lines):
            # For Java, an empty continuation does not continue: the next line may be a comment.
            held = held + line[:-1] or None
            continue
        yield first, held + (line[:-1] if backslashes % 2 else line)
        held = None
    if held is not None:
        yield first, held


def _split(line: str) -> tuple[str, str]:
    """Split a line at the first unescaped `=`, `:` or space, and strip spaces around it."""
    end = 0
    while end < len(line) and line[end] not in "=:" + _BLANK:
        end += 2 if line[end] == "\\" else 1
    rest = line[end:].lstrip(_BLANK)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANK)
    return line[:end], rest


def _unescape(text: str, location: str) -> str:
    if "\\" not in text:
        return text
    parts, at = [], 0
    while at < len(text):
        char = text[at]
        at += 1
        if char != "\\" or at == len(text):
            # Java drops a single backslash at the end of the file.
            parts.append("" if char == "\\" else char)
            continue
        char = text[at]
        at += 1
        if char == "u":
            digits = text[at:at + 4]
            if len(digits) != 4 or any(d not in "0123456789abcdefABCDEF" for d in digits):
                raise ConfigError(f"\\u{digits}: \\u needs four hexadecimal digits, a "
                                  f"backslash by itself is \\\\ ({location})")
            parts.append(chr(int(digits, 16)))
            at += 4
        else:
            parts.append(_ESCAPES.get(char, char))
    return "".join(parts)

"""Java .properties text: lines, continuation, escapes.

Owns: nothing.
Invariants: (1) what java.util.Properties reads, this reads the same, duplicate keys included
  (the last one counts).
Source: the file format in java.util.Properties' documentation. Weighed, by the time of an import:
  javaproperties (23 ms; this 0.6) and jproperties (1.3 ms, but it takes a comment after an empty
  continuation for a key); neither gives the line of an entry, which messages name.
"""

from .errors import ConfigError

_BLANK = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse(text: str, path: str) -> dict[str, tuple[str, int]]:
    """Key -> (value, number of the line where the entry begins, from 1).

    path: of the file, for messages. Raises ConfigError.
    """
    entries = {}
    for number, line in _logical_lines(text):
        key, value = _split(line)
        place = f"{path}:{number}"
        entries[_unescape(key, place)] = (_unescape(value, place), number)
    return entries


def _logical_lines(text: str):
    """Lines with comments dropped and continuations joined, each with its first line's number."""
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
            # Nothing held yet: to Java the next line begins afresh, a comment perhaps.
            held = held + line[:-1] or None
            continue
        yield first, held + (line[:-1] if backslashes % 2 else line)
        held = None
    if held is not None:
        yield first, held


def _split(line: str) -> tuple[str, str]:
    """Key and value: parted by the first unescaped `=`, `:` or blank, and blanks around it."""
    end = 0
    while end < len(line) and line[end] not in "=:" + _BLANK:
        end += 2 if line[end] == "\\" else 1
    rest = line[end:].lstrip(_BLANK)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANK)
    return line[:end], rest


def _unescape(text: str, place: str) -> str:
    if "\\" not in text:
        return text
    parts, at = [], 0
    while at < len(text):
        char = text[at]
        at += 1
        if char != "\\" or at == len(text):
            # A lone backslash at the end of the file joins nothing: Java drops it.
            parts.append("" if char == "\\" else char)
            continue
        char = text[at]
        at += 1
        if char == "u":
            digits = text[at:at + 4]
            if len(digits) != 4 or any(d not in "0123456789abcdefABCDEF" for d in digits):
                raise ConfigError(f"\\u{digits}: \\u needs four hexadecimal digits, a "
                                  f"backslash by itself is \\\\ ({place})")
            parts.append(chr(int(digits, 16)))
            at += 4
        else:
            parts.append(_ESCAPES.get(char, char))
    return "".join(parts)

"""Show bytes and text from a cluster on a terminal: names, values and messages are untrusted.

Owns: nothing.
Invariants: control characters, direction marks and lone surrogates become JSON escapes, so that
  text cannot move the cursor, change colours or reverse a line, and JSON keeps its meaning.
Source: ECMA-48 (control sequences); Unicode's categories C, Zl and Zp; RFC 8259.
"""

from __future__ import annotations

import json
import unicodedata

SPACE = "Zs"  # Harmless, though str.isprintable() rejects all of it except U+0020.


def escaped(text: str, allowed: str = "") -> str:
    """Return text with every character that is not printable as a JSON escape, such as \\u001b.

    allowed: characters that stay as they are.
    """
    if text.isprintable():
        return text
    return "".join([
        sign if sign.isprintable() or sign in allowed or unicodedata.category(sign) == SPACE
        else json.dumps(sign)[1:-1] for sign in text])


def one_line(message: object) -> str:
    """Return an error message as one escaped line."""
    return escaped(" ".join(str(message).split()))


def text_of(data: bytes | None) -> str | None:
    """Return bytes as text if they are UTF-8, else as 0x and hexadecimal digits.

    A text that begins with 0x is also returned as digits, so that the result can be parsed back.
    """
    if data is None:
        return None
    try:
        text = bytes(data).decode()
    except UnicodeDecodeError:
        return "0x" + bytes(data).hex()
    return "0x" + bytes(data).hex() if text.startswith("0x") else text

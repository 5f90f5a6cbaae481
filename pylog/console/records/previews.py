"""Keys and values of records as short texts for a table.

Owns: nothing.
Invariants: a text never passes the limit; bytes that are not readable text are shown in
  hexadecimal, never guessed.
"""

from __future__ import annotations

from typing import NamedTuple

CHARACTERS_MAX = 300
HEX_BYTES_MAX = 64


class Preview(NamedTuple):
    """kind: text, hex, null or empty. cut: bytes that are not shown."""

    text: str
    kind: str
    cut: int

    @property
    def shown(self) -> str:
        """Return the text of a table cell."""
        if self.kind in ("null", "empty"):
            return self.kind
        return f"{self.text}…" if self.cut else self.text


def preview(data: bytes | None) -> Preview:
    """Return the beginning of a key or value."""
    if data is None:
        return Preview("", "null", 0)
    if not data:
        return Preview("", "empty", 0)
    head = data[:4 * CHARACTERS_MAX]
    try:
        text = head.decode()
    except UnicodeDecodeError as failure:
        # The cut may be inside a character.
        if len(head) == len(data) or failure.start < len(head) - 3:
            return Preview("0x" + data[:HEX_BYTES_MAX].hex(), "hex",
                           max(0, len(data) - HEX_BYTES_MAX))
        text = head[:failure.start].decode()
    if any(not (c.isprintable() or c in "\n\r\t") for c in text[:CHARACTERS_MAX]):
        return Preview("0x" + data[:HEX_BYTES_MAX].hex(), "hex", max(0, len(data) - HEX_BYTES_MAX))
    text = text[:CHARACTERS_MAX]
    return Preview(text, "text", len(data) - len(text.encode()))


def whole_text(data: bytes | None) -> str | None:
    """Return the text for a download: UTF-8, or 0x and hexadecimal digits."""
    if data is None:
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "0x" + data.hex()
    return "0x" + data.hex() if text.startswith("0x") else text

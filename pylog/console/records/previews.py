"""Keys, values and headers of records as short texts for a table, and as texts for a file.

Owns: nothing.
Invariants: only bytes that the user may see become text; a text in a table never passes the limit;
  bytes that are not readable text are shown in hexadecimal, never guessed.
"""

from __future__ import annotations

from typing import NamedTuple

from pylog.console.records.masking import Visible
from pylog.console.values.column_formats import ColumnFormat

CHARACTERS_MAX = 300
HEX_BYTES_MAX = 64


class Preview(NamedTuple):
    """kind: text, hex, null or empty. cut: bytes that are not shown. note: how the bytes were
    decoded, or why they could not be, else "".
    """

    text: str
    kind: str
    cut: int
    note: str = ""

    @property
    def shown(self) -> str:
        """Return the text of a table cell."""
        if self.kind in ("null", "empty"):
            return self.kind
        return f"{self.text}…" if self.cut else self.text


def preview(visible: Visible, form: ColumnFormat | None = None) -> Preview:
    """Return the beginning of a key, value or header, in the chosen format, if any."""
    data = _data(visible)
    if data is None:
        return Preview("", "null", 0)
    if form is not None and form.is_plain:
        try:
            text = form.text(data)
            return Preview(text[:CHARACTERS_MAX], "text",
                           len(text[CHARACTERS_MAX:].encode(errors="replace")))
        except ValueError as failure:
            return _guessed(data)._replace(note=str(failure)[:CHARACTERS_MAX])
    return _guessed(data)._replace(note=_note(visible))


def _data(visible: Visible) -> bytes | None:
    """Return the bytes. Raises TypeError for bytes that no mask has passed."""
    if not isinstance(visible, Visible):
        raise TypeError(f"{type(visible).__name__}: only what console.masks made visible is shown")
    return visible.data


def _note(visible: Visible) -> str:
    parts = [visible.name, visible.error[:CHARACTERS_MAX]]
    return ": ".join(filter(None, parts))


def _guessed(data: bytes) -> Preview:
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


def whole_text(visible: Visible, form: ColumnFormat | None = None) -> str | None:
    """Return the text for a download: in the chosen format if the bytes fit it, UTF-8, or 0x and
    hexadecimal digits.
    """
    data = _data(visible)
    if data is None:
        return None
    if form is not None and form.is_plain:
        try:
            return form.text(data)
        except ValueError:
            pass
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "0x" + data.hex()
    return "0x" + data.hex() if text.startswith("0x") else text

"""Bytes of keys, values and headers as text, JSON, numbers, UUID and hexadecimal.

Owns: nothing.
Invariants: only bytes that the user may see become text; a guess is named as one on the page;
  numbers become text here, so that no script rounds a 64-bit integer.
Source: Kafka's String, Integer, Long, Float, Double and UUID deserializers.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import NamedTuple

from pylog.client.errors import SerializationError
from pylog.client.serialization import plain
from pylog.console.records.masking import Visible
from pylog.console.values.column_formats import TITLES, ColumnFormat

SHOWN_BYTES_MAX = 256 << 10
HEX_SHOWN_BYTES_MAX = 4096
HEX_ROW_BYTES = 16
UUID_BYTES, UUID_CHARACTERS = 16, 36


class Decoding(NamedTuple):
    """One way to read bytes. cut: bytes at the end that the text leaves out."""

    name: str
    text: str
    cut: int = 0


def decodings(visible: Visible) -> list[Decoding]:
    """Return the ways in which these bytes can be read, the most likely first, hexadecimal last:
    none for null. Raises TypeError for bytes that no mask has passed.
    """
    if not isinstance(visible, Visible):
        raise TypeError(f"{type(visible).__name__}: only what console.masks made visible is shown")
    data = visible.data
    if data is None:
        return []
    if visible.name and not visible.error:
        found = [one._replace(name=visible.name) for one in _texts(data)[:1]]
        if visible.raw is None:
            return found
        data = visible.raw
    else:
        found = [*_texts(data), *_numbers(data)]
        if len(data) == UUID_BYTES:
            found.append(Decoding("UUID", str(uuid.UUID(bytes=data))))
    return [*found, Decoding("hexadecimal", hex_dump(data[:HEX_SHOWN_BYTES_MAX]),
                             max(0, len(data) - HEX_SHOWN_BYTES_MAX))]


def chosen(visible: Visible, form: ColumnFormat) -> list[Decoding]:
    """Return the decodings, that of a chosen format first. Raises TypeError as decodings() does."""
    found = decodings(visible)
    if visible.data is None or not form.is_plain:
        return found
    try:
        first = Decoding(TITLES[form.name], form.text(visible.data))
    except ValueError as failure:
        first = Decoding(f"not shown as {TITLES[form.name]}", str(failure))
    return [first, *found]


def _texts(data: bytes) -> list[Decoding]:
    """Return the bytes as JSON and as text; nothing if they are not printable UTF-8."""
    head, cut = data[:SHOWN_BYTES_MAX], max(0, len(data) - SHOWN_BYTES_MAX)
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        if not cut or error.start < len(head) - 3:
            return []
        text = head[:error.start].decode()  # The cut is inside a character.
    if not all(c.isprintable() or c in "\n\r\t" for c in text) and any(c < " " and c not in "\n\r\t"
                                                                        for c in text):
        return []
    found = []
    if not cut and text.lstrip()[:1] in tuple("{[\""):
        pretty = _pretty(text)
        if pretty is not None:
            found.append(Decoding("JSON", pretty))
    if len(text) == UUID_CHARACTERS:
        try:
            found.append(Decoding("UUID", str(uuid.UUID(text))))
        except ValueError:
            pass
    return [*found, Decoding("text", text, cut)]


class _Literal(float):
    """A JSON number that is written as it was read."""

    def __new__(cls, text: str) -> _Literal:
        made = super().__new__(cls, text)
        made.text = text
        return made

    text: str

    def __repr__(self) -> str:
        return self.text


def _pretty(text: str) -> str | None:
    """Return JSON with line breaks, its numbers unchanged; None if it is not JSON."""
    try:
        value = json.loads(text, parse_float=_Literal, parse_int=_Literal)
    except (ValueError, RecursionError):
        return None
    lines: list[str] = []
    try:
        _write(value, "", lines.append)
    except RecursionError:
        return None
    return "".join(lines)


def _write(value: object, indent: str, out: Callable[[str], object]) -> None:
    deeper = indent + "  "
    if isinstance(value, dict) and value:
        out("{")
        for number, (name, item) in enumerate(value.items()):
            out(f"{',' if number else ''}\n{deeper}{json.dumps(name, ensure_ascii=False)}: ")
            _write(item, deeper, out)
        out(f"\n{indent}}}")
    elif isinstance(value, list) and value:
        out("[")
        for number, item in enumerate(value):
            out(f"{',' if number else ''}\n{deeper}")
            _write(item, deeper, out)
        out(f"\n{indent}]")
    else:
        out(value.text if isinstance(value, _Literal) else json.dumps(value, ensure_ascii=False))


def _numbers(data: bytes) -> list[Decoding]:
    """Return the bytes as the numbers of Kafka's serializers that have this length."""
    forms: dict[int, list[tuple[str, plain.Format[int] | plain.Format[float]]]] = {
        2: [("16-bit integer", plain.Int16())],
        4: [("32-bit integer", plain.Int32()), ("32-bit float", plain.Float32())],
        8: [("64-bit integer", plain.Int64()), ("64-bit float", plain.Float64())]}
    found = []
    for name, form in forms.get(len(data), ()):
        try:
            found.append(Decoding(name, repr(form.decode(data))))
        except SerializationError:
            continue
    return found


def hex_dump(data: bytes) -> str:
    """Return lines of offset, bytes and printable ASCII characters."""
    lines = []
    for at in range(0, len(data), HEX_ROW_BYTES):
        row = data[at:at + HEX_ROW_BYTES]
        shown = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        lines.append(f"{at:08x}  {row.hex(' '):<{3 * HEX_ROW_BYTES - 1}}  {shown}")
    return "\n".join(lines)

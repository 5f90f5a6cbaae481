"""Bytes of keys and values from the text of a form, and the text that a form shows for bytes.

Owns: nothing.
Invariants: `shown` gives a format and a text from which `encoded` makes the same bytes.
Source: Kafka's String, Integer, Long, Float, Double and UUID serializers.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable

from pylog.client.errors import SerializationError
from pylog.client.serialization import plain
from pylog.console.pages import PageError
from pylog.console.records.masking import Visible

TEXT, JSON, HEX, NULL = "text", "json", "hex", "null"
FORMATS = {
    TEXT: "text (UTF-8)", JSON: "JSON", HEX: "hexadecimal bytes", "int16": "16-bit integer",
    "int32": "32-bit integer", "int64": "64-bit integer", "float32": "32-bit float",
    "float64": "64-bit float", "uuid": "UUID", NULL: "no value (null)"}
SCHEMA_TITLE = "by schema registry: Avro, Protobuf, JSON Schema"
HEADERS_MAX = 1000


def _json(text: str) -> bytes:
    json.loads(text)  # Only checked: the bytes are those that the user wrote.
    return text.encode()


def _number(form: plain.Format[int] | plain.Format[float], kind: type) -> Callable[[str], bytes]:
    return lambda text: form.serialize("", kind(text.strip()))


_ENCODERS: dict[str, Callable[[str], bytes]] = {
    TEXT: str.encode, JSON: _json,
    HEX: lambda text: bytes.fromhex("".join(text.split()).removeprefix("0x")),
    "int16": _number(plain.Int16(), int), "int32": _number(plain.Int32(), int),
    "int64": _number(plain.Int64(), int), "float32": _number(plain.Float32(), float),
    "float64": _number(plain.Float64(), float),
    "uuid": lambda text: str(uuid.UUID(text.strip())).encode()}


def encoded(text: str, form: str, label: str) -> bytes | None:
    """Return the bytes of a form's field, None for null. Raises PageError."""
    if form == NULL:
        return None
    if form not in _ENCODERS:
        raise PageError(400, "There is no such format", form[:50])
    try:
        return _ENCODERS[form](text)
    except (ValueError, SerializationError) as error:
        raise PageError(400, f"{label} is not valid as {FORMATS[form]}", text[:200],
                        str(error)) from None


def shown(visible: Visible) -> tuple[str, str]:
    """Return (text, format) of bytes for a form: text if the browser sends it back unchanged.
    Raises TypeError for bytes that no mask has passed.
    """
    if not isinstance(visible, Visible):
        raise TypeError(f"{type(visible).__name__}: only what console.masks made visible is shown")
    data = visible.raw
    if data is None:
        return "", NULL
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return data.hex(), HEX
    # Forms change line ends and lose control characters.
    if all(c.isprintable() or c == "\n" for c in text):
        return text, TEXT
    return data.hex(), HEX


def headers_of(text: str) -> list[tuple[str, bytes | None]]:
    """Return the headers of a form's lines: NAME=TEXT, NAME:hex=00ff, or NAME for null. Raises
    PageError.
    """
    found: list[tuple[str, bytes | None]] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        name, sign, value = line.partition("=")
        name, is_hex = name.removesuffix(":hex"), name.endswith(":hex")
        found.append((name.strip(), encoded(value, HEX if is_hex else TEXT, f"Header {name}")
                      if sign else None))
    if len(found) > HEADERS_MAX:
        raise PageError(400, "The record has too many headers", str(len(found)),
                        f"Send at most {HEADERS_MAX}.")
    return found


def header_lines(headers: list[tuple[str, Visible]]) -> str:
    """Return the lines of a form for these headers."""
    lines = []
    for name, value in headers:
        text, form = shown(value)
        if form == TEXT and "\n" in text:
            assert value.raw is not None
            text, form = value.raw.hex(), HEX
        lines.append(name if form == NULL else f"{name}:hex={text}" if form == HEX
                     else f"{name}={text}")
    return "\n".join(lines)

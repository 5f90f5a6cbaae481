"""How the keys and values of a page are shown: guessed, or in a format of the page's address.

Owns: nothing.
Invariants: bytes that are not in a chosen format are shown as bytes, with the reason.
Source: Kafka's String, Integer, Long, Float, Double and UUID serializers.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pylog.client.errors import SerializationError
from pylog.client.serialization import plain
from pylog.console.pages import PageError, integer

KEY, VALUE = "key", "value"
AUTO, SCHEMA, MESSAGE_PACK = "auto", "schema", "msgpack"
SCHEMA_ID_MAX = 2**31 - 1


def _text(data: bytes) -> str:
    return data.decode()


def _json(data: bytes) -> str:
    json.loads(data)
    return data.decode()


def _number(form: plain.Format[int] | plain.Format[float]) -> Callable[[bytes], str]:
    return lambda data: repr(form.deserialize(data))


_READERS: dict[str, Callable[[bytes], str]] = {
    "text": _text, "json": _json, "hex": lambda data: f"0x{data.hex()}",
    "base64": lambda data: base64.b64encode(data).decode(),
    "int16": _number(plain.Int16()), "int32": _number(plain.Int32()),
    "int64": _number(plain.Int64()), "float32": _number(plain.Float32()),
    "float64": _number(plain.Float64()), "uuid": lambda data: str(
        uuid.UUID(bytes=data) if len(data) == 16 else uuid.UUID(data.decode()))}
TITLES = {
    AUTO: "guessed", SCHEMA: "by schema registry: Avro, Protobuf, JSON Schema",
    MESSAGE_PACK: "MessagePack", "text": "text (UTF-8)", "json": "JSON", "hex": "hexadecimal",
    "base64": "base64", "int16": "16-bit integer", "int32": "32-bit integer",
    "int64": "64-bit integer", "float32": "32-bit float", "float64": "64-bit float",
    "uuid": "UUID"}
# Names of a query that choose formats.
NAMES = ("key_as", "value_as", "key_schema", "value_schema")


@dataclass(frozen=True)
class ColumnFormat:
    """The format of keys or of values. schema_id: of bytes that do not name their schema; 0: they
    name it.
    """

    name: str = AUTO
    schema_id: int = 0

    def text(self, data: bytes) -> str:
        """Return bytes in a format that needs no schema. Raises ValueError."""
        try:
            return _READERS[self.name](data)
        except (ValueError, SerializationError) as failure:
            raise ValueError(f"it is not {TITLES[self.name]}: {failure}") from None

    @property
    def is_plain(self) -> bool:
        """Return True if the format is chosen and needs no schema."""
        return self.name in _READERS


def formats_of(query: Mapping[str, str]) -> dict[str, ColumnFormat]:
    """Return the format of each part. Raises PageError."""
    found = {}
    for part in (KEY, VALUE):
        name = query.get(f"{part}_as") or AUTO
        if name not in TITLES:
            raise PageError(400, "There is no such format", name[:100],
                            f"Choose one of {', '.join(TITLES)}.")
        number = query.get(f"{part}_schema", "").strip()
        found[part] = ColumnFormat(name, integer(
            number, "The id of the schema", 1, SCHEMA_ID_MAX) if number and name == SCHEMA else 0)
    return found

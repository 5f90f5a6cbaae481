"""Typed objects as JSON or MessagePack: msgspec structs and Pydantic models.

Owns: the encoder and decoder of each format.
Invariants: a value that does not fit its type raises SerializationError; the libraries are imported
  when a format is created.
Source: msgspec; Pydantic 2 (TypeAdapter).
"""

from __future__ import annotations

from typing import Literal, TypeVar

from pylog.client.extras import require
from pylog.client.serialization.plain import Format

T = TypeVar("T")


class Msgspec(Format[T]):
    """Objects of one type as msgspec encodes them: structs, dataclasses, lists, numbers.

    kind: the type, which values are checked against when they are read. encoding: "json", or
    "msgpack". Raises MissingExtraError without the library: pip install 'pylog-broker[msgspec]'.
    """

    def __init__(self, kind: type[T], *, encoding: Literal["json", "msgpack"] = "json"):
        require("Msgspec", "msgspec")
        import msgspec

        library = msgspec.json if encoding == "json" else msgspec.msgpack
        self._encode = library.Encoder().encode
        self._decode = library.Decoder(kind).decode

    def encode(self, value: T) -> bytes:
        return self._encode(value)

    def decode(self, data: bytes) -> T:
        # msgspec's errors are ValueErrors, which become SerializationErrors.
        found: T = self._decode(data)
        return found


class Pydantic(Format[T]):
    """Objects of one type as Pydantic's JSON: models, dataclasses, lists of them.

    kind: the type, which values are checked against when they are read. Raises MissingExtraError
    without the library: pip install 'pylog-broker[pydantic]'.
    """

    def __init__(self, kind: type[T]):
        require("Pydantic", "pydantic")
        import pydantic

        self._adapter = pydantic.TypeAdapter(kind)

    def encode(self, value: T) -> bytes:
        return self._adapter.dump_json(value)

    def decode(self, data: bytes) -> T:
        # Pydantic's ValidationError is a ValueError, which becomes a SerializationError.
        return self._adapter.validate_json(data)

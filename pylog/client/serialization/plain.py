"""Text and numbers as Kafka's own serializers encode them.

Owns: nothing.
Invariants: deserialize reverses serialize; bytes of another length or encoding raise
  SerializationError.
Source: Kafka's String, Integer, Long, Float, Double and UUID serializers.
"""

from __future__ import annotations

import struct
import uuid
from typing import Generic, TypeVar

from pylog.client.errors import SerializationError

T = TypeVar("T")


class Format(Generic[T]):
    """Base class of formats for both directions. A subclass has `encode` and `decode`."""

    def encode(self, value: T, /) -> bytes:
        """Return the bytes of a value."""
        raise TypeError(f"{type(self).__name__} has no encode()")

    def decode(self, data: bytes, /) -> T:
        """Return the value of these bytes."""
        raise TypeError(f"{type(self).__name__} has no decode()")

    def serialize(self, topic: str, value: T, /) -> bytes:
        """Return the bytes of a value. Raises SerializationError."""
        try:
            return self.encode(value)
        except (TypeError, ValueError, struct.error, AttributeError) as failure:
            raise SerializationError(
                f"{topic}: {type(self).__name__} cannot write {value!r:.100}: {failure}"
            ) from failure

    def deserialize(self, data: bytes, /) -> T:
        """Return the value of these bytes. Raises SerializationError."""
        try:
            return self.decode(data)
        except (TypeError, ValueError, struct.error) as failure:
            raise SerializationError(
                f"{type(self).__name__} cannot read {len(data)} bytes: {failure}") from failure


class Bytes(Format[bytes]):
    """Bytes without conversion."""

    def encode(self, value: bytes) -> bytes:
        return bytes(value)

    def decode(self, data: bytes) -> bytes:
        return data


class Text(Format[str]):
    """A str in `encoding`."""

    def __init__(self, encoding: str = "utf-8"):
        self.encoding = encoding

    def encode(self, value: str) -> bytes:
        return value.encode(self.encoding)

    def decode(self, data: bytes) -> str:
        return data.decode(self.encoding)


class _Packed(Format[T]):
    """A big-endian number of fixed width."""

    code = ""

    def __init__(self) -> None:
        self._struct = struct.Struct(f">{self.code}")

    def encode(self, value: T) -> bytes:
        return self._struct.pack(value)

    def decode(self, data: bytes) -> T:
        found: T = self._struct.unpack(data)[0]
        return found


class Int16(_Packed[int]):
    """Kafka's ShortSerializer."""

    code = "h"


class Int32(_Packed[int]):
    """Kafka's IntegerSerializer."""

    code = "i"


class Int64(_Packed[int]):
    """Kafka's LongSerializer."""

    code = "q"


class Float32(_Packed[float]):
    """Kafka's FloatSerializer."""

    code = "f"


class Float64(_Packed[float]):
    """Kafka's DoubleSerializer."""

    code = "d"


class Uuid(Format[uuid.UUID]):
    """Kafka's UUIDSerializer: as text."""

    def encode(self, value: uuid.UUID) -> bytes:
        return str(value).encode()

    def decode(self, data: bytes) -> uuid.UUID:
        return uuid.UUID(data.decode())

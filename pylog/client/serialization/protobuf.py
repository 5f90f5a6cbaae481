"""Protobuf messages, as plain bytes or in Confluent's wire format.

Owns: the head of the values of each topic.
Invariants: with a registry, a value begins with a zero byte, the big-endian id of its schema and
  the indexes of its message in the schema's file; protobuf is imported when a format is created.
Source: Confluent's wire format; confluent-kafka's ProtobufSerializer (schemas are registered as
  base64 of the file's descriptor).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pylog.client.errors import SerializationError
from pylog.client.extras import require
from pylog.client.serialization.avro import HEAD, MAGIC, schema_id, topic_name
from pylog.client.serialization.plain import Format
from pylog.client.serialization.registry import Schema, SchemaRegistry

M = TypeVar("M")
KIND = "PROTOBUF"
INDEX_BYTES_MAX = 5
# Files that every implementation of Protobuf contains, so that no registry needs them.
KNOWN_FILES = "google/protobuf/"


class Protobuf(Format[M]):
    """Messages of one class that protoc generated.

    kind: the class. registry: None for plain messages; otherwise values have Confluent's wire
    format, and the schema is registered when the first value is sent. subject, register and is_key:
    as for Avro. Values of other versions of the schema are read as `kind` too: Protobuf skips
    fields that `kind` lacks. Raises MissingExtraError without the library: pip install
    'pylog-broker[protobuf]'.
    """

    def __init__(self, kind: type[M], registry: SchemaRegistry | None = None, *,
                 is_key: bool = False, subject: Callable[[str, bool, str], str] = topic_name,
                 register: bool = True):
        message = require("Protobuf", "google.protobuf.message")
        self._failures = (message.DecodeError, message.EncodeError)
        self._type: Any = kind
        self.registry, self.is_key, self.subject, self.register = (
            registry, is_key, subject, register)
        self._heads: dict[str, bytes] = {}

    def serialize(self, topic: str, value: M, /) -> bytes:
        try:
            if not isinstance(value, self._type):
                raise TypeError(f"it is no {self._type.__name__}")
            data: bytes = value.SerializeToString()
        except (TypeError, ValueError, *self._failures) as failure:
            raise SerializationError(
                f"{topic}: Protobuf cannot write {value!r:.100}: {failure}") from failure
        if self.registry is None:
            return data
        return (self._heads.get(topic) or self._head(self.registry, topic)) + data

    def deserialize(self, data: bytes, /) -> M:
        if self.registry is not None:
            schema_id(data)
            data = memoryview(data)[message_indexes(data, HEAD.size)[1]:].tobytes()
        try:
            found: M = self._type.FromString(data)
        except (ValueError, *self._failures) as failure:
            raise SerializationError(
                f"Protobuf cannot read {len(data)} bytes as {self._type.__name__}: {failure}"
            ) from failure
        return found

    def _head(self, registry: SchemaRegistry, topic: str) -> bytes:
        described = self._type.DESCRIPTOR
        subject = self.subject(topic, self.is_key, described.full_name)
        schema = _schema(registry, described.file, self.register)
        number = (registry.register if self.register else registry.lookup)(subject, schema)
        head = self._heads[topic] = HEAD.pack(MAGIC, number) + _indexes(described)
        return head


def _schema(registry: SchemaRegistry, file: Any, register: bool) -> Schema:
    """Return the schema of a file. Registers the files that it imports under their names."""
    references = []
    for other in file.dependencies:
        if other.name.startswith(KNOWN_FILES):
            continue
        imported = _schema(registry, other, register)
        if register:
            registry.register(other.name, imported)
        references.append((other.name, other.name, registry.version_of(other.name, imported)))
    text = base64.b64encode(file.serialized_pb).decode()
    return Schema(text, KIND, tuple(references))


def _indexes(described: Any) -> bytes:
    """Return the bytes of the path of a message type in its file."""
    path: list[int] = []
    while described is not None:
        outer = described.containing_type
        others = (described.file.message_types_by_name.values() if outer is None
                  else outer.nested_types)
        path.insert(0, [one.name for one in others].index(described.name))
        described = outer
    return index_bytes(path)


def index_bytes(path: Sequence[int]) -> bytes:
    """Return the bytes of a message type's path: the number of indexes, then each, as zigzag
    varints. The first type of a file, [0], is written as a single zero.
    """
    if list(path) == [0]:
        return b"\0"
    return b"".join(_varint(number << 1) for number in (len(path), *path))


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*made, number])


def message_indexes(data: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """Return the message indexes at `at`, and the position after them. Raises SerializationError.
    """
    count, at = _read(data, at)
    indexes = []
    for _ in range(min(count, len(data))):
        number, at = _read(data, at)
        indexes.append(number)
    return tuple(indexes) or (0,), at


def _read(data: bytes, at: int) -> tuple[int, int]:
    """Return the zigzag varint at a position, and the position after it."""
    number = 0
    for shift in range(0, 7 * INDEX_BYTES_MAX, 7):
        if at == len(data):
            break
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if not byte & 0x80:
            if number & 1:
                break  # No index is negative.
            return number >> 1, at
    raise SerializationError("not in Confluent's wire format: no message indexes after the schema "
                             "id")

"""Records of internal topics: metadata records in KRaft's frame, coordinator records with a
version.

Owns: nothing.
Invariants: a metadata record consists of the frame version 1, its type and version as unsigned
  varints, and its body; a coordinator record's key starts with its type, and its value with the
  value's version, each as int16.
Source: KIP-631 (metadata records); Kafka's coordinator schemas.
"""

from __future__ import annotations

from pylog._native.protocol.message import Struct
from pylog.protocol import codec, tables
from pylog.protocol.codec import Bytes, Program
from pylog.protocol.errors import ProtocolError, UnsupportedVersion

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

FRAME_VERSION = 1


def encode_record(version: int, record: Struct) -> bytes:
    """Encode the value of a metadata record, e.g. a `TopicRecord`. Raises ProtocolError."""
    name = type(record).__name__
    number = tables.message(name).id
    assert number is not None and number < 128 > version >= 0, (name, number, version)
    return codec.program(name, version).encode(record, bytes((FRAME_VERSION, number, version)))


def decode_record(value: Bytes) -> tuple[int, Any]:
    """Return (version, record) from the value of a metadata record. Raises ProtocolError."""
    data = memoryview(value)
    frame, position = _uvarint(data, 0)
    if frame != FRAME_VERSION:
        raise ProtocolError(
            f"metadata record in frame version {frame}: only {FRAME_VERSION} is known")
    number, position = _uvarint(data, position)
    version, position = _uvarint(data, position)
    try:
        name = tables.name_of("record", number)
    except KeyError:
        raise ProtocolError(f"no metadata record {number}") from None
    return version, codec.program(name, version).decode(data, position)


def encode_key(key: Struct) -> bytes:
    """Encode a coordinator record's key, e.g. an `OffsetCommitKey`: its type, then its fields."""
    cls = type(key)
    return (_key_writers.get(cls) or _key_writer(cls))(key)


def encode_value(version: int, value: Struct) -> bytes:
    """Encode a coordinator record's value, e.g. an `OffsetCommitValue`: its version, then its
    fields.
    """
    cls = type(value)
    return (_value_writers.get((cls, version)) or _value_writer(cls, version))(value)


def value_writer(name: str, version: int) -> Callable[[Struct], bytes]:
    """Return encode_value() for one message and version."""
    encode, prefix = codec.program(name, version).encode, version.to_bytes(2, "big")
    return lambda value: encode(value, prefix)


# One entry per schema. Cached because a target assignment of a thousand members writes a thousand
# records.
_key_writers: dict[type, Callable[[Struct], bytes]] = {}
_value_writers: dict[tuple[type, int], Callable[[Struct], bytes]] = {}


def _key_writer(cls: type) -> Callable[[Struct], bytes]:
    number = tables.message(cls.__name__).id
    assert number is not None, cls
    encode, prefix = codec.program(cls.__name__, 0).encode, number.to_bytes(2, "big")
    writer = _key_writers[cls] = lambda key: encode(key, prefix)
    return writer


def _value_writer(cls: type, version: int) -> Callable[[Struct], bytes]:
    writer = _value_writers[cls, version] = value_writer(cls.__name__, version)
    return writer


def decode_key(stem: str, key: Bytes) -> Any:
    """Decode a key of the coordinator whose table is `stem`, e.g. `records_group`.

    Raises UnsupportedVersion for an unknown type. The caller must skip such a record.
    """
    found = _keys.get((stem, bytes(key[:2])))
    if found is None:
        found = codec.program(_numbered(stem, "key", _int16(key)), 0)
        _keys[stem, bytes(key[:2])] = found
    return found.decode(key, 2)


def decode_value(key: Struct, value: Bytes) -> tuple[int, Any]:
    """Return (version, value) of the record with this key. Raises ProtocolError,
    UnsupportedVersion.
    """
    found = _values.get((type(key), bytes(value[:2])))
    if found is None:
        version = _int16(value)
        table = tables.message(type(key).__name__)
        assert table.id is not None, table.name
        name = _numbered(table.stem, "value", table.id)
        found = _values[type(key), bytes(value[:2])] = version, codec.program(name, version)
    return found[0], found[1].decode(value, 2)


# By the first two bytes. Only known types are added, so there are few. Cached because loading
# decodes every record.
_keys: dict[tuple[str, bytes], Program] = {}
_values: dict[tuple[type, bytes], tuple[int, Program]] = {}
_numbers: dict[str, dict[tuple[str, int], str]] = {}


def _numbered(stem: str, kind: str, number: int) -> str:
    """Return the name of a coordinator's key or value. Raises UnsupportedVersion."""
    found = _numbers.get(stem)
    if found is None:
        found = {}
        for name in tables.names():
            if tables.stem_of(name) == stem:
                message = tables.message(name)
                assert message.id is not None, name
                found[message.kind, message.id] = name
        _numbers[stem] = found
    try:
        return found[kind, number]
    except KeyError:
        raise UnsupportedVersion(f"{stem}: no {kind} numbered {number}") from None


def _int16(data: Bytes) -> int:
    if len(data) < 2:
        raise ProtocolError(f"coordinator record of {len(data)} bytes: at least 2 are needed")
    return int.from_bytes(data[:2], "big", signed=True)


def _uvarint(data: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 35:
        if position >= len(data):
            raise ProtocolError("metadata record ends inside its frame")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ProtocolError("metadata record with a varint of more than 32 bits")

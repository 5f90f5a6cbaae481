"""Records of the internal logs: of metadata in KRaft's frame, of coordinators with a version.

Owns: nothing.
Invariants: (1) a metadata record is frame version 1, its number and version as unsigned varints,
  then its body; (2) a coordinator's key is the record's number, a value the value's version, as
  int16 before the body.
Source: KIP-631 (metadata records); Kafka's coordinator schemas.
"""

from __future__ import annotations

from pylog._native.message import Struct
from pylog.protocol import codec, tables
from pylog.protocol.codec import Bytes, Program
from pylog.protocol.errors import ProtocolError, UnsupportedVersion

TYPE_CHECKING = False  # The real one costs the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

FRAME_VERSION = 1


def encode_record(version: int, record: Struct) -> bytes:
    """The value of a metadata record, e.g. a `TopicRecord`. Raises ProtocolError."""
    name = type(record).__name__
    number = tables.message(name).id
    assert number is not None and number < 128 > version >= 0, (name, number, version)
    return codec.program(name, version).encode(record, bytes((FRAME_VERSION, number, version)))


def decode_record(value: Bytes) -> tuple[int, Any]:
    """(version, record) of a metadata record's value. Raises ProtocolError."""
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
    """A coordinator record's key, e.g. an `OffsetCommitKey`: its number, then its fields."""
    cls = type(key)
    return (_key_writers.get(cls) or _key_writer(cls))(key)


def encode_value(version: int, value: Struct) -> bytes:
    """A coordinator record's value, e.g. an `OffsetCommitValue`: its version, then its fields."""
    cls = type(value)
    return (_value_writers.get((cls, version)) or _value_writer(cls, version))(value)


def value_writer(name: str, version: int) -> Callable[[Struct], bytes]:
    """encode_value() for the values called `name` in one version."""
    encode, prefix = codec.program(name, version).encode, version.to_bytes(2, "big")
    return lambda value: encode(value, prefix)


# As many as there are schemas. A target for a thousand members writes a thousand records.
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
    """The key of a record of the coordinator whose table is `stem`, e.g. `records_group`.

    Raises UnsupportedVersion for a number that is not known: such a record is to be skipped.
    """
    found = _keys.get((stem, bytes(key[:2])))
    if found is None:
        found = codec.program(_numbered(stem, "key", _int16(key)), 0)
        _keys[stem, bytes(key[:2])] = found
    return found.decode(key, 2)


def decode_value(key: Struct, value: Bytes) -> tuple[int, Any]:
    """(version, value) of the record that has `key`. Raises ProtocolError, UnsupportedVersion."""
    found = _values.get((type(key), bytes(value[:2])))
    if found is None:
        version = _int16(value)
        table = tables.message(type(key).__name__)
        assert table.id is not None, table.name
        name = _numbered(table.stem, "value", table.id)
        found = _values[type(key), bytes(value[:2])] = version, codec.program(name, version)
    return found[0], found[1].decode(value, 2)


# By their first two bytes: of what is known, so there are few. A load decodes every record.
_keys: dict[tuple[str, bytes], Program] = {}
_values: dict[tuple[type, bytes], tuple[int, Program]] = {}
_numbers: dict[str, dict[tuple[str, int], str]] = {}


def _numbered(stem: str, kind: str, number: int) -> str:
    """The name of a coordinator's key or value. Raises UnsupportedVersion."""
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

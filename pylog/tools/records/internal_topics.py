"""Decode the records of Kafka's internal topics.

Owns: nothing.
Invariants: a record that cannot be decoded is returned unchanged, never an error.
Source: Kafka's coordinator and metadata record schemas (protocol/schemas/records_*.msg).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from pylog._native.protocol.message import Struct
from pylog.config import internal_topics
from pylog.protocol import records
from pylog.protocol.errors import ProtocolError

Meaning = Callable[[bytes | None, bytes | None, bool], dict[str, Any] | None]
_STEMS = {internal_topics.OFFSETS: "records_group",
          internal_topics.TRANSACTIONS: "records_transaction",
          internal_topics.SHARE_STATE: "records_share"}
MARKERS = {0: "abort", 1: "commit"}


def reader(directory: str) -> Meaning:
    """Return the decoder for a partition's directory (or topic) by its name."""
    topic = directory.rpartition("-")[0] or directory
    stem = _STEMS.get(topic) or _STEMS.get(directory)

    def read(key: bytes | None, value: bytes | None, is_control: bool) -> dict[str, Any] | None:
        if is_control:
            return _marker(key)
        try:
            if topic == "__cluster_metadata":
                return _metadata(value)
            return _coordinator(stem, key, value) if stem else None
        except ProtocolError:
            return None  # Unknown records are returned unchanged.

    return read


def _marker(key: bytes | None) -> dict[str, Any]:
    kind = struct.unpack(">h", key[2:4])[0] if key and len(key) >= 4 else -1
    return {"control": MARKERS.get(kind, str(kind))}


def _metadata(value: bytes | None) -> dict[str, Any] | None:
    if value is None:
        return None
    version, record = records.decode_record(value)
    return {"record": type(record).__name__, "version": version, "value": tree(record)}


def _coordinator(stem: str, key: bytes | None, value: bytes | None) -> dict[str, Any] | None:
    if key is None:
        return None
    decoded = records.decode_key(stem, key)
    found: dict[str, Any] = {"record": type(decoded).__name__.removesuffix("Key"),
                             "key": tree(decoded), "value": None}
    if value is not None:
        found["version"], content = records.decode_value(decoded, value)
        found["value"] = tree(content)
    return found


def tree(value: Any) -> Any:
    """Return a message as dicts and lists; bytes as text or hexadecimal digits."""
    if isinstance(value, Struct):
        return {name: tree(getattr(value, name)) for name in value.__layout__.names}
    if isinstance(value, (list, tuple)):
        return [tree(one) for one in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        from pylog.tools.cli.escapes import text_of

        return text_of(bytes(value))
    return value


"""Records of the topics that Kafka itself writes, as JSON.

Owns: nothing.
Invariants: a record of an unknown type or version is left as bytes; bytes that members of groups
  sent are decoded only if they have the consumer protocol's format.
Source: Kafka's coordinator schemas; ConsumerProtocolSubscription and ConsumerProtocolAssignment.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable
from typing import Any

from pylog._native.protocol.message import Struct
from pylog.config.internal_topics import OFFSETS, SHARE_STATE, TRANSACTIONS
from pylog.console.values.schema_formats import json_text
from pylog.protocol import codec, records
from pylog.protocol.errors import ProtocolError

STEMS = {OFFSETS: "records_group", TRANSACTIONS: "records_transaction",
         SHARE_STATE: "records_share"}
UUID_BYTES = 16
# Fields with the bytes of an embedded message of the classic consumer protocol.
EMBEDDED = {"subscription": "ConsumerProtocolSubscription",
            "assignment": "ConsumerProtocolAssignment",
            "metadata": "ConsumerProtocolSubscription"}
FAILURES = (ProtocolError, ValueError, KeyError, IndexError, OverflowError, UnicodeDecodeError)


def is_internal(topic: str) -> bool:
    """Return True if the topic's records are decoded here. `_schemas` contains JSON."""
    return topic in STEMS


def key_of(topic: str, data: bytes) -> tuple[str, str]:
    """Return (JSON, name of its type). Raises ProtocolError, ValueError."""
    key = _decoded_key(topic, data)
    return json_text(_plain(key)), type(key).__name__


def value_of(topic: str, key: bytes | None, data: bytes) -> tuple[str, str]:
    """Return (JSON, name of its type with the version). Raises ProtocolError, ValueError."""
    if key is None:
        raise ValueError("the record has no key")
    try:
        version, value = records.decode_value(_decoded_key(topic, key), data)
    except FAILURES as failure:
        raise ValueError(str(failure) or type(failure).__name__) from None
    return json_text(_plain(value)), f"{type(value).__name__}, version {version}"


def _decoded_key(topic: str, data: bytes) -> Any:
    try:
        return records.decode_key(STEMS[topic], data)
    except FAILURES as failure:
        raise ValueError(str(failure) or type(failure).__name__) from None


def _plain(value: Any, name: str = "") -> Any:
    """Return a message as JSON values."""
    if isinstance(value, Struct):
        return {field: _plain(getattr(value, field), field) for field in value.__slots__}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        if name in EMBEDDED and data:
            return _embedded(EMBEDDED[name], data)
        if len(data) == UUID_BYTES and name.endswith(("_id", "uuid")):
            return base64.urlsafe_b64encode(data).decode().rstrip("=")
        return f"0x{data.hex()}"
    if isinstance(value, uuid.UUID):
        return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")
    return value


def _embedded(message: str, data: bytes) -> Any:
    """Return the classic consumer protocol's message, or its bytes in hexadecimal."""
    decode: Callable[..., Any]
    try:
        version = int.from_bytes(data[:2], "big", signed=True)
        decode = codec.program(message, version).decode
        return {"version": version, **_plain(decode(data, 2))}
    except (*FAILURES, TypeError):
        return f"0x{data.hex()}"

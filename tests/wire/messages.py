"""Requests and responses by field names, encoded by the kio package, which is independent of our
codec.

ask() takes Kafka's field names in snake case; fields that a version does not have are omitted,
fields that are not passed get the schema's default, else zero, null or empty. Responses are plain
dicts, lists, ints, strings and bytes.
"""

import dataclasses
import datetime
import enum
import io
import uuid
from functools import cache
from typing import get_args, get_origin

import kio.index
from kio.serial import entity_reader, entity_writer

from tests.wire.raw import Connection

ZERO = {
    "string": "", "bytes": b"", "records": b"", "bool": False, "uuid": None, "float64": 0.0,
    "timedelta_i32": datetime.timedelta(0), "timedelta_i64": datetime.timedelta(0),
}
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@cache
def _schema(key: int, version: int, request: bool) -> type:
    load = kio.index.load_request_schema if request else kio.index.load_response_schema
    return load(key, version)


def _inner(field_type) -> tuple[type | None, bool, bool]:
    """Return (message class or None, is an array, is nullable) of a field's type."""
    nullable = type(None) in get_args(field_type)
    if nullable:
        field_type = next(kind for kind in get_args(field_type) if kind is not type(None))
    is_array = get_origin(field_type) is tuple
    if is_array:
        field_type = get_args(field_type)[0]
    return (field_type if dataclasses.is_dataclass(field_type) else None), is_array, nullable


def _value(field: dataclasses.Field, given):
    message, is_array, _ = _inner(field.type)
    if given is None:
        return None
    if is_array:
        return tuple(build(message, row) if message else row for row in given)
    if message:
        return build(message, given)
    kind = field.metadata.get("kafka_type", "")
    if kind.startswith("timedelta") and not isinstance(given, datetime.timedelta):
        return datetime.timedelta(milliseconds=given)
    return given


def build(message: type, fields: dict):
    """Return an instance of a kio message from plain values."""
    names = {field.name for field in dataclasses.fields(message)}
    values = {}
    for field in dataclasses.fields(message):
        if field.name in fields:
            values[field.name] = _value(field, fields[field.name])
        elif (field.default is dataclasses.MISSING
              and field.default_factory is dataclasses.MISSING):
            inner, is_array, nullable = _inner(field.type)
            kind = field.metadata.get("kafka_type", "")
            if nullable:
                values[field.name] = None
            elif is_array:
                values[field.name] = ()
            else:
                values[field.name] = build(inner, {}) if inner else ZERO.get(kind, 0)
    unknown = {name for name in fields if name not in names and name not in KNOWN_NAMES}
    assert not unknown, (message, unknown)
    return message(**values)


def plain(value):
    """Return messages as dicts, enumerations and durations as ints, ids as 32 hex digits."""
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name))
                for field in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [plain(row) for row in value]
    if isinstance(value, enum.Enum):
        return int(value.value)
    if isinstance(value, datetime.timedelta):
        return round(value.total_seconds() * 1000)
    if isinstance(value, datetime.datetime):
        return round((value - EPOCH).total_seconds() * 1000)
    if isinstance(value, uuid.UUID):
        return value.hex
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    return value


def encode(key: int, version: int, /, **fields) -> bytes:
    """Return the body of a request."""
    message = _schema(key, version, True)
    out = io.BytesIO()
    entity_writer(message)(out, build(message, fields))
    return out.getvalue()


def decode(key: int, version: int, body: bytes) -> dict:
    """Return the fields of a response; all bytes must be consumed."""
    entity, used = entity_reader(_schema(key, version, False))(body, 0)
    assert used == len(body), f"{len(body) - used} bytes left over"
    return plain(entity)


def ask(connection: Connection, key: int, version: int, /, **fields) -> dict:
    return decode(key, version, connection.call(key, version, encode(key, version, **fields)))


# Names that some versions of an API lack: passing them to such a version is not an error.
KNOWN_NAMES = frozenset("""
    topic topic_id name names current_leader_epoch last_fetched_epoch log_start_offset session_id
    session_epoch forgotten_topics_data rack_id replica_id replica_state isolation_level timeout
    leader_epoch transactional_id allow_auto_topic_creation include_topic_authorized_operations
    include_cluster_authorized_operations client_software_name client_software_version
    producer_id producer_epoch validate_only topics topic_names endpoint_type
    include_fenced_brokers cluster_id enable2_pc keep_prepared_txn group_id group_instance_id
    rebalance_timeout reason protocol_type protocol_name members member_id groups require_stable
    retention_time committed_leader_epoch states_filter types_filter member_epoch
    include_authorized_operations key key_type coordinator_keys
""".split())

"""Changes one field of a valid request: null, empty, repeated, negative, huge, unknown, illegal.

The fields come from kio's schemas, so that each field of each version is changed in turn.
"""

import dataclasses
import datetime
import io
import struct
import uuid
from functools import cache

from kio.serial import entity_writer

from tests.wire.messages import _schema, build

BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "uint16": 17, "uint32": 33,
        "error_code": 16, "timedelta_i32": 32, "timedelta_i64": 64}
UNKNOWN_ID = uuid.UUID(int=0xABCDEF0123456789ABCDEF)
STRINGS = ("", "a b", "x" * 300, "no-such-name")


def requests(key: int, version: int, fields: dict):
    """Yield (path of the field and its change, the request's body) for each change that can be
    encoded.

    fields: those of a valid request, as for messages.ask.
    """
    message = build(_schema(key, version, True), fields)
    yield "as it is", _encoded(message)
    for label, changed in _changes(message):
        body = _encoded(changed)
        if body is not None:
            yield label, body


@cache
def _writer(message: type):
    return entity_writer(message)


def _encoded(message) -> bytes | None:
    """Return None for values that the format cannot encode, such as null in a non-nullable field.
    """
    out = io.BytesIO()
    try:
        _writer(type(message))(out, message)
    except (TypeError, ValueError, AttributeError, OverflowError, struct.error):
        return None
    return out.getvalue()


def _changes(message):
    """Yield (label, message) with one field below `message` changed."""
    for field in dataclasses.fields(message):
        value = getattr(message, field.name)
        for label, other in _values(field, value):
            yield f"{field.name} {label}", dataclasses.replace(message, **{field.name: other})
        if dataclasses.is_dataclass(value):
            for label, other in _changes(value):
                yield f"{field.name}.{label}", dataclasses.replace(
                    message, **{field.name: other})
        if isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
            for label, other in _changes(value[0]):
                yield f"{field.name}.{label}", dataclasses.replace(
                    message, **{field.name: (other, *value[1:])})


def _values(field: dataclasses.Field, value):
    if value is not None:
        yield "null", None
    if isinstance(value, tuple):
        yield from _rows(field, value)
    kind = field.metadata.get("kafka_type", "")
    if kind in BITS and not isinstance(value, tuple):
        yield from _numbers(kind, value)
    elif kind == "string" and not isinstance(value, tuple):
        yield from ((repr(text[:20]), text) for text in STRINGS if text != value)
    elif kind == "bool" and value is not None:
        yield str(not value), not value
    elif kind == "uuid" and not isinstance(value, tuple):
        yield from (("of none", None), ("unknown", UNKNOWN_ID))


def _rows(field: dataclasses.Field, value: tuple):
    if value:
        yield "empty", ()
        yield "repeated", (*value, value[0])
        yield "three times", (*value, value[0], value[0])
    kind = field.metadata.get("kafka_type", "")
    if kind == "int32":
        yield from ((f"[{number}]", (number,)) for number in (-1, 0, 2**31 - 1, -2**31))
    if kind == "string":
        yield from ((f"[{text[:20]!r}]", (text,)) for text in STRINGS)


def _numbers(kind: str, value):
    bits = BITS[kind]
    for number in (-1, 0, 1, 99, (1 << bits - 1) - 1, -(1 << bits - 1)):
        if kind.startswith("timedelta"):
            yield str(number), datetime.timedelta(milliseconds=number)
        else:
            yield str(number), type(value)(number) if isinstance(value, int) else number

"""Serialize and deserialize values: text, numbers, JSON, Avro, Protobuf, msgspec and Pydantic
objects.

Each format is one object for both directions: `Producer(value_serializer=Json())` uses its
serialize(topic, value), `Consumer(value_deserializer=Json())` its deserialize(data). numbers(),
json_column() and avro_column() decode whole columns.

Owns: the public names; each is imported on first use.
Invariants: importing this package imports no library of an optional extra.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # Keeps imports lazy.
if TYPE_CHECKING:
    from pylog.client.interfaces import Deserializer, Serializer
    from pylog.client.serialization.avro import Avro, avro_column
    from pylog.client.serialization.jsonvalues import Json, json_column, json_rows
    from pylog.client.serialization.models import Msgspec, Pydantic
    from pylog.client.serialization.plain import (
        Bytes, Float32, Float64, Format, Int16, Int32, Int64, Text, Uuid,
    )
    from pylog.client.serialization.protobuf import Protobuf
    from pylog.client.serialization.registry import SchemaRegistry

_MODULES = {
    "Deserializer": "pylog.client.interfaces", "Serializer": "pylog.client.interfaces",
    **dict.fromkeys(("Avro", "avro_column"), f"{__name__}.avro"),
    **dict.fromkeys(("Json", "json_column", "json_rows"), f"{__name__}.jsonvalues"),
    **dict.fromkeys(("Msgspec", "Pydantic"), f"{__name__}.models"),
    **dict.fromkeys(("Bytes", "Float32", "Float64", "Format", "Int16", "Int32", "Int64", "Text",
                     "Uuid"), f"{__name__}.plain"),
    "Protobuf": f"{__name__}.protobuf",
    "SchemaRegistry": f"{__name__}.registry",
}

__all__ = ["Avro", "Bytes", "Deserializer", "Float32", "Float64", "Format", "Int16", "Int32",
           "Int64", "Json", "Msgspec", "Protobuf", "Pydantic", "SchemaRegistry", "Serializer",
           "Text", "Uuid", "avro_column", "json_column", "json_rows"]


def _imported(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(module), name)
    globals()[name] = found
    return found


if not TYPE_CHECKING:
    __getattr__ = _imported

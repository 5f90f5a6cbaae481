"""Encode DataFrame columns as record bytes: JSON, Avro, Kafka's number formats.

Owns: the Avro formats of one task, by topic.
Invariants: null stays null (a tombstone); types that no format supports are rejected on the driver.
Source: Confluent's wire format; Kafka's own serializers.
"""

from __future__ import annotations

from typing import Any

from pylog.client.errors import ConfigError
from pylog.client.spark.formats import (
    AVRO, BINARY, JSON, NUMBERS, SIDES, STRING, Formats, column_type,
)


def check_types(formats: Formats, schema: Any) -> None:
    """Check the column types on the driver. schema: the Spark schema to write. Raises ConfigError.
    """
    from pyspark.sql import types

    for side in SIDES:
        if side not in schema.fieldNames():
            continue
        kind, form = schema[side].dataType, formats.of(side)
        if form.name in (BINARY, STRING):
            if not isinstance(kind, (types.BinaryType, types.StringType, types.NullType)):
                raise ConfigError(f"{side} is {kind.simpleString()}: name a {side}Format "
                                  "or cast it to binary or string")
        elif form.name == JSON:
            if not isinstance(kind, types.StructType):
                raise ConfigError(f"{side}Format json needs a struct, not {kind.simpleString()}")
            _no_binaries(side, kind)
        elif form.name in NUMBERS and kind != column_type(formats, side):
            raise ConfigError(f"{side}Format {form.name} needs "
                              f"{column_type(formats, side).simpleString()}, "
                              f"not {kind.simpleString()}")


def _no_binaries(side: str, kind: Any) -> None:
    from pyspark.sql import types

    if isinstance(kind, (types.BinaryType, types.MapType)):
        raise ConfigError(f"{side}Format json cannot write {kind.simpleString()}; use Spark's "
                          f"to_json")
    if isinstance(kind, types.StructType):
        for field in kind:
            _no_binaries(side, field.dataType)
    elif isinstance(kind, types.ArrayType):
        _no_binaries(side, kind.elementType)


class Encoders:
    """The encoders of one task."""

    def __init__(self, formats: Formats):
        self.formats = formats
        self._avro: dict[tuple[str, str], Any] = {}
        self._registry: Any = None

    def encoded(self, rows: Any, topic: str) -> Any:
        """Return the record batch with keys and values as bytes. Raises SerializationError."""
        for side in SIDES:
            name = self.formats.of(side).name
            if name not in (BINARY, STRING) and side in rows.schema.names:
                place = rows.schema.names.index(side)
                rows = rows.set_column(place, side, self._column(rows.column(side), side, topic))
        return rows

    def _column(self, column: Any, side: str, topic: str) -> Any:
        import pyarrow as pa

        from pylog.client.serialization.jsonvalues import json_rows

        name = self.formats.of(side).name
        if name in NUMBERS:
            return _packed(column, NUMBERS[name][0])
        if name == JSON:
            return json_rows(column)
        assert name == AVRO, name
        avro = self._avro_of(side, topic)
        return pa.array([None if row is None else avro.serialize(topic, row)
                         for row in column.to_pylist(maps_as_pydicts="strict")], pa.binary())

    def _avro_of(self, side: str, topic: str) -> Any:
        """Return the Avro format: registers the given schema, or uses the subject's latest one."""
        from pylog.client.serialization.avro import Avro, topic_name

        found = self._avro.get((side, topic))
        if found is None:
            self._registry = self._registry or self.formats.registry()
            schema = self.formats.of(side).schema or self._registry.version(
                topic_name(topic, side == "key", ""))[1].text
            found = self._avro[side, topic] = Avro(
                self._registry, schema, is_key=side == "key",
                register=bool(self.formats.of(side).schema))
        return found


def _packed(column: Any, code: str) -> Any:
    """Encode numbers as big-endian values of fixed width; null stays null."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    count, kind = len(column), np.dtype(code)
    data = pc.fill_null(column, 0).to_numpy(zero_copy_only=False).astype(kind.newbyteorder(">"))
    ends = np.arange(0, (count + 1) * kind.itemsize, kind.itemsize, dtype=np.int32)
    made = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends),
                                                      pa.py_buffer(data)])
    return pc.if_else(column.is_valid(), made, pa.scalar(None, pa.binary())) if (
        column.null_count) else made

"""Avro in Confluent's wire format, for single values or columns.

Owns: the parsed schemas by id.
Invariants: a value begins with a zero byte and the big-endian id of its writer schema; fastavro is
  imported on first use.
Source: Confluent's wire format; Avro 1.11; fastavro.
"""

from __future__ import annotations

import io
import json
import struct
import uuid
from collections.abc import Callable
from typing import Any

from pylog.client.errors import SerializationError
from pylog.client.extras import require
from pylog.client.serialization.avro_columns import LOGICAL, flat_column
from pylog.client.serialization.plain import Format
from pylog.client.serialization.registry import Schema, SchemaRegistry

MAGIC = 0
DECIMAL_DIGITS_MAX = 76
HEAD = struct.Struct(">bi")


def topic_name(topic: str, is_key: bool, record_name: str) -> str:
    """Return the subject of a topic's keys or values."""
    return f"{topic}-{'key' if is_key else 'value'}"


def record_name(topic: str, is_key: bool, record_name: str) -> str:
    """Return the subject of a record type, independent of the topic."""
    return record_name


def topic_record_name(topic: str, is_key: bool, record_name: str) -> str:
    """Return the subject of a record type in one topic."""
    return f"{topic}-{record_name}"


class Avro(Format[Any]):
    """Serialize and deserialize Avro values.

    schema: a dict or JSON text: the writer schema, and also the reader schema if reader_schema is
    None. Without a schema, values are read with their writer schema and cannot be written.
    register: False only looks ids up, and fails if the subject does not have the schema.
    """

    def __init__(self, registry: SchemaRegistry, schema: Any = None, *, reader_schema: Any = None,
                 is_key: bool = False, subject: Callable[[str, bool, str], str] = topic_name,
                 register: bool = True):
        require("Avro", "fastavro")
        self.registry, self.is_key, self.subject, self.register = (
            registry, is_key, subject, register)
        self._schema = None if schema is None else _parsed(schema)
        self._text = None if schema is None else json.dumps(_document(schema))
        self._reader = None if reader_schema is None else _parsed(reader_schema)
        self._writers: dict[int, Any] = {}
        self._heads: dict[str, bytes] = {}

    def serialize(self, topic: str, value: Any, /) -> bytes:
        import fastavro

        if self._schema is None:
            raise SerializationError("no schema is configured for writing")
        head = self._heads.get(topic) or self._head(topic)
        out = io.BytesIO()
        out.write(head)
        try:
            fastavro.schemaless_writer(out, self._schema, value)
        except (TypeError, ValueError, KeyError, AttributeError, IndexError,
                OverflowError) as failure:
            raise SerializationError(
                f"{topic}: the value does not fit the schema: {failure}") from failure
        return out.getvalue()

    def _head(self, topic: str) -> bytes:
        name = self._schema.get("name", "") if isinstance(self._schema, dict) else ""
        subject = self.subject(topic, self.is_key, name)
        find_id = self.registry.register if self.register else self.registry.lookup
        assert self._text is not None
        head = self._heads[topic] = HEAD.pack(MAGIC, find_id(subject, Schema(self._text)))
        return head

    def deserialize(self, data: bytes, /) -> Any:
        import fastavro

        written = self.writer_schema(schema_id(data))
        stream = io.BytesIO(data)
        stream.seek(HEAD.size)
        try:
            return fastavro.schemaless_reader(stream, written, self._reader or self._schema)
        except Exception as failure:  # fastavro raises arbitrary exceptions for damaged data.
            raise SerializationError(f"the value does not fit its schema: {failure!r}") from failure

    def writer_schema(self, number: int) -> Any:
        """Return the parsed schema of an id."""
        found = self._writers.get(number)
        if found is None:
            found = self._writers[number] = _with_references(
                self.registry, self.registry.schema(number), {})
        return found


def schema_id(data: bytes) -> int:
    """Return the schema id of a value in Confluent's wire format. Raises SerializationError."""
    if len(data) < HEAD.size or data[0] != MAGIC:
        raise SerializationError("not in Confluent's wire format: no zero byte and schema id")
    number: int = HEAD.unpack_from(data)[1]
    return number


def _document(schema: Any) -> Any:
    """Return a schema given as a document, as JSON text, or as the name of a primitive type."""
    return json.loads(schema) if isinstance(schema, str) and schema not in _PRIMITIVES else schema


def _parsed(schema: Any) -> Any:
    import fastavro

    return fastavro.parse_schema(_document(schema))


def _with_references(registry: SchemaRegistry, schema: Schema, named: dict[str, Any]) -> Any:
    import fastavro

    if schema.kind != "AVRO":
        raise SerializationError(f"a schema of kind {schema.kind}, not Avro")
    for _, subject, version in schema.references:
        _with_references(registry, registry.version(subject, version)[1], named)
    return fastavro.parse_schema(json.loads(schema.text), named_schemas=named)


def avro_column(column: Any, registry: SchemaRegistry, reader_schema: Any = None,
                avro: Avro | None = None) -> Any:
    """Decode a binary Array in Confluent's wire format to an Arrow column; records become structs.

    reader_schema: schema of the result; default: avro's own, otherwise the schema of the first
    value. Null values become null rows. avro: caches schemas between calls. Flat records and plain
    values are decoded natively, others one at a time. Raises SerializationError.
    """
    pa = require("avro_column", "fastavro", "pyarrow")
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    known = avro or Avro(registry)
    if reader_schema is None:  # As deserialize() does.
        reader_schema = known._reader if known._reader is not None else known._schema
    if reader_schema is None:
        first = next((row for row in column if row.is_valid), None)
        if first is None:
            return pa.nulls(len(column))
        reader_schema = known.writer_schema(schema_id(first.as_py()))
    else:
        reader_schema = _parsed(reader_schema)
    found = flat_column(column, known.writer_schema, reader_schema, arrow_type(reader_schema))
    if found is not None:
        return found
    reader = Avro(registry, reader_schema=reader_schema)
    reader._writers = known._writers
    values = [None if row is None else without_uuids(reader.deserialize(row))
              for row in column.to_pylist()]
    try:
        return pa.array(values, arrow_type(reader_schema))
    except (pa.ArrowInvalid, pa.ArrowTypeError) as failure:
        raise SerializationError(f"values that do not fit their schema: {failure}") from failure


def without_uuids(value: Any) -> Any:
    """Return a value with its UUIDs as text, as Arrow columns contain them."""
    if isinstance(value, dict):
        return {name: without_uuids(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [without_uuids(inner) for inner in value]
    return str(value) if isinstance(value, uuid.UUID) else value


_PRIMITIVES = {"null": "null", "boolean": "bool_", "int": "int32", "long": "int64",
               "float": "float32", "double": "float64", "bytes": "binary", "string": "utf8"}


def arrow_type(schema: Any, named: dict[str, Any] | None = None) -> Any:
    """Return the pyarrow type of an Avro schema. Raises SerializationError if Arrow has none."""
    import pyarrow as pa

    named = {} if named is None else named
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return getattr(pa, _PRIMITIVES[schema])()
        if schema not in named:
            try:
                return arrow_type(json.loads(schema), named)
            except ValueError:
                raise SerializationError(
                    f"a schema that names {schema!r} within itself has no Arrow type") from None
        return named[schema]
    if isinstance(schema, list):
        kinds = [branch for branch in schema if branch != "null"]
        if len(kinds) != 1:
            raise SerializationError(f"a union of {len(kinds)} types has no Arrow column")
        return arrow_type(kinds[0], named)
    logical = _logical(schema)
    made = logical if logical is not None else _complex(schema, named)
    if "name" in schema:
        named[schema["name"]] = made
    return made


def _complex(schema: dict[str, Any], named: dict[str, Any]) -> Any:
    import pyarrow as pa

    kind = schema["type"]
    if kind == "record":
        return pa.struct([(field["name"], arrow_type(field["type"], named))
                          for field in schema["fields"]])
    if kind == "array":
        return pa.list_(arrow_type(schema["items"], named))
    if kind == "map":
        return pa.map_(pa.utf8(), arrow_type(schema["values"], named))
    if kind == "fixed":
        return pa.binary(schema["size"])
    if kind == "enum":
        return pa.utf8()
    return arrow_type(kind, named)


def _logical(schema: dict[str, Any]) -> Any:
    """Return the type of a logical type, or None if fastavro reads the plain type instead."""
    import pyarrow as pa

    kind, plain = schema.get("logicalType"), schema["type"]
    if kind == "decimal" and plain in ("bytes", "fixed"):
        precision, scale = schema["precision"], schema.get("scale", 0)
        if not 1 <= precision <= DECIMAL_DIGITS_MAX:
            raise SerializationError(f"a decimal with precision {precision} has no Arrow type: use "
                                     f"1 to {DECIMAL_DIGITS_MAX} digits")
        return (pa.decimal128 if precision <= 38 else pa.decimal256)(precision, scale)
    if plain != ("string" if kind == "uuid" else LOGICAL.get(str(kind))):
        return None
    return {
        "date": lambda: pa.date32(), "time-millis": lambda: pa.time32("ms"),
        "time-micros": lambda: pa.time64("us"),
        "timestamp-millis": lambda: pa.timestamp("ms", tz="UTC"),
        "timestamp-micros": lambda: pa.timestamp("us", tz="UTC"),
        "local-timestamp-millis": lambda: pa.timestamp("ms"),
        "local-timestamp-micros": lambda: pa.timestamp("us"),
        "uuid": lambda: pa.utf8(),
    }[str(kind)]()

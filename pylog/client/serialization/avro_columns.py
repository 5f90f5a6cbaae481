"""Detect flat Avro schemas and decode columns of such values natively.

Owns: nothing.
Invariants: results equal those of fastavro and pyarrow; cases that need more than copying
  (defaults, aliases, promotions except int to long, decimals, nesting) are left to them.
Source: Avro 1.11 (schema resolution); Arrow columnar format 1.4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pylog._native.client import avro
from pylog.client.columns.arrow import buffer, native_column
from pylog.client.errors import SerializationError

_KINDS = {"null": avro.NULL_KIND, "boolean": avro.BOOLEAN, "int": avro.INT,
          "long": avro.LONG, "float": avro.FLOAT, "double": avro.DOUBLE,
          "bytes": avro.BYTES, "string": avro.BYTES}
LOGICAL = {"date": "int", "time-millis": "int", "time-micros": "long", "timestamp-millis": "long",
           "timestamp-micros": "long", "local-timestamp-millis": "long",
           "local-timestamp-micros": "long"}


class Flat(NamedTuple):
    """A type that fits one column. logical: further properties that distinguish two types."""

    kind: int
    null_branch: int
    size: int
    symbols: tuple[str, ...]
    logical: str


def flat_type(schema: Any) -> Flat | None:
    """Return the flat type of a schema as parsed by fastavro, or None if it is not flat."""
    null_branch = avro.NO_UNION
    if isinstance(schema, list):
        if len(schema) != 2 or schema.count("null") != 1:
            return None
        null_branch = schema.index("null")
        schema = schema[1 - null_branch]
    if isinstance(schema, str):
        schema = {"type": schema}
    if not isinstance(schema, dict) or not isinstance(schema["type"], str):
        return None
    kind, logical = schema["type"], schema.get("logicalType", "")
    if kind in _KINDS and (not logical or LOGICAL.get(logical) == kind):
        return Flat(_KINDS[kind], null_branch, 0, (), logical or kind)
    if logical:
        return None
    if kind == "fixed":
        return Flat(avro.FIXED, null_branch, schema["size"], (), schema["name"])
    if kind == "enum":
        return Flat(avro.ENUM, null_branch, 0, tuple(schema["symbols"]), schema["name"])
    return None


def flat_fields(schema: Any) -> dict[str, Flat] | None:
    """Return the fields of a flat record by name, in order. A plain type is a single unnamed field.
    """
    if isinstance(schema, dict) and schema["type"] == "record":
        fields = {field["name"]: flat_type(field["type"]) for field in schema["fields"]}
        known = {name: found for name, found in fields.items() if found is not None}
        return known if len(known) == len(fields) else None
    plain = flat_type(schema)
    return None if plain is None else {"": plain}


def program(written: Any, read: Any) -> avro.Program | None:
    """Return the program that decodes values of schema `written` to the flat schema `read`, or
    None.
    """
    columns, fields = flat_fields(read), flat_fields(written)
    if columns is None or fields is None or not columns.keys() <= fields.keys():
        return None
    if _name(written) != _name(read):
        return None
    indexes = {name: index for index, name in enumerate(columns)}
    rows = []
    for name, field in fields.items():
        index = indexes.get(name, -1)
        if index >= 0 and not _fits(field, columns[name]):
            return None
        rows.append((field.kind, field.null_branch, index, field.size, field.symbols))
    return avro.Program(rows)


def _name(schema: Any) -> str:
    return schema["name"] if isinstance(schema, dict) and schema["type"] == "record" else ""


def _fits(written: Flat, read: Flat) -> bool:
    """Return True if a written field can be copied unchanged to the read one."""
    nullable = (written.null_branch == avro.NO_UNION or read.null_branch != avro.NO_UNION)
    same = written._replace(null_branch=0) == read._replace(null_branch=0)
    return nullable and (same or (written.logical, read.logical) == ("int", "long"))


def flat_column(column: Any, schema_of: Callable[[int], Any], read: Any, kind: Any) -> Any:
    """Return the decoded column of type `kind`; None if one of its schemas is not flat.

    schema_of: schema id -> parsed schema. Raises SerializationError.
    """
    columns = flat_fields(read)
    if columns is None:
        return None
    values = native_column(column)
    assert values is not None, "a column is given"
    programs: dict[int, avro.Program | None] = {}
    # One more column than the schema: whether the row is null.
    decoder = avro.Decoder(
        [*((field.kind, field.size) for field in columns.values()), (avro.NULL_KIND, 0)],
        len(column))
    try:
        while decoder.row < decoder.rows:
            number = decoder.schema_id(values)
            if number is None:
                decoder.decode(values, None, -1)
                continue
            if number not in programs:
                programs[number] = program(schema_of(number), read)
            if programs[number] is None:
                return None
            decoder.decode(values, programs[number], number)
    except avro.AvroError as failure:
        raise SerializationError(str(failure)) from failure
    return _assembled(decoder.finish(), len(column), kind, read)


def _assembled(made: list[Any], count: int, kind: Any, read: Any) -> Any:
    import pyarrow as pa

    *children, (validity, _, _, nulls) = made
    if not pa.types.is_struct(kind) or _name(read) == "":
        return _array(kind, count, *children[0])
    arrays = [_array(field.type, count, *child)
              for field, child in zip(kind, children, strict=True)]
    return pa.Array.from_buffers(kind, count, [buffer(validity)], nulls, children=arrays)


def _array(kind: Any, count: int, validity: Any, offsets: Any, values: Any, nulls: int) -> Any:
    import pyarrow as pa

    if pa.types.is_null(kind):
        return pa.nulls(count)
    buffers = [buffer(validity), *([] if offsets is None else [buffer(offsets)]), buffer(values)]
    array = pa.Array.from_buffers(kind, count, buffers, nulls)
    if pa.types.is_string(kind):
        try:
            array.validate(full=True)  # Validates the text of all values at once.
        except pa.ArrowInvalid as failure:
            raise SerializationError(f"a text that is not UTF-8: {failure}") from failure
    return array

"""JSON values, and columns of JSON objects as Arrow struct columns.

Owns: nothing.
Invariants: row i of the result is value i of the input; null and empty values become null rows.
Source: RFC 8259; pyarrow.json.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from typing import Any

from pylog.client.errors import SerializationError
from pylog.client.extras import require
from pylog.client.serialization.plain import Format

BLOCK_BYTES_MIN = 1 << 20


class Json(Format[Any]):
    """Serialize and deserialize JSON in UTF-8. default: as in json.dumps."""

    def __init__(self, default: Callable[[Any], Any] | None = None):
        self._encode = json.JSONEncoder(
            ensure_ascii=False, separators=(",", ":"), default=default).encode

    def encode(self, value: Any) -> bytes:
        return self._encode(value).encode()

    def decode(self, data: bytes) -> Any:
        return json.loads(data)


def json_column(column: Any, schema: Any = None) -> Any:
    """Convert a binary or string Array of JSON objects to a StructArray.

    schema: the pyarrow.Schema of the result; inferred from the values by default. Raises
    SerializationError if a value is not a JSON object.
    """
    require("json_column", "numpy", "pyarrow")
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import json as arrow_json

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    missing = pc.or_kleene(pc.is_null(column), pc.equal(pc.binary_length(column), 0))
    missing = pc.fill_null(missing, True)
    text = pa.large_binary()
    filled = pc.if_else(missing, pa.scalar(b"{}", text), column.cast(text))
    if not _are_braced(filled):
        raise SerializationError("not every value is a JSON object")
    longest = pc.max(pc.binary_length(filled)).as_py() or 0
    lines = pc.binary_join(
        pa.LargeListArray.from_arrays(pa.array([0, len(filled)], pa.int64()), filled),
        pa.scalar(b"\n", text))[0]
    try:
        table = arrow_json.read_json(
            pa.BufferReader(lines.as_buffer()),
            read_options=arrow_json.ReadOptions(block_size=max(BLOCK_BYTES_MIN, 2 * longest + 2)),
            parse_options=arrow_json.ParseOptions(
                explicit_schema=schema, newlines_in_values=True,
                unexpected_field_behavior="infer" if schema is None else "ignore")
            ) if len(filled) else (
            (schema or pa.schema([])).empty_table())
    except pa.ArrowInvalid as failure:
        raise SerializationError(f"not every value is a JSON object: {failure}") from failure
    if schema is not None:
        table = table.select(schema.names)
    if table.num_columns and table.num_rows != len(column):
        raise SerializationError(
            f"{len(column)} values hold {table.num_rows} JSON objects: one each is needed")
    fields = list(table.schema)
    arrays = [column.combine_chunks() for column in table.columns]
    mask = missing.combine_chunks() if isinstance(missing, pa.ChunkedArray) else missing
    if not fields:
        return pa.array([None if null else {} for null in mask.to_pylist()], pa.struct([]))
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=mask)


def _are_braced(filled: Any) -> bool:
    """Return True if each value begins with { and ends with }, apart from white space.

    Then no object extends past its value, so equal counts mean one object per value.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    filled = filled.combine_chunks() if isinstance(filled, pa.ChunkedArray) else filled
    _, offsets, data = filled.buffers()
    if not len(filled):
        return True
    value_ends = np.frombuffer(offsets, np.int64)[filled.offset:filled.offset + len(filled) + 1]
    if np.all(value_ends[1:] > value_ends[:-1]):
        text = np.frombuffer(data, np.uint8)
        if np.all(text[value_ends[:-1]] == ord("{")) \
                and np.all(text[value_ends[1:] - 1] == ord("}")):
            return True
    found = pc.match_substring_regex(filled, r"(?s)^[ \t\r\n]*\{.*\}[ \t\r\n]*$")
    return bool(pc.all(found).as_py())


def json_rows(data: Any) -> Any:
    """Return each row of a table or struct column as a JSON object: a binary Array.

    Dates and times become ISO 8601 texts, other types without a JSON type the text of `str`.
    """
    pa = require("json_rows", "pyarrow")
    encode = Json(default=_text).encode
    return pa.array([None if row is None else encode(row) for row in data.to_pylist()],
                    pa.binary())


def _text(value: Any) -> str:
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat().replace("+00:00", "Z")
    return str(value)

"""Native columns as pyarrow and NumPy objects, without copying except where stated.

Owns: nothing; arrays keep the native memory alive.
Invariants: pyarrow and numpy are imported on first use; columns have COLUMNS' order, also for a
  subset.
Source: Arrow columnar format 1.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pylog._native.client.batch_builder import Column
from pylog._native.client.columns import ColumnBuffer, Columns
from pylog.client.arguments import several
from pylog.client.errors import RecordDeserializationError
from pylog.client.types import TopicPartition

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pylog.client.interfaces import ColumnName

COLUMNS: tuple[ColumnName, ...] = (
    "topic", "partition", "offset", "timestamp", "key", "value", "headers")
SOURCES_MAX = 1 << 20


def schema(columns: Iterable[str] = COLUMNS) -> Any:
    """Return the pyarrow.Schema of record_batch() for these columns."""
    import pyarrow as pa

    header = pa.struct([pa.field("key", pa.utf8(), nullable=False), ("value", pa.binary())])
    types = {
        "topic": pa.dictionary(pa.int32(), pa.utf8()), "partition": pa.int32(),
        "offset": pa.int64(), "timestamp": pa.timestamp("ms", tz="UTC"), "key": pa.binary(),
        "value": pa.binary(),
        "headers": pa.list_(pa.field("item", header, nullable=False)),
    }
    return pa.schema([pa.field(name, types[name], name in ("timestamp", "key", "value"))
                      for name in ordered(columns)])


def ordered(columns: Iterable[str]) -> list[ColumnName]:
    """Return these columns in COLUMNS' order. Raises ValueError if one does not exist."""
    wanted = set(several("columns", columns))
    unknown = wanted - set(COLUMNS)
    if unknown:
        raise ValueError(f"no such columns: {sorted(unknown)}; there are {', '.join(COLUMNS)}")
    return [name for name in COLUMNS if name in wanted]


def buffer(native: ColumnBuffer | None) -> Any:
    """Return a pyarrow.Buffer over native memory."""
    import pyarrow as pa

    return None if native is None else pa.py_buffer(native)


def _binary(count: int, offsets: Any, data: Any, validity: Any, nulls: int, kind: Any) -> Any:
    import pyarrow as pa

    return pa.Array.from_buffers(
        kind, count, [buffer(validity), buffer(offsets), buffer(data)], nulls)


def _headers(columns: Columns, kind: Any) -> Any:
    import pyarrow as pa

    count = columns.header_count
    if columns.header_offsets is None:
        empty = pa.py_buffer(bytes(4 * (columns.count + 1)))
        items = pa.array([], kind.value_type)
        return pa.Array.from_buffers(kind, columns.count, [None, empty], 0, children=[items])
    keys = _binary(count, columns.header_key_offsets, columns.header_key_data, None, 0, pa.utf8())
    values = _binary(count, columns.header_value_offsets, columns.header_value_data,
                     columns.header_value_validity, columns.header_value_null_count, pa.binary())
    items = pa.Array.from_buffers(kind.value_type, count, [None], 0, children=[keys, values])
    return pa.Array.from_buffers(
        kind, columns.count, [None, buffer(columns.header_offsets)], 0, children=[items])


def _codes(sources: Sequence[tuple[str, int]] | Mapping[int, tuple[str, int]]) -> Any:
    """Return (topics, topic code of each source, partition of each source)."""
    rows = list(sources.items() if isinstance(sources, Mapping) else enumerate(sources))
    size = max((source for source, _ in rows), default=-1) + 1
    if size > SOURCES_MAX:
        raise ValueError(f"a source is below {SOURCES_MAX}")
    topics: dict[str, int] = {}
    codes, partitions = [0] * size, [0] * size
    for source, (topic, partition) in rows:
        codes[source] = topics.setdefault(topic, len(topics))
        partitions[source] = partition
    return list(topics), codes, partitions


def record_batch(
    columns: Columns, sources: Sequence[tuple[str, int]] | Mapping[int, tuple[str, int]],
    wanted: Iterable[str] = COLUMNS,
) -> Any:
    """Return a pyarrow.RecordBatch over the native memory.

    sources: (topic, partition) of each source number in the Fetched objects.
    """
    import pyarrow as pa

    shape = schema(wanted)
    topics, codes, partitions = _codes(sources)
    arrays = []
    for field in shape:
        kind, count = field.type, columns.count
        if field.name == "topic":
            indices = pa.Array.from_buffers(
                pa.int32(), count, [None, buffer(columns.spread(codes))], 0)
            arrays.append(pa.DictionaryArray.from_arrays(indices, pa.array(topics, pa.utf8())))
        elif field.name == "partition":
            arrays.append(pa.Array.from_buffers(
                kind, count, [None, buffer(columns.spread(partitions))], 0))
        elif field.name == "offset":
            arrays.append(pa.Array.from_buffers(kind, count, [None, buffer(columns.offsets)], 0))
        elif field.name == "timestamp":
            arrays.append(_times(columns, kind))
        elif field.name == "key":
            arrays.append(_binary(count, columns.key_offsets, columns.key_data,
                                  columns.key_validity, columns.key_null_count, kind))
        elif field.name == "value":
            arrays.append(_binary(count, columns.value_offsets, columns.value_data,
                                  columns.value_validity, columns.value_null_count, kind))
        else:
            arrays.append(_headers(columns, kind))
    return pa.RecordBatch.from_arrays(arrays, schema=shape)


def _times(columns: Columns, kind: Any) -> Any:
    """Return the timestamps. -1 (the producer set no timestamp) stays: detecting it would require a
    scan of all values.
    """
    import pyarrow as pa

    return pa.Array.from_buffers(kind, columns.count, [None, buffer(columns.timestamps)], 0)


def numpy_batch(
    columns: Columns, sources: Sequence[tuple[str, int]] | Mapping[int, tuple[str, int]],
    wanted: Iterable[str] = COLUMNS, value_dtype: Any = None, key_dtype: Any = None,
    count: int | None = None,
) -> dict[str, Any]:
    """Return the columns as NumPy arrays by name; with `count`, only the first rows.

    offset, timestamp (ms), partition and topic (as indices into "topics") are views. Keys and
    values: with a dtype of 1, 2, 4 or 8 bytes ("<i8", ">f4") a plain array with nulls as zero,
    marked in "key_null"/"value_null"; without a dtype "key_offsets" and "key_data" (uint8) as in
    Arrow. Headers are omitted. Raises ValueError if a value's length differs from the dtype's.
    """
    import numpy as np

    topics, codes, partitions = _codes(sources)
    out: dict[str, Any] = {}
    for name in ordered(wanted):
        if name == "topic":
            out["topics"] = topics
            out["topic"] = _view(columns.spread(codes), np.int32)[:count]
        elif name == "partition":
            out["partition"] = _view(columns.spread(partitions), np.int32)[:count]
        elif name in ("offset", "timestamp"):
            native = columns.offsets if name == "offset" else columns.timestamps
            out[name] = _view(native, np.int64)[:count]
        elif name in ("key", "value"):
            dtype = value_dtype if name == "value" else key_dtype
            _numpy_binary(out, name, columns, None if dtype is None else np.dtype(dtype),
                          columns.count if count is None else count)
    return out


def numpy_rows(
    columns: Columns, sources: Sequence[TopicPartition], wanted: Iterable[str] = COLUMNS,
    value_dtype: Any = None, key_dtype: Any = None,
) -> tuple[dict[str, Any], dict[TopicPartition, int] | None]:
    """Return numpy_batch() of the rows before the first with a length that differs from its dtype.

    Also returns the first omitted offset of each partition, or None if no row is omitted. Raises
    RecordDeserializationError if the first row's length differs, ValueError.
    """
    try:
        return numpy_batch(columns, sources, wanted, value_dtype, key_dtype), None
    except ValueError as failure:
        row = min(_first_misfit(columns, "value", value_dtype),
                  _first_misfit(columns, "key", key_dtype))
        if row == columns.count:
            raise
        of_row = _view(columns.spread(list(range(len(sources)))), "i4")
        offsets = _view(columns.offsets, "i8")
        if not row:
            raise RecordDeserializationError.at(
                sources[of_row[0]], int(offsets[0]), failure) from failure
    left, firsts = _unique(of_row[row:])
    unread = {sources[source]: int(offsets[row + first]) for source, first in zip(left, firsts)}
    return numpy_batch(columns, sources, wanted, value_dtype, key_dtype, row), unread


def _unique(numbers: Any) -> tuple[list[int], list[int]]:
    """Return (the unique numbers, index of the first occurrence of each)."""
    import numpy as np

    found, firsts = np.unique(numbers, return_index=True)
    return found.tolist(), firsts.tolist()


def _first_misfit(columns: Columns, name: str, dtype: Any) -> int:
    """Return the first row with a non-null key or value of another length than the dtype's, or the
    row count.
    """
    import numpy as np

    if dtype is None:
        return columns.count
    misfits = np.diff(_view(getattr(columns, f"{name}_offsets"), "i4")) != np.dtype(dtype).itemsize
    validity = getattr(columns, f"{name}_validity")
    if validity is not None:
        misfits &= _bits(validity, columns.count) == 1
    return int(misfits.argmax()) if misfits.any() else columns.count


def _bits(validity: Any, count: int) -> Any:
    import numpy as np

    return np.unpackbits(np.frombuffer(validity, dtype=np.uint8), bitorder="little", count=count)


def _view(native: Any, dtype: Any) -> Any:
    import numpy as np

    return np.frombuffer(native, dtype=dtype)


def _numpy_binary(out: dict[str, Any], name: str, columns: Columns, dtype: Any,
                  count: int) -> None:
    import numpy as np

    from pylog.client.columns.fixed_width import array_of

    offsets = getattr(columns, f"{name}_offsets")
    data = getattr(columns, f"{name}_data")
    validity = getattr(columns, f"{name}_validity")
    if validity is not None:
        out[f"{name}_null"] = _bits(validity, count) == 0
    if dtype is None:
        found = out[f"{name}_offsets"] = _view(offsets, np.int32)[:count + 1]
        out[f"{name}_data"] = _view(data, np.uint8)[:found[-1]]
        return
    out[name] = array_of(offsets, data, validity, count, dtype)


# ---- pyarrow columns for native code


def decoded(column: Any) -> Any:
    """Return the column without run-end and dictionary encoding and without string views."""
    import numpy as np
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):  # Arrow cannot decode every dictionary type.
        return decoded(column.dictionary).take(column.indices)
    if pa.types.is_run_end_encoded(kind):  # Arrow cannot decode dictionaries and views in it.
        run_ends = column.run_ends.to_numpy(zero_copy_only=False)
        rows = np.arange(column.offset, column.offset + len(column))
        return decoded(column.values).take(pa.array(np.searchsorted(run_ends, rows, side="right")))
    if pa.types.is_binary_view(kind):
        return column.cast(pa.large_binary())
    return column.cast(pa.large_utf8()) if pa.types.is_string_view(kind) else column


def as_bytes(column: Any, role: str = "keys or values") -> Any:
    """Return the column as one of the types that Column accepts. Raises TypeError."""
    import pyarrow as pa

    column = decoded(column)
    kind = column.type
    if kind in (pa.binary(), pa.utf8(), pa.large_binary(), pa.large_utf8()):
        return column
    if pa.types.is_fixed_size_binary(kind):
        return column.cast(pa.large_binary())
    if pa.types.is_null(kind):
        return column.cast(pa.binary())
    raise TypeError(f"the column for {role} is {kind}: keys and values are binary or string "
                    "columns; serialize it first (pylog.client.serialization)")


def native_column(column: Any, role: str = "keys or values") -> Column | None:
    if column is None:
        return None
    import pyarrow as pa

    column = as_bytes(column, role)
    validity, offsets, data = column.buffers()
    wide = column.type in (pa.large_binary(), pa.large_utf8())
    if offsets is None or len(column) == 0:
        # An empty array may have no offsets buffer.
        return Column(0, bytes(8), None, None, 8 if wide else 4)
    return Column(len(column), offsets, data, validity, 8 if wide else 4, column.offset)

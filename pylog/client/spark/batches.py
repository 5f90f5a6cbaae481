"""Convert an offset range to Arrow batches with the schema that Spark expects.

Owns: nothing beyond the reader of one task.
Invariants: batches have exactly the fields, types and order of the requested schema; if neither
  keys, values, headers nor timestamps are requested, only batch headers are read; rows are those of
  [start, end), in order.
Source: the schema of Spark's Kafka connector; SPARK-55583 (types are compared exactly).
"""

from __future__ import annotations

import inspect
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from pylog._native.client.columns import ColumnReader, Fetched, RecordsError
from pylog._native.records import batch
from pylog.client.columns import arrow
from pylog.client.errors import error
from pylog.client.spark.decoding import Decoder
from pylog.client.spark.ranges import Chunk, RangeReader, OffsetRange, lost

RECORDS_MAX = 131_072
_IN_RECORDS = {"key", "value", "timestamp", "headers"}
_HEAD = struct.Struct(">qi")
_ATTRIBUTES = struct.Struct(">hi")
_COUNT = struct.Struct(">i")


class Shape:
    """The Arrow schema of a Spark schema, and the columns with the same value in every row."""

    def __init__(self, schema: Any, offset_range: OffsetRange):
        self.schema = _arrow_schema(schema)
        self.names = list(self.schema.names)
        self.wanted = set(self.names)
        self.native = self.wanted
        self.decoders: Sequence[Decoder] = ()
        self._offset_range = offset_range
        self._constant: dict[Any, Any] = {}

    def decode_with(self, decoders: Sequence[Decoder]) -> None:
        """Use decoders. A column that a decoder fills is not read from records; its key or value
        is.
        """
        self.decoders = decoders
        self.native = self.wanted.difference(*(decoder.fills for decoder in decoders)) | {
            decoder.side for decoder in decoders}

    def constant(self, name: str, value: Any, count: int) -> Any:
        """Return a column with a single value: a slice of a cached array."""
        import pyarrow as pa

        found = self._constant.get((name, value))
        if found is None or len(found) < count:
            size = max(count, RECORDS_MAX)
            found = pa.repeat(pa.scalar(value, self.schema.field(name).type), size)
            self._constant[name, value] = found
        return found.slice(0, count)

    def batch(self, count: int, columns: dict[str, Any]) -> Any:
        """Build a batch with exactly the requested schema. columns: all except topic and partition.
        """
        import pyarrow as pa

        arrays = []
        for name in self.names:
            if name == "topic":
                arrays.append(self.constant(name, self._offset_range.topic, count))
            elif name == "partition":
                arrays.append(self.constant(name, self._offset_range.partition, count))
            else:
                arrays.append(columns[name])
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _arrow_schema(schema: Any) -> Any:
    """Convert a Spark schema; timestamps are UTC. Before 4.2, PySpark has no other zone."""
    from pyspark.sql.pandas.types import to_arrow_schema

    has_zone = "timezone" in inspect.signature(to_arrow_schema).parameters
    zone: dict[str, Any] = {"timezone": "UTC"} if has_zone else {}
    return to_arrow_schema(schema, **zone)


def batches(reader: RangeReader, shape: Shape) -> Iterator[Any]:
    """Yield all rows of the reader's range. Raises DataLossError, KafkaError."""
    if not shape.native & _IN_RECORDS:
        yield from _from_heads(reader, shape)
        return
    columns = ColumnReader(headers="headers" in shape.native)
    for chunk in reader:
        fetched = Fetched(
            chunk.records, next_offset=chunk.position, aborted=chunk.aborted,
            read_committed=reader.committed_only, check_crc=bool(reader.settings["check.crcs"]))
        while not fetched.exhausted:
            try:
                columns.read(fetched, RECORDS_MAX)
            except RecordsError as broken:
                raise error(broken.code, str(broken), f"{reader.offset_range.topic}-"
                            f"{reader.offset_range.partition} at {broken.offset}") from None
            if columns.count:
                made = _columns(columns.finish(), shape, chunk, reader.offset_range)
                if made is not None:
                    yield made
        del fetched


def _columns(native: Any, shape: Shape, chunk: Chunk, offset_range: OffsetRange) -> Any:
    """Return the rows before the range's end, or None."""
    import numpy as np

    offsets = np.frombuffer(native.offsets, np.int64)
    count = int(np.searchsorted(offsets, offset_range.end))
    if not count:
        return None
    wanted = shape.native & (_IN_RECORDS | {"offset"})
    found = arrow.record_batch(native, {0: (offset_range.topic, offset_range.partition)}, wanted)
    found = found.slice(0, count)
    columns: dict[str, Any] = {}
    for decoder in shape.decoders:
        columns.update(decoder.columns(found.column(decoder.side), lambda row: (
            f"{offset_range.topic}-{offset_range.partition} at offset {offsets[row]}")))
    for name in wanted - columns.keys():
        if name not in shape.wanted:
            continue
        column, kind = found.column(name), shape.schema.field(name).type
        columns[name] = column if column.type.equals(kind) else column.cast(kind)
    if "timestampType" in shape.wanted:
        columns["timestampType"] = _types(chunk, offsets[:count], shape)
    return shape.batch(count, columns)


def _types(chunk: Chunk, offsets: Any, shape: Shape) -> Any:
    """Return timestamp types: 0 for CreateTime, 1 for LogAppendTime. A topic's setting may change
    within the range.
    """
    import numpy as np
    import pyarrow as pa

    bases, kinds = [], []
    for base, _, attributes, _ in _heads(chunk.records):
        bases.append(base)
        kinds.append(1 if attributes & batch.LOG_APPEND_TIME else 0)
    if len(set(kinds)) == 1:
        return shape.constant("timestampType", kinds[0], len(offsets))
    places = np.searchsorted(np.array(bases), offsets, side="right") - 1
    return pa.array(np.array(kinds, np.int32)[places], pa.int32())


def _heads(records: memoryview) -> Iterator[tuple[int, int, int, int]]:
    """Yield (base offset, last offset, attributes, record count) of each complete batch."""
    at, size = 0, len(records)
    while at + batch.HEADER_BYTES <= size:
        base, length = _HEAD.unpack_from(records, at)
        if length < batch.HEADER_BYTES - _HEAD.size or at + _HEAD.size + length > size:
            return
        attributes, delta = _ATTRIBUTES.unpack_from(records, at + batch.ATTRIBUTES_AT)
        [count] = _COUNT.unpack_from(records, at + batch.RECORD_COUNT_AT)
        yield base, base + delta, attributes, count
        at += _HEAD.size + length


def _from_heads(reader: RangeReader, shape: Shape) -> Iterator[Any]:
    """Yield rows from batch headers. Reads the records of a compacted batch, which lacks some
    offsets.
    """
    import numpy as np
    import pyarrow as pa

    offset_range = reader.offset_range
    for chunk in reader:
        runs: list[tuple[int, int, int]] = []
        aborted = sorted(chunk.aborted, key=lambda transaction: transaction[1])
        if reader.committed_only and aborted:
            runs = list(_walked(reader, chunk))
        else:
            for base, last, attributes, count in _heads(chunk.records):
                first, end = max(base, chunk.position), min(last + 1, offset_range.end)
                if attributes & batch.CONTROL or first >= end:
                    continue
                kind = 1 if attributes & batch.LOG_APPEND_TIME else 0
                if count != last - base + 1:
                    runs = list(_walked(reader, chunk))
                    break
                if runs and runs[-1][1] == first and runs[-1][2] == kind:
                    runs[-1] = (runs[-1][0], end, kind)
                else:
                    runs.append((first, end, kind))
        for first, end, kind in runs:
            for start in range(first, end, RECORDS_MAX):
                rows = min(end - start, RECORDS_MAX)
                columns: dict[str, Any] = {}
                if "offset" in shape.wanted:
                    columns["offset"] = pa.array(np.arange(start, start + rows), pa.int64())
                if "timestampType" in shape.wanted:
                    columns["timestampType"] = shape.constant("timestampType", kind, rows)
                yield shape.batch(rows, columns)


def _walked(reader: RangeReader, chunk: Chunk) -> Iterator[tuple[int, int, int]]:
    """Return (first, end, timestamp type) of the runs of offsets that have records."""
    import numpy as np

    columns = ColumnReader(headers=False)
    fetched = Fetched(chunk.records, next_offset=chunk.position, aborted=chunk.aborted,
                      read_committed=reader.committed_only)
    heads = [(base, 1 if attributes & batch.LOG_APPEND_TIME else 0)
             for base, _, attributes, _ in _heads(chunk.records)]
    while not fetched.exhausted:
        if not columns.read(fetched, RECORDS_MAX):
            continue
        offsets = np.frombuffer(memoryview(columns.finish().offsets), np.int64)
        offsets = offsets[:np.searchsorted(offsets, reader.offset_range.end)]
        kinds = np.array([kind for _, kind in heads])[
            np.searchsorted(np.array([base for base, _ in heads]), offsets, side="right") - 1]
        cuts = np.flatnonzero((np.diff(offsets) != 1) | (np.diff(kinds) != 0)) + 1
        bounds = [0, *cuts.tolist(), len(offsets)]
        for low, high in zip(bounds, bounds[1:]):
            if low < high:
                yield int(offsets[low]), int(offsets[high - 1]) + 1, int(kinds[low])


__all__ = ["batches", "lost"]

"""Send Arrow tables: find the columns, cast them to binary, and split rows by partition.

Owns: the batches of one send_arrow until the accumulator takes them.
Invariants: rows keep their order within a partition, across chunks; at most CLOSED_BYTES_MAX of
  closed batches are held outside buffer.memory; binary and string columns are copied only once,
  into their batch.
Source: Arrow columnar format 1.4.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

from pylog._native.client.batch_builder import MURMUR2, Batch, BatchWriter, Column
from pylog.client.columns.arrow import decoded, native_column
from pylog.client.errors import ConfigError, error
from pylog.client.producer.core import Producing
from pylog.client.producer.delivery import Pending, TableDelivery
from pylog.client.producer.partitioners import native_code
from pylog.protocol.errors import ErrorCode

CLOSED_BYTES_MAX = 1 << 18
BATCH_OVERHEAD_BYTES = 1024
_PER_MS = {"us": 1000, "ns": 1_000_000}
ROLES = ("key", "value", "partition", "timestamp", "headers")


class TableSender:
    """Sender of one send_arrow. wait_for(what, topic, partition, monotonic deadline) blocks.

    transaction: Producing.check() at the call. Rows are sent only in that transaction.
    """

    def __init__(self, core: Producing, topic: str, batch_bytes: int | None,
                 wait_for: Callable[[str, str, int | None, float], None], transaction: int):
        self.core, self.topic, self.wait_for = core, topic, wait_for
        self.transaction = transaction
        room = core.request_bytes_max - BATCH_OVERHEAD_BYTES
        wanted = core.batch_bytes if batch_bytes is None else batch_bytes
        self.batch_bytes = max(min(wanted, room), 1)
        self.pendings: list[Pending] = []
        self.count = 0
        self.code = native_code(core.partitioner)
        self._partitions, self._available = self._where()
        random.shuffle(self._available)
        self._writer = BatchWriter(
            len(self._partitions), self.batch_bytes, core.codec, core.level, self._available,
            MURMUR2 if self.code is None else self.code, core.request_bytes_max,
            core.accumulator.pool)

    def send(self, data: Any, roles: dict[str, Any]) -> TableDelivery:
        """Send all rows. Raises KafkaError, TypeError, RowError."""
        now = time.time_ns() // 1_000_000
        for batch in chunks(data, roles):
            columns = found_columns(batch, roles)
            if self.code is None and columns["partition"] is None:
                columns["partition"] = self._choose_partitions(columns, batch.num_rows)
            self.write(
                batch.num_rows, key=native_column(columns["key"], "key"),
                value=native_column(columns["value"], "value"), now=now,
                timestamps=native_timestamps(columns["timestamp"], now),
                partitions=native_partitions(columns["partition"]),
                headers=native_headers(columns["headers"]))
        self.flush()
        return TableDelivery(self.pendings, self.count)

    def write(self, count: int, **given: Any) -> None:
        """Write rows with BatchWriter's arguments and pass full batches on. Raises KafkaError,
        RowError.
        """
        row = 0
        try:
            while row < count:
                row = self._writer.write(row, count, closed_bytes_max=CLOSED_BYTES_MAX, **given)
                self._append(self._writer.take())
        except ValueError:
            self.flush()
            raise
        self.count += count

    def flush(self) -> None:
        """Pass on batches that are not full."""
        self._writer.flush()
        self._append(self._writer.take())

    def take_done(self) -> list[Pending]:
        """Return completed batches from the front of the list and forget them."""
        count = 0
        while count < len(self.pendings) and self.pendings[count].done:
            count += 1
        found = self.pendings[:count]
        del self.pendings[:count]
        return found

    def _where(self) -> tuple[list[int], list[int]]:
        """Return (all partitions, partitions that accept records now)."""
        end_s = time.monotonic() + self.core.block_s
        self.wait_for("metadata", self.topic, None, end_s)
        metadata = self.core.cluster.metadata
        count = metadata.partition_count(self.topic)
        if not count:
            raise error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, context=self.topic)
        partitions = list(range(count))
        stalled = self.core.sender.stalled(self.topic)
        available = [p for p in partitions if metadata.leader(self.topic, p) >= 0] or partitions
        return partitions, [p for p in available if p not in stalled] or [*available]

    def _choose_partitions(self, columns: dict[str, Any], count: int) -> Any:
        """Call a partitioner that has no native implementation for each row."""
        import pyarrow as pa

        keys = [None] * count if columns["key"] is None else columns["key"].to_pylist()
        choose = self.core.partitioner.choose
        return pa.array([choose(self.topic, key.encode() if isinstance(key, str) else key,
                                self._partitions, self._available, 1) for key in keys], pa.int32())

    def _append(self, batches: list[Batch]) -> None:
        accumulator = self.core.accumulator
        for batch in batches:
            self.core.check_same(self.transaction)
            queue = accumulator.queue(self.topic, batch.partition)
            pending = accumulator.add(queue, batch)
            end_s = 0.0
            while pending is None:
                end_s = end_s or time.monotonic() + self.core.block_s
                self.wait_for("memory", self.topic, None, end_s)
                self.core.check_same(self.transaction)
                pending = accumulator.add(queue, batch)
            self.pendings.append(pending)
            if self.core.sender.failure is not None:
                raise self.core.sender.failure


# ---- columns of a table


def chunks(data: Any, roles: dict[str, Any]) -> Iterator[Any]:
    """Yield the record batches of any Arrow data, with the arrays in `roles` added as columns."""
    import pyarrow as pa

    arrays = {role: given for role, given in roles.items()
              if given is not None and not isinstance(given, str)}
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if not isinstance(data, pa.Table) and arrays:
        data = pa.RecordBatchReader.from_stream(data).read_all()
    if isinstance(data, pa.Table):
        for role, given in arrays.items():
            column = given if isinstance(given, (pa.Array, pa.ChunkedArray)) else pa.array(given)
            data = data.append_column(f"\0{role}", column)
            roles[role] = f"\0{role}"
        yield from data.to_batches()
    elif isinstance(data, pa.RecordBatchReader):
        yield from data
    elif hasattr(data, "__arrow_c_stream__"):
        yield from pa.RecordBatchReader.from_stream(data)
    else:
        raise TypeError(f"not Arrow data: {type(data).__name__}")


def found_columns(batch: Any, roles: dict[str, Any]) -> dict[str, Any]:
    """Return the column of each role, or None. Raises ConfigError if a name does not exist, and
    TypeError.
    """
    names = batch.schema.names
    found: dict[str, Any] = {}
    for role in ROLES:
        name = roles[role]
        if name is not None and name not in names:
            raise ConfigError(f"the table has no column {name!r}; it has {', '.join(names)}")
        if name is None and role in names:
            name = role
        found[role] = None if name is None else _decoded(batch.column(name), role)
    if found["value"] is None and found["key"] is None:
        raise ConfigError(f"neither key= nor value= names a column; there are {', '.join(names)}")
    return found


def _decoded(column: Any, role: str) -> Any:
    """Return the column without encoding. Raises TypeError if pyarrow cannot decode it."""
    import pyarrow as pa

    try:
        return decoded(column)
    except pa.ArrowNotImplementedError as failure:
        raise TypeError(f"the {role} column is {column.type}, which pyarrow cannot decode: "
                        "pass it decoded") from failure


def _cast(column: Any, kind: Any, role: str) -> Any:
    """Cast numbers or times. Raises ValueError if one is out of the range of `kind`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        return pc.cast(column, kind)
    except pa.ArrowInvalid as failure:
        raise ValueError(
            f"the {role} column has a value that is out of range: {failure}") from failure


def native_timestamps(column: Any, now: int) -> Any:
    """Convert to int64 ms, nulls to now. Rounds finer units down, before 1970 too. Raises
    TypeError, ValueError.
    """
    if column is None:
        return None
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    is_time, is_date = pa.types.is_timestamp(kind), pa.types.is_date(kind)
    if not (is_time or is_date or pa.types.is_integer(kind) or pa.types.is_null(kind)):
        raise TypeError(f"the timestamp column is {kind}: make it timestamp, date or an integer "
                        "type (milliseconds since 1970)")
    if is_date or is_time and kind.unit == "s":
        column = _cast(column, pa.timestamp("ms", tz=kind.tz if is_time else None), "timestamp")
    divisor = _PER_MS.get(kind.unit, 1) if is_time else 1
    column = _cast(column, pa.int64(), "timestamp")
    if column.null_count:
        column = pc.fill_null(column, now * divisor)
    numbers = column.to_numpy(zero_copy_only=False)
    return numbers if divisor == 1 else numbers // divisor


def native_partitions(column: Any) -> Any:
    """Convert to int32, nulls to -1. Raises TypeError, ValueError."""
    if column is None:
        return None
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_null(kind)):
        raise TypeError(f"the partition column is {kind}: make it an integer type")
    column = _cast(column, pa.int32(), "partition")
    if column.null_count:
        column = pc.fill_null(column, -1)
    return column.to_numpy(zero_copy_only=False)


def native_headers(column: Any) -> tuple[Any, Column, Column] | None:
    """Return (int32 list offsets, keys, values) of a list<struct<key, value>> or map column."""
    if column is None:
        return None
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_null(kind):
        return None
    if pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        kind = pa.list_(kind.value_type)
        column = pc.cast(column, kind)
    if column.null_count:
        column = pc.coalesce(column, pa.scalar([], kind))
    if pa.types.is_map(kind):
        keys, values = column.keys, column.items
    elif pa.types.is_list(kind) and pa.types.is_struct(kind.value_type) and {
            field.name for field in kind.value_type} >= {"key", "value"}:
        items = column.values
        keys, values = items.field("key"), items.field("value")
    else:
        raise TypeError(f"the headers column is {kind}: make it list<struct<key, value>> or map")
    offsets = column.offsets.to_numpy(zero_copy_only=False).astype(np.int32)
    native_keys, native_values = native_column(keys), native_column(values)
    assert native_keys is not None and native_values is not None
    return offsets, native_keys, native_values

"""Contract of the read kernels: fetched bytes in, columns or Record objects out.

Use by a consumer, per partition of a Fetch response:

    fetched = Fetched(answer.records, source=3, next_offset=position,
                      aborted=[(a.producer_id, a.first_offset) for a in answer.aborted],
                      read_committed=True)
    count = reader.read(fetched, records_max=500)     # columns; or
    found = records(fetched, "topic", 0, 500)         # Record objects
    position = fetched.next_offset                    # also past control and aborted batches

`read` and `records` may be called again until `fetched.exhausted`. `reader.finish()`
returns the rows and empties the reader. pylog.client.columns.arrow converts them to pyarrow and
NumPy.
"""

from collections.abc import Sequence
from typing import Any, Generic

from typing_extensions import Buffer, TypeVar

K = TypeVar("K", default=bytes)
V = TypeVar("V", default=bytes)

NO_TIMESTAMP_TYPE: int
CREATE_TIME: int
LOG_APPEND_TIME: int

class RecordsError(ValueError):
    """Invalid records: a damaged batch, CRC, codec or structure.

    error: the negative batch_error. code: Kafka's error code (2 CORRUPT_MESSAGE ...). offset: the
    first unreadable offset; seek past it to continue. Raised only if no record was read before it
    in the same call: valid records are returned first.
    """

    error: int
    code: int
    offset: int
    def __init__(self, error: int, offset: int) -> None: ...

class Fetched:
    """The record bytes of one fetched partition, read once from front to end.

    data stays borrowed as long as this object exists. source: the caller's number for the
    topic-partition, >= 0. next_offset: first requested offset (batches may begin before it).
    aborted: in any order. A truncated batch at the end ends the data without an error. Not
    thread-safe.
    """

    source: int
    next_offset: int  # the next fetch offset
    leader_epoch: int  # of the last batch read, -1: none
    def __init__(
        self,
        data: Buffer,
        *,
        source: int = 0,
        next_offset: int = 0,
        aborted: Sequence[tuple[int, int]] = (),
        read_committed: bool = False,
        check_crc: bool = True,
        inflated_bytes_max: int = ...,
    ) -> None: ...
    @property
    def exhausted(self) -> bool: ...
    @property
    def bytes_left(self) -> int: ...
    @property
    def is_cut(self) -> bool:
        """Return True if there are bytes, but no complete batch: fetch with a larger limit."""

class ColumnReader:
    """Native columns that grow record by record. The GIL is released while it reads."""

    def __init__(self, *, headers: bool = True, bytes_max: int = ...) -> None:
        """headers: False omits that column. bytes_max: of keys, of values and of headers in one
        finish; at most 2**31 - 1, the limit of Arrow's 32-bit offsets.
        """

    def read(self, fetched: Fetched, records_max: int) -> int:
        """Append up to records_max records; return their number. If fewer: exhausted, `full`, or an
        error that the next call raises.

        Raises RecordsError, MemoryError.
        """

    @property
    def count(self) -> int: ...
    @property
    def bytes(self) -> int:
        """Return the bytes of keys and values so far."""
    @property
    def full(self) -> bool:
        """Return True if the next record would exceed bytes_max: finish() first."""

    def finish(self) -> Columns: ...

class ColumnBuffer:
    """Native memory behind the buffer protocol (format "B", read-only)."""

    nbytes: int
    address: int
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Columns:
    """The result of one finish(). Buffers in Arrow's layout, little-endian.

    offsets, timestamps: int64[count]. key_/value_: offsets int32[count + 1], data, validity bits
    (None: no nulls). headers: list offsets int32[count + 1] (None: no record has headers), then per
    header key offsets and data (valid UTF-8), value offsets, data, validity. runs: (source, record
    count) in order; neighbours differ.
    """

    count: int
    offsets: ColumnBuffer
    timestamps: ColumnBuffer
    key_offsets: ColumnBuffer
    key_data: ColumnBuffer
    key_validity: ColumnBuffer | None
    key_null_count: int
    value_offsets: ColumnBuffer
    value_data: ColumnBuffer
    value_validity: ColumnBuffer | None
    value_null_count: int
    header_count: int
    header_offsets: ColumnBuffer | None
    header_key_offsets: ColumnBuffer | None
    header_key_data: ColumnBuffer | None
    header_value_offsets: ColumnBuffer | None
    header_value_data: ColumnBuffer | None
    header_value_validity: ColumnBuffer | None
    header_value_null_count: int
    runs: list[tuple[int, int]]
    def spread(self, values: Sequence[int]) -> ColumnBuffer:
        """Return int32[count]: values[source] for each record (partition numbers, dictionary
        codes).
        """

class Record(Generic[K, V]):
    """One consumed record. Deserializers replace key and value. A value of None is a tombstone."""

    key: K | None
    value: V | None
    def __init__(
        self,
        topic: str,
        partition: int = 0,
        offset: int = -1,
        timestamp: int = -1,
        timestamp_type: int = ...,
        key: K | None = None,
        value: V | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        leader_epoch: int = -1,
    ) -> None: ...
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def timestamp_type(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def headers(self) -> list[tuple[str, bytes | None]]: ...

def records(
    fetched: Fetched, topic: str, partition: int, records_max: int
) -> list[Record[Any, Any]]:
    """Return up to records_max Records. Raises RecordsError, MemoryError.

    Deserialize by assigning to record.key and record.value.
    """

def fixed_width(
    offsets: Buffer,
    data: Buffer,
    validity: Buffer | None,
    count: int,
    width: int,
    swap: bool,
    start: int = 0,
) -> ColumnBuffer:
    """Convert a binary column whose values all have `width` (1, 2, 4, 8) bytes to one plain array.

    start: the first row of a sliced column. Nulls become zero. swap: the bytes are big-endian.
    Raises ValueError for another length.
    """

"""Contract of the read kernels: fetched bytes in, columns or Record objects out.

The way of a consumer, per partition of a Fetch answer:

    fetched = Fetched(answer.records, source=3, next_offset=position,
                      aborted=[(a.producer_id, a.first_offset) for a in answer.aborted],
                      read_committed=True)
    count = reader.read(fetched, records_max=500)     # columns; or
    found = records(fetched, "topic", 0, 500)         # Record objects
    position = fetched.next_offset                    # also past control and aborted batches

`read` and `records` may be called again until `fetched.exhausted`. `reader.finish()` takes what was
read and leaves the reader empty for more. pylog.client.arrow makes pyarrow and NumPy out of it.
"""

from collections.abc import Sequence
from typing import Any

from typing_extensions import Buffer

NO_TIMESTAMP_TYPE: int
CREATE_TIME: int
LOG_APPEND_TIME: int

class RecordsError(ValueError):
    """Fetched bytes that are no good records: a broken batch, CRC, codec or structure.

    error: the negative batch_error. code: Kafka's error code (2 CORRUPT_MESSAGE ...).
    offset: the first offset that could not be read; seeking past it goes on. Raised only when
    nothing was read before it in the same call: what is good comes first.
    """

    error: int
    code: int
    offset: int
    def __init__(self, error: int, offset: int) -> None: ...

class Fetched:
    """The record bytes of one fetched partition, read once from front to end.

    data stays borrowed as long as this lives. source: the caller's number for the topic-partition,
    >= 0. next_offset: first offset wanted (batches may begin before it). aborted: in any order.
    A last batch that is cut short ends the data without an error. Not for two threads at once.
    """

    source: int
    next_offset: int  # where the next fetch begins
    leader_epoch: int  # of the batch last read, -1: none
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
        """True when no whole batch was in the data though there were bytes: fetch with more."""

class ColumnReader:
    """Native columns that grow record by record. The GIL is released while it reads."""

    def __init__(self, *, headers: bool = True, bytes_max: int = ...) -> None:
        """headers: False leaves that column out. bytes_max: of keys, values or headers alone in
        one finish; at most 2**31 - 1, so that Arrow's 32-bit offsets hold."""

    def read(self, fetched: Fetched, records_max: int) -> int:
        """Appends up to records_max records; how many. Fewer: exhausted, `full`, or a fault that
        the next call raises.

        Raises RecordsError, MemoryError."""

    @property
    def count(self) -> int: ...
    @property
    def bytes(self) -> int:
        """Of keys and values so far."""
    @property
    def full(self) -> bool:
        """The next record would pass bytes_max: finish() first."""

    def finish(self) -> Columns: ...

class ColumnBuffer:
    """Native memory behind the buffer protocol (format "B", read-only)."""

    nbytes: int
    address: int
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Columns:
    """What one finish() took. Buffers as Arrow lays them out, little-endian.

    offsets, timestamps: int64[count]. key_/value_: offsets int32[count + 1], data, validity bits
    (None: no nulls). headers: list offsets int32[count + 1] (None: no record had any), then per
    header key offsets and data (valid UTF-8), value offsets, data, validity.
    runs: (source, record count) in order; neighbours differ.
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
        """int32[count]: values[source] for each record (partition numbers, dictionary codes)."""

class Record:
    """One consumed record. key and value may be replaced by what a deserializer makes of them."""

    key: Any
    value: Any
    def __init__(
        self,
        topic: str,
        partition: int = 0,
        offset: int = -1,
        timestamp: int = -1,
        timestamp_type: int = ...,
        key: Any = None,
        value: Any = None,
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

def records(fetched: Fetched, topic: str, partition: int, records_max: int) -> list[Record]:
    """Up to records_max Records. Raises RecordsError, MemoryError.

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
    """A binary column whose values are all `width` (1, 2, 4, 8) bytes as one plain array.

    start: the first row of a sliced column. Nulls become zero. swap: the bytes are big-endian.
    Raises ValueError on another length.
    """

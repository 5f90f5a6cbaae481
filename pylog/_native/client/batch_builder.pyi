"""Contract of the build kernels: records or Arrow columns in, batches of magic 2 out."""

from collections.abc import Iterable, Mapping, Sequence

from typing_extensions import Buffer

MURMUR2: int  # partitioners of BatchWriter
CRC32: int
FULL: int

class RowError(ValueError):
    row: int
    too_large: bool
    def __init__(self, error: int, row: int) -> None: ...

def murmur2(key: Buffer) -> int:
    """Java's default partitioner: the non-negative hash, to be taken modulo the number of
    partitions.
    """

def crc32(key: Buffer) -> int:
    """librdkafka's `consistent`."""

class Pool:
    """Memory of finished batches, reused for new ones; memory above bytes_max is freed."""

    def __init__(self, bytes_max: int) -> None: ...
    @property
    def nbytes(self) -> int:
        """Return the bytes that it currently holds."""

class Batch:
    """One closed batch, ready to send; buffer protocol (format "B", read-only).

    The producer fields are in the header and may be changed (a retry with a new epoch, KIP-360);
    the checksum is updated.
    """

    partition: int
    record_count: int
    max_timestamp: int
    nbytes: int
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def seal(self) -> None:
        """Compute the checksum, without the GIL if it takes long; reading the bytes also computes
        it.
        """

    def stamp(
        self, producer_id: int, epoch: int, base_sequence: int, transactional: bool = False
    ) -> None: ...

def copied(data: Buffer, partition: int) -> Batch:
    """Return a batch with the records of `data`, one whole batch as a broker returned it.

    It has no producer and is in no transaction. Raises ValueError for other bytes.
    """

def seal(batches: list[Batch]) -> None:
    """Compute each batch's checksum, all without the GIL if it takes long."""

class BatchBuilder:
    """The open batch of one partition. Not thread-safe."""

    def __init__(
        self, bytes_max: int, partition: int = 0, pool: Pool | None = None
    ) -> None: ...
    @property
    def count(self) -> int: ...
    @property
    def nbytes(self) -> int:
        """Return the size of the uncompressed batch, header included."""

    def append(
        self,
        key: Buffer | None,
        value: Buffer | None,
        timestamp: int,
        headers: Iterable[tuple[str, bytes | None]] | Mapping[str, bytes | None] | None = None,
    ) -> int:
        """Return the record's index in the batch, or -1 if it would exceed bytes_max: close()
        first.

        The first record of a batch always fits. Raises TypeError, ValueError over 1 GiB.
        """

    def close(self, codec: int = 0, level: int | None = None) -> Batch:
        """Return the batch; the builder is then empty. Raises ValueError without records."""

class Column:
    """A borrowed binary or string column in Arrow's layout. width: of its offsets, 4 or 8."""

    def __init__(
        self,
        length: int,
        offsets: Buffer,
        data: Buffer | None,
        validity: Buffer | None,
        width: int = 4,
        start: int = 0,
    ) -> None: ...

class BatchWriter:
    """Distributes rows of columns to one open batch per partition, in order, without the GIL."""

    def __init__(
        self,
        partition_count: int,
        bytes_max: int,
        codec: int = 0,
        level: int | None = None,
        sticky: Sequence[int] = (),
        partitioner: int = ...,
        record_bytes_max: int = ...,
        pool: Pool | None = None,
    ) -> None:
        """sticky: the partitions for null keys, in turn, batch by batch; all by default.
        record_bytes_max: of key, value and headers together.
        """

    @property
    def closed_bytes(self) -> int: ...

    def write(
        self,
        start: int,
        stop: int,
        *,
        key: Column | None = None,
        value: Column | None = None,
        timestamps: Buffer | None = None,
        now: int = -1,
        partitions: Buffer | None = None,
        headers: tuple[Buffer, Column, Column] | None = None,
        closed_bytes_max: int = ...,
    ) -> int:
        """Append rows [start, stop) and return the next row: less than stop when closed batches
        exceed closed_bytes_max. timestamps: int64 ms; now: for all rows otherwise. partitions:
        int32, -1 selects by key. headers: int32 list offsets, keys, values. Raises RowError;
        earlier rows are appended.
        """

    def take(self) -> list[Batch]:
        """Return the batches closed so far, in order per partition."""

    def flush(self) -> None:
        """Close all open batches."""

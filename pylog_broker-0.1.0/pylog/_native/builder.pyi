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
    """Java's default partitioner: the hash made positive, to be taken modulo."""

def crc32(key: Buffer) -> int:
    """librdkafka's `consistent`."""

class Pool:
    """Memory of batches that are gone, for those to come; what passes bytes_max is freed."""

    def __init__(self, bytes_max: int) -> None: ...
    @property
    def nbytes(self) -> int:
        """What it holds at the moment."""

class Batch:
    """One closed batch, ready to send; buffer protocol (format "B", read-only).

    The producer fields lie in the header and may be stamped anew (a retry under a new epoch,
    KIP-360); the checksum follows.
    """

    partition: int
    record_count: int
    max_timestamp: int
    nbytes: int
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def seal(self) -> None:
        """Makes the checksum, without the GIL when that takes long; looking at the bytes does so
        too."""

    def stamp(
        self, producer_id: int, epoch: int, base_sequence: int, transactional: bool = False
    ) -> None: ...

def seal(batches: list[Batch]) -> None:
    """Each one's checksum, all without the GIL when that takes long."""

class BatchBuilder:
    """The open batch of one partition. Not for two threads at once."""

    def __init__(
        self, bytes_max: int, partition: int = 0, pool: Pool | None = None
    ) -> None: ...
    @property
    def count(self) -> int: ...
    @property
    def nbytes(self) -> int:
        """Of the plain batch, header included."""

    def append(
        self,
        key: Buffer | None,
        value: Buffer | None,
        timestamp: int,
        headers: Iterable[tuple[str, bytes | None]] | Mapping[str, bytes | None] | None = None,
    ) -> int:
        """The record's index in the batch, or -1 when it would pass bytes_max: close() first.

        The first record of a batch always fits. Raises TypeError, ValueError over 1 GiB."""

    def close(self, codec: int = 0, level: int | None = None) -> Batch:
        """The batch so far; the builder is empty again. Raises ValueError without records."""

class Column:
    """A binary or string column as Arrow lays it out, borrowed. width: of its offsets, 4 or 8."""

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
    """Scatters rows of columns into one open batch per partition, in order, without the GIL."""

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
        """sticky: the partitions among which null keys rotate, batch by batch; all by default.
        record_bytes_max: of key, value and headers together."""

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
        """Rows [start, stop); the row to go on with: less than stop once closed batches pass
        closed_bytes_max. timestamps: int64 ms; now: for all rows otherwise. partitions: int32,
        -1 leaves it to the key. headers: int32 list offsets, keys, values. Raises RowError; the
        rows before that one are taken."""

    def take(self) -> list[Batch]:
        """The batches closed so far, in order per partition."""

    def flush(self) -> None:
        """Closes what is open."""

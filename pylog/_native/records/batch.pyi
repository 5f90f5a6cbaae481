from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from typing_extensions import Buffer

HEADER_BYTES: int
LOG_OVERHEAD: int
BYTES_MAX: int
LENGTH_AT: int
MAGIC_AT: int
ATTRIBUTES_AT: int
LAST_OFFSET_DELTA_AT: int
RECORD_COUNT_AT: int
CODEC_MASK: int
LOG_APPEND_TIME: int
DELETE_HORIZON: int
TRANSACTIONAL: int
CONTROL: int
INFLATED_BYTES_MAX: int

class Header(NamedTuple):
    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

class BatchError(ValueError):
    error: int
    code: int
    def __init__(self, error: int) -> None: ...

class Records: ...

_Headers = Sequence[tuple[str, bytes | None]]
_Given = tuple[bytes | None, bytes | None, int, _Headers]
_Read = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]

def crc32c(data: Buffer, crc: int = 0) -> int: ...
def crc32c_portable(data: Buffer, crc: int = 0) -> int: ...
def header(batch: Buffer) -> Header: ...
def walk(buffer: Buffer) -> Iterator[tuple[int, Header]]: ...
def edges(buffer: Buffer) -> tuple[list[tuple[int, int]], list[int]]: ...
def records(batch: Buffer, inflated_bytes_max: int = ...) -> list[_Read]: ...
def check(
    batch: Buffer,
    *,
    now_ms: int = 0,
    timestamp_before_max_ms: int = ...,
    timestamp_after_max_ms: int = ...,
    inflated_bytes_max: int = ...,
    batch_bytes_max: int = ...,
    key_required: bool = False,
    log_append_time: bool = False,
    walk_records: bool = True,
) -> tuple[int, dict[str, Any]]: ...
def crc_ok(batch: Buffer) -> bool: ...
def stamp(batch: Buffer, base_offset: int, leader_epoch: int) -> None: ...
def stamp_append_time(batch: Buffer, now_ms: int) -> None: ...
def stamp_max_timestamp(batch: Buffer, max_timestamp: int) -> bool: ...
def find_timestamp(
    batch: Buffer, target_ms: int, from_offset: int = 0
) -> tuple[int, int] | None: ...
def find_max_timestamp(batch: Buffer) -> tuple[int, int] | None: ...
def recompress(
    batch: Buffer, codec: int, level: int | None = None, inflated_bytes_max: int = ...,
    bytes_max: int = ...
) -> bytes: ...
def build(
    records: Iterable[_Given],
    *,
    base_offset: int = 0,
    codec: int = 0,
    level: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int = 0,
    leader_epoch: int = -1,
) -> bytes: ...

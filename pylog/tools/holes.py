"""Bytes of a segment file that are no good batches, and where good ones go on.

Owns: nothing; the file is read only.
Called by: tools.repair, files.
Invariants: (1) what is outside of the holes is whole batches with right CRCs and rising offsets.
Source: csrc/log_damage.c does the same for a broker's reads, without the CRCs of whole batches.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import NamedTuple

from pylog._native import batch as native

OVERHEAD = 12         # Bytes before what a batch's length counts.
MAGIC_AT = 16
OFFSETS_MAX = 2**31 - 1


class Hole(NamedTuple):
    """[position, end) of the file. offset: due there; next_offset: of the batch behind, or None."""

    position: int
    end: int
    offset: int
    next_offset: int | None
    why: str


def holes_of(path: Path, base: int) -> tuple[int, list[Hole]]:
    """(the offset behind the last good batch, holes in order). Raises OSError."""
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        if size == 0:
            return base, []
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
            return _walk(data, size, base)


def next_good(data: mmap.mmap, position: int, offset: int, base: int) -> tuple[int, int | None]:
    """(position, base offset) of the first good batch behind `position`, of offsets from `offset`
    on; (the file's size, None) without one."""
    return _search(data, len(data), position, offset, base)


def leads_on(data: mmap.mmap, position: int, offset: int, base: int) -> bool:
    """Whether a header that can be lies at `position`, or the file ends there."""
    if position == len(data):
        return True
    try:
        head = native.header(data[position:position + native.HEADER_BYTES])
    except native.BatchError:
        return False
    return (head.base_offset >= offset and head.last_offset_delta >= 0
            and head.base_offset + head.last_offset_delta - base <= OFFSETS_MAX
            and position + OVERHEAD + head.batch_length <= len(data))


def _walk(data: mmap.mmap, size: int, base: int) -> tuple[int, list[Hole]]:
    position, offset, holes = 0, base, []
    while position < size:
        head, why = _good(data, size, position, offset, base)
        if head is None:
            end, following = _search(data, size, position, offset, base)
            holes.append(Hole(position, end, offset, following, why))
            position, offset = end, offset if following is None else following
        else:
            position += OVERHEAD + head.batch_length
            offset = head.base_offset + head.last_offset_delta + 1
    return offset, holes


def _good(data: mmap.mmap, size: int, position: int, offset: int, base: int):
    """(header of the good batch at `position`, "") or (None, why there is none)."""
    head = data[position:position + native.HEADER_BYTES]
    if not any(head):
        return None, "zeros"
    if len(head) < native.HEADER_BYTES:
        return None, "a batch that is cut short"
    try:
        found = native.header(head)
    except native.BatchError:
        return None, "bytes that are no batch"
    end = position + OVERHEAD + found.batch_length
    if end > size:
        return None, "a batch that is cut short"
    if found.base_offset < offset or found.last_offset_delta < 0 \
            or found.base_offset + found.last_offset_delta - base > OFFSETS_MAX:
        return None, "offsets that fall"
    if not native.crc_ok(data[position:end]):
        return None, "a batch with a wrong CRC"
    return found, ""


def _search(data: mmap.mmap, size: int, position: int, offset: int,
            base: int) -> tuple[int, int | None]:
    """(position, base offset) of the next good batch; (size, None) without one."""
    at = position + 1
    while True:
        magic = data.find(b"\x02", at + MAGIC_AT)
        if magic < 0:
            return size, None
        at = magic - MAGIC_AT
        head, _ = _good(data, size, at, offset, base)
        if head is not None:
            return at, head.base_offset
        at += 1

"""Find the corrupt ranges of a segment file, and where valid batches resume.

Owns: nothing; the file is only read.
Invariants: the bytes outside the corrupt ranges are whole batches with valid CRCs and increasing
  offsets; a file is read, not mapped: truncation during the scan shortens the data, and an
  unreadable disk block raises OSError.
Source: csrc/segment/segment_scan.c does the same for a broker's reads, without the CRCs of whole
  batches.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from pylog._native.records import batch

OFFSETS_MAX = 2**31 - 1
WINDOW_BYTES = 1 << 20


class FileBytes:
    """The bytes of a file, read on demand and not mapped. Use `with FileBytes(path) as data`;
    slices are bytes, shorter if the file was truncated. Raises OSError.
    """

    def __init__(self, path: Path):
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._size = os.fstat(self._file).st_size
        self._window, self._from = b"", 0

    def __enter__(self) -> FileBytes:
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._file)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> bytes:
        begin, end, _ = part.indices(self._size)
        if not self._from <= begin <= end <= self._from + len(self._window):
            self._read(begin, end - begin)
        return self._window[begin - self._from:max(end, begin) - self._from]

    def find(self, what: bytes, begin: int) -> int:
        """Like bytes.find, for one byte."""
        while begin < self._size:
            if not self._from <= begin < self._from + len(self._window):
                self._read(begin, 1)
            found = self._window.find(what, begin - self._from)
            if found >= 0 or not self._window:
                return found if found < 0 else found + self._from
            begin = self._from + len(self._window)
        return -1

    def _read(self, begin: int, count: int) -> None:
        pieces, wanted = [], min(max(count, WINDOW_BYTES), self._size - begin)
        at = begin
        while at < begin + wanted:
            piece = os.pread(self._file, begin + wanted - at, at)
            if not piece:
                break
            pieces.append(piece)
            at += len(piece)
        self._window, self._from = b"".join(pieces), begin


class Hole(NamedTuple):
    """[position, end) of the file. offset: expected there; next_offset: of the next batch, or None.
    """

    position: int
    end: int
    offset: int
    next_offset: int | None
    why: str


def holes_of(path: Path, base: int) -> tuple[int, list[Hole]]:
    """Return (the offset after the last valid batch, corrupt ranges in order). Raises OSError."""
    with FileBytes(path) as data:
        return _walk(data, len(data), base)


def next_valid(data: FileBytes, position: int, offset: int, base: int) -> tuple[int, int | None]:
    """Return (position, base offset) of the first valid batch after `position` with an offset of at
    least `offset`; (the file's size, None) without one.
    """
    return _search(data, len(data), position, offset, base)


def leads_on(data: FileBytes, position: int, offset: int, base: int) -> bool:
    """Return True if a plausible header is at `position`, or the file ends there."""
    if position == len(data):
        return True
    try:
        head = batch.header(data[position:position + batch.HEADER_BYTES])
    except batch.BatchError:
        return False
    return (head.base_offset >= offset and head.last_offset_delta >= 0
            and head.base_offset + head.last_offset_delta - base <= OFFSETS_MAX
            and position + batch.LOG_OVERHEAD + head.batch_length <= len(data))


def _walk(data: FileBytes, size: int, base: int) -> tuple[int, list[Hole]]:
    position, offset, holes = 0, base, []
    while position < size:
        head, why = _good(data, size, position, offset, base)
        if head is None:
            end, following = _search(data, size, position, offset, base)
            holes.append(Hole(position, end, offset, following, why))
            position, offset = end, offset if following is None else following
        else:
            position += batch.LOG_OVERHEAD + head.batch_length
            offset = head.base_offset + head.last_offset_delta + 1
    return offset, holes


def _good(data: FileBytes, size: int, position: int, offset: int, base: int):
    """Return (header of the valid batch at `position`, "") or (None, the fault)."""
    head = data[position:position + batch.HEADER_BYTES]
    if not any(head):
        return None, "zeros"
    if len(head) < batch.HEADER_BYTES:
        return None, "a batch that is cut short"
    try:
        found = batch.header(head)
    except batch.BatchError:
        return None, "bytes that are not a batch"
    end = position + batch.LOG_OVERHEAD + found.batch_length
    if end > size:
        return None, "a batch that is cut short"
    if found.base_offset < offset or found.last_offset_delta < 0 \
            or found.base_offset + found.last_offset_delta - base > OFFSETS_MAX:
        return None, "offsets that decrease"
    if not batch.crc_ok(data[position:end]):
        return None, "a batch with a wrong CRC"
    return found, ""


def _search(data: FileBytes, size: int, position: int, offset: int,
            base: int) -> tuple[int, int | None]:
    """Return (position, base offset) of the next valid batch; (size, None) without one."""
    at = position + 1
    while True:
        magic = data.find(b"\x02", at + batch.MAGIC_AT)
        if magic < 0:
            return size, None
        at = magic - batch.MAGIC_AT
        head, _ = _good(data, size, at, offset, base)
        if head is not None:
            return at, head.base_offset
        at += 1

"""Read one segment: its batches, records and indexes, and their faults.

Owns: the file while it is open.
Invariants: reads batch by batch: memory does not grow with the file; a file that another process
  truncates, or an unreadable disk block, ends the reading with an error and does not crash the
  process.
Source: docs/reference/file-formats.md; csrc/format/batch.h defines the faults of a batch.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pylog._native.records import batch
from pylog.tools.cli.escapes import text_of
from pylog.tools.cli.session import ToolError
from pylog.tools.segments import corrupt_ranges

FAULTS_MAX = 20  # Per segment: a damaged one can have millions.
STEP_BYTES = 4 << 20  # Bytes between two updates of the progress bar.
CUT_SHORT = "is cut short"
WHY = {
    -1: CUT_SHORT, -2: "has an impossible length", -3: "has an unknown magic",
    -4: "has magic 0 or 1, which Kafka 4 does not read", -5: "has a wrong CRC",
    -6: "has a wrong record count", -7: "has a record of broken structure",
    -10: "has an unknown codec", -11: "has compressed bytes that cannot be decompressed",
    -12: "decompresses to more than the limit", -18: "has no records",
}


@dataclass
class Verdict:
    """The result of `verify`. faults: damage; remarks: unusual but valid content."""

    path: Path
    bytes: int = 0
    batches: int = 0
    records: int = 0
    first_offset: int | None = None
    last_offset: int | None = None
    max_timestamp: int = -1
    faults: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def fault(self, text: str) -> None:
        if len(self.faults) < FAULTS_MAX:
            self.faults.append(text)


class Segment:
    """Use `with Segment(path) as segment`. Raises OSError."""

    def __init__(self, path: Path):
        self.path = path
        number = path.name.partition(".")[0]
        self.base_offset = int(number) if number.isdigit() else 0
        self.view = corrupt_ranges.FileBytes(path)
        self.size = len(self.view)

    def __enter__(self) -> Segment:
        return self

    def __exit__(self, *exception: object) -> None:
        self.view.__exit__(*exception)

    # Reading

    def _walk(self) -> Iterator[tuple[int, Any]]:
        """Yield (position, Header) up to the end, an incomplete batch, or zeros. Skips corrupt
        ranges and raises ToolError for them at the end.
        """
        position, damage = 0, ""
        while position + batch.HEADER_BYTES <= self.size:
            head = self.view[position:position + batch.HEADER_BYTES]
            if not any(head) or len(head) < batch.HEADER_BYTES:
                break
            try:
                header = batch.header(head)
            except batch.BatchError as error:
                damage = damage or f"{self.path}: position {position} {_why(error)}"
                position, _ = corrupt_ranges.next_valid(
                    self.view, position, self.base_offset, self.base_offset)
                continue
            if position + batch.LOG_OVERHEAD + header.batch_length > self.size:
                break
            yield position, header
            position += batch.LOG_OVERHEAD + header.batch_length
        if damage:
            raise ToolError(damage)

    def batches(self, from_offset: int = 0) -> Iterator[dict[str, Any]]:
        """Yield one row for each batch."""
        for position, head in self._walk():
            last = head.base_offset + head.last_offset_delta
            if last < from_offset:
                continue
            yield {
                "base_offset": head.base_offset, "last_offset": last,
                "records": head.record_count, "position": position,
                "bytes": batch.LOG_OVERHEAD + head.batch_length,
                "codec": head.attributes & batch.CODEC_MASK,
                "base_timestamp": head.base_timestamp, "max_timestamp": head.max_timestamp,
                "log_append_time": bool(head.attributes & batch.LOG_APPEND_TIME),
                "transactional": bool(head.attributes & batch.TRANSACTIONAL),
                "control": bool(head.attributes & batch.CONTROL),
                "leader_epoch": head.leader_epoch,
                "producer_id": head.producer_id, "producer_epoch": head.producer_epoch,
                "base_sequence": head.base_sequence,
                "crc_ok": self._crc_ok(position, head)}

    def records(self, from_offset: int, reader: Any) -> Iterator[dict[str, Any]]:
        """Yield one row for each record. reader(key, value, is control): decodes them, or None.
        Skips a batch with unreadable records and raises ToolError for it at the end.
        """
        damage = ""
        for position, head in self._walk():
            if head.base_offset + head.last_offset_delta < from_offset:
                continue
            whole = self.view[position:position + batch.LOG_OVERHEAD + head.batch_length]
            if len(whole) < batch.LOG_OVERHEAD + head.batch_length:
                return  # Truncation while reading must not crash the process.
            try:
                rows = batch.records(whole)
            except batch.BatchError as error:
                damage = damage or f"{self.path}: position {position} {_why(error)}"
                continue
            for offset, timestamp, key, value, headers in rows:
                if offset < from_offset:
                    continue
                row = {"offset": offset, "timestamp": timestamp}
                is_control = bool(head.attributes & batch.CONTROL)
                meant = reader(key, value, is_control) if reader else None
                if meant is not None:
                    yield {**row, **meant}
                    continue
                yield {**row, "key": text_of(key), "value": text_of(value), "headers": [
                    {"key": name, "value": text_of(data)} for name, data in headers]}
        if damage:
            raise ToolError(damage)

    def _crc_ok(self, position: int, head: Any) -> bool:
        whole = self.view[position:position + batch.LOG_OVERHEAD + head.batch_length]
        return len(whole) == batch.LOG_OVERHEAD + head.batch_length and batch.crc_ok(whole)

    def index_entries(self) -> Iterator[dict[str, Any]]:
        for relative, position in self._entries(".index", ">ii"):
            yield {"index": "offset", "offset": self.base_offset + relative, "position": position}
        for timestamp, relative in self._entries(".timeindex", ">qi"):
            yield {"index": "time", "timestamp": timestamp, "offset": self.base_offset + relative}

    def _entries(self, suffix: str, layout: str) -> list[tuple[int, int]]:
        """Return the entries in use; trailing zeros are preallocated space."""
        try:
            data = self.path.with_suffix(suffix).read_bytes()
        except FileNotFoundError:
            return []
        step = struct.calcsize(layout)
        found = [entry for entry in struct.iter_unpack(layout, data[:len(data) // step * step])]
        while found and not any(found[-1]):
            found.pop()
        return found

    # Verifying

    def verify(self, is_deep: bool, done: Callable[[float], None],
               next_base: int | None) -> Verdict:
        """Check everything that this segment alone can show. next_base: of the next segment."""
        found = Verdict(self.path, self.size)
        starts: dict[int, int] = {}
        position, reported, due = 0, 0, self.base_offset
        while position < self.size:
            head, why = self._head(position, due)
            if head is None:
                end, offset = corrupt_ranges.next_valid(self.view, position, due, self.base_offset)
                if offset is None:
                    self._check_tail(found, position, due, why, next_base is not None)
                    break
                found.fault(f"position {position}, offset {due}: {why}; {end - position} bytes, "
                            f"then valid batches continue at offset {offset}")
                position, due = end, offset
                continue
            self._check_batch(found, position, head, is_deep)
            due = head.base_offset + head.last_offset_delta + 1
            starts[position] = due - 1
            position += batch.LOG_OVERHEAD + head.batch_length
            if position - reported >= STEP_BYTES:
                done(position - reported)
                reported = position
        done(self.size - reported)
        if next_base is not None and found.last_offset is not None \
                and found.last_offset >= next_base:
            found.fault(f"last offset {found.last_offset} is in the next segment ({next_base})")
        self._check_offsets(found, starts)
        self._check_times(found)
        return found

    def _check_batch(self, found: Verdict, position: int, head: Any, is_deep: bool) -> None:
        where = f"position {position}, offset {head.base_offset}"
        last = head.base_offset + head.last_offset_delta
        whole = self.view[position:position + batch.LOG_OVERHEAD + head.batch_length]
        if not self._crc_ok(position, head):
            found.fault(f"{where}: {WHY[-5]}")
        elif is_deep:
            self._check_records(found, where, head, whole)
        if head.base_offset < self.base_offset:
            found.fault(f"{where}: is below the segment's base offset")
        if found.last_offset is not None and head.base_offset <= found.last_offset:
            found.fault(f"{where}: comes after offset {found.last_offset}")
        found.batches += 1
        found.records += head.record_count
        found.first_offset = head.base_offset if found.first_offset is None else found.first_offset
        found.last_offset = last
        found.max_timestamp = max(found.max_timestamp, head.max_timestamp)

    def _check_records(self, found: Verdict, where: str, head: Any, whole: Any) -> None:
        try:
            rows = batch.records(whole)
        except batch.BatchError as error:
            found.fault(f"{where}: {_why(error)}")
            return
        if len(rows) != head.record_count:
            found.fault(f"{where}: says {head.record_count} records and has {len(rows)}")
        offsets = [row[0] for row in rows]
        # Compaction leaves gaps, but keeps the order and the batch's offset range.
        if offsets and (any(a >= b for a, b in zip(offsets, offsets[1:]))
                        or offsets[-1] > head.base_offset + head.last_offset_delta):
            found.fault(f"{where}: its records are out of order")

    def _head(self, position: int, due: int) -> tuple[Any, str]:
        """Return (header of the batch at `position`, "") or (None, the fault)."""
        bytes_ = self.view[position:position + batch.HEADER_BYTES]
        if not bytes_:
            return None, CUT_SHORT
        if not any(bytes_):
            return None, "zeros"
        try:
            head = batch.header(bytes_)
        except batch.BatchError as error:
            return None, _why(error)
        end = position + batch.LOG_OVERHEAD + head.batch_length
        if end > self.size:
            return None, CUT_SHORT
        if head.base_offset < due or head.last_offset_delta < 0:
            return (head, "") if head.base_offset >= 0 else (None, "has an impossible offset")
        # A wrong length causes a CRC mismatch and an invalid next header.
        if not self._crc_ok(position, head) and not corrupt_ranges.leads_on(
                self.view, end, head.base_offset + head.last_offset_delta + 1, self.base_offset):
            return None, WHY[-5]
        return head, ""

    def _check_tail(self, found: Verdict, position: int, due: int, why: str,
                    is_sealed: bool) -> None:
        """Classify the bytes after the last valid batch: zeros and, in the active segment, an
        unfinished batch are remarks, other bytes are faults.
        """
        rest = self.size - position
        if why == "zeros" and not _has_data(self.view, position):
            found.remarks.append(f"{rest} bytes allocated ahead")
        elif why == "zeros":
            found.fault(f"position {position}, offset {due}: zeros followed by data")
        elif why != CUT_SHORT:
            found.fault(f"position {position}, offset {due}: {why}")
        elif is_sealed:
            found.fault(f"position {position}, offset {due}: {rest} bytes that are not a complete "
                        f"batch")
        else:
            found.remarks.append(f"{rest} bytes of a batch cut short at the end")

    def index_faults(self, suffix: str) -> list[str]:
        """Check `.index` or `.timeindex` against the batches, which are assumed valid."""
        found, starts = Verdict(self.path), {}
        for position, head in self._walk():
            starts[position] = head.base_offset + head.last_offset_delta
            found.max_timestamp = max(found.max_timestamp, head.max_timestamp)
        step = {".index": 8, ".timeindex": 12}[suffix]
        if self.path.with_suffix(suffix).stat().st_size % step:
            found.fault(f"its size is not a multiple of {step}")
        elif suffix == ".index":
            self._check_offsets(found, starts)
        else:
            self._check_times(found)
        return found.faults

    def _check_offsets(self, found: Verdict, starts: dict[int, int]) -> None:
        before = (-1, -1)
        for relative, position in self._entries(".index", ">ii"):
            entry = f"index entry {self.base_offset + relative} at {position}"
            if relative <= before[0] or position <= before[1] and before[1] > 0:
                found.fault(f"{entry}: does not rise")
            elif not found.faults and position not in starts:
                found.fault(f"{entry}: no batch begins there")
            elif not found.faults and starts[position] < self.base_offset + relative:
                found.fault(f"{entry}: the batch ends before, at {starts[position]}")
            before = relative, position

    def _check_times(self, found: Verdict) -> None:
        previous = (-1, -1)
        for timestamp, relative in self._entries(".timeindex", ">qi"):
            if timestamp < previous[0] or relative < previous[1]:
                found.fault(f"time index entry {timestamp}: does not rise")
            elif timestamp > found.max_timestamp and not found.faults:
                found.fault(f"time index entry {timestamp}: no record has such a late timestamp")
            previous = timestamp, relative


def _has_data(view: corrupt_ranges.FileBytes, position: int) -> bool:
    """Return True if a byte after `position` is not zero. Reads block by block."""
    zeros = bytes(1 << 16)
    while position < len(view):
        block = view[position:position + len(zeros)]
        if not block:
            return False  # The file was truncated while being read.
        if block != zeros[:len(block)]:
            return True
        position += len(block)
    return False


def _why(error: batch.BatchError) -> str:
    return WHY.get(error.error, str(error))

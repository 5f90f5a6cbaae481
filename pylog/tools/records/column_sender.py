"""Send lines to a topic as Arrow columns; `pylog produce` uses it if no option needs single
records.

Owns: input after the last complete line, batches that are not acknowledged.
Invariants: lines that were read are sent as soon as no more input is available, even if they are
  few; memory is bounded: a line by max.request.size, batches by buffer.memory.
Source: bench/tools, which compares it with kcat.
"""

from __future__ import annotations

import array
import fcntl
import select
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple

from pylog._native.client import text_lines
from pylog._native.client.batch_builder import Column, RowError
from pylog.client.producer.producer import row_sender
from pylog.tools.cli.session import ToolError

CHUNK_BYTES = 1 << 20
ROWS_MAX = 1 << 30


class Plan(NamedTuple):
    """Attributes of every record. stamp: None for the current time; records_max: None for all."""

    separator: bytes
    tombstones: bool
    partition: int | None
    stamp: int | None
    records_max: int | None


class Sent:
    """The result. partitions: {number: [records, first offset, last offset]}."""

    def __init__(self) -> None:
        self.count = self.bytes = self.acknowledged = 0
        self.error: BaseException | None = None
        self.partitions: dict[int, list[int]] = {}

    def take(self, pendings: list[Any]) -> None:
        """Collects the results of finished batches."""
        for pending in [leaf for whole in pendings for leaf in whole.leaves()]:
            if pending.error is not None:
                self.error = self.error or pending.error
                continue
            self.acknowledged += pending.count
            last = pending.base_offset + pending.count - 1 if pending.base_offset >= 0 else -1
            row = self.partitions.setdefault(pending.partition, [0, pending.base_offset, last])
            row[0] += pending.count
            row[2] = max(row[2], last)


def send(producer: Any, topic: str, files: tuple[BinaryIO, ...], plan: Plan,
         done: Callable[[float], None], timeout_s: float) -> Sent:
    """Send every line until one fails, and wait for the acknowledgements.

    done: called with the number of bytes read. Raises ToolError, KafkaError.
    """
    sent, sender = Sent(), row_sender(producer, topic)
    line_bytes_max = producer.settings["max.request.size"]
    for file in files:
        number = 0
        for found, is_idle in _chunks(file, plan, sent, line_bytes_max):
            _write(sender, found, plan)
            sent.count += found.count
            sent.bytes += found.record_bytes
            number += found.count
            done(found.nbytes)
            if is_idle:
                sender.flush()  # Send few lines too rather than wait for more input.
            sent.take(sender.take_done())
            if found.bad_row >= 0:
                name = getattr(file, "name", "input")
                raise ToolError(f"{name}, line {number + 1}: a line without "
                                f"{plan.separator.decode()!r} between key and value")
            if sent.error is not None:
                return sent
    sender.flush()
    producer.flush(timeout_s)
    sent.take(sender.take_done())
    return sent


def _chunks(file: BinaryIO, plan: Plan, sent: Sent, line_bytes_max: int
            ) -> Iterator[tuple[text_lines.Lines, bool]]:
    """Yield (lines, True if no more input is available yet). A line has at most max.request.size.
    """
    data = b""
    is_ready = _readiness(file)
    while True:
        more = _read(file)
        data = data + more if data else more
        left = ROWS_MAX if plan.records_max is None else plan.records_max - sent.count
        found = text_lines.split(data, last=not more, separator=plan.separator,
                                 tombstones=plan.tombstones, rows_max=left)
        if found.count or found.bad_row >= 0:
            yield found, not is_ready()
        if not more or left <= found.count:
            return
        data = data[found.nbytes:]
        if len(data) > line_bytes_max:
            raise ToolError(f"{getattr(file, 'name', 'input')}: a line of more than "
                            f"{line_bytes_max} bytes (max.request.size)")


def _read(file: Any) -> bytes:
    """Read the available input, at least one byte except at the end."""
    found: bytes = file.read1(CHUNK_BYTES) if hasattr(file, "read1") else file.read(CHUNK_BYTES)
    return found


def _readiness(file: BinaryIO) -> Callable[[], bool]:
    """Return a function that returns True if more input, or its end, is available."""
    try:
        descriptor = file.fileno()
    except (OSError, ValueError):
        return lambda: True  # An in-memory file.
    try:
        # A pipe holds 64 KiB by default, which would limit the batches.
        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, CHUNK_BYTES)
    except OSError:
        pass  # Not a pipe, or the user's pipes exceed the system's limit.
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return lambda: bool(poll.poll(0))


def _write(sender: Any, found: text_lines.Lines, plan: Plan) -> None:
    key = None
    if found.key_offsets is not None:
        key = Column(found.count, found.key_offsets, found.key_data, None)
    value = Column(found.count, found.value_offsets, found.value_data, found.value_validity)
    now = time.time_ns() // 1_000_000 if plan.stamp is None else plan.stamp
    partitions = None
    if plan.partition is not None:
        partitions = array.array("i", [plan.partition]) * found.count
    try:
        sender.write(found.count, key=key, value=value, now=now, partitions=partitions)
    except RowError as error:
        raise ToolError(str(error)) from None

"""Lines on their way to a topic as columns: what `pylog produce` does where nothing is said of
single records.

Owns: the input that is not a whole line yet, the batches that are not acknowledged.
Invariants: (1) a line that was read is sent when no more input is there, however few they are;
  (2) what is waited for is bounded: a line by max.request.size, batches by buffer.memory.
Source: bench/tools, which measures it beside kcat.
"""

from __future__ import annotations

import array
import fcntl
import select
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple

from pylog._native import lines
from pylog._native.builder import Column, RowError
from pylog.tools.cli.session import ToolError

CHUNK_BYTES = 1 << 20
ROWS_MAX = 1 << 30


class Plan(NamedTuple):
    """What holds for every record. stamp: None for now; records_max: None for all."""

    separator: bytes
    tombstones: bool
    partition: int | None
    stamp: int | None
    records_max: int | None


class Sent:
    """What became of the records. partitions: {number: [records, first offset, last offset]}."""

    def __init__(self) -> None:
        self.count = self.bytes = self.acknowledged = 0
        self.error: BaseException | None = None
        self.partitions: dict[int, list[int]] = {}

    def take(self, pendings: list[Any]) -> None:
        """Batches that have their outcome."""
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
    """Sends every line, until one fails, and waits for what became of them.

    done: called with the bytes that were read. Raises ToolError, KafkaError."""
    sent, sender = Sent(), producer.rows(topic)
    line_bytes_max = producer.settings["max.request.size"]
    for file in files:
        number = 0
        for found, is_idle in _pieces(file, plan, sent, line_bytes_max):
            _write(sender, found, plan)
            sent.count += found.count
            sent.bytes += found.record_bytes
            number += found.count
            done(found.nbytes)
            if is_idle:
                sender.flush()  # Keeps (1).
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


def _pieces(file: BinaryIO, plan: Plan, sent: Sent, line_bytes_max: int
            ) -> Iterator[tuple[lines.Lines, bool]]:
    """(lines, whether no more input is there yet). Keeps (2)."""
    data = b""
    is_ready = _readiness(file)
    while True:
        more = _read(file)
        data = data + more if data else more
        left = ROWS_MAX if plan.records_max is None else plan.records_max - sent.count
        found = lines.split(data, last=not more, separator=plan.separator,
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
    """What is there, at least one byte but at the end."""
    found: bytes = file.read1(CHUNK_BYTES) if hasattr(file, "read1") else file.read(CHUNK_BYTES)
    return found


def _readiness(file: BinaryIO) -> Callable[[], bool]:
    """A function that says whether more input, or its end, is there now."""
    try:
        descriptor = file.fileno()
    except (OSError, ValueError):
        return lambda: True  # In memory.
    try:
        # A pipe holds 64 KiB by default: a batch would be no larger.
        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, CHUNK_BYTES)
    except OSError:
        pass  # No pipe, or the user has too many large ones.
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return lambda: bool(poll.poll(0))


def _write(sender: Any, found: lines.Lines, plan: Plan) -> None:
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

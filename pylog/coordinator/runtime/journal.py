"""A coordinator's state on a partition of a compacted internal topic: append, flush, read back.

Owns: the writable end of one such partition; replies that wait for it.
Invariants: (1) records reach the log in the order of write(); (2) a reply leaves after every
  record that was written before it is as durable as an acks=all answer promises; (3) from a
  failure to reopen() nothing is written and every reply is refused; (4) a reply that cannot be
  given holds no other one back; (5) nothing follows from records of an earlier leader before they
  are as durable as (2) wants: another one may be elected that has not got them.
Source: Kafka's `__consumer_offsets`; group commit.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from pylog._native import batch
from pylog._native.flushes import FlushWaits
from pylog._native.log import Log, LogError
from pylog._native.producers import producer_of
from pylog.coordinator.runtime import transactional_batches as batches
from pylog.coordinator.runtime.transactional_batches import Marker, TransactionalRecords
from pylog.protocol.errors import Error, ErrorCode

BATCH_BYTES_MAX = 512 << 10
BATCH_RECORDS_MAX = 5000
READ_BYTES_MAX = 4 << 20

log = logging.getLogger("pylog.coordinator")


class Token(Protocol):
    """A request that is yet to be answered; or, not is_request, where a machine's own messages go:
    what they announce is in the log and follows from nothing else, however late they are."""

    is_request: bool

    def answer(self, message: Any) -> None: ...

    def refuse(self, error: Error) -> None: ...


class MissingOffsets(Exception):
    """The log has no record for some offset between `first` and `last`."""

    def __init__(self, first: int, last: int):
        super().__init__(f"some offset from {first} to {last} has no record")


Record = tuple[bytes, bytes | None]
# What a step may leave besides records: batches of a transaction, each by itself.
Written = Record | TransactionalRecords | Marker
Reply = tuple[Token, Any]


class Journal:
    """The end of one partition. waits: a FlushWaits, of which the slot is ours; None when a reply
    waits for the append only. codec: of the batches. late_s: a flush that takes longer leaves its
    replies refused; the records stand. later: calls what it is given when this turn of the loop
    ends; None: in the next one.
    """

    def __init__(self, partition_log: Log, wall_ms: Callable[[], int], waits: FlushWaits | None,
                 slot: int, codec: int = 0, late_s: float = 5.0,
                 later: Callable[[Callable[[], object]], object] | None = None):
        self.log = partition_log
        self.failed = False
        self.broken = asyncio.Event()    # Set while `failed`.
        self.appended = False    # Whether anything was, since it was opened.
        self.is_settling = False     # What it was opened with may be lost still.
        self.written = 0         # Records, since somebody set it to 0.
        self._wall_ms = wall_ms
        self._waits = waits
        self._slot = slot
        self._codec = codec
        self._late_s = late_s
        self._epoch = -1         # The leader epoch under which it appends; -1: any.
        self._late: asyncio.TimerHandle | None = None    # Of the flush under way.
        self._loop = asyncio.get_running_loop()
        self._later = self._loop.call_soon if later is None else later
        self._gathered: list[Written] = []   # Of this turn of the loop.
        self._waiting: list[Reply] = []     # They wait for the next flush,
        self._held: list[Reply] = []        # and these for the one under way.
        self._upto = -1          # The last offset of the flush under way.
        self._scheduled = False
        self._flushing = False

    def write(self, records: list[Written]) -> None:
        """Records [(key, value or None)] to be appended, with others of this turn of the loop."""
        if self.failed:
            return   # Keeps (3).
        self._gathered += records
        self.written += len(records)
        if not self._scheduled:
            self._scheduled = True
            self._later(self._append)

    def after(self, token: Token, message: Any) -> None:
        """Answers `token` when everything written so far is durable (2)."""
        if self.failed:
            token.refuse(ErrorCode.NOT_COORDINATOR)
        elif self._scheduled or self._flushing:
            self._waiting.append((token, message))
        else:
            token.answer(message)

    def producer(self, producer_id: int) -> tuple[int, int, int, int]:
        """As producer_of(), of everything that was written. Raises LogError."""
        self.append_now()
        return producer_of(self.log, producer_id, self._wall_ms())

    def append_now(self) -> None:
        """Appends what this turn of the loop has gathered, without waiting for its end."""
        if self._scheduled:
            self._append()

    def _append(self) -> None:
        self._scheduled = False
        if self.failed or not (self._gathered or self._waiting):
            return
        gathered, self._gathered = self._gathered, []
        try:
            now_ms = self._wall_ms()
            for part in _parts(gathered):
                if isinstance(part, list):
                    data = batch.build([(key, value, now_ms, ()) for key, value in part],
                                       codec=self._codec)
                else:
                    data = part.batch(now_ms, self._codec)
                self.log.append(data, now_ms, leader_epoch=self._epoch, trusted=True)
        except Exception as error:
            # Keeps (3), whatever it was: what waits for these records must not be told of them.
            self.fail(error)
            return
        self.appended = True
        if self._waits is None:
            self._release(self._take())
        elif not self._flushing:
            self._start_flush()

    def _start_flush(self) -> None:
        assert not self._held and not self.failed, len(self._held)
        self._held = self._take()
        self._upto = self.log.end_offset - 1
        self._await_flush()

    def _await_flush(self) -> None:
        assert self._waits is not None and not self._flushing, self._slot
        try:
            self._flushing = not self._waits.wait_acknowledged(
                self._slot, self.log, self._upto)
        except Exception as error:
            self.fail(error)
            return
        if not self._flushing:
            self._flushed()
        elif self._late is None:
            self._late = self._loop.call_later(self._late_s, self._refuse_held)

    def _refuse_held(self) -> None:
        """The disk takes too long: clients ask again, and are answered when it is done."""
        # What comes from now on does not wait as long as the disk hangs, either.
        self._late = self._loop.call_later(self._late_s, self._refuse_held)
        late = [reply for reply in self._held + self._waiting if reply[0].is_request]
        self._held = _messages(self._held)
        self._waiting = _messages(self._waiting)
        _refuse_all(late, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def woken(self) -> None:
        """The slot was woken: a step of the flush is done, or the log is lost."""
        assert self._flushing, self._slot
        self._flushing = False
        if self.failed:
            return
        if self.log.failed:
            self.fail("what was written is not on disk")
        else:
            self._await_flush()

    def _flushed(self) -> None:
        self.is_settling = False
        if self._late is not None:
            self._late.cancel()
            self._late = None
        held, self._held = self._held, []
        # Also without a reply that waits: the next one would be given before it is durable (2).
        if not self._scheduled and (self._waiting or self._upto < self.log.end_offset - 1):
            self._start_flush()
        self._release(held)

    def _take(self) -> list[Reply]:
        waiting, self._waiting = self._waiting, []
        return waiting

    @staticmethod
    def _release(held: list[Reply]) -> None:
        for token, message in held:
            try:
                token.answer(message)
            except Exception:
                # Keeps (4).
                log.exception("a reply could not be given")

    def fail(self, reason: object) -> None:
        """What was written could not be appended or flushed, or the partition is lost."""
        if not self.failed:
            log.error("the coordinator could not write", extra={
                "topic": self.log.topic, "partition": self.log.partition, "reason": str(reason)},
                exc_info=reason if isinstance(reason, Exception) and _is_bug(reason) else None)
            self.close()

    def close(self) -> None:
        """Refuses what waits and what comes, until reopen()."""
        # Keeps (3): what could not be written is not tried again.
        self.failed = True
        self.broken.set()
        self._gathered = []
        if self._late is not None:
            self._late.cancel()
            self._late = None
        held, self._held = self._held, []
        _refuse_all(held + self._take(), ErrorCode.NOT_COORDINATOR)

    @property
    def is_idle(self) -> bool:
        """Whether nothing of it is under way: another one may have the slot."""
        return not self._flushing

    def reopen(self, epoch: int = -1) -> None:
        """Writes again, under that leader epoch; whoever calls has read what the log holds, which
        is_settling until it is durable. A flush that was under way goes on, and replies wait for
        it."""
        assert not (self._gathered or self._waiting or self._held), self._slot
        self._epoch = epoch
        self.failed = self.appended = False
        self.broken.clear()
        end = self.log.end_offset
        if self._waits is not None and self.log.start_offset < end:
            self.is_settling = True
            self._upto = max(self._upto, end - 1) if self._flushing else end - 1
            if not self._flushing:
                self._await_flush()


def _messages(held: list[Reply]) -> list[Reply]:
    """Those of a machine's own."""
    return [reply for reply in held if not reply[0].is_request]


def _refuse_all(held: list[Reply], error: Error) -> None:
    refuse([token for token, _ in held], error)


def refuse(tokens: Iterable[Token], error: Error) -> None:
    """Refuses requests. Keeps (4)."""
    for token in tokens:
        try:
            token.refuse(error)
        except Exception:
            log.exception("a request could not be refused")


def _is_bug(error: Exception) -> bool:
    return not isinstance(error, (LogError, MemoryError))


def _parts(records: list[Written]) -> Iterator[list[Record] | TransactionalRecords | Marker]:
    """Records in stretches that make one batch each; a record that is too long is one of its own,
    and what is a batch stays one.
    """
    part: list[Record] = []
    size = 0
    for written in records:
        if isinstance(written, TransactionalRecords | Marker):
            if part:
                yield part
            yield written
            part, size = [], 0
            continue
        key, value = written
        length = len(key) + len(value or b"") + 32
        if part and (size + length > BATCH_BYTES_MAX or len(part) >= BATCH_RECORDS_MAX):
            yield part
            part, size = [], 0
        part.append(written)
        size += length
    if part:
        yield part


def replay(partition_log: Log, offset: int, contiguous: bool = False) -> Iterator[Written]:
    """Yield (key, value or None) of every record from `offset` to the end, and batches of
    transactions as such.

    contiguous: the caller has the state before `offset` already. Then a missing offset means that
    compaction may have removed a tombstone that this state has not seen.
    Raises MissingOffsets when contiguous, LogError, BatchError.
    """
    if offset < partition_log.start_offset:
        if contiguous:
            raise MissingOffsets(offset, partition_log.start_offset)
        offset = partition_log.start_offset
    while offset < partition_log.end_offset:
        data = memoryview(partition_log.read(offset, READ_BYTES_MAX))
        if not data:
            if contiguous:
                raise MissingOffsets(offset, partition_log.end_offset)
            return
        for position, header in batch.walk(data):
            last_offset = header.base_offset + header.last_offset_delta
            if last_offset >= offset:
                if contiguous and (header.base_offset > offset
                                   or header.record_count <= header.last_offset_delta):
                    raise MissingOffsets(offset, last_offset)
                rows = batch.records(data[position:])
                if header.attributes & (batch.TRANSACTIONAL | batch.CONTROL):
                    found = batches.read(header, rows)
                    if found is not None:
                        yield found
                else:
                    for at, _, key, value, _ in rows:
                        if at >= offset and key is not None:
                            yield key, value
            offset = last_offset + 1

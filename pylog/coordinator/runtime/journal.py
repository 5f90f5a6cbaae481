"""A coordinator's state on one partition of a compacted internal topic: append, flush, replay.

Owns: writing to that partition; the responses that wait for it.
Invariants: records are appended in the order of write(); a response is sent once all records
  written before it are as durable as acks=all promises; after a failure, nothing is written and
  every response is rejected until reopen(); a response that cannot be sent does not block the
  others; records of an earlier leader are not acted on until they are as durable as acks=all
  promises, because a new leader may lack them.
Source: Kafka's `__consumer_offsets`; group commit.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from pylog._native.log.flush_waits import FlushWaits
from pylog._native.log.log import Log, LogError
from pylog._native.log.producer_state import producer_of
from pylog._native.records import batch
from pylog.coordinator.runtime import transactional_batches
from pylog.coordinator.runtime.transactional_batches import Marker, TransactionalRecords
from pylog.protocol.errors import Error, ErrorCode

BATCH_BYTES_MAX = 512 << 10
BATCH_RECORDS_MAX = 5000
READ_BYTES_MAX = 4 << 20

log = logging.getLogger("pylog.coordinator")


class Token(Protocol):
    """A request with an outstanding response, or the outbox of a state machine (is_request is
    False).

    An outbox message reports state that is already in the log, so it may be delivered late.
    """

    is_request: bool

    def respond(self, message: Any) -> None: ...

    def refuse(self, error: Error) -> None: ...


class MissingOffsets(Exception):
    """The log is missing a record between offsets `first` and `last`."""

    def __init__(self, first: int, last: int):
        super().__init__(f"an offset from {first} to {last} has no record")


Record = tuple[bytes, bytes | None]
# What a step may write: records, or transactional batches, each appended as a separate batch.
Written = Record | TransactionalRecords | Marker
Response = tuple[Token, Any]


class Journal:
    """The append side of one partition.

    waits: the FlushWaits that provides `slot`; None: responses wait for the append only. codec:
    compression of the batches. late_s: after this flush time, waiting requests are rejected, but
    their records stay. defer: schedules a callback for the end of this loop iteration; None:
    call_soon().
    """

    def __init__(self, partition_log: Log, wall_ms: Callable[[], int], waits: FlushWaits | None,
                 slot: int, codec: int = 0, late_s: float = 5.0,
                 defer: Callable[[Callable[[], object]], object] | None = None):
        self.log = partition_log
        self.failed = False
        self.broken = asyncio.Event()  # Set while `failed` is True.
        self.appended = False  # True if a batch was appended since open.
        self.is_settling = False  # The replayed log is not durable yet.
        self.written = 0  # Records since the last snapshot reset it.
        self._wall_ms = wall_ms
        self._waits = waits
        self._slot = slot
        self._codec = codec
        self._late_s = late_s
        self._epoch = -1  # Leader epoch for appends; -1: unchecked.
        self._late: asyncio.TimerHandle | None = None  # Timeout of the current flush.
        self._loop = asyncio.get_running_loop()
        self._defer = self._loop.call_soon if defer is None else defer
        self._gathered: list[Written] = []  # Written in this loop iteration.
        self._waiting: list[Response] = []  # Replies for the next flush,
        self._held: list[Response] = []  # and for the current one.
        self._upto = -1  # Last offset of the current flush.
        self._scheduled = False
        self._flushing = False

    def write(self, records: list[Written]) -> None:
        """Append [(key, value or None)], batched with other writes of this loop iteration."""
        if self.failed:
            return  # Nothing is written between a failure and reopen().
        self._gathered += records
        self.written += len(records)
        if not self._scheduled:
            self._scheduled = True
            self._defer(self._append)

    def after(self, token: Token, message: Any) -> None:
        """Send the response when everything written so far is durable."""
        if self.failed:
            token.refuse(ErrorCode.NOT_COORDINATOR)
        elif self._scheduled or self._flushing:
            self._waiting.append((token, message))
        else:
            token.respond(message)

    def producer(self, producer_id: int) -> tuple[int, int, int, int]:
        """Return producer_of(), including all records written so far. Raises LogError."""
        self.append_now()
        return producer_of(self.log, producer_id, self._wall_ms())

    def append_now(self) -> None:
        """Append the records of this loop iteration now instead of at its end."""
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
            # Fail on any error: responses must not be sent for records that were not appended.
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
        """Reject requests after a flush timeout. Clients retry until the disk recovers."""
        # Requests that arrive later get the same timeout, even if the disk still hangs.
        self._late = self._loop.call_later(self._late_s, self._refuse_held)
        late = [response for response in self._held + self._waiting if response[0].is_request]
        self._held = _messages(self._held)
        self._waiting = _messages(self._waiting)
        _refuse_all(late, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def woken(self) -> None:
        """Continue after a wakeup of the slot: a flush step finished, or the log failed."""
        assert self._flushing, self._slot
        self._flushing = False
        if self.failed:
            return
        if self.log.failed:
            self.fail("the write was not flushed")
        else:
            self._await_flush()

    def _flushed(self) -> None:
        self.is_settling = False
        if self._late is not None:
            self._late.cancel()
            self._late = None
        held, self._held = self._held, []
        # Flush even without waiting responses: otherwise the next response could be sent before its
        # records are durable.
        if not self._scheduled and (self._waiting or self._upto < self.log.end_offset - 1):
            self._start_flush()
        self._release(held)

    def _take(self) -> list[Response]:
        waiting, self._waiting = self._waiting, []
        return waiting

    @staticmethod
    def _release(held: list[Response]) -> None:
        for token, message in held:
            try:
                token.respond(message)
            except Exception:
                # A response that cannot be sent does not block the others.
                log.exception("a response could not be sent")

    def fail(self, reason: object) -> None:
        """Fail the journal: an append or flush failed, or the partition is lost."""
        if not self.failed:
            log.error("the coordinator could not write", extra={
                "topic": self.log.topic, "partition": self.log.partition, "reason": str(reason)},
                exc_info=reason if isinstance(reason, Exception) and _is_bug(reason) else None)
            self.close()

    def close(self) -> None:
        """Reject all waiting and future responses until reopen()."""
        # A failed write is not retried: the log may contain a part of it.
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
        """Return True if no flush is in progress, so another journal may use the slot."""
        return not self._flushing

    def reopen(self, epoch: int = -1) -> None:
        """Accept writes again, under leader epoch `epoch`. The caller has replayed the log.

        is_settling stays True until the replayed log is durable. If a flush is still in progress,
        responses wait for it.
        """
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


def _messages(held: list[Response]) -> list[Response]:
    """Return the responses that are outbox messages, not requests."""
    return [response for response in held if not response[0].is_request]


def _refuse_all(held: list[Response], error: Error) -> None:
    refuse([token for token, _ in held], error)


def refuse(tokens: Iterable[Token], error: Error) -> None:
    """Reject the requests with `error`."""
    for token in tokens:
        try:
            token.refuse(error)
        except Exception:
            log.exception("an error response could not be sent")


def _is_bug(error: Exception) -> bool:
    return not isinstance(error, (LogError, MemoryError))


def _parts(records: list[Written]) -> Iterator[list[Record] | TransactionalRecords | Marker]:
    """Group records into lists of one batch each; transactional batches stay separate.

    A record larger than BATCH_BYTES_MAX gets its own batch.
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
    """Yield (key, value or None) for every record from `offset` to the end of the log, and
    transactional batches as TransactionalRecords or Marker.

    contiguous: the caller already has the state before `offset`. Then a missing offset means that
    compaction may have removed a tombstone that this state has not seen.

    Raises MissingOffsets if contiguous and an offset is missing; LogError; BatchError.
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
                    found = transactional_batches.read(header, rows)
                    if found is not None:
                        yield found
                else:
                    for at, _, key, value, _ in rows:
                        if at >= offset and key is not None:
                            yield key, value
            offset = last_offset + 1

"""The outcome of sent records: one Pending per batch, one lightweight Delivery per record.

Owns: the outcome of each batch while a Delivery refers to it.
Invariants: a Pending completes exactly once, on the loop; waiters are notified after the outcome is
  set; a Delivery needs no lock or event until a caller waits for it; this module takes no locks, so
  signal handlers may wait.
Source: Kafka's Java client (RecordMetadata, ProducerBatch).
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import sys
from collections.abc import Callable, Generator
from typing import Any

from pylog._native.client.record_intake import add_waiter
from pylog.client import callbacks
from pylog.client.arguments import seconds
from pylog.client.config.durations import rounded
from pylog.client.errors import (
    IllegalStateError, KafkaError, KafkaTimeoutError, ProgramEndedError,
)
from pylog.client.types import RecordMetadata

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pylog._native.client import record_intake

    class Delivery(record_intake.Delivery):
        """The outcome of one sent record: wait with result(), or await it."""

        def result(self, timeout: float | None = None, *, timeout_s: float | None = None
                   ) -> RecordMetadata: ...
        def exception(self, timeout: float | None = None, *, timeout_s: float | None = None
                      ) -> BaseException | None: ...
        def add_done_callback(self, function: Callable[[Any], object]) -> None: ...
        def __await__(self) -> Generator[Any, None, RecordMetadata]: ...
else:
    from pylog._native.client.record_intake import Delivery

__all__ = ["Delivery", "Pending", "RecordMetadata", "TableDelivery"]


class Pending:
    """One batch: open, closed, in flight or complete."""

    __slots__ = ("append_time", "attempts", "base_offset", "base_sequence", "batch", "bytes",
                 "callbacks", "count", "created_s", "done", "error", "last_failure", "number",
                 "partition", "parts", "queue", "retry_at_s", "step", "topic", "waiters")

    def __init__(self, topic: str, partition: int, queue: Any, number: float, size: int,
                 now_s: float):
        self.topic, self.partition, self.queue, self.number = topic, partition, queue, number
        self.bytes = size  # Its share of buffer.memory.
        self.created_s = now_s
        self.count = 0
        self.attempts = 0
        self.last_failure: KafkaError | None = None  # Of the last attempt; `error` is final.
        self.retry_at_s = 0.0
        self.batch: Any = None
        # [index, timestamp, function] of each callback, set by native code.
        self.callbacks: list[list[Any]] | None = None
        self.waiters: list[Callable[[], Any]] | None = None
        self.base_sequence = -1
        self.base_offset = -1
        # Result of a split: (index of the first record, batch). The numbers of the parts lie
        # between this batch's number and the next.
        self.parts: list[tuple[int, Pending]] | None = None
        self.step = 1.0
        self.append_time = -1
        self.error: BaseException | None = None
        self.done = False

    def metadata(self, index: int, timestamp: int) -> RecordMetadata:
        """Return the metadata of an acknowledged record."""
        part, index = self.part(index)
        offset = -1 if part.base_offset < 0 else part.base_offset + index
        return RecordMetadata(self.topic, self.partition, offset,
                              timestamp if part.append_time < 0 else part.append_time)

    def part(self, index: int) -> tuple[Pending, int]:
        """Return the batch in which a record was last sent, and its index there."""
        for first, part in reversed(self.parts or ()):
            if index >= first:
                return part.part(index - first)
        return self, index

    def leaves(self) -> list[Pending]:
        """Return the unsplit batches in which the records were last sent."""
        if self.parts is None:
            return [self]
        return [leaf for _, part in self.parts for leaf in part.leaves()]

    def complete(self, base_offset: int = -1, append_time: int = -1,
               error: BaseException | None = None) -> None:
        """Set the outcome and notify all waiters on this thread."""
        assert not self.done, "a batch is completed twice"  # Keeps that a Pending completes once.
        self.base_offset, self.append_time, self.error = base_offset, append_time, error
        if error is not None and self.parts is None:
            self.queue.lost_count += self.count
        self.done = True  # No more callbacks or waiters are added after this.
        functions, self.callbacks = self.callbacks, None
        waiters, self.waiters = self.waiters, None
        self.batch = None
        for index, timestamp, function in functions or ():
            failure = self.part(index)[0].error
            found = self.metadata(index, timestamp) if failure is None else None
            callbacks.call("a delivery callback", function, found, failure)
        for waiter in waiters or ():
            callbacks.call("a delivery callback", waiter)

    def when_done(self, function: Callable[[], Any]) -> None:
        """Call function when the batch is complete: now, or on the thread that completes it."""
        if not add_waiter(self, function):
            function()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block this thread until the batch is complete. Returns False on timeout.

        timeout_s: None to wait without a limit, 0 to only check, which any thread may do. Raises
        ProgramEndedError, and IllegalStateError on the event loop that delivers the record.
        """
        if not self.done:
            if sys.is_finalizing():
                raise ProgramEndedError
            if timeout_s is not None and timeout_s <= 0:
                return False
            _check_may_block(self.queue.loop)
            bell: queue.SimpleQueue[None] = queue.SimpleQueue()  # An Event would take a lock.
            self.when_done(lambda: bell.put(None))
            try:
                bell.get(timeout=timeout_s)
            except queue.Empty:
                pass
        return self.done

    def future(self) -> asyncio.Future[None]:
        """Return a future of the running event loop that resolves when the batch is complete."""
        loop = asyncio.get_running_loop()
        made: asyncio.Future[None] = loop.create_future()

        def resolve() -> None:
            if not made.done():
                made.set_result(None)

        self.when_done(lambda: loop.call_soon_threadsafe(resolve))
        return made

    # For Delivery.

    def result_of(self, index: int, timestamp: int, timeout: float | None,
                  timeout_s: float | None = None) -> RecordMetadata:
        timeout_s = seconds(timeout, timeout_s)
        if not self.wait(timeout_s):
            raise KafkaTimeoutError(f"no acknowledgement within {rounded(timeout_s)}")
        failure = self.part(index)[0].error
        if failure is not None:
            raise failure
        return self.metadata(index, timestamp)

    def exception_of(self, index: int, timeout: float | None, timeout_s: float | None = None
                     ) -> BaseException | None:
        timeout_s = seconds(timeout, timeout_s)
        if not self.wait(timeout_s):
            raise KafkaTimeoutError(f"no acknowledgement within {rounded(timeout_s)}")
        return self.part(index)[0].error

    def await_of(self, index: int, timestamp: int) -> Generator[Any, None, RecordMetadata]:
        if not self.done:
            yield from self.future().__await__()
        return self.result_of(index, timestamp, None)


def _check_may_block(loop: asyncio.AbstractEventLoop | None) -> None:
    """Raise IllegalStateError on the thread of the loop that would complete the delivery."""
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        return
    if running is loop:
        raise IllegalStateError("result() would block the event loop that delivers the record",
                                remedy="write `metadata = await delivery`, or pass on_delivery to "
                                "send()")


class TableDelivery:
    """The outcome of all batches of one send_arrow."""

    __slots__ = ("_pendings", "row_count")

    def __init__(self, pendings: list[Pending], row_count: int):
        self._pendings = pendings
        self.row_count = row_count

    def done(self) -> bool:
        return all(pending.done for pending in self._pendings)

    def when_done(self, function: Callable[[], Any]) -> None:
        """Call function when every batch is complete: now, or on the thread that completes the last
        one.
        """
        left = itertools.count(len(self._pendings) - 1, -1)
        if not self._pendings:
            function()
        for pending in self._pendings:
            pending.when_done(lambda: next(left) or function())

    def result(self, timeout: float | None = None, *, timeout_s: float | None = None
               ) -> list[tuple[str, int, int, int]]:
        """Wait for all batches; return (topic, partition, base offset, record count) of each, in
        order per partition.

        Raises the first failure, or KafkaTimeoutError after `timeout` seconds.
        """
        timeout_s = seconds(timeout, timeout_s)
        for pending in self._pendings:
            if not pending.wait(timeout_s):
                raise KafkaTimeoutError(f"no acknowledgement within {rounded(timeout_s)}")
        return self._outcome()

    def __await__(self) -> Generator[Any, None, list[tuple[str, int, int, int]]]:
        for pending in self._pendings:
            if not pending.done:
                yield from pending.future().__await__()
        return self._outcome()

    def _outcome(self) -> list[tuple[str, int, int, int]]:
        for pending in self._pendings:
            if pending.error is not None:
                raise pending.error
        return [(p.topic, p.partition, p.base_offset, p.count)
                for pending in self._pendings for p in pending.leaves()]

"""Records that wait to be sent: an open batch and closed ones per partition, within a budget.

Owns: the queues of a producer; _native.intake owns their memory account and their lock.
Invariants: (1) bytes_used is what incomplete batches hold, at most bytes_max unless one batch alone
  is larger; (2) a queue's ready batches are in the order of their numbers, retries at their place;
  (3) the sender sleeps only while no batch was opened or closed since it last looked; (4) no lock
  is held while bytecode runs: an operation on shared state is one native call, or has no lock.
Threads: records come from any thread; the rest runs on the loop unless it says otherwise.
Source: Kafka's Java client (RecordAccumulator, BufferPool); KIP-480, KIP-794.
"""

from __future__ import annotations

import bisect
import collections
import time
from collections.abc import Callable, Iterable
from typing import Any

from pylog._native import batch as native
from pylog._native.builder import Batch, BatchBuilder, Pool
from pylog._native.intake import Lane, RecordBuffer
from pylog.client.producer.delivery import Pending

POOLED_BYTES_MAX = 8 << 20  # As much as is under way to a few brokers.
SEQUENCE_MASK = 0x7FFFFFFF


class Queue(Lane):
    """The batches of one partition, and where its sequences stand."""

    def __init__(self, builder: BatchBuilder, topic: str, partition: int):
        self.topic, self.partition = topic, partition
        self.producer_id, self.epoch, self.next_sequence = -1, -1, 0
        self.needs_new_epoch = False
        # A batch was sent and given up without an answer: it may be in the log or not.
        self.is_unresolved = False
        # Until then the broker surely has the state of this producer id, of this topic id.
        self.known_until_s, self.topic_id = 0.0, b""
        # Number of the newest acknowledged batch of this producer epoch, and the sequence after it.
        self.acknowledged, self.acknowledged_end = -1.0, 0
        self.lost_count = 0    # Records that failed since the last flush.

    def put_back(self, pending: Pending) -> None:
        """Among the ready ones again, to be tried anew. Keeps (2).

        Other threads only append batches with a larger number meanwhile."""
        at = bisect.bisect([other.number for other in list(self.ready)], pending.number)
        self.ready.insert(at, pending)


class Accumulator(RecordBuffer):
    """All queues of a producer. `wake` is called, without a lock, to wake the sender."""

    def __init__(self, *, batch_bytes: int, bytes_max: int, linger_s: float, codec: int,
                 level: int | None, wake: Callable[[], Any]):
        self.pool = Pool(min(bytes_max, POOLED_BYTES_MAX))
        self.flushing = 0
        self._queues: dict[tuple[str, int], Queue] = {}
        self._waiting: collections.deque[Callable[[], Any]] = collections.deque()

    def queue(self, topic: str, partition: int) -> Queue:
        found = self._queues.get((topic, partition))
        if found is None:
            found = self._queues.setdefault((topic, partition), Queue(
                BatchBuilder(self.batch_bytes, partition, self.pool), topic, partition))
        return found

    def load(self, topic: str, partition: int) -> int:
        """Batches of a partition that are not acknowledged."""
        found = self._queues.get((topic, partition))
        return 0 if found is None else len(found.ready) + len(found.in_flight)

    def waiting(self) -> list[tuple[str, int, float]]:
        """(topic, partition, since when in monotonic seconds) of what could be sent. On any
        thread."""
        found = []
        for queue in list(self.active.values()):
            try:
                found.append((queue.topic, queue.partition, queue.ready[0].created_s))
            except IndexError:
                pass  # Nothing is ready.
        return found

    def queues(self) -> list[Queue]:
        return list(self._queues.values())

    # Records in.

    def new_batch(self, queue: Queue) -> Pending:
        """Called by native code, without a lock, before it begins a batch with a record."""
        return Pending(queue.topic, queue.partition, queue, 0, 0, time.monotonic())

    def add(self, queue: Queue, batch: Batch) -> Pending | None:
        """A batch that was built elsewhere, behind what is there; None without memory for it."""
        pending = self.new_batch(queue)
        return pending if self.add_closed(queue, batch, pending) else None

    # For the sender.

    def close_due(self, queue: Queue, now_s: float) -> float | None:
        """Closes the open batch when its linger is over; else when that will be."""
        return self.close_after_linger(queue, now_s, bool(self.flushing or self._waiting))

    def complete(self, pending: Pending, base_offset: int = -1, append_time: int = -1,
               error: BaseException | None = None) -> None:
        """The end of a batch: its memory is free, all who wait are notified."""
        self.release(pending)
        waiting, self._waiting = self._waiting, collections.deque()
        for function in waiting:
            function()
        pending.complete(base_offset, append_time, error)

    def split(self, pending: Pending) -> None:
        """Two batches take the place of one that a broker finds too large: same records, same
        sequences. It is complete when both are."""
        queue, rows, half = pending.queue, native.records(pending.batch), pending.count // 2
        parts = []
        for place, (first, stop) in enumerate(((0, half), (half, pending.count))):
            builder = BatchBuilder(native.BYTES_MAX, pending.partition)
            for _, timestamp, key, value, headers in rows[first:stop]:
                builder.append(key, value, timestamp, headers)
            part = Pending(pending.topic, pending.partition, queue, 0, 0, pending.created_s)
            part.step = pending.step / 4
            part.number = pending.number + (place + 1) * part.step
            part.batch, part.count = builder.close(self.codec, self.level), stop - first
            part.attempts = 1  # One after the other, as retries.
            if pending.base_sequence >= 0:
                part.base_sequence = (pending.base_sequence + first) & SEQUENCE_MASK
                part.batch.stamp(queue.producer_id, queue.epoch, part.base_sequence,
                                 bool(native.header(pending.batch).attributes
                                      & native.TRANSACTIONAL))
            parts.append((first, part))
        pending.parts, pending.batch = parts, None

        def complete_whole() -> None:
            if all(part.done for _, part in parts) and not pending.done:
                failures = [part.error for _, part in parts if part.error is not None]
                self.complete(pending, error=failures[0] if failures else None)

        for _, part in parts:
            part.when_done(complete_whole)
            self.add_part(part)
            queue.put_back(part)

    def fail_unsent(self, failure: BaseException) -> None:
        """Ends every batch that is not under way."""
        for queue in self.queues():
            self.close(queue)
            for pending in [queue.ready.popleft() for _ in range(len(queue.ready))]:
                self.complete(pending, error=failure)

    def pendings(self) -> list[Pending]:
        """The batches that are not complete. On any thread."""
        return list(self.incomplete.values())

    def take_lost(self) -> int:
        """How many records have failed since this was last asked."""
        lost = 0
        for queue in self.queues():
            lost += queue.lost_count
            queue.lost_count = 0
        return lost

    # Waiting for memory.

    def when_room(self, functions: Iterable[Callable[[], Any]]) -> None:
        """Calls each once when some memory is given back; open batches are sent meanwhile."""
        self._waiting.extend(functions)
        self.notify()

"""Buffer unsent records: per partition one open batch and closed batches, within buffer.memory.

Owns: the queues of a producer. record_intake owns their memory accounting and their lock.
Invariants: bytes_used is the size of the incomplete batches, at most bytes_max unless a single
  batch is larger; a queue's ready batches are ordered by number, retries included; the sender
  sleeps only if no batch was opened or closed since its last pass; no lock is held while bytecode
  runs: each operation on shared state is one native call or needs no lock.
Threads: any thread adds records; everything else runs on the loop unless its docstring says
  otherwise.
Source: Kafka's Java client (RecordAccumulator, BufferPool); KIP-480, KIP-794.
"""

from __future__ import annotations

import asyncio
import bisect
import collections
import time
from collections.abc import Callable, Iterable
from typing import Any

from pylog._native.client.batch_builder import Batch, BatchBuilder, Pool
from pylog._native.client.record_intake import PartitionQueue, RecordBuffer
from pylog._native.records import batch
from pylog.client.producer.delivery import Pending

POOLED_BYTES_MAX = 8 << 20  # About the bytes in flight to a few brokers.
SEQUENCE_MASK = 0x7FFFFFFF


class Queue(PartitionQueue):
    """The batches and sequence numbers of one partition."""

    def __init__(self, builder: BatchBuilder, topic: str, partition: int,
                 loop: asyncio.AbstractEventLoop | None):
        self.topic, self.partition = topic, partition
        self.loop = loop
        self.producer_id, self.epoch, self.next_sequence = -1, -1, 0
        self.needs_new_epoch = False
        # A batch was sent and given up without a response: it may or may not be in the log.
        self.is_unresolved = False
        # The broker has state for this producer id and topic id at least until then.
        self.known_until_s, self.topic_id = 0.0, b""
        # Number of the newest acknowledged batch of this producer epoch, and the sequence after it.
        self.acknowledged, self.acknowledged_end = -1.0, 0
        self.lost_count = 0    # Records that failed since the last flush.

    def put_back(self, pending: Pending) -> None:
        """Insert a batch into the ready queue for a retry. Keeps ready batches ordered by number.

        Other threads may append concurrently, but only batches with larger numbers.
        """
        at = bisect.bisect([other.number for other in list(self.ready)], pending.number)
        self.ready.insert(at, pending)


class Accumulator(RecordBuffer):
    """All queues of a producer. Calls `wake` without a lock to wake the sender."""

    def __init__(self, *, batch_bytes: int, bytes_max: int, linger_s: float, codec: int,
                 level: int | None, wake: Callable[[], Any]):
        # The loop that completes deliveries; each queue gets it.
        self.loop: asyncio.AbstractEventLoop | None = None
        self.pool = Pool(min(bytes_max, POOLED_BYTES_MAX))
        self.flushing = 0
        self._queues: dict[tuple[str, int], Queue] = {}
        self._waiting: collections.deque[Callable[[], Any]] = collections.deque()

    def queue(self, topic: str, partition: int) -> Queue:
        found = self._queues.get((topic, partition))
        if found is None:
            found = self._queues.setdefault((topic, partition), Queue(
                BatchBuilder(self.batch_bytes, partition, self.pool), topic, partition, self.loop))
        return found

    def load(self, topic: str, partition: int) -> int:
        """Return the number of unacknowledged batches of a partition."""
        found = self._queues.get((topic, partition))
        return 0 if found is None else len(found.ready) + len(found.in_flight)

    def waiting(self) -> list[tuple[str, int, float]]:
        """Return (topic, partition, monotonic creation time of the oldest batch) of each queue with
        ready batches. Callable from any thread.
        """
        found = []
        for queue in list(self.active.values()):
            try:
                found.append((queue.topic, queue.partition, queue.ready[0].created_s))
            except IndexError:
                pass  # No batch is ready.
        return found

    def queues(self) -> list[Queue]:
        return list(self._queues.values())

    # Adding records.

    def new_batch(self, queue: Queue) -> Pending:
        """Return a new Pending. Native code calls it without a lock before it starts a batch."""
        return Pending(queue.topic, queue.partition, queue, 0, 0, time.monotonic())

    def add(self, queue: Queue, batch: Batch) -> Pending | None:
        """Append a batch that was built elsewhere. Returns None if memory is exhausted."""
        pending = self.new_batch(queue)
        return pending if self.add_closed(queue, batch, pending) else None

    # For the sender.

    def close_due(self, queue: Queue, now_s: float) -> float | None:
        """Close the open batch if its linger time has passed; otherwise return when that will be.
        """
        return self.close_after_linger(queue, now_s, bool(self.flushing or self._waiting))

    def complete(self, pending: Pending, base_offset: int = -1, append_time: int = -1,
               error: BaseException | None = None) -> None:
        """Complete a batch: release its memory and notify all waiters."""
        self.release(pending)
        waiting, self._waiting = self._waiting, collections.deque()
        for function in waiting:
            function()
        pending.complete(base_offset, append_time, error)

    def split(self, pending: Pending) -> None:
        """Replace a batch that the broker rejected as too large by two halves with the same records
        and sequences. The batch completes when both halves do.
        """
        queue, rows, half = pending.queue, batch.records(pending.batch), pending.count // 2
        parts = []
        for index, (first, stop) in enumerate(((0, half), (half, pending.count))):
            builder = BatchBuilder(batch.BYTES_MAX, pending.partition)
            for _, timestamp, key, value, headers in rows[first:stop]:
                builder.append(key, value, timestamp, headers)
            part = Pending(pending.topic, pending.partition, queue, 0, 0, pending.created_s)
            part.step = pending.step / 4
            part.number = pending.number + (index + 1) * part.step
            part.batch, part.count = builder.close(self.codec, self.level), stop - first
            part.attempts = 1  # Sends the halves one at a time, as retries.
            if pending.base_sequence >= 0:
                part.base_sequence = (pending.base_sequence + first) & SEQUENCE_MASK
                part.batch.stamp(queue.producer_id, queue.epoch, part.base_sequence,
                                 bool(batch.header(pending.batch).attributes
                                      & batch.TRANSACTIONAL))
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
        """Fail every batch that is not in flight."""
        for queue in self.queues():
            self.close(queue)
            for pending in [queue.ready.popleft() for _ in range(len(queue.ready))]:
                self.complete(pending, error=failure)

    def pendings(self) -> list[Pending]:
        """Return the incomplete batches. Callable from any thread."""
        return list(self.incomplete.values())

    def take_lost(self) -> int:
        """Return the number of records that failed since the last call."""
        lost = 0
        for queue in self.queues():
            lost += queue.lost_count
            queue.lost_count = 0
        return lost

    # Waiting for memory.

    def when_room(self, functions: Iterable[Callable[[], Any]]) -> None:
        """Call each function once when memory is released. Sends open batches in the meantime."""
        self._waiting.extend(functions)
        self.notify()

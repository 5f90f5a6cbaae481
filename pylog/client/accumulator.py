"""Records that wait to be sent: an open batch and closed ones per partition, within a budget.

Owns: the queues, the memory account, the lock that guards both.
Invariants: (1) bytes_used is what incomplete batches hold, at most bytes_max unless one batch alone
  is larger; (2) a queue's ready batches are in the order of their numbers, retries at their place;
  (3) the sender sleeps only while no batch was opened or closed since it last looked.
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
from pylog._native.intake import Lane, Mutex
from pylog.client.deliveries import Pending

FIRST_BYTES = 16_384
BATCH_BYTES_MAX = 1 << 30
POOLED_BYTES_MAX = 8 << 20  # As much as is under way to a few brokers.
SEQUENCE_MASK = 0x7FFFFFFF
RECORD_OVERHEAD_BYTES = 128  # Header of a batch and varints of a record, at most.


class Queue(Lane):
    """What waits for one partition: the open batch, which is native code's too, and closed ones."""

    def __init__(self, lock: Mutex, builder: BatchBuilder, topic: str, partition: int):
        self.topic, self.partition = topic, partition
        self.ready: collections.deque[Pending] = collections.deque()
        self.in_flight: list[Pending] = []
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
        """Among the ready ones again, to be tried anew. Keeps (2)."""
        with self.lock:
            at = bisect.bisect([other.number for other in self.ready], pending.number)
            self.ready.insert(at, pending)


class Accumulator:
    """All queues of a producer. `wake` is called, with the lock held, to wake the sender."""

    def __init__(self, *, batch_bytes: int, bytes_max: int, linger_s: float, codec: int,
                 level: int | None, wake: Callable[[], Any]):
        self.batch_bytes = batch_bytes
        self.bytes_max = bytes_max
        self.linger_s = linger_s
        self.codec, self.level = codec, level
        self.lock = Mutex()
        self.pool = Pool(min(bytes_max, POOLED_BYTES_MAX))
        self.bytes_used = 0
        self.incomplete: dict[float, Pending] = {}
        self.active: dict[tuple[str, int], Queue] = {}
        self.flushing = 0
        self.changed = False
        self.sleeping = False
        self.wakes_s = 0.0       # When the sender that sleeps wakes by itself.
        self._wake = wake
        self._queues: dict[tuple[str, int], Queue] = {}
        self._number = 0
        self._waiting: collections.deque[Callable[[], Any]] = collections.deque()

    def queue(self, topic: str, partition: int) -> Queue:
        found = self._queues.get((topic, partition))
        if found is None:
            with self.lock:
                found = self._queues.setdefault(
                    (topic, partition), Queue(
                        self.lock, BatchBuilder(self.batch_bytes, partition, self.pool), topic,
                        partition))
        return found

    def load(self, topic: str, partition: int) -> int:
        """Batches of a partition that are not acknowledged."""
        found = self._queues.get((topic, partition))
        return 0 if found is None else len(found.ready) + len(found.in_flight)

    def waiting(self) -> list[tuple[str, int, float]]:
        """(topic, partition, since when in monotonic seconds) of what could be sent."""
        with self.lock:
            return [(queue.topic, queue.partition, queue.ready[0].created_s)
                    for queue in self.active.values() if queue.ready]

    def queues(self) -> list[Queue]:
        return list(self._queues.values())

    # Records in.

    def append(
        self, queue: Queue, key: Any, value: Any, timestamp: int, headers: Any,
        callback: Callable[..., Any] | None, size: int,
    ) -> tuple[Pending, int] | None:
        """The batch that took the record and its index there; None without memory for it.

        size: bytes of key, value and headers. Raises TypeError, ValueError of the builder."""
        with self.lock:
            index = -1
            if queue.open is not None:
                if not self._may_grow(queue, size):
                    return None
                index = queue.builder.append(key, value, timestamp, headers)
                if index < 0:
                    self._close(queue)
            if index < 0:
                reserved = max(min(self.batch_bytes, FIRST_BYTES), size + RECORD_OVERHEAD_BYTES)
                if not self._has_room(reserved):
                    return None
                index = queue.builder.append(key, value, timestamp, headers)
                queue.open, queue.reserved = self._new(queue, reserved), reserved
                if self.sleeping and queue.open.created_s + self.linger_s < self.wakes_s:
                    self._notify()
            pending: Pending = queue.open
            if callback is not None:
                if pending.callbacks is None:
                    pending.callbacks = []
                pending.callbacks.append((index, timestamp, callback))
            return pending, index

    def _has_room(self, more: int) -> bool:
        """Keeps (1)."""
        return not self.bytes_used or self.bytes_used + more <= self.bytes_max

    def _may_grow(self, queue: Queue, size: int) -> bool:
        """Takes memory for `size` more bytes in the open batch; False when there is none."""
        wanted = min(queue.builder.nbytes + size + RECORD_OVERHEAD_BYTES, self.batch_bytes)
        more = max(wanted, min(2 * queue.reserved, self.batch_bytes)) - queue.reserved
        if wanted <= queue.reserved:
            return True
        if not self._has_room(more):
            return False
        queue.reserved += more
        queue.open.bytes += more
        self.bytes_used += more
        return True

    def add(self, queue: Queue, batch: Batch) -> Pending | None:
        """A batch that was built elsewhere, behind what is there; None without memory for it."""
        with self.lock:
            if not self._has_room(batch.nbytes):
                return None
            self._close(queue)
            pending = self._new(queue, batch.nbytes)
            pending.batch = batch
            pending.count = batch.record_count
            queue.ready.append(pending)
            self._notify()
            return pending

    def _new(self, queue: Queue, reserved: int) -> Pending:
        self._number += 1
        made = Pending(queue.topic, queue.partition, queue, self._number, reserved,
                       time.monotonic())
        self.bytes_used += reserved
        self.incomplete[self._number] = made
        self.active[queue.topic, queue.partition] = queue
        self.changed = True
        return made

    def _close(self, queue: Queue) -> None:
        pending = queue.open
        if pending is not None:
            pending.batch = queue.builder.close(self.codec, self.level)
            pending.count = pending.batch.record_count
            queue.open = None
            queue.ready.append(pending)
            self._notify()

    def _notify(self) -> None:
        self.changed = True
        if self.sleeping:
            self.sleeping = False
            self._wake()

    def notify(self) -> None:
        """Has the sender look again."""
        with self.lock:
            self._notify()

    # For the sender.

    def may_sleep(self, until_s: float) -> bool:
        """False when something has changed since the last call. Keeps (3)."""
        with self.lock:
            if self.changed:
                self.changed = False
                return False
            self.sleeping, self.wakes_s = True, until_s
            return True

    def close_due(self, queue: Queue, now_s: float) -> float | None:
        """Closes the open batch when its linger is over; else when that will be."""
        with self.lock:
            pending = queue.open
            if pending is None:
                return None
            due_s = pending.created_s + self.linger_s
            if now_s < due_s and not self.flushing and not self._waiting:
                return due_s
            changed = self.changed
            self._close(queue)
            self.changed = changed  # The sender does this itself and knows it.
        return None

    def drop_if_idle(self, queue: Queue) -> None:
        """Forgets that a queue has work when it has none."""
        with self.lock:
            if queue.open is None and not queue.ready and not queue.in_flight:
                self.active.pop((queue.topic, queue.partition), None)

    def complete(self, pending: Pending, base_offset: int = -1, append_time: int = -1,
               error: BaseException | None = None) -> None:
        """The end of a batch: its memory is free, all who wait are notified."""
        with self.lock:
            self.bytes_used -= pending.bytes
            del self.incomplete[pending.number]
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
            builder = BatchBuilder(BATCH_BYTES_MAX, pending.partition)
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
            with self.lock:
                self.incomplete[part.number] = part
            queue.put_back(part)

    def fail_unsent(self, failure: BaseException) -> None:
        """Ends every batch that is not under way."""
        for queue in self.queues():
            with self.lock:
                self._close(queue)
                failed, queue.ready = list(queue.ready), collections.deque()
            for pending in failed:
                self.complete(pending, error=failure)

    def pendings(self) -> list[Pending]:
        """The batches that are not complete."""
        with self.lock:
            return list(self.incomplete.values())

    def take_lost(self) -> int:
        """How many records have failed since this was last asked."""
        lost = 0
        with self.lock:
            for queue in self._queues.values():
                lost += queue.lost_count
                queue.lost_count = 0
        return lost

    # Waiting for memory.

    def when_room(self, functions: Iterable[Callable[[], Any]]) -> None:
        """Calls each once when some memory is given back; open batches are sent meanwhile."""
        with self.lock:
            self._waiting.extend(functions)
            self._notify()

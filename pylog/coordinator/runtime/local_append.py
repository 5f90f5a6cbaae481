"""Append transaction markers to partitions that this broker leads, and wait until they are as
durable as acks=all promises.

Owns: the calls that wait for durability, the native waiters.
Invariants: each call appends a marker once, after checking its epochs against the log's producer
  state; the result follows once the marker is durable; a waiter slot serves one log, in offset
  order; nothing is appended after close(), although connections are served for a while longer.
Source: KIP-98; KIP-890 (a version 2 marker has a higher epoch than its records); KAFKA-19999 (a
  repeated marker is accepted again).
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from pylog._native.log.flush_waits import FlushWaits
from pylog._native.log.log import Log, LogError
from pylog._native.log.producer_state import producer_of
from pylog.config import internal_topics
from pylog.coordinator.runtime.deferred_response import DeferredResponse
from pylog.coordinator.runtime.internal_topic import Node
from pylog.coordinator.runtime.transactional_batches import Marker
from pylog.protocol.errors import Error, ErrorCode

SLOTS = 64  # Logs waited for at once; further logs queue for a slot.
Partition = tuple[str, int]


class Offsets(Protocol):
    """The group coordinator, which owns the `__consumer_offsets` partitions."""

    def end_transaction(self, index: int, marker: Marker, pending: DeferredResponse) -> None:
        """Answer `pending` with an error code when the marker is durable."""


class Markers:
    """Appends to local logs, between start() and close()."""

    def __init__(self, node: Node, offsets: Offsets):
        self._node = node
        self._offsets = offsets
        self._waits: FlushWaits | None = None
        self._free: list[int] = []
        self._logs: dict[int, Log] = {}  # By slot in use.
        self._held: dict[Log, deque[tuple[int, DeferredResponse]]] = {}

    def start(self) -> None:
        self._waits = FlushWaits(SLOTS)
        self._free = list(range(SLOTS))
        asyncio.get_running_loop().add_reader(self._waits.fileno(), self._woken)

    def close(self) -> None:
        """Reject all waiting calls; their callers retry later or on the new leader."""
        if self._waits is not None:
            asyncio.get_running_loop().remove_reader(self._waits.fileno())
            self._waits = None
        held, self._held = self._held, {}
        for waiting in held.values():
            for _, pending in waiting:
                pending.refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    async def write(self, marker: Marker,
                    partitions: Iterable[Partition]) -> dict[Partition, Error]:
        """Append a marker; return {partition: NONE once durable, otherwise the error}."""
        now_ms = self._node.now_ms()
        data = marker.batch(now_ms)  # Shared: each log stamps its own copy.
        under_way = {partition: self._write(marker, data, now_ms, *partition)
                     for partition in partitions}
        return {partition: await pending for partition, pending in under_way.items()}

    def _write(self, marker: Marker, data: bytes, now_ms: int, topic: str,
               index: int) -> DeferredResponse:
        pending = DeferredResponse(lambda error: error)
        partition_log = self._node.logs.get(topic, index)
        if self._waits is None:
            pending.refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)  # Nothing is appended after close().
        elif partition_log is None:
            pending.refuse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        elif topic == internal_topics.OFFSETS:
            self._offsets.end_transaction(index, marker, pending)
        else:
            try:
                # Check the epochs before appending.
                error = marker.fault(producer_of(partition_log, marker.producer_id, now_ms))
                if error == ErrorCode.NONE:
                    _, last = partition_log.append(data, now_ms, trusted=True)
                    self._after(partition_log, last, pending)
                else:
                    pending.refuse(error)
            except LogError as failure:
                pending.refuse(ErrorCode.of(failure.code))
        return pending

    async def append(self, topic: str, index: int, data: bytes) -> Error:
        """Append any other batch; return the error code once it is durable."""
        pending: DeferredResponse = DeferredResponse(lambda error: error)
        partition_log = self._node.logs.get(topic, index)
        if partition_log is None or self._waits is None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        try:
            _, last = partition_log.append(data, self._node.now_ms())
            self._after(partition_log, last, pending)
        except LogError as failure:
            return ErrorCode.of(failure.code)
        found: Error = await pending
        return found

    # ---- durability -----------------------------------------------------------------------------

    def _after(self, partition_log: Log, offset: int, pending: DeferredResponse) -> None:
        waiting = self._held.get(partition_log)
        if waiting is not None:
            waiting.append((offset, pending))
            return
        self._held[partition_log] = deque([(offset, pending)])
        if self._free:
            self._serve(self._free.pop(), partition_log)

    def _serve(self, slot: int, partition_log: Log | None) -> None:
        """Answer durable calls and wait for the rest; when none are left, serve another log."""
        while partition_log is not None:
            if not self._drain(slot, partition_log):
                self._logs[slot] = partition_log
                return
            partition_log = self._unserved()
        self._free.append(slot)

    def _drain(self, slot: int, partition_log: Log) -> bool:
        """Return True if no call waits for this log any more."""
        assert self._waits is not None and slot not in self._logs, slot
        waiting = self._held[partition_log]
        try:
            while waiting:
                if not self._waits.wait_acknowledged(slot, partition_log, waiting[0][0]):
                    return False
                waiting.popleft()[1].respond(ErrorCode.NONE)
        except LogError as failure:
            _refuse(waiting, ErrorCode.of(failure.code))
        del self._held[partition_log]
        return True

    def _unserved(self) -> Log | None:
        """Return a log that waits without a slot, or None."""
        served = set(self._logs.values())
        return next((found for found in self._held if found not in served), None)

    def _woken(self) -> None:
        assert self._waits is not None
        for slot in self._waits.take():
            partition_log = self._logs.pop(slot)
            if partition_log.failed:
                _refuse(self._held.pop(partition_log), ErrorCode.NOT_LEADER_OR_FOLLOWER)
                self._serve(slot, self._unserved())
            else:
                self._serve(slot, partition_log)


def _refuse(waiting: deque[tuple[int, DeferredResponse]], error: Error) -> None:
    while waiting:
        waiting.popleft()[1].refuse(error)

"""Deadlines by key, cheap to move: a heartbeat moves one, and most never come due.

Owns: the deadlines of one coordinator shard.
Called by: coordinator.groups.
Invariants: (1) a key has one deadline; (2) an entry of the heap that is no longer true is skipped
  or put back when it comes up, never before.
Source: lazy deletion in a binary heap.
"""

import heapq


class Timers:
    """Keys are tuples, deadlines are milliseconds of a clock that never goes back."""

    def __init__(self):
        self._deadlines = {}
        self._queued = {}    # key -> its earliest entry in the heap
        self._heap = []

    def __len__(self) -> int:
        return len(self._deadlines)

    def set(self, key: tuple, deadline_ms: int) -> None:
        """Gives `key` this deadline in place of the one that it had."""
        self._deadlines[key] = deadline_ms
        queued = self._queued.get(key)
        if queued is None or deadline_ms < queued:
            self._queued[key] = deadline_ms
            heapq.heappush(self._heap, (deadline_ms, key))

    def cancel(self, key: tuple) -> None:
        self._deadlines.pop(key, None)

    def next_ms(self) -> int | None:
        """When to look again; nothing is due before. None: no deadline."""
        return self._heap[0][0] if self._heap else None

    def take_due(self, now_ms: int):
        """The next key that is due, without its deadline from now on; None when there is none."""
        while self._heap and self._heap[0][0] <= now_ms:
            queued, key = heapq.heappop(self._heap)
            if self._queued.get(key) != queued:
                continue
            del self._queued[key]
            deadline = self._deadlines.get(key)
            if deadline is None:
                continue
            if deadline <= now_ms:
                del self._deadlines[key]
                return key
            self.set(key, deadline)
        return None

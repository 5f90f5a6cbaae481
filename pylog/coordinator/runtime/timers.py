"""Deadlines by key, cheap to move: a heartbeat moves one, and most never come due.

Owns: the deadlines of one coordinator's machine.
Invariants: (1) a key has one deadline; (2) an entry of the heap that is no longer true is skipped
  or put back when it comes up, never before.
Source: lazy deletion in a binary heap.
"""

import asyncio
import heapq
from collections.abc import Callable
from typing import Any


class Clock:
    """What the state machines see of time: now_ms() never goes back, wall_ms() is since 1970."""

    def __init__(self, wall_ms: Callable[[], int]):
        self.wall_ms = wall_ms
        self._time = asyncio.get_running_loop().time

    def now_ms(self) -> int:
        return int(self._time() * 1000)


class Timers:
    """Keys are tuples, deadlines are milliseconds of a clock that never goes back."""

    def __init__(self) -> None:
        self._deadlines: dict[tuple[Any, ...], int] = {}
        self._queued: dict[tuple[Any, ...], int] = {}    # Its earliest entry in the heap.
        self._heap: list[tuple[int, tuple[Any, ...]]] = []

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, key: tuple[Any, ...]) -> bool:
        return key in self._deadlines

    def set(self, key: tuple[Any, ...], deadline_ms: int) -> None:
        """Gives `key` this deadline in place of the one that it had."""
        self._deadlines[key] = deadline_ms
        queued = self._queued.get(key)
        if queued is None or deadline_ms < queued:
            self._queued[key] = deadline_ms
            heapq.heappush(self._heap, (deadline_ms, key))

    def prolong(self, key: tuple[Any, ...], deadline_ms: int) -> None:
        """Gives `key` this deadline if it has an earlier one."""
        if deadline_ms > self._deadlines.get(key, deadline_ms):
            self._deadlines[key] = deadline_ms

    def cancel(self, key: tuple[Any, ...]) -> None:
        self._deadlines.pop(key, None)

    def next_ms(self) -> int | None:
        """When to look again; nothing is due before. None: no deadline."""
        return self._heap[0][0] if self._heap else None

    def take_due(self, now_ms: int) -> tuple[Any, ...] | None:
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

"""Deadlines by key that are cheap to move: each heartbeat moves one, and most never expire.

Owns: the deadlines of one coordinator state machine.
Invariants: a key has one deadline; an outdated heap entry is skipped or re-queued only when it
  reaches the top.
Source: lazy deletion in a binary heap.
"""

import asyncio
import heapq
from collections.abc import Callable
from typing import Any, Protocol


class Time(Protocol):
    """Clocks of state machines: now_ms() is monotonic, wall_ms() is since the Unix epoch."""

    @property
    def wall_ms(self) -> Callable[[], int]: ...

    def now_ms(self) -> int: ...


class Clock:
    """The clocks of the state machines.

    now_ms() is monotonic, wall_ms() counts from the Unix epoch.
    """

    def __init__(self, wall_ms: Callable[[], int]):
        self.wall_ms = wall_ms
        self._time = asyncio.get_running_loop().time

    def now_ms(self) -> int:
        return int(self._time() * 1000)


class Timers:
    """Deadlines in ms of a monotonic clock. Keys are tuples."""

    def __init__(self) -> None:
        self._deadlines: dict[tuple[Any, ...], int] = {}
        self._queued: dict[tuple[Any, ...], int] = {}  # Earliest heap entry of each key.
        self._heap: list[tuple[int, tuple[Any, ...]]] = []

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, key: tuple[Any, ...]) -> bool:
        return key in self._deadlines

    def set(self, key: tuple[Any, ...], deadline_ms: int) -> None:
        """Set the deadline of `key`, replacing an earlier one."""
        self._deadlines[key] = deadline_ms
        queued = self._queued.get(key)
        if queued is None or deadline_ms < queued:
            self._queued[key] = deadline_ms
            heapq.heappush(self._heap, (deadline_ms, key))

    def prolong(self, key: tuple[Any, ...], deadline_ms: int) -> None:
        """Move the deadline of `key` to a later time. Does nothing if the key has no deadline."""
        if deadline_ms > self._deadlines.get(key, deadline_ms):
            self._deadlines[key] = deadline_ms

    def cancel(self, key: tuple[Any, ...]) -> None:
        self._deadlines.pop(key, None)

    def next_ms(self) -> int | None:
        """Return when to call take_due() next, or None if there is no deadline."""
        return self._heap[0][0] if self._heap else None

    def take_due(self, now_ms: int) -> tuple[Any, ...] | None:
        """Remove and return the next expired key, or None if no key has expired."""
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

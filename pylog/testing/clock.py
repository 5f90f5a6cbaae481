"""The clocks of a broker under test: the system's, plus an offset that a test controls.

Owns: the offset of each clock.
Invariants: a clock never goes back; both clocks keep running between moves.
Source: Kafka's two kinds of time: retention and offset expiry use the wall clock, sessions,
  rebalances and periodic tasks use a monotonic clock.
"""

import asyncio
import time


class MovedClock:
    """A wall clock and a timer clock, each with an offset."""

    def __init__(self):
        self.wall_ahead_ms = 0
        self._timers_ahead_s = 0.0

    def wall_ms(self) -> int:
        """Return the wall clock in ms since the Unix epoch."""
        return time.time_ns() // 1_000_000 + self.wall_ahead_ms

    def timer_s(self) -> float:
        """Return the timer clock in seconds."""
        return time.monotonic() + self._timers_ahead_s

    def move(self, ms: int, timers: bool) -> None:
        """Move the wall clock forward, and the timer clock too if `timers`.

        Raises ValueError if `ms` is negative.
        """
        if ms < 0:
            raise ValueError(f"{ms} ms: a clock goes forward only")
        self.wall_ahead_ms += ms
        if timers:
            self._timers_ahead_s += ms / 1000


class MovedLoop(asyncio.SelectorEventLoop):
    """An event loop whose sleeps, timeouts and timers use a MovedClock."""

    def __init__(self, clock: MovedClock):
        self._moved = clock  # The base class calls time() in its constructor.
        super().__init__()

    def time(self) -> float:
        return self._moved.timer_s()

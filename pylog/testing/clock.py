"""The clocks of a broker under a test: the machine's, moved forward by as much as a test says.

Owns: how far each clock is ahead.
Invariants: (1) a clock never goes back; (2) both run on between two moves.
Source: Kafka's two kinds of time: retention and expiry of offsets go by the wall clock, sessions,
  rebalances and everything periodic by a clock that knows no dates.
"""

import asyncio
import time


class MovedClock:
    """Wall clock and timers, each with its own lead."""

    def __init__(self):
        self.wall_ahead_ms = 0
        self._timers_ahead_s = 0.0

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000 + self.wall_ahead_ms

    def timer_s(self) -> float:
        """Seconds of the clock of timers."""
        return time.monotonic() + self._timers_ahead_s

    def move(self, ms: int, timers: bool) -> None:
        """Moves the wall clock, and that of timers if they are to be due too. Keeps (1)."""
        if ms < 0:
            raise ValueError(f"{ms} ms: a clock goes forward only")
        self.wall_ahead_ms += ms
        if timers:
            self._timers_ahead_s += ms / 1000


class MovedLoop(asyncio.SelectorEventLoop):
    """An event loop whose sleeps, timeouts and timers go by a MovedClock."""

    def __init__(self, clock: MovedClock):
        self._moved = clock   # Read by time() before the base class is ready.
        super().__init__()

    def time(self) -> float:
        return self._moved.timer_s()

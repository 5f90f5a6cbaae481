"""Long work on the event loop: one slice of it in each turn of the loop, and little of it at once.

Owns: the order in which long work goes on.
Invariants: (1) between two slices the loop does whatever else is to be done; (2) at most
  count_max pieces of work are begun, the others wait, oldest first; (3) those that are begun take
  slices in turn; (4) what all of them hold is bounded.
"""

import asyncio
from collections import deque

from pylog.protocol.errors import ProtocolError


class Busy(ProtocolError):
    """More long requests wait than there may be."""


class Turns:
    """clock_ns: a monotonic clock. bytes_max: of the requests that are in hand."""

    def __init__(self, clock_ns, slice_ns: int, count_max: int, bytes_max: int):
        self._clock_ns = clock_ns
        self._slice_ns = slice_ns
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._count = self._bytes = 0
        self._entering: deque = deque()   # Futures of those that wait to begin,
        self._next: deque = deque()       # and of those that wait for a slice.
        self._granting = False
        self._until_ns = 0
        self.granted = 0                  # Slices so far.

    def room(self, size: int) -> "_Room":
        """To be entered with `async with` by work that holds `size` bytes. Raises Busy."""
        return _Room(self, size)

    async def enter(self, size: int) -> None:
        if self._bytes + size > self._bytes_max:
            # Keeps (4).
            raise Busy(f"more than {self._bytes_max} bytes of long requests in hand")
        self._bytes += size
        assert 0 <= self._bytes <= self._bytes_max, (self._bytes, size)
        try:
            if self._count >= self._count_max:
                # Keeps (2): whoever leaves hands its place over.
                await self._queued(self._entering)
            else:
                self._count += 1
        except BaseException:
            self._bytes -= size
            raise

    def leave(self, size: int) -> None:
        self._bytes -= size
        assert self._bytes >= 0 and 0 < self._count <= self._count_max, (self._bytes, self._count)
        while self._entering:
            waiting = self._entering.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return
        self._count -= 1

    async def slice(self) -> None:
        """Waits for the next slice, unless there is some left of this one."""
        if self._clock_ns() >= self._until_ns:
            await self.next()

    async def next(self) -> None:
        """Waits for the next slice; a new one in each turn of the loop at most."""
        if not self._granting:
            self._granting = True
            asyncio.get_running_loop().call_soon(self._grant)
        await self._queued(self._next)
        self._until_ns = self._clock_ns() + self._slice_ns
        self.granted += 1

    def _queued(self, queue: deque):
        waiting = asyncio.get_running_loop().create_future()
        queue.append(waiting)
        return waiting

    def _grant(self) -> None:
        # Keeps (1), (3): one of them goes on in this turn, the others are asked in the next.
        while self._next:
            waiting = self._next.popleft()
            if not waiting.done():
                waiting.set_result(None)
                break
        self._granting = bool(self._next)
        if self._granting:
            asyncio.get_running_loop().call_soon(self._grant)


class _Room:
    def __init__(self, turns: Turns, size: int):
        self._turns = turns
        self._size = size

    async def __aenter__(self):
        await self._turns.enter(self._size)

    async def __aexit__(self, *_):
        self._turns.leave(self._size)

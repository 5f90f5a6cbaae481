"""Fair scheduling of long work on the event loop: one time slice per loop iteration, with limited
concurrency and memory.

Owns: the order of long work.
Invariants: the loop runs all other ready callbacks between two slices; at most count_max tasks are
  active, the others wait in FIFO order; active tasks get slices round-robin; the memory held by all
  of them is limited.
"""

import asyncio
from collections import deque

from pylog.protocol.errors import ProtocolError


class TooBusy(ProtocolError):
    """Raised when too many long requests are waiting."""


class FairSlots:
    """The scheduler. clock_ns: a monotonic clock. bytes_max: limit for all active and waiting
    requests.
    """

    def __init__(self, clock_ns, slice_ns: int, count_max: int, bytes_max: int):
        self._clock_ns = clock_ns
        self._slice_ns = slice_ns
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._count = self._bytes = 0
        self._entering: deque = deque()  # Futures of tasks that wait to start,
        self._next: deque = deque()  # and of tasks that wait for a slice.
        self._granting = False
        self._until_ns = 0
        self.granted = 0  # Number of slices so far.

    def acquire(self, size: int) -> "_Slot":
        """Return a context manager for work that holds `size` bytes. Entering raises TooBusy."""
        return _Slot(self, size)

    async def enter(self, size: int) -> None:
        if self._bytes + size > self._bytes_max:
            # Limits the memory.
            raise TooBusy(f"more than {self._bytes_max} bytes of long requests in progress")
        self._bytes += size
        assert 0 <= self._bytes <= self._bytes_max, (self._bytes, size)
        try:
            if self._count >= self._count_max:
                # leave() passes its slot to the oldest waiting task.
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
        """Wait for the next slice if the current one is used up."""
        if self._clock_ns() >= self._until_ns:
            await self.next()

    async def next(self) -> None:
        """Wait for the next slice. Each loop iteration grants at most one."""
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
        # Resume one task now, and grant the next slice in the next loop iteration.
        while self._next:
            waiting = self._next.popleft()
            if not waiting.done():
                waiting.set_result(None)
                break
        self._granting = bool(self._next)
        if self._granting:
            asyncio.get_running_loop().call_soon(self._grant)


class _Slot:
    def __init__(self, slots: FairSlots, size: int):
        self._slots = slots
        self._size = size

    async def __aenter__(self):
        await self._slots.enter(self._size)

    async def __aexit__(self, *_):
        self._slots.leave(self._size)

"""Write frames to a socket from several buffers without copying.

Owns: a second descriptor of the connection's socket; data that the socket has not accepted yet.
Invariants: bytes are sent in the order of write(); a buffer is referenced, and must not change,
  until the socket has accepted its bytes or the send buffer is closed.
Source: measured with bench.client --produce: asyncio's transport of Python 3.11 copies data that a
  socket does not accept immediately and takes only one buffer, so each frame had to be joined.
"""

from __future__ import annotations

import asyncio
import collections
import itertools
import os
import socket
from collections.abc import Callable, Iterable
from typing import Any

PIECES_AT_ONCE_MAX = 1024  # Linux' IOV_MAX.
WAITING_BYTES_HIGH = 65_536  # asyncio's own limit.


class SendBuffer:
    """Replacement of asyncio's write buffering; calls `pause` and `resume` as asyncio does.

    Calls failed(OSError) if the socket fails.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, descriptor: int, *,
                 pause: Callable[[], Any], resume: Callable[[], Any],
                 failed: Callable[[OSError], Any]):
        # asyncio lets only the transport watch its own descriptor.
        self._socket = socket.socket(fileno=os.dup(descriptor))
        self._socket.setblocking(False)
        self._loop, self._failed = loop, failed
        self._pause, self._resume = pause, resume
        self._waiting: collections.deque[memoryview] = collections.deque()
        self._waiting_bytes = 0
        self._paused = False

    def write(self, pieces: Iterable[bytes | memoryview]) -> None:
        """Send as much as the socket accepts, and the rest when it has room."""
        if self._socket.fileno() < 0:
            return
        began = not self._waiting
        for piece in pieces:
            view = memoryview(piece).cast("B")
            self._waiting.append(view)
            self._waiting_bytes += view.nbytes
        if began and self._send() and self._waiting:
            self._loop.add_writer(self._socket.fileno(), self._writable)
        if self._waiting_bytes > WAITING_BYTES_HIGH and not self._paused:
            self._paused = True
            self._pause()

    def _writable(self) -> None:
        if self._send() and not self._waiting:
            self._loop.remove_writer(self._socket.fileno())
            if self._paused:
                self._paused = False
                self._resume()

    def _send(self) -> bool:
        """Return False if the send buffer has failed."""
        waiting = self._waiting
        try:
            count = os.writev(self._socket.fileno(),
                              list(itertools.islice(waiting, PIECES_AT_ONCE_MAX)))
        except (BlockingIOError, InterruptedError):
            return True
        except OSError as failure:
            self.close()
            self._failed(failure)
            return False
        self._waiting_bytes -= count
        while waiting and count >= waiting[0].nbytes:
            count -= waiting.popleft().nbytes
        if count:
            waiting[0] = waiting[0][count:]
        return True

    def close(self) -> None:
        """Drop unsent data. The transport closes the connection itself."""
        if self._socket.fileno() < 0:
            return
        if self._waiting and not self._loop.is_closed():
            self._loop.remove_writer(self._socket.fileno())
        self._waiting.clear()
        self._waiting_bytes = 0
        self._socket.close()

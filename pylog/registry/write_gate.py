"""Which writes may be decided at the same time.

Owns: nothing.
Invariants: two writes of one subject never overlap; an exclusive write overlaps with none; waiting
  exclusive writes are not starved.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class WriteGate:
    """Shared access for writes of different subjects, exclusive access for the others."""

    def __init__(self) -> None:
        self._subjects: dict[str, tuple[asyncio.Lock, int]] = {}
        self._shared = 0
        self._entry = asyncio.Lock()
        self._idle = asyncio.Event()
        self._idle.set()

    @contextlib.asynccontextmanager
    async def shared(self, subject: str) -> AsyncIterator[None]:
        """Hold the subject."""
        lock, users = self._subjects.get(subject, (asyncio.Lock(), 0))
        self._subjects[subject] = lock, users + 1
        try:
            async with lock:
                async with self._entry:
                    self._shared += 1
                    self._idle.clear()
                try:
                    yield
                finally:
                    self._shared -= 1
                    if not self._shared:
                        self._idle.set()
        finally:
            lock, users = self._subjects[subject]
            if users == 1:
                del self._subjects[subject]
            else:
                self._subjects[subject] = lock, users - 1

    @contextlib.asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Wait until no write is in progress, and keep others out."""
        async with self._entry:
            await self._idle.wait()
            yield

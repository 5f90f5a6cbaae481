"""An event loop for pure tests, on which waiting takes no time.

Owns: the clock of one test.
Invariants: (1) the clock moves only when nothing can be done now, to what is due next; (2) nothing
  that waits for the world outside can be run: what is due never is an error, not a hang.
"""

import asyncio
import selectors
from types import SimpleNamespace


class _Selector(selectors.DefaultSelector):
    """Lets the clock run instead of waiting."""

    def __init__(self, clock):
        super().__init__()
        self.clock = clock

    def select(self, timeout=None):
        found = super().select(0)
        if not found and timeout != 0:
            assert timeout is not None, "nothing is due"     # Keeps (2).
            self.clock.now_s += timeout
        return found


class VirtualTime:
    """now_s: of the clock that the loop and the modules go by."""

    def __init__(self):
        self.now_s = 1000.0

    def module(self) -> SimpleNamespace:
        """What a module has in place of `time`."""
        return SimpleNamespace(monotonic=lambda: self.now_s)

    def run(self, work):
        loop = asyncio.SelectorEventLoop(_Selector(self))
        loop.time = lambda: self.now_s
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            return runner.run(work)

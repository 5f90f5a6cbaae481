"""An event loop for unit tests with a virtual clock.

Owns: the clock of one test.
Invariants: the clock advances only when nothing can run now, to the next due time; waiting for an
  external event raises an error instead of hanging, because nothing is ever due.
"""

import asyncio
import selectors
from types import SimpleNamespace


class _Selector(selectors.DefaultSelector):
    """Advances the clock instead of waiting."""

    def __init__(self, clock):
        super().__init__()
        self.clock = clock

    def select(self, timeout=None):
        found = super().select(0)
        if not found and timeout != 0:
            # Only an external event could end this wait.
            assert timeout is not None, "nothing is due"
            self.clock.now_s += timeout
        return found


class VirtualTime:
    """now_s: the time of the loop and the modules."""

    def __init__(self):
        self.now_s = 1000.0

    def module(self) -> SimpleNamespace:
        """Return a module's replacement for `time`."""
        return SimpleNamespace(monotonic=lambda: self.now_s)

    def run(self, work):
        loop = asyncio.SelectorEventLoop(_Selector(self))
        loop.time = lambda: self.now_s
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            return runner.run(work)

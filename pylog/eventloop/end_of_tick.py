"""Callbacks at the end of an event loop iteration, so that their work is batched.

Owns: the callbacks, until the iteration ends.
Invariants: each callback runs once, in order, even if others fail; outside begin() and end(), the
  event loop runs the callback.
"""

import asyncio
from collections.abc import Callable


class EndOfTick:
    """A batch of callbacks within one loop iteration.

    call_soon() would cost another iteration per reply.
    """

    def __init__(self) -> None:
        self._left: list[Callable[[], object]] | None = None

    def begin(self) -> None:
        assert self._left is None
        self._left = []

    def defer(self, call: Callable[[], object]) -> None:
        """Call `call` at the end of the iteration."""
        if self._left is None:
            asyncio.get_running_loop().call_soon(call)
        else:
            self._left.append(call)

    def end(self) -> None:
        assert self._left is not None
        left, self._left = self._left, None
        for call in left:
            try:
                call()
            except Exception as bug:
                # Continue after an error, like the event loop.
                asyncio.get_running_loop().call_exception_handler({
                    "message": "a callback at the end of an iteration failed", "exception": bug})

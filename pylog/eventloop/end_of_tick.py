"""What is left for the end of a turn of the event loop, so that it goes together.

Owns: what is left, until the turn ends.
Invariants: (1) whatever is left is called once, in its order, whatever becomes of the others;
  (2) outside a turn that was begun, the event loop calls it.
"""

import asyncio
from collections.abc import Callable


class Turn:
    """One that begins and ends within a turn of the loop: to leave it to the loop would cost
    another turn for each answer."""

    def __init__(self) -> None:
        self._left: list[Callable[[], object]] | None = None

    def begin(self) -> None:
        assert self._left is None
        self._left = []

    def later(self, call: Callable[[], object]) -> None:
        """Calls it at the end."""
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
                # Keeps (1), as the loop would.
                asyncio.get_running_loop().call_exception_handler({
                    "message": "what was left for the end of a turn failed", "exception": bug})

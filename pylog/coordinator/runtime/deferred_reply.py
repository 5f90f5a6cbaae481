"""An answer that comes later: what a request gets whose records are not written yet.

Owns: nothing.
Invariants: (1) it is answered once, later answers are ignored; (2) whoever waits is called in the
  step that answers, not in a later turn of the loop.
"""

import asyncio
from collections.abc import Callable, Generator
from typing import Any

from pylog.protocol.errors import Error


class Pending:
    """A request that is answered later. refusal: error code -> message; shape: what to do to it.

    Whoever waits is called at once when the answer comes: a future would cost a turn of the loop.
    """

    is_request = True
    __slots__ = ("_message", "_refusal", "_shape", "_then", "is_answered")

    def __init__(self, refusal: Callable[[Error], Any],
                 shape: Callable[[Any], Any] | None = None):
        self._refusal = refusal
        self._shape = shape
        self._then: Callable[[Any], object] | None = None
        self._message: Any = None
        self.is_answered = False

    def answer(self, message: Any) -> None:
        if self.is_answered:
            return
        self.is_answered = True
        self._message = message if self._shape is None else self._shape(message)
        if self._then is not None:
            self._then(self._message)

    def refuse(self, error: Error) -> None:
        self.answer(self._refusal(error))

    @property
    def message(self) -> Any:
        assert self.is_answered
        return self._message

    def then(self, call: Callable[[Any], object]) -> None:
        """Calls call(message), now or when there is one. For one caller."""
        assert self._then is None
        if self.is_answered:
            call(self._message)
        else:
            self._then = call

    def __await__(self) -> Generator[Any, None, Any]:
        if not self.is_answered:
            done = asyncio.get_running_loop().create_future()
            def answered(message: Any) -> None:
                if not done.done():
                    done.set_result(message)

            self.then(answered)
            yield from done
        return self._message

"""A response that is sent once the request's records are durable.

Owns: nothing.
Invariants: a response is set once, later ones are ignored; the callback runs in the call that sets
  the response, not in a later loop iteration.
"""

import asyncio
from collections.abc import Callable, Generator
from typing import Any

from pylog.protocol.errors import Error


class DeferredResponse:
    """A request with an outstanding response.

    refusal: error code -> error response. shape: applied to the response before delivery. A
    callback instead of a future saves one loop iteration.
    """

    is_request = True
    __slots__ = ("_message", "_refusal", "_shape", "_then", "is_set")

    def __init__(self, refusal: Callable[[Error], Any],
                 shape: Callable[[Any], Any] | None = None):
        self._refusal = refusal
        self._shape = shape
        self._then: Callable[[Any], object] | None = None
        self._message: Any = None
        self.is_set = False

    def respond(self, message: Any) -> None:
        if self.is_set:
            return
        self.is_set = True
        self._message = message if self._shape is None else self._shape(message)
        if self._then is not None:
            self._then(self._message)

    def refuse(self, error: Error) -> None:
        self.respond(self._refusal(error))

    @property
    def message(self) -> Any:
        assert self.is_set
        return self._message

    def then(self, call: Callable[[Any], object]) -> None:
        """Call call(message) when the response is set, or now if it is. Allows one callback."""
        assert self._then is None
        if self.is_set:
            call(self._message)
        else:
            self._then = call

    def __await__(self) -> Generator[Any, None, Any]:
        if not self.is_set:
            done = asyncio.get_running_loop().create_future()
            def on_response(message: Any) -> None:
                if not done.done():
                    done.set_result(message)

            self.then(on_response)
            yield from done
        return self._message

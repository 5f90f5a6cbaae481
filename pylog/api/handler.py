"""Types of the handlers.

Owns: nothing.
Invariants: a handler returns errors of a request as values in its response; it raises ProtocolError
  only to close the connection.
"""

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
    from typing import Any

    from pylog._native.server.reactor import RequestContext
    from pylog.coordinator.runtime.deferred_response import DeferredResponse

    # Message classes are generated from the schemas at run time.
    Message = Any
    # Each part of a response takes about a millisecond to create; None pauses without a part.
    Parts = Iterator[Message | None] | AsyncIterator[Message | None]
    # Result of a handler: the response, a response that completes later, or its parts.
    Result = Message | DeferredResponse | Coroutine[Any, Any, Message] | Parts
    Handler = Callable[[RequestContext, Message], Result]

"""Measure the CPU time of a request handler, without its waits.

Owns: nothing.
Invariants: the steps of a coroutine are measured, not its pauses.
Source: KIP-124 (request percentage).
"""

from __future__ import annotations

import types

TYPE_CHECKING = False  # Importing typing would cost 6 ms at startup.
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from pylog._native.server.reactor import RequestContext


async def timed(coroutine: Coroutine, context: RequestContext, clock_ns: Callable[[], int]) -> Any:
    """Return the coroutine's result, and add the time of its steps to context.busy_ns."""
    return await _steps(coroutine, context, clock_ns)


@types.coroutine
def _steps(coroutine, context, clock_ns):
    resume, value = coroutine.send, None
    while True:
        began_ns = clock_ns()
        try:
            waited = resume(value)
        except StopIteration as end:
            return end.value
        finally:
            context.busy_ns += clock_ns() - began_ns
        resume, value = coroutine.send, None
        try:
            yield waited
        except BaseException as error:
            # Cancellation is handled by the coroutine, too.
            resume, value = coroutine.throw, error

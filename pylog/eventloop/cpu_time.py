"""The time that a handler takes, without what it waits for.

Owns: nothing.
Invariants: (1) the steps of a coroutine count, its pauses do not.
Source: KIP-124 (request percentage).
"""

from __future__ import annotations

import types

TYPE_CHECKING = False  # The real one costs the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from pylog._native.reactor import RequestContext


async def timed(coroutine: Coroutine, context: RequestContext, clock_ns: Callable[[], int]) -> Any:
    """The coroutine's result, its steps counted in context.busy_ns (1)."""
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
            # A cancellation too is the coroutine's own affair.
            resume, value = coroutine.throw, error

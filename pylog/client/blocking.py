"""Run blocking calls on daemon threads and await them from an event loop.

Owns: one standby thread per process.
Invariants: a call also runs after main() has returned and in atexit handlers, when asyncio's
  executors are shut down and no thread can be started; no call delays the end of the process.
Source: CPython: concurrent.futures shuts its threads down before threading joins the others.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import queue
import threading
from collections.abc import Callable
from typing import Any

_standby: tuple[int, queue.SimpleQueue[Callable[[], None]]] | None = None


def prepare() -> None:
    """Start this process's standby thread. Raises RuntimeError if no thread can be started."""
    global _standby
    if _standby is None or _standby[0] != os.getpid():
        jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=_work, args=(jobs,), name="pylog-standby", daemon=True).start()
        _standby = os.getpid(), jobs


def _work(jobs: queue.SimpleQueue[Callable[[], None]]) -> None:
    while True:
        jobs.get()()


def settle(outcome: asyncio.Future[Any], result: Any, failure: Exception | None) -> None:
    """Set a future's result or exception, unless it is done.

    A future rejects StopIteration and would stay pending, so it gets a RuntimeError instead, like
    the caller of a coroutine.
    """
    if outcome.done():
        return
    if isinstance(failure, StopIteration):
        raised, failure = failure, RuntimeError(f"a callback raised {failure!r}")
        failure.__cause__ = raised
    if failure is None:
        outcome.set_result(result)
    else:
        outcome.set_exception(failure)


async def run(function: Callable[..., Any], *given: Any) -> Any:
    """Await function(*given), called on another thread with the caller's context variables.

    Raises the function's exception, or RuntimeError in place of SystemExit and similar exceptions,
    which would end the loop.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def job() -> None:
        result, failed = None, None
        try:
            result = context.run(function, *given)
        except Exception as failure:
            failed = failure
        except BaseException as failure:
            failed = RuntimeError(f"{getattr(function, '__qualname__', function)} raised "
                                  f"{failure!r}")
            failed.__cause__ = failure
        try:
            loop.call_soon_threadsafe(settle, outcome, result, failed)
        except RuntimeError:
            pass  # The loop is closed: nothing waits for the result.

    try:
        threading.Thread(target=job, name="pylog-blocking", daemon=True).start()
    except RuntimeError:
        # The interpreter is shutting down, or the system's thread limit is reached.
        prepare()
        assert _standby is not None
        _standby[1].put(job)
    return await outcome

"""Calls that block, on daemon threads of the client, awaited from an event loop.

Owns: one standby thread per process.
Invariants: (1) a call also runs after main() has returned and in atexit handlers, when asyncio's
  executors are shut down and no thread can be started; (2) no call delays the end of the process.
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
    """Start this process's standby thread. Raises RuntimeError when no thread can be started."""
    global _standby
    if _standby is None or _standby[0] != os.getpid():
        jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=_work, args=(jobs,), name="pylog-standby", daemon=True).start()
        _standby = os.getpid(), jobs


def _work(jobs: queue.SimpleQueue[Callable[[], None]]) -> None:
    while True:
        jobs.get()()


def settle(outcome: asyncio.Future[Any], result: Any, failure: Exception | None) -> None:
    """Give a future its outcome, unless it has one.

    A future refuses a StopIteration and would stay pending: it gets a RuntimeError instead, as the
    caller of a coroutine does.
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

    Raises what it raises; RuntimeError instead of SystemExit and the like: they would end the loop.
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
            pass  # The loop was closed: no one waits.

    try:
        threading.Thread(target=job, name="pylog-blocking", daemon=True).start()
    except RuntimeError:
        # Keeps (1). Also at the system's limit of threads.
        prepare()
        assert _standby is not None
        _standby[1].put(job)
    return await outcome

"""Runs background work of the broker, so that no work ends silently.

Owns: the number of unexpected failures of each kind of background work.
Invariants: no silent end: an unexpected exception is logged with its traceback and counted, and
  long-lived work is restarted after a pause; named threads: every Python thread of the broker is
  started here, with a name that `top -H` shows.
Threads: any.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Coroutine

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from concurrent.futures import ThreadPoolExecutor
    from typing import Any

PAUSE_S_MIN, PAUSE_S_MAX = 0.1, 30.0  # Before a restart.
NAME_BYTES_MAX = 15  # Linux's TASK_COMM_LEN without the terminating zero.
STABLE_S = 60.0  # After running this long, work restarts with the shortest pause.

log = logging.getLogger("pylog.supervisor")
_failures: Counter[str] = Counter()
_lock = threading.Lock()


def failures() -> dict[str, int]:
    """Return the number of failures of each kind of work in this process."""
    with _lock:
        return dict(_failures)


def report(work: str, message: str = "background work failed", **details: Any) -> None:
    """Log the current exception with its traceback, and count it.

    work: the kind of work, from a small set of names, because it is a metric label.
    """
    count(work)
    log.exception(message, extra={"work": work, **details})


def count(work: str) -> None:
    """Count a failure that the caller logs. work: as for report()."""
    with _lock:
        _failures[work] += 1


async def restarting(work: str, run: Callable[[], Awaitable[None]], **details: Any) -> None:
    """Await run() until it returns. After an unexpected exception, restart it with backoff."""
    loop = asyncio.get_running_loop()
    pause_s = PAUSE_S_MIN
    while True:
        began_s = loop.time()
        try:
            await run()
            return
        except Exception:
            report(work, **details)
        if loop.time() - began_s > STABLE_S:
            pause_s = PAUSE_S_MIN
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_S_MAX)


class _Reporting(Coroutine):
    """Result of reporting().

    Not an `async def`: if its task is cancelled before the first step, the body of a coroutine
    never runs, and its awaitable is left unawaited with a RuntimeWarning. This class passes the
    cancellation on to the awaitable.
    """

    def __init__(self, work: str, awaitable: Awaitable[Any], details: dict[str, Any]) -> None:
        self._work, self._details = work, details
        self._steps: Any = awaitable.__await__()

    def send(self, value: Any) -> Any:
        return self._step(self._steps.send, value)

    def throw(self, *error: Any) -> Any:
        return self._step(self._steps.throw, *error)

    def close(self) -> None:
        self._steps.close()

    def __await__(self) -> _Reporting:
        return self

    def __iter__(self) -> _Reporting:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def _step(self, step: Callable[..., Any], *values: Any) -> Any:
        try:
            return step(*values)
        except StopIteration:
            raise StopIteration from None
        except Exception:
            report(self._work, **self._details)
        raise StopIteration


def reporting(work: str, awaitable: Awaitable[Any], **details: Any) -> Coroutine[Any, Any, None]:
    """Return a coroutine that awaits work once and reports an unexpected exception."""
    return _Reporting(work, awaitable, details)


def thread(name: str, run: Callable[[], None], stopping: threading.Event) -> threading.Thread:
    """Return an unstarted daemon thread that calls run() until it returns.

    After an unexpected exception it calls run() again with backoff, unless `stopping` is set.
    """
    def work() -> None:
        _name(name)
        pause_s = PAUSE_S_MIN
        while not stopping.is_set():
            try:
                run()
                return
            except Exception:
                report(name)
            stopping.wait(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    return threading.Thread(target=work, name=name, daemon=True)


def thread_once(name: str, run: Callable[..., object], *arguments: Any) -> threading.Thread:
    """Return an unstarted daemon thread that calls run(*arguments) once."""
    def work() -> None:
        _name(name)
        run(*arguments)

    return threading.Thread(target=work, name=name, daemon=True)


def executor(name: str, threads_max: int | None = None) -> ThreadPoolExecutor:
    """Return a thread pool whose threads have this name. threads_max: None for Python's default."""
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(threads_max, name, lambda: _name(name))


def _name(name: str) -> None:
    """Set the calling thread's name for the system; Python 3.11 sets only its own."""
    assert len(name.encode()) <= NAME_BYTES_MAX, name
    try:
        with open("/proc/thread-self/comm", "w") as file:
            file.write(name)
    except OSError:
        pass  # /proc is missing or read-only. The thread works without a name.

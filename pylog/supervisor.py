"""Runs background work of the broker so that none of it ends silently.

Owns: how often each kind of background work failed unexpectedly.
Invariants: no silent end: an unexpected exception of this work is logged with its traceback and
  counted, and long-lived work starts again after a pause.
Threads: any.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter

TYPE_CHECKING = False  # The real one costs the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

PAUSE_S_MIN, PAUSE_S_MAX = 0.1, 30.0     # Before a restart.
STABLE_S = 60.0     # Work that ran this long restarts after the shortest pause.

log = logging.getLogger("pylog.supervisor")
_failures: Counter[str] = Counter()
_lock = threading.Lock()


def failures() -> dict[str, int]:
    """Return how often each kind of work has failed in this process."""
    with _lock:
        return dict(_failures)


def report(work: str, message: str = "background work failed", **details: Any) -> None:
    """Log the exception that is being handled, with its traceback, and count it.

    work: the kind of work, one of few names: it is the label of a metric.
    """
    with _lock:
        _failures[work] += 1
    log.exception(message, extra={"work": work, **details})


async def restarting(work: str, run: Callable[[], Awaitable[None]], **details: Any) -> None:
    """Await run() until it returns. After an unexpected exception, start it again with backoff."""
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


async def reporting(work: str, awaitable: Awaitable[Any], **details: Any) -> None:
    """Await work that is done once; report an unexpected exception."""
    try:
        await awaitable
    except Exception:
        report(work, **details)


def thread(name: str, run: Callable[[], None], stopping: threading.Event) -> threading.Thread:
    """Return a daemon thread, not started, that calls run() until it returns.

    After an unexpected exception it calls run() again with backoff, unless `stopping` is set.
    """
    def work() -> None:
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

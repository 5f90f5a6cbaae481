"""Handle clients that the application did not close: after a fork, at exit, or when dropped.

Owns: weak references to the producers of this process; the tasks that close dropped clients.
Invariants: in a forked child every call of a producer raises instead of waiting; a program that
  exits with unacknowledged records logs a warning; a dropped client leaves its group and closes its
  connections.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import warnings
import weakref
from typing import Any

from pylog.protocol.counts import counted

_watched: weakref.WeakSet[Any] = weakref.WeakSet()
_closing: set[asyncio.Task[None]] = set()
DROPPED_CLOSE_S = 30.0
log = logging.getLogger("pylog.client")


def watch(core: Any) -> None:
    """Register a producer for the checks after a fork and at exit. core: a Producing."""
    _watched.add(core)


def dropped(owner: object, core: Any) -> None:
    """Warn about a client that was dropped without close(), and close it.

    core: has settings, process, loop, closed and abandon(timeout_s). Call from `__del__`: runs on
    any thread, at any point of the program, without a lock.
    """
    if core.closed or core.process != os.getpid():
        return
    try:
        core.loop.call_soon_threadsafe(_abandon, core)
    except RuntimeError:
        pass  # The loop is closed, and its connections with it.
    warnings.warn(f"unclosed {type(owner).__qualname__} of client.id "
                  f"{core.settings['client.id']!r}: call close(), or use `with`",
                  ResourceWarning, stacklevel=3, source=owner)


def _abandon(core: Any) -> None:
    task = asyncio.get_running_loop().create_task(core.abandon(DROPPED_CLOSE_S))
    _closing.add(task)
    task.add_done_callback(_abandoned)


def _abandoned(task: asyncio.Task[None]) -> None:
    _closing.discard(task)
    failure = None if task.cancelled() else task.exception()
    if failure is not None:
        log.warning("closing a client that was dropped failed: %r", failure)


def _forked() -> None:
    for producing in _watched:
        producing.mark_forked()  # Makes every call in the child raise.
    _watched.clear()


def _ended() -> None:
    for producing in _watched:
        left = {(pending.topic, pending.partition) for pending in producing.accumulator.pendings()}
        if left and not producing.closed:
            log.warning("records to %s were not delivered: call flush() or close() "
                        "before the program ends", counted(len(left), "partition"))


os.register_at_fork(after_in_child=_forked)
atexit.register(_ended)

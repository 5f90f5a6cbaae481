"""Runs the asynchronous part of requests.

Owns: the tasks, until they end.
Invariants: a task that fails is logged and counted.
"""

from __future__ import annotations

import asyncio

from pylog import supervisor

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Coroutine


class RequestTasks:
    """The tasks under way. asyncio itself keeps only weak references to them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()

    def start(self, coroutine: Coroutine) -> None:
        task = asyncio.get_running_loop().create_task(supervisor.reporting("requests", coroutine))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

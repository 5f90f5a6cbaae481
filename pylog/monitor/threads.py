"""What the threads, the event loop's tasks and the garbage collector of this process do now.

Owns: nothing.
Invariants: only names of code are shown, never values of variables.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading

TYPE_CHECKING = False  # typing.TYPE_CHECKING would cost the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

FRAMES_MAX = 40
TASKS_MAX = 1000


def state(loop: asyncio.AbstractEventLoop | None) -> dict[str, Any]:
    """Return the content of /threads. loop: the broker's event loop, None before it runs."""
    frames = sys._current_frames()
    tasks = [] if loop is None else list(asyncio.all_tasks(loop))
    return {
        "threads": [{"name": thread.name, "id": thread.native_id,
                     "stack": _stack(frames.get(thread.ident or 0))}
                    for thread in threading.enumerate()],
        "tasks": [{"name": task.get_name(), "coroutine": _name_of(task)}
                  for task in tasks[:TASKS_MAX]],
        "tasks_count": len(tasks),
        "gc": {"counts": gc.get_count(), "thresholds": gc.get_threshold(),
               "frozen": gc.get_freeze_count(), "generations": gc.get_stats()},
    }


def _stack(frame: FrameType | None) -> list[str]:
    """Return `file:line function` of each frame, the innermost first."""
    found: list[str] = []
    while frame is not None and len(found) < FRAMES_MAX:
        code = frame.f_code
        found.append(f"{code.co_filename}:{frame.f_lineno} {code.co_qualname}")
        frame = frame.f_back
    return found


def _name_of(task: asyncio.Task[Any]) -> str:
    coroutine = task.get_coro()
    return getattr(coroutine, "__qualname__", type(coroutine).__name__)

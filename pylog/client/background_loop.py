"""Run the blocking clients: one event loop on a thread, shared by all clients of the process.

Owns: the loop's thread and its watchdog; a forked child creates new ones.
Invariants: an application's callbacks run on its own thread, while that thread waits in a client
  call, so callbacks can call the client; a signal (Ctrl-C) ends a wait; no exception ends the loop;
  no call waits for a loop that has stopped because the interpreter is shutting down;
  no thread waits for a lock whose holder may run the application's Python code, such as a signal
  handler that calls the client. Therefore the loop and its waiting threads share no interpreter
  lock (Lock, Event, Condition, concurrent.futures.Future).
Source: measured on a 2-core EPYC with two consumers in one process: separate loops cost the same
  CPU per record and time per call as a shared one, so a shared loop saves threads.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import logging
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine
from typing import Any

from pylog.client import blocking
from pylog.client.errors import (
    ClosedError, ConcurrentUseError, ForkedError, ProgramEndedError,
)

WATCH_S = 1.0

_LOG = logging.getLogger("pylog.client")
_shared: dict[int, Driver] = {}  # By process id: a forked child gets its own.


class Bell:
    """Wake a waiting thread, which then checks for changes. Takes no lock.

    A C queue: a signal handler may interrupt any method and call another. threading.Event has a
    lock, which the interrupted thread would hold while the handler waits.
    """

    def __init__(self) -> None:
        self._rings: queue.SimpleQueue[None] = queue.SimpleQueue()

    def set(self) -> None:
        """Wake the waiting thread, or the next thread to wait."""
        if self._rings.empty():
            self._rings.put(None)

    def clear(self) -> None:
        """Discard earlier set() calls. Check for changes after this."""
        try:
            while True:
                self._rings.get_nowait()
        except queue.Empty:
            pass

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for set() and reset it. Returns False after timeout_s seconds."""
        try:
            self._rings.get(timeout=None if timeout_s is None else max(0.0, timeout_s))
        except queue.Empty:
            return False
        return True


class Call:
    """A coroutine that runs on the loop while a thread waits for it, without a shared lock."""

    def __init__(self, driver: Driver, work: Coroutine[Any, Any, Any], bell: Bell):
        """bell: set when the result is available."""
        self.done = False
        self._driver, self._work, self._bell = driver, work, bell
        self._task: asyncio.Task[Any] | None = None
        self._result: Any = None
        self._failure: BaseException | None = None
        self._cancelled = False
        driver.post(self._start)

    def _start(self) -> None:
        self._task = self._driver.loop.create_task(self._work)
        self._task.add_done_callback(self._finish)

    def _finish(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self._failure = concurrent.futures.CancelledError()
        else:
            self._failure = task.exception()
            self._result = task.result() if self._failure is None else None
        self.done = True
        self._bell.set()

    def cancel(self) -> None:
        """Cancel the coroutine asynchronously, at most once."""
        try:
            self._driver.post(self._cancel)
        except (RuntimeError, ClosedError):
            pass  # The loop is closed, has stopped, or was not copied to this forked child.

    def _cancel(self) -> None:
        if self._task is not None and not self._cancelled:
            self._cancelled = True
            self._task.cancel()

    def result(self, timeout_s: float | None = None) -> Any:
        """Wait for the result. Raises the coroutine's exception, TimeoutError after timeout_s, or
        ProgramEndedError.
        """
        if not self.done:
            self._driver.check_running()
            if not self._bell.wait(timeout_s):
                raise TimeoutError(f"no result after {timeout_s} s")
        try:
            if self._failure is not None:
                raise self._failure
            return self._result
        finally:
            del self  # The failure's traceback refers to this frame.


class Driver:
    """A running event loop on a daemon thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.process = os.getpid()
        # Not Thread.is_alive(): a KeyboardInterrupt in it marks a running thread as stopped.
        self.has_ended = False
        blocking.prepare()
        self.thread = threading.Thread(target=self._work, name="pylog-client", daemon=True)
        self.thread.start()
        threading.Thread(target=self._watch, name="pylog-watchdog", daemon=True).start()

    @staticmethod
    def shared() -> Driver:
        """Return the process's driver, creating it if necessary. Raises ProgramEndedError."""
        if sys.is_finalizing():
            raise ProgramEndedError
        process = os.getpid()
        found = _shared.get(process)
        if found is not None:
            if found.process == process and not found.has_ended:
                return found
            _shared.pop(process, None)
        made = Driver()
        found = _shared.setdefault(process, made)
        if found is not made:
            # Another thread or a signal handler created one first.
            made.post(made.loop.stop)
        return found

    def _work(self) -> None:
        asyncio.set_event_loop(self.loop)
        while True:
            try:
                self.loop.run_forever()
                self.has_ended = True
                self.loop.close()
                return
            except BaseException as failure:  # Every client of the process needs the loop.
                _LOG.error("%r reached the client's event loop, which continues",
                           failure, exc_info=failure)

    def _watch(self) -> None:
        """Log the loop's stack if it was blocked for WATCH_S.

        A callback that blocks, or a coroutine that never yields, stops every client of the process.
        """
        ran = Bell()
        while self.thread.is_alive():
            ran.clear()
            try:
                self.loop.call_soon_threadsafe(ran.set)
            except RuntimeError:
                return  # The loop is closed.
            began_s = time.monotonic()
            if not ran.wait(WATCH_S) and self.thread.is_alive():
                frame = sys._current_frames().get(self.thread.ident or 0)
                _LOG.error(
                    "the event loop of all clients of this process has been blocked for %g s; "
                    "a callback must not block. The loop's stack:\n%s", WATCH_S,
                    "".join(traceback.format_stack(frame)))
                while not ran.wait(WATCH_S):
                    if not self.thread.is_alive():
                        return
                _LOG.warning("the event loop continues after %.1f s", time.monotonic() - began_s)
            time.sleep(WATCH_S)

    def submit(self, work: Coroutine[Any, Any, Any], bell: Bell | None = None) -> Call:
        """Run a coroutine on the loop; call from another thread. Raises ForkedError and
        ProgramEndedError.

        bell: set when the result is available.
        """
        try:
            self.check_running()
        except ClosedError:
            work.close()
            raise
        assert threading.current_thread() is not self.thread, "the loop cannot wait for itself"
        return Call(self, work, bell or Bell())

    def post(self, function: Callable[..., Any], *given: Any) -> None:
        """Call a function on the loop soon, without returning its result. Raises ForkedError and
        ProgramEndedError.
        """
        self.check_running()
        self.loop.call_soon_threadsafe(function, *given)

    def check_running(self) -> None:
        """Raise ForkedError in a forked child, which has a copy of this object but no loop, and
        ProgramEndedError if the loop has stopped.

        At interpreter shutdown, daemon threads stop without notice.
        """
        if self.process != os.getpid():
            raise ForkedError
        if sys.is_finalizing() or self.has_ended:
            raise ProgramEndedError

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Wait for a coroutine's result; cancel the coroutine if the wait is interrupted."""
        return WorkRunner(self).run(work)

    def close_client(self, work: Coroutine[Any, Any, Any]) -> None:
        """Wait for a client's close()."""
        WorkRunner(self).close_client(work)


class SingleUser:
    """Allow only one thread at a time into an object: `with user: …`. May be nested."""

    def __init__(self, name: str):
        self._name = name
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        """Raise ConcurrentUseError if another thread is inside."""
        if not self._lock.acquire(blocking=False):
            raise ConcurrentUseError(
                f"another thread is using this {self._name}",
                remedy=f"use one {self._name} per thread. Only wakeup() and close() may be called "
                "from other threads")

    def __exit__(self, *exception: object) -> None:
        self._lock.release()


class WorkRunner:
    """Queue of callbacks that application threads run for the loop while they wait."""

    def __init__(self, driver: Driver):
        self.driver = driver
        self._callbacks: collections.deque[Any] = collections.deque()
        self._bells: list[Bell] = []  # One per wait.

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Wait for a coroutine's result and run callbacks in the meantime. Callbacks may call this.
        """
        bell = Bell()
        call = self.driver.submit(work, bell)
        self._bells.append(bell)
        try:
            while True:
                self._run_callbacks(call)
                if call.done:
                    break
                bell.wait()
        except BaseException:
            call.cancel()
            raise
        finally:
            self._bells.remove(bell)
        return call.result()

    def close_client(self, work: Coroutine[Any, Any, Any]) -> None:
        """Wait for a client's close(). Returns at once if the loop has stopped: a generator that is
        suspended inside `with Consumer(…)` is closed at interpreter shutdown.
        """
        try:
            self.run(work)
        except ProgramEndedError:
            pass

    async def call(self, function: Callable[..., Any], *given: Any) -> Any:
        """Have a waiting thread call a function, and await its result. Call on the loop."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Any] = loop.create_future()
        self._callbacks.append((function, given, outcome))
        for bell in list(self._bells):
            bell.set()
        return await outcome

    def _run_callbacks(self, waiting: Call) -> None:
        while self._callbacks:
            try:
                callback = self._callbacks.popleft()
            except IndexError:
                return  # Another thread took it.
            self._answer(waiting, *callback)

    def _answer(self, waiting: Call, function: Callable[..., Any], given: tuple[Any, ...],
                outcome: asyncio.Future[Any]) -> None:
        if outcome.done():
            return
        try:
            result = function(*given)
        except Exception as failure:  # The loop's side awaits the exception.
            self.driver.post(blocking.settle, outcome, None, failure)
        except BaseException:
            # Ends the application's call, and the other callers' wait for this callback.
            waiting.cancel()
            self.driver.post(blocking.settle, outcome, None, None)
            raise
        else:
            self.driver.post(blocking.settle, outcome, result, None)

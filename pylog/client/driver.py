"""The synchronous face: one event loop on its own thread, shared by the process's clients.

Owns: the loop's thread and its watchdog; a forked child makes new ones.
Invariants: (1) an application's callbacks run on the application's thread, while it waits in a
  call of the client, so that they may call the client again; (2) a wait ends by a signal (Ctrl-C);
  (3) no exception ends the loop; (4) no lock is held while Python code of the application may run.
Source: measured on a 2-core EPYC with two consumers in one process: a loop for each costs the same
  CPU a record and as much time a call as one loop for both, so there are fewer threads.
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
from pylog.client.errors import ConcurrentUseError, ForkedError

WATCH_S = 1.0

_LOG = logging.getLogger("pylog.client")
_shared: Driver | None = None
_shared_lock = threading.Lock()


class Driver:
    """A running event loop on a daemon thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.process = os.getpid()
        blocking.prepare()
        self.thread = threading.Thread(target=self._work, name="pylog-client", daemon=True)
        self.thread.start()
        threading.Thread(target=self._watch, name="pylog-watchdog", daemon=True).start()

    @staticmethod
    def shared() -> Driver:
        """The process's driver."""
        global _shared
        with _shared_lock:
            if _shared is None or _shared.process != os.getpid() or not _shared.thread.is_alive():
                _shared = Driver()
            return _shared

    def _work(self) -> None:
        asyncio.set_event_loop(self.loop)
        while True:
            try:
                self.loop.run_forever()
                return
            except BaseException as failure:  # Keeps (3): every client of the process needs it.
                _LOG.error("%r reached the client's event loop, which continues",
                           failure, exc_info=failure)

    def _watch(self) -> None:
        """Log the loop's stack when it has run nothing else for WATCH_S.

        A callback that blocks, or a coroutine that never yields, stops every client of the process.
        """
        ran = threading.Event()
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

    def submit(self, work: Coroutine[Any, Any, Any]) -> concurrent.futures.Future[Any]:
        """Runs a coroutine on the loop; from any other thread. Raises ForkedError."""
        if self.process != os.getpid():
            work.close()
            raise ForkedError
        assert threading.current_thread() is not self.thread, "the loop cannot wait for itself"
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def post(self, function: Callable[..., Any], *given: Any) -> None:
        """Calls a function on the loop, soon, without its result."""
        self.loop.call_soon_threadsafe(function, *given)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Waits for a coroutine's result; cancels it when the wait is interrupted."""
        return Desk(self).run(work)


class SingleUser:
    """Lets one thread at a time into an object: `with user: …`, which may be nested."""

    def __init__(self, name: str):
        self._name = name
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        """Raises ConcurrentUseError while another thread is inside."""
        if not self._lock.acquire(blocking=False):
            raise ConcurrentUseError(
                f"another thread is using this {self._name}: use one {self._name} per thread. Only "
                "wakeup() and close() may be called from other threads")

    def __exit__(self, *exception: object) -> None:
        self._lock.release()


class Desk:
    """Where an application's threads wait and run the callbacks that the loop hands over."""

    def __init__(self, driver: Driver):
        self.driver = driver
        self._callbacks: collections.deque[Any] = collections.deque()
        # One per wait: a C queue, whose put a signal handler or the loop may interrupt anywhere.
        self._bells: list[queue.SimpleQueue[None]] = []

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Waits for a coroutine's result and runs callbacks meanwhile. May be called in one."""
        future = self.driver.submit(work)
        bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._bells.append(bell)
        try:
            future.add_done_callback(lambda _: bell.put(None))
            while True:
                self._run_callbacks(future)
                if future.done():
                    break
                bell.get()
        except BaseException:
            future.cancel()
            raise
        finally:
            self._bells.remove(bell)
        return future.result()

    async def call(self, function: Callable[..., Any], *given: Any) -> Any:
        """On the loop: has a waiting thread call a function. Keeps (1)."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        self._callbacks.append((function, given, answer))
        for bell in list(self._bells):
            bell.put(None)
        return await answer

    def _run_callbacks(self, waiting: concurrent.futures.Future[Any]) -> None:
        while self._callbacks:
            try:
                callback = self._callbacks.popleft()
            except IndexError:
                return  # Another thread took it.
            self._answer(waiting, *callback)

    def _answer(self, waiting: concurrent.futures.Future[Any], function: Callable[..., Any],
                given: tuple[Any, ...], answer: asyncio.Future[Any]) -> None:
        def hand_over(result: Any, failure: Exception | None) -> None:
            if answer.done():
                return
            if failure is None:
                answer.set_result(result)
            else:
                answer.set_exception(failure)

        if answer.done():
            return
        try:
            result = function(*given)
        except Exception as failure:  # It is the loop's side that waits for it.
            self.driver.post(hand_over, None, failure)
        except BaseException:
            # Ends the application's call, and for other work the wait for the callback.
            waiting.cancel()
            self.driver.post(hand_over, None, None)
            raise
        else:
            self.driver.post(hand_over, result, None)

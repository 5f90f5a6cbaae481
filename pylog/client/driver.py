"""The synchronous face: one event loop on a thread of its own, shared by the process's clients.

Owns: the thread and its loop; a forked child makes its own.
Invariants: (1) an application's callbacks run on the application's thread, while it waits in a
  call of the client, so that they may call the client again; (2) a wait ends by a signal (Ctrl-C).
Source: measured on a 2-core EPYC with two consumers in one process: a loop for each costs the same
  CPU a record and as much time a call as one loop for both, so there are fewer threads.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import queue
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from pylog.client.errors import ForkedError

_shared: Driver | None = None
_shared_lock = threading.Lock()


class Driver:
    """A running event loop on a daemon thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.process = os.getpid()
        self.thread = threading.Thread(target=self._work, name="pylog-client", daemon=True)
        self.thread.start()

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
        self.loop.run_forever()

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


class Desk:
    """Where an application's thread waits and works off the callbacks that the loop hands it."""

    def __init__(self, driver: Driver):
        self.driver = driver
        self._letters: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Waits for a coroutine's result and runs callbacks meanwhile. May be called in one."""
        future = self.driver.submit(work)
        future.add_done_callback(lambda _: self._letters.put(None))
        try:
            while not future.done():
                letter = self._letters.get()
                if letter is not None:
                    self._answer(*letter)
        except BaseException:
            future.cancel()
            raise
        return future.result()

    async def call(self, function: Callable[..., Any], *given: Any) -> Any:
        """On the loop: has the waiting thread call a function. Keeps (1)."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        self._letters.put((function, given, answer))
        return await answer

    def _answer(self, function: Callable[..., Any], given: tuple[Any, ...],
                answer: asyncio.Future[Any]) -> None:
        def hand_over(result: Any, failure: Exception | None) -> None:
            if answer.done():
                return
            if failure is None:
                answer.set_result(result)
            else:
                answer.set_exception(failure)

        try:
            result = function(*given)
        except Exception as failure:  # It is the loop's side that waits for it.
            self.driver.post(hand_over, None, failure)
        else:
            self.driver.post(hand_over, result, None)

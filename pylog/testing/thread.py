"""A broker on a thread of the test's process.

Owns: the thread, its event loop and its Node.
Invariants: a call returns the result of the node's method, or raises its exception; when stop()
  returns, the broker's threads have ended and its port is free.
"""

import asyncio
import concurrent.futures
import threading

from pylog.testing.clock import MovedLoop
from pylog.testing.errors import BrokerFailed
from pylog.testing.node import Node

CALL_WAIT_S = 60.0


class ThreadHost:
    """Runs a broker on a thread. texts: the broker's settings. `port`: of its first listener."""

    def __init__(self, texts: dict):
        self.port = 0
        self._node = Node(texts)
        self._loop = MovedLoop(self._node.clock)
        self._ended = asyncio.Event()
        self._goes_on = threading.Event()
        self._goes_on.set()
        self._thread = threading.Thread(target=self._run, name="pylog-broker", daemon=True)

    def start(self) -> None:
        """Start the broker and wait until it answers requests. Raises BrokerFailed."""
        self._thread.start()
        try:
            self.port = self.call("begin")
        except BaseException:
            self.stop()
            raise

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        await self._ended.wait()
        await self._node.end()

    def call(self, name: str, *arguments):
        """Call a method of the Node on its loop.

        Raises the method's exceptions, and BrokerFailed if the broker is gone.
        """
        if not self._thread.is_alive():
            raise BrokerFailed("the broker is not running")
        future = asyncio.run_coroutine_threadsafe(
            getattr(self._node, name)(*arguments), self._loop)
        try:
            return future.result(CALL_WAIT_S)
        except concurrent.futures.TimeoutError:
            raise BrokerFailed(f"{name} took more than {CALL_WAIT_S} s") from None
        except concurrent.futures.CancelledError:
            raise BrokerFailed("the broker was stopped during the call") from None

    def pause(self) -> None:
        """Block the event loop until resume(); return once it is blocked."""
        self._goes_on.clear()
        still = threading.Event()
        self._loop.call_soon_threadsafe(self._stand_still, still)
        still.wait(CALL_WAIT_S)

    def _stand_still(self, still: threading.Event) -> None:
        still.set()
        self._goes_on.wait()

    def resume(self) -> None:
        self._goes_on.set()

    def stop(self) -> None:
        self.resume()
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end)
        self._thread.join(CALL_WAIT_S)

    def _end(self) -> None:
        self._ended.set()

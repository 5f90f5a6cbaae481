"""The pages /livez and /readyz: whether the broker runs, and whether it can serve clients.

Owns: the check in progress, the last result.
Invariants: measured, not assumed: each component reports the result of a check of its own, with its
  time and method, and a component without a result is "unknown", which is not ready; bounded work:
  at most one check is in progress, one starts at most every PAUSE_S, and concurrent requests share
  its result; a check that hangs is not started a second time.
Threads: live() and ready() run on threads of the endpoint, the checks on the event loop.
Source: Kubernetes' /livez and /readyz.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections import namedtuple

from pylog import supervisor

TYPE_CHECKING = False  # typing.TYPE_CHECKING would cost the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

OK, FAILED, UNKNOWN = "ok", "failed", "unknown"
CHECK_S = 2.0  # The longest time of one check.
ANSWER_S = 3.0  # The longest time until a page has its result.
PAUSE_S = 1.0  # Between the starts of two checks.
EVENT_LOOP = "event_loop"
LOOP_METHOD = "ran a callback on the event loop"

Result = namedtuple("Result", ("state", "detail"))
Result.__doc__ = "state: OK, FAILED or UNKNOWN. detail: a sentence without secrets."

Check = namedtuple("Check", ("method", "run"))
Check.__doc__ = "method: how it is checked. run: coroutine function that returns a Result."


class Health:
    """checks: {component: Check}, in the order of the page. now_ms: the wall clock. seconds: a
    monotonic clock.
    """

    def __init__(self, checks: dict[str, Check], now_ms: Callable[[], int],
                 seconds: Callable[[], float]):
        # Imported here: only an endpoint needs a lock.
        import threading

        self._checks = checks
        self._now_ms = now_ms
        self._seconds = seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = threading.Lock()  # guards the next three
        self._checking: concurrent.futures.Future | None = None
        self._checking_since_s = float("-inf")
        self._pinging: concurrent.futures.Future | None = None
        # Checks without a result, and results; only the event loop uses them.
        self._running: dict[str, asyncio.Future] = {}
        self._results: dict[str, Result] = {}

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """loop: runs the checks."""
        self._loop = loop

    # ---- pages ----------------------------------------------------------------------------------

    def live(self) -> tuple[bool, dict[str, Any]]:
        """Return (whether the event loop responds, the page). Blocks up to CHECK_S."""
        began_s = self._seconds()
        with self._starting:
            if self._pinging is None or self._pinging.done():
                self._pinging = self._ping()
            pinging = self._pinging
        responds = _ends(pinging, CHECK_S)
        return responds, {
            "status": "alive" if responds else "not alive",
            "components": {EVENT_LOOP: self._of_loop(responds, CHECK_S, began_s)}}

    def ready(self) -> tuple[bool, dict[str, Any]]:
        """Return (whether all components are OK, the page). Blocks up to ANSWER_S."""
        began_s = self._seconds()
        with self._starting:
            if self._checking is None or (
                    self._checking.done() and began_s - self._checking_since_s >= PAUSE_S):
                self._checking, self._checking_since_s = self._check(), began_s
            checking, since_s = self._checking, self._checking_since_s
        responds = _ends(checking, ANSWER_S)
        if responds:
            components = checking.result()
        else:
            components = {EVENT_LOOP: self._of_loop(responds, ANSWER_S, began_s)}
            components.update({name: self._component(
                check, Result(UNKNOWN, "not checked: the event loop does not respond"), began_s)
                for name, check in self._checks.items()})
        is_ready = all(component["state"] == OK for component in components.values())
        return is_ready, {
            "status": "ready" if is_ready else "not ready",
            "age_ms": round((self._seconds() - since_s) * 1000) if responds else 0,
            "components": components}

    def _of_loop(self, responds: bool, wait_s: float, began_s: float) -> dict[str, Any]:
        result = Result(OK, "responds") if responds else Result(
            FAILED, f"did not respond within {wait_s:g} s")
        return self._component(Check(LOOP_METHOD, None), result, began_s)

    def _component(self, check: Check, result: Result, began_s: float) -> dict[str, Any]:
        return {"state": result.state, "detail": result.detail, "check": check.method,
                "checked_at_ms": self._now_ms(),
                "took_ms": round((self._seconds() - began_s) * 1000, 1)}

    # ---- on the event loop ----------------------------------------------------------------------

    def _ping(self) -> concurrent.futures.Future:
        """Return a future that is done after a callback on the event loop."""
        pinging: concurrent.futures.Future = concurrent.futures.Future()
        assert self._loop is not None  # start() ran first
        try:
            self._loop.call_soon_threadsafe(pinging.set_result, None)
        except RuntimeError as error:
            pinging.set_exception(error)  # The loop is closed.
        return pinging

    def _check(self) -> concurrent.futures.Future:
        """Return the future of the page's components."""
        assert self._loop is not None  # start() ran first
        checking = self._check_all(self._seconds())
        try:
            return asyncio.run_coroutine_threadsafe(checking, self._loop)
        except RuntimeError as error:
            checking.close()
            failed: concurrent.futures.Future = concurrent.futures.Future()
            failed.set_exception(error)  # The loop is closed.
            return failed

    async def _check_all(self, began_s: float) -> dict[str, dict[str, Any]]:
        components = {EVENT_LOOP: self._of_loop(True, ANSWER_S, began_s)}
        found = await asyncio.gather(*[
            self._run_check(name, check) for name, check in self._checks.items()])
        components.update(zip(self._checks, found, strict=True))
        return components

    async def _run_check(self, name: str, check: Check) -> dict[str, Any]:
        began_s = self._seconds()
        # An earlier check without a result is awaited again, so that hanging checks do not add up.
        task = self._running.get(name)
        if task is not None and task.done():
            # Its result belongs to the time of an earlier check.
            self._results.pop(name, None)
            task = None
        if task is None:
            task = self._running[name] = asyncio.ensure_future(
                supervisor.reporting("health check", self._run(name, check), component=name))
        done, _ = await asyncio.wait([task], timeout=CHECK_S)
        if not done:
            return self._component(
                check, Result(UNKNOWN, f"no result within {CHECK_S:g} s"), began_s)
        del self._running[name]
        result = self._results.pop(name, Result(UNKNOWN, "the check failed; see the broker's log"))
        return self._component(check, result, began_s)

    async def _run(self, name: str, check: Check) -> None:
        self._results[name] = await check.run()

    async def close(self) -> None:
        """End the checks that have no result, on the event loop."""
        left = list(self._running.values())
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


def _ends(future: concurrent.futures.Future, wait_s: float) -> bool:
    """Return True if the future has a result within wait_s."""
    ended, _ = concurrent.futures.wait([future], wait_s)
    return bool(ended) and not future.cancelled() and future.exception() is None

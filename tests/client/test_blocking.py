"""Blocking calls next to a running event loop, also if no thread can be started."""

import asyncio
import contextvars
import threading

import pytest

from pylog.client import blocking


def test_a_call_runs_on_a_daemon_thread_with_the_callers_context():
    variable = contextvars.ContextVar("variable")

    def function(given):
        return given, variable.get(), threading.current_thread().daemon

    async def main():
        variable.set("mine")
        return await blocking.run(function, 1)

    assert asyncio.run(main()) == (1, "mine", True)


@pytest.mark.parametrize(("raised", "expected"), [
    (OSError("planted"), OSError), (SystemExit("planted"), RuntimeError),
    (KeyboardInterrupt("planted"), RuntimeError)])
def test_exceptions_are_raised_and_an_exit_does_not_end_the_loop(raised, expected):
    def function():
        raise raised

    async def main():
        with pytest.raises(expected, match="planted"):
            await blocking.run(function)
        return "continued"

    assert asyncio.run(main()) == "continued"


def test_without_a_new_thread_the_standby_thread_runs_it(monkeypatch):
    blocking.prepare()

    class Refused(threading.Thread):
        def start(self):
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(blocking.threading, "Thread", Refused)

    async def main():
        return await blocking.run(lambda: threading.current_thread().name)

    assert asyncio.run(main()) == "pylog-standby"


def test_result_after_the_loop_closed_is_dropped():
    release = threading.Event()

    async def main():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await blocking.run(release.wait, 30)

    asyncio.run(main())
    [thread] = [one for one in threading.enumerate() if one.name == "pylog-blocking"]
    release.set()
    thread.join(30)
    assert not thread.is_alive()

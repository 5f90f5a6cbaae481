"""/livez and /readyz: results of checks, checks that hang, and the work of many requests."""

import asyncio
import concurrent.futures
import contextlib
import threading
import time

import pytest

from pylog.monitor import health
from pylog.monitor.health import FAILED, OK, UNKNOWN, Check, Health, Result


@contextlib.contextmanager
def running(**checks):
    """Yield a Health whose checks run on the event loop of another thread, and that loop.

    checks: a Result, or a coroutine function, by component.
    """
    def run_of(given):
        async def run():
            return given
        return run if isinstance(given, Result) else given

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    made = Health({name: Check("looked", run_of(given)) for name, given in checks.items()},
                  lambda: 1_700_000_000_000, time.monotonic)
    made.start(loop)
    try:
        yield made, loop
    finally:
        asyncio.run_coroutine_threadsafe(made.close(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def states(page) -> dict:
    return {name: one["state"] for name, one in page["components"].items()}


def test_broker_is_ready_only_if_every_component_is_ok():
    with running(one=Result(OK, "fine"), two=Result(OK, "fine")) as (made, _):
        is_ready, page = made.ready()
    assert is_ready and page["status"] == "ready"
    assert states(page) == {"event_loop": "ok", "one": "ok", "two": "ok"}
    for bad in (FAILED, UNKNOWN):
        with running(one=Result(OK, "fine"), two=Result(bad, "why")) as (made, _):
            is_ready, page = made.ready()
        assert not is_ready and page["status"] == "not ready"
        assert page["components"]["two"].items() >= {
            "state": bad, "detail": "why", "check": "looked",
            "checked_at_ms": 1_700_000_000_000}.items()


def test_check_that_raises_is_unknown_and_reveals_no_message():
    async def fails():
        raise ValueError("password=hunter2")

    with running(one=Result(OK, "fine"), two=fails) as (made, _):
        is_ready, page = made.ready()
    assert not is_ready and states(page)["one"] == "ok" and states(page)["two"] == UNKNOWN
    assert "hunter2" not in str(page) and "see the broker's log" in str(page)


def test_check_without_a_result_is_unknown_and_not_started_again(monkeypatch):
    monkeypatch.setattr(health, "CHECK_S", 0.05)
    monkeypatch.setattr(health, "PAUSE_S", 0.0)
    started = []

    async def hangs():
        started.append(1)
        await asyncio.Event().wait()

    with running(one=Result(OK, "fine"), two=hangs) as (made, _):
        pages = [made.ready()[1] for _ in range(3)]
    assert [states(page)["two"] for page in pages] == [UNKNOWN] * 3
    assert all(states(page)["one"] == OK for page in pages) and len(started) == 1


def test_hanging_check_that_ends_late_counts_for_the_next_request(monkeypatch):
    monkeypatch.setattr(health, "CHECK_S", 0.05)
    monkeypatch.setattr(health, "PAUSE_S", 0.0)
    released = threading.Event()

    async def slow():
        while not released.is_set():
            await asyncio.sleep(0.01)
        return Result(OK, "at last")

    with running(one=slow) as (made, _):
        assert not made.ready()[0]
        released.set()
        time.sleep(0.05)
        assert made.ready()[0]


def test_concurrent_requests_share_one_check():
    count, release = [], threading.Event()

    async def counts():
        count.append(1)
        while not release.is_set():
            await asyncio.sleep(0.01)
        return Result(OK, "fine")

    with running(one=counts) as (made, _), concurrent.futures.ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(made.ready) for _ in range(8)]
        time.sleep(0.1)
        release.set()
        assert all(one.result(10)[0] for one in asked) and len(count) == 1
        for _ in range(50):
            assert made.ready()[0]
        assert len(count) <= 2  # The rate is bounded too.


def test_blocked_event_loop_is_neither_alive_nor_ready(monkeypatch):
    monkeypatch.setattr(health, "CHECK_S", 0.05)
    monkeypatch.setattr(health, "ANSWER_S", 0.05)
    monkeypatch.setattr(health, "PAUSE_S", 0.0)
    release = threading.Event()
    with running(one=Result(OK, "fine")) as (made, loop):
        assert made.live()[0] and made.ready()[0]
        loop.call_soon_threadsafe(release.wait, 30)
        for _ in range(3):
            is_alive, page = made.live()
            assert not is_alive and page["status"] == "not alive"
            is_ready, page = made.ready()
            assert not is_ready and states(page) == {"event_loop": FAILED, "one": UNKNOWN}
        waiting = len(loop._ready)
        release.set()
        assert waiting <= 3  # One ping and one check, regardless of the number of requests.
        deadline = time.monotonic() + 10
        while not (made.live()[0] and made.ready()[0]):
            assert time.monotonic() < deadline


def test_closed_event_loop_is_neither_alive_nor_ready():
    with running(one=Result(OK, "fine")) as (made, _):
        pass
    is_alive, _ = made.live()
    is_ready, page = made.ready()
    assert not is_alive and not is_ready and states(page)["one"] == UNKNOWN


@pytest.mark.parametrize("page", ["live", "ready"])
def test_pages_contain_only_plain_values(page):
    import json

    with running(one=Result(OK, "fine")) as (made, _):
        assert json.loads(json.dumps(getattr(made, page)()[1]))["components"]

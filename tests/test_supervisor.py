"""Background work that fails is logged, counted and started again."""

import asyncio
import threading

import pytest

from pylog import supervisor
from tests.client.virtual_time import VirtualTime


class Work:
    """Fails `failures` times, each after `lasts_s`; `runs` are the times at which it started."""

    def __init__(self, failures, lasts_s=0.0):
        self.failures, self.lasts_s, self.runs = failures, lasts_s, []

    async def __call__(self):
        self.runs.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.lasts_s)
        if len(self.runs) <= self.failures:
            raise ValueError("planted")


def test_work_that_fails_is_started_again_with_backoff_until_it_returns(caplog):
    before, work = supervisor.failures().get("w", 0), Work(11)
    VirtualTime().run(supervisor.restarting("w", work, topic="t"))
    pauses = [after - before for before, after in zip(work.runs, work.runs[1:], strict=False)]
    assert pauses == pytest.approx([.1, .2, .4, .8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30])
    assert supervisor.failures()["w"] == before + 11
    assert all((row.work, row.topic) == ("w", "t") and row.exc_info for row in caplog.records)


def test_work_that_ran_for_long_is_started_again_after_the_shortest_pause():
    work = Work(5, lasts_s=supervisor.STABLE_S + 1)
    VirtualTime().run(supervisor.restarting("w", work))
    pauses = [after - before for before, after in zip(work.runs, work.runs[1:], strict=False)]
    assert pauses == pytest.approx([supervisor.STABLE_S + 1.1] * 5)


def test_work_that_is_cancelled_is_not_started_again():
    async def scenario():
        work = Work(0, lasts_s=60)
        task = asyncio.get_running_loop().create_task(supervisor.restarting("w", work))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() and len(work.runs) == 1
    asyncio.run(scenario())


def test_work_that_is_done_once_is_reported_and_not_repeated(caplog):
    before, work = supervisor.failures().get("w", 0), Work(1)
    asyncio.run(supervisor.reporting("w", work()))
    assert len(work.runs) == 1 and supervisor.failures()["w"] == before + 1
    assert "ValueError: planted" in caplog.text


def test_a_thread_whose_work_fails_runs_it_again():
    runs, done = [], threading.Event()

    def work():
        runs.append(threading.current_thread().name)
        if len(runs) < 3:
            raise ValueError("planted")
        done.set()

    one = supervisor.thread("w", work, threading.Event())
    one.start()
    assert done.wait(30)
    one.join(30)
    assert runs == ["w"] * 3 and not one.is_alive()


def test_a_thread_that_is_stopping_does_not_run_its_work_again():
    stopping, runs = threading.Event(), []

    def work():
        runs.append(1)
        stopping.set()
        raise ValueError("planted")

    one = supervisor.thread("w", work, stopping)
    one.start()
    one.join(30)
    assert len(runs) == 1 and not one.is_alive()

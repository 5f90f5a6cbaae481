"""Background work that fails is logged, counted and restarted."""

import asyncio
import gc
import re
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from pylog import supervisor
from pylog.testing.ports import free_port
from tests.client.virtual_time import VirtualTime
from tests.fixtures.brokers import Brokerd
from tests.wire.talk import create_topic


class Work:
    """Fails `failures` times, each after `lasts_s`; `runs` are its start times."""

    def __init__(self, failures, lasts_s=0.0):
        self.failures, self.lasts_s, self.runs = failures, lasts_s, []

    async def __call__(self):
        self.runs.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.lasts_s)
        if len(self.runs) <= self.failures:
            raise ValueError("planted")


def test_failed_work_is_restarted_with_backoff(caplog):
    before, work = supervisor.failures().get("w", 0), Work(11)
    VirtualTime().run(supervisor.restarting("w", work, topic="t"))
    pauses = [after - before for before, after in zip(work.runs, work.runs[1:], strict=False)]
    assert pauses == pytest.approx([.1, .2, .4, .8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30])
    assert supervisor.failures()["w"] == before + 11
    assert all((row.work, row.topic) == ("w", "t") and row.exc_info for row in caplog.records)


def test_long_running_work_is_restarted_after_the_minimum_backoff():
    work = Work(5, lasts_s=supervisor.STABLE_S + 1)
    VirtualTime().run(supervisor.restarting("w", work))
    pauses = [after - before for before, after in zip(work.runs, work.runs[1:], strict=False)]
    assert pauses == pytest.approx([supervisor.STABLE_S + 1.1] * 5)


def test_cancelled_work_is_not_restarted():
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


@pytest.mark.filterwarnings("error")
def test_reported_work_cancelled_before_its_first_step_leaves_no_unawaited_coroutine(recwarn):
    async def scenario():
        work = Work(0)
        task = asyncio.get_running_loop().create_task(supervisor.reporting("w", work()))
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() and not work.runs
        supervisor.reporting("w", work()).close()
    asyncio.run(scenario())
    gc.collect()
    assert not recwarn.list


def test_reported_work_can_be_awaited_and_cancelled_while_it_waits():
    async def scenario():
        future = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(supervisor.reporting("w", future))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() and future.cancelled()
        work = Work(0)
        assert await supervisor.reporting("w", work()) is None
        assert len(work.runs) == 1
    asyncio.run(scenario())


def test_failed_thread_work_is_run_again():
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


def test_stopping_thread_does_not_rerun_its_work():
    stopping, runs = threading.Event(), []

    def work():
        runs.append(1)
        stopping.set()
        raise ValueError("planted")

    one = supervisor.thread("w", work, stopping)
    one.start()
    one.join(30)
    assert len(runs) == 1 and not one.is_alive()


def comm() -> str:
    """Return the calling thread's name as the system sees it."""
    return Path("/proc/thread-self/comm").read_text().rstrip("\n")


def test_threads_have_the_name_that_the_system_shows():
    seen = {}
    for name, made in (
            ("long-lived", supervisor.thread(
                "long-lived", lambda: seen.update(a=comm()), threading.Event())),
            ("once", supervisor.thread_once("once", lambda key: seen.update({key: comm()}), "b"))):
        made.start()
        made.join(30)
        assert made.name == name
    with supervisor.executor("pool", 2) as pool:
        seen["c"] = pool.submit(comm).result(30)
    assert seen == {"a": "long-lived", "b": "once", "c": "pool"}


def test_every_thread_of_a_broker_has_a_distinct_name(tmp_path):
    with Brokerd(tmp_path, {"metrics.listener": f"127.0.0.1:{free_port()}"}) as broker:
        create_topic(broker.port, "t")
        tasks = Path(f"/proc/{broker.pid}/task")
        deadline_s = time.monotonic() + 60
        while True:
            names = {task.name: (task / "comm").read_text().rstrip("\n")
                     for task in tasks.iterdir()}
            main = names.pop(str(broker.pid))
            if "flusher" in names.values() or time.monotonic() > deadline_s:
                break
            time.sleep(0.05)
        others = Counter(names.values())
    assert {"reactor-0", "flusher", "io-worker", "metrics"} <= others.keys()
    assert main not in others and not any(name.startswith("python") for name in others), others


PACKAGE = Path(supervisor.__file__).parent
# Packages that do not run in a broker, except as a test's or a tool's part.
OUTSIDE = {"client", "spark", "testing", "tools"}
THREAD = re.compile(r"\b(threading\.Thread|ThreadPoolExecutor)\(")


def thread_lines(folder: Path) -> list[str]:
    """Return the lines that make a thread or a pool, in modules of the broker below `folder`."""
    return [f"{inside}: {line}" for path in sorted(folder.rglob("*.py"))
            if (inside := path.relative_to(folder)).parts[0] not in OUTSIDE
            for line in path.read_text().splitlines() if THREAD.search(line)]


def test_the_broker_starts_python_threads_through_the_supervisor_only():
    assert OUTSIDE <= {path.name for path in PACKAGE.iterdir() if path.is_dir()}
    lines = thread_lines(PACKAGE)
    assert lines and {line.partition(":")[0] for line in lines} == {"supervisor.py"}


@pytest.mark.parametrize("package", sorted(
    path.name for path in PACKAGE.iterdir()
    if (path / "__init__.py").exists() and path.name not in OUTSIDE))
def test_a_thread_in_any_package_of_the_broker_is_found(tmp_path, package):
    (tmp_path / package / "deep").mkdir(parents=True)
    (tmp_path / package / "deep" / "x.py").write_text("threading.Thread(target=f).start()\n")
    assert len(thread_lines(tmp_path)) == 1

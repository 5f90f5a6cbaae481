"""The event loop that the blocking clients share: threads of callbacks, and interrupted waits."""

import asyncio
import concurrent.futures
import itertools
import os
import threading

import pytest

from pylog.client import background_loop
from pylog.client.background_loop import Driver, SingleUser, WorkRunner
from pylog.client.errors import ConcurrentUseError, ForkedError, ProgramEndedError
from tests.client.interrupted_client import Interruption, interrupt
from tests.fixtures.waits import until


@pytest.fixture
def driver():
    made = Driver()
    yield made
    if not made.has_ended:
        made.loop.call_soon_threadsafe(made.loop.stop)
    made.thread.join()
    made.loop.close()


async def here():
    await asyncio.sleep(0)
    return threading.current_thread()


def test_work_runs_on_a_daemon_thread(driver):
    assert driver.run(here()) is driver.thread and driver.thread.daemon
    assert driver.submit(here()).result(30) is driver.thread


def test_exception_is_raised_at_the_waiting_caller(driver):
    async def fails():
        raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"):
        driver.run(fails())


def test_posted_calls_run_in_order_on_the_drivers_thread(driver):
    heard, done = [], threading.Event()
    driver.post(heard.append, 1)
    driver.post(lambda *given: heard.append((*given, threading.current_thread())), 2, 3)
    driver.post(done.set)
    assert done.wait(30)
    assert heard == [1, (2, 3, driver.thread)]


def test_the_loop_never_waits_for_itself(driver):
    work = here()

    async def inside():
        with pytest.raises(AssertionError, match="wait for itself"):
            driver.submit(work)

    driver.run(inside())
    work.close()


def test_forked_child_raises_and_its_coroutine_is_closed(driver, monkeypatch):
    monkeypatch.setattr(driver, "process", os.getpid() + 1)
    work = here()
    with pytest.raises(ForkedError):
        driver.submit(work)
    assert work.cr_frame is None


def test_calls_raise_once_the_loop_has_ended(driver):
    driver.post(driver.loop.stop)
    driver.thread.join()
    work = here()
    with pytest.raises(ProgramEndedError):
        driver.run(work)
    assert work.cr_frame is None
    driver.close_client(here())
    with pytest.raises(ProgramEndedError):
        driver.post(print)


def test_an_interrupt_while_the_loop_is_checked_does_not_end_it(driver):
    for at in itertools.count(1):
        with Interruption(interrupt, at) as interruption:
            driver.check_running()
        driver.check_running()
        if interruption.passed < at:
            break
    assert at > 5 and driver.run(here()) is driver.thread


# The shared driver.

@pytest.fixture
def shared(monkeypatch):
    """Return the list of created drivers; initially empty."""
    made = []

    class Made:
        def __init__(self):
            self.process, self.has_ended = os.getpid(), False
            made.append(self)

    monkeypatch.setattr(background_loop, "_shared", {})
    monkeypatch.setattr(background_loop, "Driver", Made)
    return made


def test_process_has_one_background_loop(shared):
    assert Driver.shared() is Driver.shared() is shared[0] and len(shared) == 1


@pytest.mark.parametrize("change", [{"process": -1}, {"has_ended": True}])
def test_fork_and_ended_loop_get_a_new_background_loop(shared, change):
    first = Driver.shared()
    vars(first).update(change)
    assert Driver.shared() is not first and len(shared) == 2
    assert Driver.shared() is shared[1]


# Callbacks.

def test_callback_runs_on_the_waiting_thread_and_may_call_the_client(driver):
    runner, threads = WorkRunner(driver), []

    def callback(number):
        threads.append(threading.current_thread())
        assert runner.run(here()) is driver.thread
        return number + 1

    async def work():
        return await runner.call(callback, 1) + await runner.call(callback, 10)

    assert runner.run(work()) == 13
    assert threads == [threading.current_thread()] * 2


def test_callback_exception_is_raised_on_the_loop(driver):
    runner = WorkRunner(driver)

    def callback():
        raise KeyError("planted")

    async def work():
        with pytest.raises(KeyError, match="planted"):
            await runner.call(callback)
        return "went on"

    assert runner.run(work()) == "went on"


def test_result_for_a_cancelled_caller_is_dropped(driver):
    runner, complaints = WorkRunner(driver), []
    driver.loop.set_exception_handler(lambda loop, context: complaints.append(context))
    calling = []

    def callback():
        driver.submit(_cancel(calling[0])).result(30)
        return "late"

    async def work():
        calling.append(asyncio.ensure_future(runner.call(callback)))
        await asyncio.wait(calling)
        return calling[0].cancelled()

    assert runner.run(work()) is True
    assert driver.run(here()) is driver.thread and complaints == []


async def _cancel(task):
    task.cancel()


def test_a_wait_that_is_interrupted_calls_its_work_off(driver):
    runner, ended = WorkRunner(driver), concurrent.futures.Future()

    def interrupted():
        raise KeyboardInterrupt

    async def work():
        try:
            await runner.call(interrupted)
        finally:
            ended.set_result(asyncio.current_task().cancelling())

    with pytest.raises(KeyboardInterrupt):
        runner.run(work())
    assert ended.result(30) == 1


def test_an_interrupted_callback_does_not_leave_other_work_waiting(driver):
    runner, others = WorkRunner(driver), []

    def interrupted():
        raise KeyboardInterrupt

    async def other():
        return await runner.call(interrupted)

    async def work():
        others.append(asyncio.ensure_future(other()))
        await asyncio.sleep(1000)

    with pytest.raises(KeyboardInterrupt):
        runner.run(work())

    async def ended():
        async with asyncio.timeout(30):
            return await others[0]

    assert runner.run(ended()) is None


# Two threads.

def test_two_waiting_threads_get_their_results(driver):
    runner, results = WorkRunner(driver), []

    async def later(number):
        await asyncio.sleep(0.05 * number)
        await runner.call(results.append, number)
        return number

    threads = [threading.Thread(target=lambda n=n: results.append(("done", runner.run(later(n)))),
                                daemon=True) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert sorted(map(str, results)) == sorted(map(str, [*range(4), *(
        ("done", number) for number in range(4))]))


def test_reentrant_call_is_allowed_but_not_from_another_thread():
    user, failures = SingleUser("consumer"), []

    def other():
        try:
            with user:
                pass
        except ConcurrentUseError as failure:
            failures.append(str(failure))

    with user, user:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(30)
    assert len(failures) == 1 and "one consumer per thread" in failures[0]
    thread = threading.Thread(target=other)
    thread.start()
    thread.join(30)
    assert len(failures) == 1


# Exceptions that must not end the loop.

@pytest.mark.parametrize("failure", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(),
                                     ValueError("planted")])
def test_no_exception_ends_the_loop(driver, failure, caplog):
    def fails():
        raise failure

    async def task():
        raise failure

    driver.post(fails)
    with pytest.raises(BaseException) as found:
        driver.submit(task()).result(30)
    assert isinstance(found.value, (type(failure), concurrent.futures.CancelledError))
    assert driver.submit(here()).result(30) is driver.thread


def test_a_loop_that_is_blocked_is_logged_with_its_stack(driver, caplog):
    released = threading.Event()

    def blocking_callback():
        released.wait(30)

    driver.post(blocking_callback)
    until(lambda: "blocked" in caplog.text)
    assert "in blocking_callback" in caplog.text
    released.set()
    until(lambda: "continues" in caplog.text)

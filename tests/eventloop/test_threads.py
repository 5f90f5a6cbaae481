"""Blocking work whose caller is cancelled."""

import asyncio
import gc
import threading

import pytest

from pylog.eventloop.threads import in_thread


@pytest.mark.parametrize("cancellations", [1, 2])
def test_work_of_a_cancelled_caller_completes_and_its_error_is_ignored(cancellations):
    complaints, ended = [], []

    async def scene():
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: complaints.append(context["message"]))
        begun, goes_on = threading.Event(), threading.Event()

        def work():
            begun.set()
            goes_on.wait()
            ended.append(True)
            raise OSError("too late")

        caller = asyncio.create_task(in_thread(work))
        await asyncio.to_thread(begun.wait)
        caller.cancel()
        await asyncio.sleep(0)
        assert not caller.done()
        if cancellations == 2:  # The wait is abandoned, the work continues.
            caller.cancel()
            await asyncio.sleep(0)
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await caller
        while not ended:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        gc.collect()

    asyncio.run(scene())
    assert ended == [True]
    assert complaints == []

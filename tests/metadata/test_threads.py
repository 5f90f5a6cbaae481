"""Blocking work whose caller is cancelled."""

import asyncio
import threading

import pytest

from pylog.metadata.threads import in_thread


def test_work_whose_caller_is_cancelled_ends_first_and_its_failure_bothers_nobody():
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
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await caller

    asyncio.run(scene())
    assert ended == [True]
    assert complaints == []

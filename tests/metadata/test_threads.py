"""Blocking work beside the event loop."""

import asyncio
import gc

import pytest

from pylog.metadata.threads import whole


def test_work_that_fails_after_its_caller_was_cancelled_is_no_fault_of_the_loop():
    faults = []

    async def fails(begun):
        begun.set()
        await asyncio.sleep(0)
        raise ValueError("too late")

    async def run():
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: faults.append(context))
        begun = asyncio.Event()
        task = asyncio.create_task(whole(fails(begun)))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    gc.collect()
    assert not faults

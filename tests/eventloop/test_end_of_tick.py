"""Work deferred to the end of an event loop iteration: time and order of calls."""

import asyncio

from pylog.eventloop.end_of_tick import EndOfTick


def test_callbacks_of_an_iteration_run_at_its_end_in_order():
    tick, called = EndOfTick(), []
    tick.begin()
    tick.defer(lambda: called.append(1))
    tick.defer(lambda: called.append(2))
    assert called == []
    tick.end()
    assert called == [1, 2]
    tick.begin()
    tick.end()
    assert called == [1, 2]


def test_callbacks_outside_an_iteration_run_in_the_event_loop():
    async def scenario():
        tick, called = EndOfTick(), []
        tick.defer(lambda: called.append(1))
        assert called == []
        await asyncio.sleep(0)
        assert called == [1]
    asyncio.run(scenario())


def test_callbacks_added_at_the_end_run_in_the_next_iteration():
    async def scenario():
        tick, called = EndOfTick(), []
        tick.begin()
        tick.defer(lambda: tick.defer(lambda: called.append("later")))
        tick.end()
        assert called == []
        await asyncio.sleep(0)
        assert called == ["later"]
    asyncio.run(scenario())


def test_failing_callback_is_reported_and_the_others_run():
    async def scenario():
        tick, called, told = EndOfTick(), [], []
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: told.append(context["exception"]))
        tick.begin()
        tick.defer(lambda: 1 / 0)
        tick.defer(lambda: called.append(1))
        tick.end()
        assert called == [1] and isinstance(told[0], ZeroDivisionError)
    asyncio.run(scenario())

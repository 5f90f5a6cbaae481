"""Work deferred to the end of an event loop iteration: time and order of calls."""

import asyncio

from pylog.eventloop.end_of_tick import EndOfTick


def test_what_is_left_in_a_turn_is_called_at_its_end_in_its_order():
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


def test_what_is_left_outside_a_turn_is_the_event_loops():
    async def scenario():
        tick, called = EndOfTick(), []
        tick.defer(lambda: called.append(1))
        assert called == []
        await asyncio.sleep(0)
        assert called == [1]
    asyncio.run(scenario())


def test_what_is_left_while_a_turn_ends_is_called_in_the_next_turn_of_the_loop():
    async def scenario():
        tick, called = EndOfTick(), []
        tick.begin()
        tick.defer(lambda: tick.defer(lambda: called.append("later")))
        tick.end()
        assert called == []
        await asyncio.sleep(0)
        assert called == ["later"]
    asyncio.run(scenario())


def test_what_fails_is_told_to_the_event_loop_and_holds_up_nothing_else():
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

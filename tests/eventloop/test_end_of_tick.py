"""What is left for the end of a turn: when it is called, and by whom."""

import asyncio

from pylog.eventloop.end_of_tick import Turn


def test_what_is_left_in_a_turn_is_called_at_its_end_in_its_order():
    turn, called = Turn(), []
    turn.begin()
    turn.later(lambda: called.append(1))
    turn.later(lambda: called.append(2))
    assert called == []
    turn.end()
    assert called == [1, 2]
    turn.begin()
    turn.end()
    assert called == [1, 2]


def test_what_is_left_outside_a_turn_is_the_event_loops():
    async def scenario():
        turn, called = Turn(), []
        turn.later(lambda: called.append(1))
        assert called == []
        await asyncio.sleep(0)
        assert called == [1]
    asyncio.run(scenario())


def test_what_is_left_while_a_turn_ends_is_called_in_the_next_turn_of_the_loop():
    async def scenario():
        turn, called = Turn(), []
        turn.begin()
        turn.later(lambda: turn.later(lambda: called.append("later")))
        turn.end()
        assert called == []
        await asyncio.sleep(0)
        assert called == ["later"]
    asyncio.run(scenario())


def test_what_fails_is_told_to_the_event_loop_and_holds_up_nothing_else():
    async def scenario():
        turn, called, told = Turn(), [], []
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: told.append(context["exception"]))
        turn.begin()
        turn.later(lambda: 1 / 0)
        turn.later(lambda: called.append(1))
        turn.end()
        assert called == [1] and isinstance(told[0], ZeroDivisionError)
    asyncio.run(scenario())

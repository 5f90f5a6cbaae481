"""Fair scheduling of long work: one slice per iteration of the event loop, limited concurrency,
oldest first.
"""

import asyncio

import pytest

from pylog.eventloop.fair_slots import FairSlots, TooBusy


class Clock:
    ns = 0

    def __call__(self):
        return self.ns


def test_loop_iteration_runs_one_slice_of_long_work():
    async def scenario():
        loop, seen, slots = asyncio.get_running_loop(), [], FairSlots(Clock(), 1, 3, 100)
        at_work = 3

        def turn():
            seen.append(slots.granted)
            if at_work:
                loop.call_soon(turn)

        async def work():
            nonlocal at_work
            for _ in range(10):
                await slots.next()
            at_work -= 1

        loop.call_soon(turn)
        await asyncio.gather(work(), work(), work())
        return seen

    seen = asyncio.run(scenario())
    assert seen[-1] >= 29 and all(0 <= b - a <= 1 for a, b in zip(seen, seen[1:], strict=False))


def test_slice_runs_until_its_time_limit():
    async def scenario():
        clock = Clock()
        slots = FairSlots(clock, 5, 1, 100)
        await slots.next()
        clock.ns = 4
        await slots.slice()
        assert slots.granted == 1
        clock.ns = 5
        await slots.slice()
        assert slots.granted == 2

    asyncio.run(scenario())


def test_those_that_find_no_room_begin_oldest_first():
    async def scenario():
        slots, order, at_once = FairSlots(Clock(), 1, 2, 100), [], set()

        async def work(number):
            async with slots.acquire(1):
                order.append(number)
                at_once.add(number)
                assert len(at_once) <= 2
                for _ in range(3):
                    await slots.next()
                at_once.remove(number)

        await asyncio.gather(*[work(number) for number in range(8)])
        assert order == list(range(8))

    asyncio.run(scenario())


def test_bytes_above_the_limit_are_rejected_and_released():
    async def scenario():
        slots = FairSlots(Clock(), 1, 1, 100)
        async with slots.acquire(60):
            with pytest.raises(TooBusy):
                async with slots.acquire(41):
                    pass
        async with slots.acquire(100):
            pass

    asyncio.run(scenario())


def test_cancelled_waiter_frees_its_slot():
    async def scenario():
        slots = FairSlots(Clock(), 1, 1, 100)
        order = []

        async def work(number):
            async with slots.acquire(10):
                order.append(number)

        async with slots.acquire(10):
            tasks = [asyncio.ensure_future(work(number)) for number in range(3)]
            await asyncio.sleep(0)
            tasks[0].cancel()
            await asyncio.sleep(0)
        await asyncio.gather(*tasks[1:])
        assert order == [1, 2]
        async with slots.acquire(100):
            pass

    asyncio.run(scenario())

"""Who waits for decisions, when there are none any more."""

import asyncio

from pylog.metadata.decider import Decider
from pylog.metadata.image import Image
from pylog.metadata.tail import Tail


def test_who_waits_for_records_is_let_go_when_the_office_ends():
    async def go():
        decider = Decider(None, Tail(Image()), {}, None, 1)
        decider._take_office(3)
        waiting = asyncio.create_task(decider.committed_beyond(0, 3600))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        decider.resign()
        async with asyncio.timeout(20):
            await waiting

    asyncio.run(go())

"""A flush sends pending batches immediately, only while it is active."""

import asyncio
from types import SimpleNamespace

import pytest

from pylog.client.errors import KafkaTimeoutError
from pylog.client.producer.core import Producing


class Accumulator:
    def __init__(self, *waiting):
        self.flushing = 0
        self.seen = []
        self._waiting = waiting

    def pendings(self):
        return list(self._waiting)

    def take_lost(self):
        return 0

    def notify(self):
        self.seen.append(self.flushing)


@pytest.mark.parametrize("times_out", [False, True])
def test_batches_linger_again_after_any_flush(times_out):
    async def run():
        async def settled(pending):
            await asyncio.sleep(60 if times_out else 0)

        accumulator = Accumulator("a", "b")
        producing = SimpleNamespace(accumulator=accumulator, _settled=settled)
        for turn in range(2):
            if times_out:
                with pytest.raises(KafkaTimeoutError):
                    await Producing.flush(producing, 0.01)
            else:
                await Producing.flush(producing, 20)
            assert accumulator.flushing == 0 and accumulator.seen == [1] * (turn + 1)
    asyncio.run(run())

"""State changes of a producer at the end of a transaction, without a broker."""

import asyncio

import pytest

from pylog.client.config.settings import PRODUCER, Settings
from pylog.client.errors import (
    ClosedError, IllegalStateError, KafkaError, KafkaTimeoutError, error,
)
from pylog.client.network.cluster import Cluster
from pylog.client.producer.transaction_manager import ABORT, COMMIT, OPEN, READY, Transactions
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode


@pytest.mark.parametrize(("answered", "after"), [((8, 1), (8, 1)), ((-1, -1), (7, 3))])
def test_the_end_of_a_transaction_may_give_the_next_id_and_epoch(answered, after):
    """KIP-890; older versions of EndTxn return none."""
    async def ask(request, version_max, check):
        return messages.EndTxnResponse(producer_id=answered[0], producer_epoch=answered[1])

    one = Transactions.__new__(Transactions)
    one.transactional_id, one.producer_id, one.epoch, one.brokers_add = "x", 7, 3, True
    one._request = ask
    asyncio.run(one._end(True))
    assert (one.producer_id, one.epoch) == after


# A caller that leaves before the end.

class Ended(Transactions):
    """A producer in a transaction whose coordinator ends it when `release` is set, or rejects it.
    """

    def __init__(self):
        settings = Settings(PRODUCER, bootstrap_servers="x:1", transactional_id="x")
        super().__init__(Cluster(settings), settings, lambda: None, lambda failure: None)
        self.state, self.producer_id, self.epoch, self.brokers_add = OPEN, 7, 3, True
        self._touched = True
        self.asked, self.release, self.refusals = [], asyncio.Event(), []

    async def _request(self, request, version_max, check, *where):
        self.asked.append(request.committed)
        await self.release.wait()
        if self.refusals:
            raise self.refusals.pop(0)
        return messages.EndTxnResponse(producer_id=7, producer_epoch=4)

    async def ended(self, committed):
        async def work():
            self.begin_end(committed)
            await self.end(committed)

        await self.finish(COMMIT if committed else ABORT, work)


async def cut_short(work):
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await work


@pytest.mark.parametrize(("committed", "mine", "other"), [
    (True, COMMIT, ABORT), (False, ABORT, COMMIT)])
def test_interrupted_call_may_only_be_followed_by_itself(committed, mine, other):
    async def main():
        one = Ended()
        await cut_short(one.ended(committed))
        for call in (one.ended(not committed), one.init(), one.send_offsets({}, "g")):
            with pytest.raises(IllegalStateError, match=rf"call {mine}\(\) again first"):
                await call
        for call in (one.begin, one.check_open):
            with pytest.raises(IllegalStateError, match=rf"call {mine}\(\) again first"):
                call()
        await cut_short(one.ended(committed))
        one.release.set()
        await one.ended(committed)
        assert (one.state, one.epoch, one.asked) == (READY, 4, [committed])
        one.begin()

    asyncio.run(main())


def test_the_outcome_of_a_call_that_was_cut_short_is_the_next_calls():
    async def main():
        one = Ended()
        await cut_short(one.ended(True))
        one.refusals = [error(ErrorCode.PRODUCER_FENCED)]
        one.release.set()
        await asyncio.sleep(0.01)
        with pytest.raises(IllegalStateError, match="timed out or was cancelled"):
            one.begin()
        with pytest.raises(KafkaError) as found:
            await one.ended(True)
        assert found.value.fatal and one.asked == [True]

    asyncio.run(main())


@pytest.mark.parametrize("committed", [True, False])
def test_unanswered_transaction_end_is_retried(committed):
    async def main():
        one = Ended()
        one.release.set()
        one.refusals = [KafkaTimeoutError("planted"), KafkaTimeoutError("planted")]
        for _ in range(2):
            with pytest.raises(KafkaTimeoutError):
                await one.ended(committed)
            with pytest.raises(IllegalStateError, match="again first"):
                await one.ended(not committed)
        await one.ended(committed)
        assert one.state == READY and one.asked == [committed] * 3

    asyncio.run(main())


def test_failed_end_without_a_waiter_is_retried():
    async def main():
        one = Ended()
        await cut_short(one.ended(True))
        one.refusals = [KafkaTimeoutError("planted")]
        one.release.set()
        await asyncio.sleep(0.01)
        await one.ended(True)
        assert one.state == READY and one.asked == [True, True]

    asyncio.run(main())


def test_closing_the_producer_ends_the_wait():
    async def main():
        one = Ended()
        waiting = asyncio.ensure_future(one.ended(True))
        await asyncio.sleep(0.01)
        one.close()
        with pytest.raises(ClosedError, match="closed during commit_transaction"):
            await waiting

    asyncio.run(main())

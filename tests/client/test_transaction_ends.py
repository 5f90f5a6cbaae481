"""What the end of a transaction changes in its producer, without a broker."""

import asyncio

import pytest

from pylog.client.transactions import Transactions
from pylog.protocol import messages


@pytest.mark.parametrize(("answered", "after"), [((8, 1), (8, 1)), ((-1, -1), (7, 3))])
def test_the_end_of_a_transaction_may_give_the_next_id_and_epoch(answered, after):
    """KIP-890; older versions of EndTxn give none."""
    async def ask(request, version_max, check):
        return messages.EndTxnResponse(producer_id=answered[0], producer_epoch=answered[1])

    one = Transactions.__new__(Transactions)
    one.transactional_id, one.producer_id, one.epoch, one.brokers_add = "x", 7, 3, True
    one._ask = ask
    asyncio.run(one._end(True))
    assert (one.producer_id, one.epoch) == after

"""The open transactions of all coordinators: complete, or an error."""

import asyncio
from types import SimpleNamespace

import pytest

from pylog.client.admin.open_transactions import OPEN_STATES, open_transactions
from pylog.client.errors import CoordinatorNotAvailableError, UnknownTopicOrPartitionError

ROWS = [SimpleNamespace(producer_id=7)]


class Cluster:
    """leaders: (leader, leader epoch) of each partition, in the order of the requests."""

    def __init__(self, *leaders):
        self._leaders = list(leaders)

    async def describe_topics(self, names):
        name, = names
        found = self._leaders.pop(0)
        if found is None:
            raise UnknownTopicOrPartitionError(name)
        return {name: SimpleNamespace(partitions={
            number: SimpleNamespace(leader=leader, leader_epoch=epoch)
            for number, (leader, epoch) in enumerate(found)})}

    async def list_transactions(self, states):
        assert states == OPEN_STATES
        return ROWS


@pytest.mark.parametrize("leaders", [[(1, 0), (2, 4)], None], ids=["led", "no topic yet"])
def test_the_list_is_complete_if_every_partition_has_a_leader(leaders):
    assert asyncio.run(open_transactions(Cluster(leaders, leaders))) is ROWS


@pytest.mark.parametrize("before, after", [
    ([(1, 0), (-1, 4)], [(1, 0), (-1, 4)]), ([(1, 0), (2, 4)], [(1, 0), (-1, 5)]),
    ([(1, 0), (2, 4)], [(1, 0), (1, 5)]), ([(1, 0), (2, 4)], [(1, 0), (2, 6)]),
    (None, [(1, 0), (2, 0)])],
    ids=["no leader", "lost its leader", "another leader", "the same leader again", "new topic"])
def test_transactions_of_an_absent_coordinator_are_not_called_unknown(before, after):
    with pytest.raises(CoordinatorNotAvailableError, match="__transaction_state-"):
        asyncio.run(open_transactions(Cluster(before, after)))

"""Positions that are compared with a new leader's log."""

import asyncio
from types import SimpleNamespace

import pytest

from pylog.client import positions
from pylog.client.offsets import TopicPartition
from pylog.client.subscription import PartitionState
from pylog.protocol import messages

PART = TopicPartition("t", 0)


class Cluster:
    """A cluster whose one leader says that an epoch ended at `end`; `meanwhile` runs before."""

    def __init__(self, end, meanwhile=lambda: None):
        self.end, self.meanwhile = end, meanwhile
        self.metadata = SimpleNamespace(partition=lambda *_: SimpleNamespace(leader_epoch=1))

    async def leader(self, topic, partition):
        return SimpleNamespace(leader=1)

    async def retry(self, attempt, timeout_s=None):
        return await attempt()

    async def send(self, node, request):
        self.meanwhile()
        row = messages.OffsetForLeaderEpochResponse
        return row(topics=[row.OffsetForLeaderTopicResult(topic="t", partitions=[
            row.EpochEndOffset(partition=0, leader_epoch=0, end_offset=self.end)])])


def state_at(position, record_epoch=0):
    state = PartitionState(PART, 0)
    state.move_to(position, record_epoch)
    state.validate = 1
    return state


@pytest.mark.parametrize("end, expected", [(70, 70), (100, 100), (150, 100), (-1, 100)])
def test_a_position_behind_the_cut_goes_back_to_it(end, expected):
    state = state_at(100)
    cut = asyncio.run(positions.validate(Cluster(end), [state]))
    assert state.position == expected and state.validate == -1
    assert bool(cut) == (expected < 100)


def test_records_of_the_new_leader_that_were_taken_meanwhile_stay_taken():
    state = state_at(100)

    def take():
        state.position, state.record_epoch = 150, 1

    asyncio.run(positions.validate(Cluster(100, take), [state]))
    assert state.position == 150


def test_a_seek_that_came_meanwhile_stays():
    state = state_at(100)
    asyncio.run(positions.validate(Cluster(70, lambda: state.move_to(95, 0)), [state]))
    assert state.position == 95

"""Iteration record by record, and the partitions' positions during it; without a broker."""

from types import SimpleNamespace

import pytest

from pylog.client.consumer.fetch_buffer import CompletedFetch, FetchBuffer
from pylog.client.consumer.record_iterator import Iteration
from pylog.client.consumer.subscription_state import Subscription
from pylog.client.types import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


class World:
    """Two partitions with records that a poll has just taken: A 3, 4 and 6 of 3 to 8, B 10."""

    def __init__(self):
        self.subscription = Subscription(True)
        self.a, self.b = self.subscription.assign([A, B])
        self.collector = SimpleNamespace(poll=4)
        for state, begin, end in ((self.a, 3, 8), (self.b, 10, 11)):
            state.move_to(begin, 1)
            state.rewind_position = 0
            state.save_position(4)
            state.position = state.fetch_position = end
            state.record_epoch = 2
        found = [SimpleNamespace(topic=tp.topic, partition=tp.partition, offset=offset)
                 for tp, offset in ((A, 3), (A, 4), (B, 10), (A, 6))]
        self.iteration = Iteration(self.collector, self.subscription.states, found)

    @property
    def at(self):
        return self.a.position, self.b.position

    def rest(self):
        return [record.offset for record in self.iteration.rest]


@pytest.fixture
def world():
    return World()


def test_position_follows_returned_records_and_reaches_the_read_end(world):
    assert world.at == (3, 10)
    stood = [(record.offset, world.at) for record in world.iteration.rest]
    assert stood == [(3, (4, 10)), (4, (5, 10)), (10, (5, 11)), (6, (8, 11))]
    assert (world.a.record_epoch, world.a.fetch_position) == (2, 8)


def test_requesting_a_record_means_that_the_previous_one_is_processed(world):
    for handled in ((3, 10), (4, 10), (5, 10), (5, 11)):
        next(world.iteration.rest)
        poll = world.collector.poll
        assert (world.a.position_before(poll)[0], world.b.position_before(poll)[0]) == handled
    world.collector.poll += 1
    assert world.a.position_before(world.collector.poll) == (8, 2)


def test_sought_revoked_or_lost_records_are_no_longer_returned(world):
    next(world.iteration.rest)
    world.a.move_to(100)
    assert world.rest() == [10] and world.at == (100, 11)
    for change in (lambda one: setattr(one.b, "revoking", True),
                   lambda one: one.subscription.drop([B])):
        other = World()
        change(other)
        assert other.rest() == [3, 4, 6]


def test_unreturned_records_can_be_fetched_again(world):
    next(world.iteration.rest)
    world.iteration.put_back(world.b)
    assert (world.b.fetch_position, world.a.fetch_position) == (10, 8)
    world.iteration.put_back()
    assert world.rest() == [] and world.at == (4, 10) and world.a.fetch_position == 4
    assert world.a.rewind_position == 0


def test_records_of_a_revoked_partition_are_discarded():
    world = World()
    found = [SimpleNamespace(topic="gone", partition=0, offset=1)]
    assert list(Iteration(world.collector, world.subscription.states, found).rest) == []


def test_buffered_records_of_paused_partitions_leave_space_for_others():
    subscription = Subscription(True)
    one, two = subscription.assign([A, B])
    queue = FetchBuffer(10, False, True)
    for state in (one, two):
        state.move_to(0)
    queue.put([CompletedFetch(one, b"x" * 10, [], None)])
    one.paused = True
    assert queue.room_bytes == 0 and queue.head() is None and queue.room_bytes == 10
    one.paused = False
    queue.unpark(one)
    assert queue.room_bytes == 0
    one.move_to(5)
    assert queue.head() is None and queue.room_bytes == 10
    queue.put([CompletedFetch(one, b"x" * 10, [], None)])
    one.paused = True
    assert queue.head() is None
    one.move_to(6)
    queue.sweep()
    assert queue.parked == [] and queue.room_bytes == 10

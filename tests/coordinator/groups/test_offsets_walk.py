"""Commits with and without transactions, markers, deletions and restarts in any order: the
committed offset is the last write that was not aborted.
"""

import random

import pytest

from pylog.coordinator.groups import offsets, transactional_offsets
from pylog.coordinator.groups.offsets import UNSTABLE
from pylog.coordinator.groups.shard import GroupShard
from pylog.coordinator.runtime.transactional_batches import Marker, TransactionalRecords
from tests.coordinator.groups.test_offsets import commit, commit_open, row
from tests.coordinator.groups.test_shard import LIMITS, Machine

STEPS = 120
GROUPS, PLACES = "gh", [("t", 0), ("t", 1), ("u", 0)]
PRODUCERS = 7, 8, 9


class World:
    """A machine and its model. written: (group, topic, partition) -> (the number of the write, its
    offset); open: producer -> the same for its transaction.
    """

    def __init__(self, source):
        self.source, self.state_machine = source, Machine()
        self.written, self.open, self.number = {}, {}, 0
        self.log = []

    def step(self):
        what = self.source.random()
        group, (topic, partition) = self.source.choice(GROUPS), self.source.choice(PLACES)
        key = group, topic, partition
        self.number += 1
        if what < 0.3:
            assert commit(self.state_machine, row(self.number, topic, partition), group=group) == 0
            self.written[key] = self.number, self.number
        elif what < 0.65:
            producer = self.source.choice(PRODUCERS)
            assert commit_open(self.state_machine, row(self.number, topic, partition), group=group,
                               producer=producer) == [0]
            self.open.setdefault(producer, {})[key] = self.number, self.number
        elif what < 0.9:
            self.end(self.source.choice(PRODUCERS), self.source.random() < 0.6)
        elif what < 0.95:
            self.forget(key)
        else:
            self.restart()
        self.log += self.state_machine.groups.records
        self.state_machine.groups.records = []

    def end(self, producer, commits):
        transactional_offsets.end(self.state_machine.groups, Marker(producer, 0, 0, commits, 2))
        for key, entry in self.open.pop(producer, {}).items():
            if commits:
                self.written[key] = max(entry, self.written.get(key, (0, 0)))

    def forget(self, key):
        group = self.state_machine.groups.groups.get(key[0])
        is_open = any(key in places for places in self.open.values())
        if group is not None:
            assert offsets.forget(self.state_machine.groups, group, *key[1:]) == (
                is_open or key in self.written)
        self.written.pop(key, None)
        for producer in list(self.open):
            self.open[producer].pop(key, None)
            if not self.open[producer]:
                del self.open[producer]

    def restart(self):
        made = GroupShard(LIMITS, self.state_machine.clock, str)
        for written in self.log + self.state_machine.groups.records:
            if isinstance(written, TransactionalRecords | Marker):
                transactional_offsets.replay(made, written)
            else:
                made.replay(*written)
        self.log += self.state_machine.groups.records
        made.loaded()
        self.state_machine.groups = made

    def check(self):
        groups = self.state_machine.groups
        unstable = {key for places in self.open.values() for key in places}
        for name in GROUPS:
            found = {(name, topic, partition): entry.offset
                     for topic, rows in offsets.everything(groups, name).rows()
                     for partition, entry in rows}
            assert found == {key: offset for key, (_, offset) in self.written.items()
                             if key[0] == name}
            for topic, partition in PLACES:
                (_, ((_, entry),)), = offsets.fetch(groups, name, [(topic, [partition])], True)
                assert (entry is UNSTABLE) == ((name, topic, partition) in unstable)
        assert groups.open_offsets == {
            producer: set(places) for producer, places in self.open.items()}


@pytest.mark.parametrize("part", range(4))
def test_last_commit_wins_in_any_order_of_transaction_ends(
        random_source, part):
    for _ in range(5):
        world = World(random.Random(random_source.randrange(1 << 40)))
        for _ in range(STEPS):
            world.step()
            world.check()


@pytest.mark.parametrize("name", ["supersede", "forget", "_close"])
def test_planted_change_unknown_to_open_transactions_is_found(monkeypatch, name):
    monkeypatch.setattr(transactional_offsets, name, lambda *_: False)
    with pytest.raises((AssertionError, KeyError)):
        for seed in range(20):
            world = World(random.Random(seed))
            for _ in range(STEPS):
                world.step()
                world.check()

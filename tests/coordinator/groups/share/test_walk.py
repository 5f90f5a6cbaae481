"""Share groups along histories from seeds: the log and the snapshot agree with the group, and in
the end every partition is assigned.
"""

import random

import pytest

from pylog.coordinator.groups.shard import GroupShard
from pylog.coordinator.groups.share import group as share_group
from pylog.coordinator.groups.share import heartbeat as share_heartbeat
from pylog.coordinator.groups.snapshot import ShardSnapshot
from pylog.metadata.image.state_store import Store
from tests.coordinator.groups.share.test_heartbeat import LIMITS, OBEYED, World, topic

STEPS = 80
MEMBERS, NAMES = "abc", ("t", "u")


class Walk(World):
    """epochs: member -> its last received epoch."""

    def __init__(self, source, store):
        super().__init__(OBEYED._replace(members_max=3, retry_ms=50))
        self.source, self.kept = source, ShardSnapshot(store, bytes(16), 0)
        self.kept.clear()
        self.epochs = {}

    def settle(self):
        super().settle()
        changed, self.state_machine.changed = self.state_machine.changed, set()
        for rows in self.kept.rows(self.state_machine, changed):
            self.kept.write(rows, None)

    def facts(self, state_machine):
        return {id_: dict(share_group.records_of(group)) for id_,
                group in state_machine.shares.items()}

    def check(self):
        wanted = self.facts(self.state_machine)
        replayed = GroupShard(LIMITS, self.clock, str)
        for key, value in self.log:
            replayed.replay(key, value)
        assert self.facts(replayed) == wanted
        restored = GroupShard(LIMITS, self.clock, str, self.kept.find, self.kept.names)
        self.kept.restore(restored)
        assert self.facts(restored) == wanted

    def step(self):
        what, member = self.source.random(), self.source.choice(MEMBERS)
        if what < 0.6:
            self.act(member)
        elif what < 0.7:
            self.answer(self.beat(member, -1, None), member)
        elif what < 0.8:
            self.initialize_some()
        elif what < 0.9:
            self.run(self.source.choice((10, 60, 310)))
        elif what < 0.95:
            self.change_topics()
        else:
            self.restart()

    def act(self, member, changes=0.2):
        """Send a heartbeat. changes: how often a member changes its subscription."""
        epoch = self.epochs.get(member, 0)
        names = self.source.sample(NAMES, self.source.randrange(1, 3)) \
            if epoch == 0 or self.source.random() < changes else None
        self.answer(self.beat(member, epoch, names), member)

    def answer(self, answer, member):
        self.epochs[member] = 0 if answer.error_code or answer.member_epoch < 0 \
            else answer.member_epoch

    def initialize_some(self):
        asked, self.asked = self.asked, []
        names = {row.id: name for name, row in self.topics.items()}
        for one in asked:
            if self.source.random() < 0.8:
                share_heartbeat.initialized(self.state_machine, one.group_id, one.partitions, names)
            else:
                share_heartbeat.uninitialized(self.state_machine, one.group_id, one.partitions)
        self.settle()

    def change_topics(self):
        name = self.source.choice(NAMES)
        topics = dict(self.topics)
        if name in topics and self.source.random() < 0.3:
            del topics[name]
        else:
            known = topics.get(name)
            topics[name] = topic(name, self.source.randbytes(16) if known is None else known.id,
                                 1 if known is None else len(known.partitions) + 1)
        self.topics = topics
        share_heartbeat.forget_topics(self.state_machine, {row.id for row in topics.values()})
        self.settle()

    def restart(self):
        self.state_machine = GroupShard(LIMITS, self.clock, str)
        for key, value in self.log:
            self.state_machine.replay(key, value)
        self.state_machine.loaded()
        self.kept.clear()
        self.asked = []
        self.settle()

    def calm_down(self):
        for _ in range(12):
            self.clock.ms += 60
            for member in MEMBERS:
                self.act(member, changes=0)
            for one in self.asked:
                share_heartbeat.initialized(self.state_machine, one.group_id, one.partitions, {
                    row.id: name for name, row in self.topics.items()})
            self.asked = []
            self.settle()

    def check_end(self):
        group = self.group()
        had = {(id_, index) for member in group.members.values()
               for id_, indexes in member.assigned.items() for index in indexes}
        assert had == {(self.topics[name].id, index) for name in group.topics
                       if name in self.topics
                       for index in range(len(self.topics[name].partitions))}


@pytest.fixture
def store(tmp_path):
    made = Store(str(tmp_path))
    yield made
    made.close()


@pytest.mark.parametrize("part", range(4))
def test_random_share_group_matches_its_log_and_snapshot(
        store, random_source, part):
    for _ in range(2):
        walk = Walk(random.Random(random_source.randrange(1 << 40)), store)
        for _ in range(STEPS):
            walk.step()
            walk.check()
        walk.calm_down()
        walk.check()
        walk.check_end()


def test_a_change_that_has_no_record_is_found(store, monkeypatch):
    record = share_heartbeat._record
    count = [0]

    def forgetful(state_machine, group, row):
        count[0] += 1
        if count[0] % 7:
            record(state_machine, group, row)

    monkeypatch.setattr(share_heartbeat, "_record", forgetful)
    with pytest.raises((AssertionError, KeyError)):
        walk = Walk(random.Random(1), store)
        for _ in range(STEPS):
            walk.step()
            walk.check()

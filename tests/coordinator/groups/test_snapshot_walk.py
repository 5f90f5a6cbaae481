"""Snapshots along random histories of groups: only changes are written, and the restored machine
equals the original.
"""

import random

import pytest

from pylog.coordinator.groups.consumer import records as consumer_records
from pylog.coordinator.groups.consumer import target_assignment
from pylog.coordinator.groups.shard import GroupShard
from pylog.coordinator.groups.snapshot import ShardSnapshot
from pylog.coordinator.groups.state import classic_records
from pylog.coordinator.groups.state.classic_group import CLASSIC, EMPTY, STABLE, STREAMS
from pylog.coordinator.groups.streams import records as streams_records
from pylog.metadata.image.state_store import Store
from tests.coordinator import consumer_world, streams_world, world

STEPS = 250
SEEDS = 2
CHECK_EVERY = 4  # Saves between comparisons with a restart.
CHECKS_MIN = 6


def facts(group):
    """Return the records that the log would have for a group."""
    if group.kind == CLASSIC:
        value = classic_records.group_value(group) if group.generation > 0 else None
        return value, dict(group.offsets)
    of = streams_records if group.kind == STREAMS else consumer_records
    return (of.group_state(group), dict(group.offsets),
            {id_: of.member_state(group, id_) for id_ in group.members})


def followed(base, store):
    """A world whose machine is saved after each step. store: the target."""

    class Followed(base):
        def __init__(self, source):
            self.kept = ShardSnapshot(store, bytes(16), 0)
            self.saves = self.checks = 0
            super().__init__(source)

        # A restart loses unflushed records.

        def start(self):
            self.kept.clear()
            super().start()

        def start_machine(self):
            self.kept.clear()
            super().start_machine()

        def settle(self):
            super().settle()
            state_machine = self.state_machine
            self.saves += 1
            changed = state_machine.changed
            state_machine.changed = type(changed)()
            for rows in self.kept.rows(state_machine, changed):
                self.kept.write(rows, None)
            state_machine.saved(changed)
            if self.saves % CHECK_EVERY == 0:
                self.check_saved()

        def check_saved(self):
            live = self.state_machine
            if any(group.kind == CLASSIC and group.state not in (STABLE, EMPTY)
                   for group in live.groups.values()):
                return  # The record of a classic group is written with its assignment.
            self.checks += 1
            found = GroupShard(live.limits, live.clock, str, self.kept.find, self.kept.names,
                               image=live.image)
            self.kept.restore(found)
            assert {name.id for name in self.kept.names()} == set(live.groups)
            assert set(found.groups) == {id_ for id_, group in live.groups.items()
                                         if group.members}
            for id_, group in live.groups.items():
                assert facts(found.find(id_)) == facts(group)

    return Followed


@pytest.fixture
def store(tmp_path):
    made = Store(str(tmp_path))
    yield made
    made.close()


@pytest.mark.parametrize("base", [consumer_world.World, streams_world.World, world.World])
@pytest.mark.parametrize("number", range(SEEDS))
def test_incremental_snapshots_match_the_state(
        store, random_source, monkeypatch, base, number):
    monkeypatch.setattr(target_assignment, "PAUSE_MS", 150)
    walk = followed(base, store)(random.Random(random_source.randrange(1 << 40)))
    for step in range(10 * STEPS):
        # Some histories save seldom: go on until enough snapshots were compared.
        if step >= STEPS and walk.checks >= CHECKS_MIN or not walk.step():
            break
    assert walk.checks >= CHECKS_MIN


@pytest.mark.parametrize("base", [consumer_world.World, streams_world.World, world.World])
def test_planted_unreported_change_is_found(store, monkeypatch, base):
    class Deaf(set):
        """Drops every third single change, and all combined changes."""

        count = 0

        def add(self, change):
            Deaf.count += 1
            if Deaf.count % 3:
                super().add(change)

        def update(self, changes):
            pass

    made = GroupShard.__init__

    def deaf(self, *arguments, **named):
        made(self, *arguments, **named)
        self.changed = Deaf()

    monkeypatch.setattr(GroupShard, "__init__", deaf)
    with pytest.raises(AssertionError):
        walk = followed(base, store)(random.Random(1))
        for _ in range(STEPS):
            walk.step()

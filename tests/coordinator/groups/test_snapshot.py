"""Groups in state.lmdb: restored groups equal the saved ones."""

import pytest

from pylog.coordinator.groups import offsets
from pylog.coordinator.groups.snapshot import ShardSnapshot
from pylog.metadata.image.state_store import Store
from tests.coordinator.groups.test_shard import Machine

TOPIC_ID = bytes(15) + b"\x05"


@pytest.fixture
def store(tmp_path):
    store = Store(str(tmp_path))
    yield store
    store.close()


@pytest.fixture
def kept(store):
    return ShardSnapshot(store, TOPIC_ID, 7)


def _keep(kept, machine, applied=(10, 0)) -> None:
    machine.settle()
    rows = [row for some in kept.rows(machine.groups, machine.groups.changed) for row in some]
    machine.groups.changed.clear()
    kept.write(rows, applied)


def test_snapshot_restores_members_and_offsets(kept):
    machine = Machine()
    member, = machine.stable("a")
    machine.commit(5, member, 1)
    machine.commit(6, member, 1, topic="\u00fc" * 40)
    _keep(kept, machine)
    found = kept.find("g")
    assert found.offsets == machine.group.offsets
    assert found.members[member].assignment == machine.group.members[member].assignment
    assert (found.generation, found.leader, found.protocol, found.state) == \
        (1, member, "range", "Stable")
    assert [group.id for group in kept.with_members()] == ["g"]
    assert kept.applied() == (10, 0)


def test_group_without_its_own_record_is_restored(kept):
    machine = Machine()
    machine.commit(5)
    _keep(kept, machine)
    found = kept.find("g")
    assert (found.offsets, found.state, found.protocol_type) == \
        (machine.group.offsets, "Empty", None)
    assert kept.names() == [("g", "", "classic")] and kept.with_members() == []
    assert kept.find("h") is None


def test_deleted_group_is_not_restored(kept):
    machine = Machine()
    machine.commit(5)
    _keep(kept, machine)
    machine.clock.ms += 10_000
    offsets.expire(machine.groups, machine.group)
    _keep(kept, machine)
    assert kept.find("g") is None and kept.names() == []


def test_entries_of_other_topics_are_ignored(kept, store):
    machine = Machine()
    machine.commit(5)
    _keep(kept, machine)
    other = ShardSnapshot(store, bytes(16), 7)
    assert other.applied() == (-1, -1)
    assert ShardSnapshot(store, TOPIC_ID, 8).find("g") is None
    other.clear()
    assert kept.find("g") is None and kept.applied() == (-1, -1)


@pytest.mark.parametrize("amid", ["a rebalance", "the leader's work"])
def test_group_saved_during_a_rebalance_rejoins(kept, amid):
    machine = Machine()
    first, second = machine.stable("a", "b")
    machine.groups.leave("g", [(second, None)])
    if amid == "a rebalance":
        assert machine.group.state == "PreparingRebalance"
    else:
        machine.join("again", first)
        assert machine.group.state == "CompletingRebalance"
    generation = machine.group.generation
    _keep(kept, machine)
    other = Machine()
    kept.restore(other.groups)
    other.groups.loaded()
    assert list(other.group.members) == [first]
    assert other.heartbeat(first, generation) == 27
    other.join("anew", first)
    assert other.answers["anew"].generation_id == generation + 1


def test_member_that_was_never_in_a_generation_is_not_stored(kept):
    machine = Machine()
    machine.stable("a")
    machine.join("new")
    assert len(machine.group.members) == 2
    _keep(kept, machine)
    assert len(kept.find("g").members) == 1


def test_first_record_of_a_group_has_no_members():
    machine = Machine()
    machine.join("a")
    (key, value), = machine.log
    other = Machine()
    other.groups.replay(key, value)
    assert other.group is None or not other.group.members

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


def _keep(kept, state_machine, applied=(10, 0)) -> None:
    state_machine.settle()
    rows = [row for some in kept.rows(state_machine.groups,
                                      state_machine.groups.changed) for row in some]
    state_machine.groups.changed.clear()
    kept.write(rows, applied)


def test_snapshot_restores_members_and_offsets(kept):
    state_machine = Machine()
    member, = state_machine.stable("a")
    state_machine.commit(5, member, 1)
    state_machine.commit(6, member, 1, topic="\u00fc" * 40)
    _keep(kept, state_machine)
    found = kept.find("g")
    assert found.offsets == state_machine.group.offsets
    assert found.members[member].assignment == state_machine.group.members[member].assignment
    assert (found.generation, found.leader, found.protocol, found.state) == \
        (1, member, "range", "Stable")
    assert [group.id for group in kept.with_members()] == ["g"]
    assert kept.applied() == (10, 0)


def test_group_without_its_own_record_is_restored(kept):
    state_machine = Machine()
    state_machine.commit(5)
    _keep(kept, state_machine)
    found = kept.find("g")
    assert (found.offsets, found.state, found.protocol_type) == \
        (state_machine.group.offsets, "Empty", None)
    assert kept.names() == [("g", "", "classic")] and kept.with_members() == []
    assert kept.find("h") is None


def test_deleted_group_is_not_restored(kept):
    state_machine = Machine()
    state_machine.commit(5)
    _keep(kept, state_machine)
    state_machine.clock.ms += 10_000
    offsets.expire(state_machine.groups, state_machine.group)
    _keep(kept, state_machine)
    assert kept.find("g") is None and kept.names() == []


def test_entries_of_other_topics_are_ignored(kept, store):
    state_machine = Machine()
    state_machine.commit(5)
    _keep(kept, state_machine)
    other = ShardSnapshot(store, bytes(16), 7)
    assert other.applied() == (-1, -1)
    assert ShardSnapshot(store, TOPIC_ID, 8).find("g") is None
    other.clear()
    assert kept.find("g") is None and kept.applied() == (-1, -1)


@pytest.mark.parametrize("amid", ["a rebalance", "the leader's work"])
def test_group_saved_during_a_rebalance_rejoins(kept, amid):
    state_machine = Machine()
    first, second = state_machine.stable("a", "b")
    state_machine.groups.leave("g", [(second, None)])
    if amid == "a rebalance":
        assert state_machine.group.state == "PreparingRebalance"
    else:
        state_machine.join("again", first)
        assert state_machine.group.state == "CompletingRebalance"
    generation = state_machine.group.generation
    _keep(kept, state_machine)
    other = Machine()
    kept.restore(other.groups)
    other.groups.loaded()
    assert list(other.group.members) == [first]
    assert other.heartbeat(first, generation) == 27
    other.join("anew", first)
    assert other.answers["anew"].generation_id == generation + 1


def test_member_that_was_never_in_a_generation_is_not_stored(kept):
    state_machine = Machine()
    state_machine.stable("a")
    state_machine.join("new")
    assert len(state_machine.group.members) == 2
    _keep(kept, state_machine)
    assert len(kept.find("g").members) == 1


def test_first_record_of_a_group_has_no_members():
    state_machine = Machine()
    state_machine.join("a")
    (key, value), = state_machine.log
    other = Machine()
    other.groups.replay(key, value)
    assert other.group is None or not other.group.members

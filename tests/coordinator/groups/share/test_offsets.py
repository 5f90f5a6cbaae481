"""Share group offsets: described, altered and deleted; and deletion of share groups, in the state
machine.
"""

from pylog.coordinator.groups.shard import GroupShard
from pylog.coordinator.groups.share import group as share_group
from pylog.coordinator.groups.share import offsets as share_offsets
from pylog.coordinator.groups.share.offsets import FINE
from pylog.protocol.errors import ErrorCode
from tests.coordinator.groups.share.test_heartbeat import LIMITS, T, World, topic
from tests.coordinator.world import Clock, loaded

U = b"u" * 16


def altered(world, places, names=None, group="g"):
    found = share_offsets.alter(world.state_machine, group, places, names or {T: "t"})
    world.settle()
    return found


def begun(world, *names, group="g"):
    found = share_offsets.begin_deletion(world.state_machine, group, names, world.topics)
    world.settle()
    return found


def replayed(records):
    """Return the groups that records produce."""
    state_machine = GroupShard(LIMITS, Clock(), lambda: "id")
    loaded(state_machine, records)
    return state_machine.shares


def left(world):
    """Return a group with an initialized topic and without members."""
    epoch = world.joined()
    world.beat("m", -1, None)
    return epoch


def test_altering_offsets_creates_a_missing_group():
    world = World()
    found = altered(world, {T: [1]})
    assert found.fault == FINE
    assert world.group().initializing[T].partitions == {1}
    assert not world.group().members
    assert found.state_epoch == world.group().epoch


def test_empty_alteration_creates_no_group():
    world = World()
    assert altered(world, {}).fault == FINE
    assert not world.state_machine.shares and not world.log


def test_offsets_of_another_group_type_are_not_altered():
    world = World()
    world.state_machine.find_or_make("g")
    assert altered(world, {T: [0]}).fault.error == ErrorCode.GROUP_ID_NOT_FOUND
    assert "g" not in world.state_machine.shares


def test_offsets_of_a_group_with_members_are_not_altered_or_deleted():
    world = World()
    world.joined()
    before = list(world.log)
    assert altered(world, {T: [0]}).fault.error == ErrorCode.NON_EMPTY_GROUP
    assert begun(world, "t").fault.error == ErrorCode.NON_EMPTY_GROUP
    assert share_offsets.begin_group_deletion(
        world.state_machine, "g", {T: topic()}).fault.error == ErrorCode.NON_EMPTY_GROUP
    assert share_offsets.delete_group(world.state_machine, "g") == ErrorCode.NON_EMPTY_GROUP
    world.settle()
    assert world.log == before


def test_a_deletion_is_recorded_before_and_after_the_states_go():
    world = World()
    left(world)
    found = begun(world, "t", "none")
    assert found.partitions == {T: [0, 1]}
    assert found.refused["none"].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert T in world.group().deleting and T not in world.group().initialized
    assert share_offsets.deleted(world.state_machine, "g", [T]) == ErrorCode.NONE
    assert not world.group().deleting
    assert begun(world, "t").refused["t"].text == share_offsets.NOTHING_TEXT


def test_interrupted_deletion_is_repeated():
    world = World()
    left(world)
    begun(world, "t")
    assert begun(world, "t").partitions == {T: [0, 1]}
    assert begun(world, "t").refused == {}


def test_half_done_deletion_restarts_with_the_next_member():
    world = World()
    left(world)
    begun(world, "t")
    world.beat("n")
    assert world.asked[0].partitions == {T: [0, 1]}
    assert not world.group().deleting


def test_group_deletion_removes_all_its_share_partitions():
    world = World()
    left(world)
    world.topics["u"] = topic("u", U, 1)
    altered(world, {U: [0]}, {U: "u"})
    begun(world, "t")
    found = share_offsets.begin_group_deletion(
        world.state_machine, "g", {T: topic(), U: world.topics["u"]})
    assert found.partitions == {T: [0, 1], U: [0]}
    assert share_offsets.delete_group(world.state_machine, "g") == ErrorCode.NONE
    world.settle()
    assert not world.state_machine.shares
    assert share_offsets.delete_group(world.state_machine, "g") == ErrorCode.GROUP_ID_NOT_FOUND


def test_the_records_of_a_deleted_group_leave_none():
    world = World()
    left(world)
    share_offsets.begin_group_deletion(world.state_machine, "g", {T: topic()})
    world.settle()
    half = list(world.log)
    share_offsets.delete_group(world.state_machine, "g")
    world.settle()
    assert replayed(half)["g"].deleting == {T: "t"}
    assert not replayed(world.log)


def test_state_after_every_step_equals_its_records():
    world = World()
    left(world)
    begun(world, "t")
    altered(world, {U: [3]}, {U: "u"})
    group = replayed(world.log)["g"]
    assert list(share_group.records_of(group)) == list(share_group.records_of(world.group()))

"""Share groups at their boundaries: recomputed assignments, initialization requests, metrics, and
rejections that change nothing.
"""

import pytest

from pylog.coordinator.groups.share import heartbeat as share_heartbeat
from pylog.coordinator.groups.share.heartbeat import ToInitialize
from pylog.protocol.errors import ErrorCode
from tests.coordinator.groups.share.test_heartbeat import OBEYED, T, World, topic

U = b"u" * 16
FENCED, FULL, UNKNOWN, TOO_LARGE = (
    ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_MAX_SIZE_REACHED, ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.MESSAGE_TOO_LARGE)


@pytest.fixture
def world():
    return World()


def group_of(world):
    return world.state_machine.shares["g"]


def taken(world) -> int:
    """Return the number of new records since the last call."""
    found, world.log = len(world.log), []
    return found


@pytest.mark.parametrize("epoch, error", [(0, 0), (3, 0), (2, 0), (1, FENCED), (4, FENCED)])
def test_last_two_member_epochs_and_a_join_are_accepted(world, epoch, error):
    assert world.joined() == 3
    assert group_of(world).members["m"].previous_epoch == 2
    taken(world)
    answer = world.beat(epoch=epoch, topics=None if epoch else ("t",))
    assert answer.error_code == error and bool(answer.error_message) == bool(error)
    assert taken(world) == 0


@pytest.mark.parametrize("most, error", [(1, FULL), (2, 0)])
def test_full_group_rejects_new_members(most, error):
    world = World(OBEYED._replace(members_max=most))
    world.beat("m")
    assert world.beat("n").error_code == error
    assert set(group_of(world).members) == ({"m"} if error else {"m", "n"})
    assert world.beat("m").error_code == 0


NAME = "n" * 249
NAMES = [NAME[:-6] + f"{number:06}"
         for number in range(share_heartbeat.BYTES_MAX // (len(NAME) + 2))]
LEFT = share_heartbeat.BYTES_MAX - len(NAMES) * (len(NAME) + 2) - len("m") - 2 - 2


@pytest.mark.parametrize("rack, error", [("r" * LEFT, 0), ("r" * (LEFT + 1), TOO_LARGE)])
def test_members_request_is_limited(world, rack, error):
    answer = world.beat(topics=NAMES, rack=rack)
    assert answer.error_code == error and bool(answer.error_message) == bool(error)
    assert ("g" in world.state_machine.shares) == (not error) and bool(taken(world)) == (not error)


def test_client_that_has_not_joined_is_not_a_member(world):
    world.joined()
    taken(world)
    assert world.beat("n", 1).error_code == UNKNOWN
    assert world.beat("n", -1).error_code == UNKNOWN
    assert taken(world) == 0 and world.state_machine.events["member_joined"] == 1


def test_events_are_counted_once_each(world):
    events = world.state_machine.events
    world.beat("m")
    assert (events["member_joined"], events["rebalance"]) == (1, 1)
    world.beat("m", 2, None)
    assert (events["member_joined"], events["rebalance"]) == (1, 1)
    assert world.beat("m", -1).member_epoch == -1
    assert (events["member_left"], events["rebalance"]) == (1, 2)
    world.beat("m")
    world.clock.ms += OBEYED.session_ms
    world.state_machine.tick()
    assert (events["member_expired"], events["member_left"]) == (1, 1)
    assert not group_of(world).members


@pytest.mark.parametrize("ms, members", [(OBEYED.session_ms - 1, 1), (OBEYED.session_ms, 0)])
def test_a_member_is_missed_at_the_end_of_its_session(world, ms, members):
    world.beat()
    world.clock.ms += ms
    world.state_machine.tick()
    assert len(group_of(world).members) == members


@pytest.mark.parametrize("ms, known", [(99, False), (100, True)])
def test_assignment_is_recomputed_after_the_interval(ms, known):
    world = World(OBEYED._replace(assignment_ms=100))
    world.clock.ms += 1
    world.beat("m")
    world.initialize()
    world.clock.ms += ms
    world.beat("m", group_of(world).members["m"].epoch, None)
    assert bool(group_of(world).target["m"]) == known
    assert (group_of(world).target_epoch == group_of(world).epoch) == known


def test_a_clock_that_went_back_holds_no_assignment_up():
    world = World(OBEYED._replace(assignment_ms=100))
    world.clock.ms += 50
    world.beat("m")
    world.initialize()
    world.clock.ms -= 1
    world.beat("m", group_of(world).members["m"].epoch, None)
    assert group_of(world).target["m"] == {T: (0, 1)}


@pytest.mark.parametrize("ms, count", [(999, 1), (1000, 2)])
def test_initialization_is_requested_again_after_a_while(world, ms, count):
    world.beat()
    assert world.asked == [ToInitialize("g", 2, {T: [0, 1]})]
    world.clock.ms += ms
    world.beat(epoch=2, topics=None)
    assert world.asked == [ToInitialize("g", 2, {T: [0, 1]})] * count


def test_only_new_partitions_of_a_grown_topic_are_initialized(world):
    world.joined()
    world.topics = {"t": topic(partitions=4)}
    world.beat(epoch=3, topics=None)
    assert [row.partitions for row in world.asked] == [{T: [2, 3]}]
    assert group_of(world).initializing[T].partitions == {2, 3}
    assert share_heartbeat.initialized(world.state_machine, "g", {T: [2]}, {T: "t"}) == 0
    assert group_of(world).initializing[T].partitions == {3}
    assert group_of(world).initialized[T].partitions == {0, 1, 2}
    assert share_heartbeat.uninitialized(world.state_machine, "g", {T: [3]}) == 0
    assert group_of(world).initializing == {}
    assert group_of(world).initialized[T].partitions == {0, 1, 2}


def test_partition_initialized_again_is_no_longer_being_deleted(world):
    world.beat()
    group = group_of(world)
    group.initializing, group.deleting = {}, {T: "t", U: "u"}
    world.beat(epoch=2, topics=None)
    assert group.deleting == {U: "u"}


def test_topic_deleted_during_initialization_is_removed(world):
    world.beat()
    taken(world)
    assert share_heartbeat.initialized(world.state_machine, "g", {T: [0, 1]}, {}) == 0
    world.settle()
    assert group_of(world).initializing == group_of(world).initialized == {}
    assert taken(world) == 1


def test_deleted_group_gets_no_initialization_result(world):
    gone = ErrorCode.GROUP_ID_NOT_FOUND
    assert share_heartbeat.initialized(world.state_machine, "g", {T: [0]}, {T: "t"}) == gone
    assert share_heartbeat.uninitialized(world.state_machine, "g", {T: [0]}) == gone
    share_heartbeat.is_due(world.state_machine, "g", "m")
    assert not world.state_machine.records and not world.state_machine.shares


def test_cleanup_removes_only_deleted_topics(world):
    world.joined()
    group = group_of(world)
    group.deleting = {U: "u"}
    share_heartbeat.forget_topics(world.state_machine, {T})
    assert (group.deleting, set(group.initialized)) == ({}, {T})
    assert len(world.state_machine.records) == world.state_machine.cleanups == 1
    world.settle()
    share_heartbeat.forget_topics(world.state_machine, {T})
    assert not world.state_machine.records


# ---- subscriptions ------------------------------------------------------------------------------

def test_changed_fields_are_written_and_repeated_ones_are_not(world):
    world.joined()
    taken(world)
    world.beat(epoch=3, topics=("t",))
    assert taken(world) == 0
    world.beat(epoch=3, topics=None, rack="r")
    assert taken(world) == 1 and group_of(world).members["m"].rack == "r"
    world.beat(epoch=3, topics=None)
    assert group_of(world).members["m"].rack == "r" and taken(world) == 0


def test_assignment_is_sent_after_join_subscription_or_change(world):
    world.beat()
    world.initialize()
    told = [world.beat(epoch=epoch, topics=topics).assignment is not None
            for epoch, topics in ((2, None), (3, None), (3, ("t",)), (0, ("t",)))]
    assert told == [True, False, True, True]


def test_other_topics_are_a_new_epoch_and_only_they_are_assigned(world):
    world.topics = {"t": topic(), "u": topic("u", U, 1)}
    epoch = world.joined()
    answer = world.beat(epoch=epoch, topics=("u",))
    assert answer.member_epoch == epoch + 1 and answer.assignment.topic_partitions == []
    assert share_heartbeat.initialized(world.state_machine, "g", {U: [0]}, {U: "u"}) == 0
    answer = world.beat(epoch=epoch + 1, topics=None)
    assert [(row.topic_id, row.partitions) for row in answer.assignment.topic_partitions] \
        == [(U, [0])]


@pytest.mark.parametrize("topics, moves", [
    ({"t": topic()}, 0), ({"t": topic(partitions=3)}, 1), ({"t": topic(id_=U)}, 1), ({}, 1),
    ({"t": topic(), "u": topic("u", U)}, 0)])
def test_only_a_change_of_its_topics_moves_a_group(world, topics, moves):
    world.joined()
    before = group_of(world).epoch
    world.topics = topics
    world.beat(epoch=3, topics=None)
    assert group_of(world).epoch == before + moves


def test_subscription_to_a_missing_topic_waits_for_it(world):
    world.topics = {}
    assert world.beat().assignment.topic_partitions == []
    assert world.asked == []
    world.topics = {"t": topic()}
    world.beat(epoch=2, topics=None)
    assert [row.partitions for row in world.asked] == [{T: [0, 1]}]


# ---- describe and list --------------------------------------------------------------------------

def test_groups_are_listed_by_state_and_type(world):
    world.beat()
    world.beat(group="h")
    world.beat(group="h", epoch=-1)

    def listed(states=(), types=()):
        return [row.group_id for row in share_heartbeat.listed(
            world.state_machine, set(states), set(types))]

    assert listed() == listed(types=["share"]) == listed(("stable", "empty")) == ["g", "h"]
    assert listed(["stable"]) == ["g"] and listed(["empty"], ["share", "classic"]) == ["h"]
    assert listed(types=["classic"]) == listed(["dead"]) == []


def test_description_omits_deleted_topics(world):
    world.joined()
    row = share_heartbeat.described(world.state_machine, "g", {T: topic()})
    member, = row.members
    assert (row.group_state, row.group_epoch, row.assignment_epoch) == ("Stable", 3, 3)
    assert [cell.topic_name for cell in member.assignment.topic_partitions] == ["t"]
    row = share_heartbeat.described(world.state_machine, "g", {})
    assert row.members[0].assignment.topic_partitions == []
    assert share_heartbeat.described(world.state_machine, "h", {}).error_code \
        == ErrorCode.GROUP_ID_NOT_FOUND

"""Rejected ConsumerGroupHeartbeats, at each boundary; they change nothing."""

import pytest

from pylog.coordinator.groups.consumer import (
    group as consumer_group,
)
from pylog.coordinator.groups.consumer import (
    heartbeat as consumer_heartbeat,
)
from pylog.coordinator.groups.state.group_config import ConsumerLimits
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode
from tests.coordinator.groups.consumer.test_heartbeat import CLIENT, SESSION_MS, Machine, T, U
from tests.coordinator.world import LIMITS

REQUEST = messages.ConsumerGroupHeartbeatRequest
INVALID, FENCED = ErrorCode.INVALID_REQUEST, ErrorCode.FENCED_MEMBER_EPOCH
NO_GROUP, UNKNOWN = ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNKNOWN_MEMBER_ID


def rows(topic, *partitions):
    return [REQUEST.TopicPartitions(topic_id=topic.id, partitions=list(partitions))]


def ask(state_machine, version=1, **fields):
    """Send a join of "m" with these fields changed."""
    fields = {"group_id": "g", "member_id": "m", "member_epoch": 0, "rebalance_timeout_ms": 1000,
              "topic_partitions": [], "subscribed_topic_names": ["t"], **fields}
    return consumer_heartbeat.heartbeat(state_machine.groups, REQUEST(**fields), version, CLIENT)


@pytest.fixture
def state_machine():
    return Machine()


@pytest.mark.parametrize(("fields", "code", "text"), [
    ({"member_id": ""}, INVALID, "a member id is needed"),
    ({"member_id": "", "version": 0, "member_epoch": 1}, INVALID, "a member id is needed"),
    ({"member_id": "", "version": 0, "member_epoch": -1}, INVALID, "a member id is needed"),
    ({"member_id": "", "version": 0}, 0, None),
    ({"group_id": ""}, INVALID, "the group id is empty"),
    ({"instance_id": ""}, INVALID, "the instance id is empty"),
    ({"rack_id": ""}, INVALID, "the rack id is empty"),
    ({"rebalance_timeout_ms": -1}, INVALID, "a joining member must set a rebalance timeout"),
    ({"topic_partitions": None}, INVALID,
     "a joining member must send an empty list of owned partitions"),
    ({"topic_partitions": rows(T, 0)}, INVALID,
     "a joining member must send an empty list of owned partitions"),
    ({"subscribed_topic_names": None}, INVALID,
     "a joining member must set topics or a regular expression"),
    ({"subscribed_topic_names": None, "subscribed_topic_regex": "t"}, 0, None),
    ({"subscribed_topic_names": []}, 0, None),
    ({"member_epoch": -2}, INVALID, "only static members can leave temporarily"),
    ({"member_epoch": -3}, INVALID, "the member epoch is invalid"),
    ({"member_epoch": -3, "instance_id": "i"}, INVALID, "the member epoch is invalid"),
    ({"server_assignor": "other"}, ErrorCode.UNSUPPORTED_ASSIGNOR,
     "available assignors: uniform, range"),
    ({"server_assignor": "range"}, 0, None), ({}, 0, None)])
def test_rejected_heartbeat_creates_no_group(state_machine, fields, code, text):
    answer = ask(state_machine, **fields)
    assert (answer.error_code, answer.error_message) == (code, text)
    assert ("g" in state_machine.groups.groups) == (code == 0)
    assert bool(state_machine.groups.records) == (code == 0)


@pytest.mark.parametrize(("last", "code"), [(285, 0), (286, ErrorCode.MESSAGE_TOO_LARGE)])
def test_members_request_is_limited(state_machine, last, code):
    """512 KiB, each string with a length of two bytes: 524 names of 1,000, "m" and the rest."""
    names = [f"{number:0998}" for number in range(524)] + ["x" * (last - 2)]
    assert ask(state_machine, subscribed_topic_names=names).error_code == code


@pytest.mark.parametrize(("count", "code"), [
    (100_000, UNKNOWN), (100_001, ErrorCode.MESSAGE_TOO_LARGE)])
def test_owned_partitions_are_limited(state_machine, count, code):
    ask(state_machine)
    assert ask(state_machine, member_id="o", member_epoch=1,
               topic_partitions=rows(T, *range(count))).error_code == code


def test_group_being_deleted_rejects_members(state_machine):
    state_machine.groups.deleting.add("g")
    assert ask(state_machine).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


@pytest.mark.parametrize("epoch", [1, -1])
def test_only_a_joining_member_creates_a_group(state_machine, epoch):
    answer = ask(state_machine, member_epoch=epoch)
    assert (answer.error_code, answer.error_message) == (
        NO_GROUP, "there is no such consumer group")


@pytest.mark.parametrize("epoch", [0, 1, -1])
def test_a_share_groups_name_is_not_a_consumer_groups(state_machine, epoch):
    state_machine.groups.shares["g"] = None
    assert ask(state_machine, member_epoch=epoch).error_code == NO_GROUP


@pytest.mark.parametrize(("member_id", "epoch", "code"), [
    ("other", 2, UNKNOWN), ("other", -1, UNKNOWN), ("m", 2, 0), ("m", -1, 0)])
def test_unknown_member_must_join_first(state_machine, member_id, epoch, code):
    ask(state_machine)
    assert ask(state_machine, member_id=member_id, member_epoch=epoch,
               topic_partitions=None).error_code == code


@pytest.mark.parametrize(("most", "code"), [(1, ErrorCode.GROUP_MAX_SIZE_REACHED), (2, 0)])
def test_full_group_rejects_new_members(most, code):
    state_machine = Machine(LIMITS._replace(consumer=ConsumerLimits(members_max=most)))
    ask(state_machine)
    answer = ask(state_machine, member_id="o")
    assert answer.error_code == code
    assert answer.error_message == ("the group has 1 member" if code else None)
    assert ask(state_machine).error_code == 0


@pytest.mark.parametrize(("epoch", "owned", "code"), [
    (4, None, FENCED), (3, None, 0), (2, None, FENCED), (2, (0, 1), 0), (2, (0, 1, 2), FENCED),
    (2, (), 0), (1, (0, 1), FENCED)])
def test_previous_epoch_is_accepted_with_assigned_partitions(
        state_machine, epoch, owned, code):
    """The response to the previous request may have been lost."""
    ask(state_machine)
    state_machine.join("o")
    # "m" revokes the other member's share, and is in epoch 3 with two partitions.
    kept = sorted(state_machine.group.targets["m"][T.id])
    ask(state_machine, member_epoch=2, topic_partitions=rows(T, *kept))
    member = state_machine.group.members["m"]
    assert (member.epoch, member.previous_epoch, sorted(member.assigned[T.id])) == (3, 2, kept)
    others = sorted(set(range(4)) - set(kept))
    held = None if owned is None else rows(T, *[[*kept, *others][at] for at in owned])
    answer = ask(state_machine, member_epoch=epoch, topic_partitions=held)
    assert answer.error_code == code
    if code:
        assert answer.error_message == f"the member is in epoch 3, not {epoch}: join again"


def test_instance_id_is_used_by_one_member_until_it_leaves_temporarily(state_machine):
    ask(state_machine, instance_id="i")
    refused = ask(state_machine, member_id="o", instance_id="i")
    assert refused.error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    assert refused.error_message == "m still owns the instance id"
    assert ask(state_machine, instance_id="i", member_epoch=-2).member_epoch == -2
    assert ask(state_machine, member_id="o", instance_id="i").error_code == 0
    assert set(state_machine.group.members) == {"o"}
    assert {("g", ("m",)), ("g", ("o",))} <= state_machine.groups.changed
    for epoch, member_id, instance_id, code in (
            (3, "m", "i", ErrorCode.FENCED_INSTANCE_ID), (3, "o", "j", UNKNOWN),
            (-1, "m", "i", ErrorCode.FENCED_INSTANCE_ID), (-2, "o", "j", UNKNOWN)):
        assert ask(state_machine, member_epoch=epoch, member_id=member_id, instance_id=instance_id,
                   topic_partitions=None).error_code == code


def test_absent_static_member_keeps_its_partitions_until_its_session_ends(state_machine):
    ask(state_machine, instance_id="i")
    ask(state_machine, instance_id="i", member_epoch=-2)
    assert state_machine.group.members["m"].assigned == {T.id: dict.fromkeys(range(4), 0)}
    state_machine.run(SESSION_MS - 1)
    assert "m" in state_machine.group.members
    state_machine.run(1)
    assert "m" not in state_machine.group.members


def test_pending_revocation_gets_its_full_timeout_after_a_restart(state_machine):
    ask(state_machine)
    state_machine.join("o")
    ask(state_machine, member_epoch=2, topic_partitions=rows(T, *range(4)))
    assert state_machine.group.members["m"].state == 1
    kept = [(key, value) for key, value in state_machine.groups.records]
    other = Machine(groups=None)
    for key, value in kept:
        other.groups.replay(key, value)
    other.groups.loaded()
    other.run(999)
    assert "m" in other.group.members
    other.run(1)
    assert "m" not in other.group.members


def test_complete_heartbeat_gets_a_complete_response(state_machine):
    ask(state_machine)
    said = {"member_epoch": 2, "topic_partitions": rows(T, *range(4))}
    assert ask(state_machine, **said).assignment is not None
    for less in ({"rebalance_timeout_ms": -1}, {"topic_partitions": None},
                 {"subscribed_topic_names": None}):
        assert ask(state_machine, **{**said, **less}).assignment is None
    assert ask(state_machine, **said, subscribed_topic_regex="").assignment is not None


def test_only_changes_are_sent(state_machine):
    ask(state_machine)
    answer = ask(state_machine, member_epoch=2, subscribed_topic_names=["u"])
    assert state_machine.group.members["m"].topics == {"u"} and answer.error_code == 0
    ask(state_machine, member_epoch=2, topic_partitions=[], subscribed_topic_names=None)
    member = state_machine.group.members["m"]
    assert set(member.assigned) == {U.id} and member.rebalance_ms == 1000


def test_waiting_member_writes_no_records(state_machine):
    ask(state_machine)
    state_machine.join("o")
    state_machine.beat("o", 3)
    state_machine.groups.records.clear()
    state_machine.groups.changed.clear()
    for owned in ([], None):
        assert ask(state_machine, member_id="o", member_epoch=3,
                   topic_partitions=owned).error_code == 0
    assert state_machine.group.members["o"].state != 0
    assert state_machine.groups.records == [] and not state_machine.groups.changed


@pytest.mark.parametrize(("owned", "code"), [(None, FENCED), ((0,), FENCED), ((), 0)])
def test_member_in_an_unknown_state_rejoins_unless_it_owns_nothing(
        state_machine, owned, code):
    ask(state_machine)
    member = state_machine.group.members["m"].copy()
    member.state = consumer_group.UNKNOWN
    state_machine.group.put(member)
    answer = ask(state_machine, member_epoch=2, topic_partitions=None if owned is None
                 else rows(T, *owned) if owned else [])
    assert answer.error_code == code
    assert answer.error_message == ("the member's state is unknown" if code else None)

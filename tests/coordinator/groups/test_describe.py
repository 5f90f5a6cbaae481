"""Descriptions of consumer groups: members and their assignments."""

import pytest

from pylog.coordinator.groups import describe as group_describe
from pylog.coordinator.groups.consumer.group import ConsumerGroup
from tests.coordinator.groups.consumer.test_classic_members import Mixed
from tests.coordinator.groups.consumer.test_heartbeat import Machine, T

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1     # Kafka's ConsumerGroupDescribe, version 1.
MANY = 100


def described(state_machine, members_max=MANY, group_id="g"):
    return list(group_describe.described_consumers(state_machine.groups, group_id, members_max))


def test_members_of_both_protocols_are_distinguished():
    mixed = Mixed()
    old = mixed.mixed_group()
    group, = described(mixed)
    assert {member.member_id: member.member_type for member in group.members} == {
        "new": CONSUMER_MEMBER, old: CLASSIC_MEMBER}


def test_member_with_pending_revocations_is_described_with_them():
    state_machine = Machine()
    state_machine.join("a")
    state_machine.join("b")
    state_machine.beat("a", 2)
    group, = described(state_machine)
    assert (group.group_state, group.group_epoch, group.assignor_name) == (
        state_machine.group.state, state_machine.group.epoch, "uniform")
    found = {member.member_id: member for member in group.members}
    held, = found["a"].assignment.topic_partitions
    assert (held.topic_id, held.topic_name, held.partitions) == (T.id, "t", [0, 1, 2, 3])
    wanted, = found["a"].target_assignment.topic_partitions
    assert len(wanted.partitions) == 2 and found["b"].assignment.topic_partitions == []


@pytest.mark.parametrize(("members_max", "expected"), [
    (1, [1, 1, 1]), (2, [2, 1]), (3, [3]), (4, [3])])
def test_description_is_split_by_member_count(members_max, expected):
    state_machine = Machine()
    for member_id in "abc":
        state_machine.join(member_id)
    parts = described(state_machine, members_max)
    assert [len(part.members) for part in parts] == expected
    assert [member.member_id for part in parts for member in part.members] == list("abc")
    assert {part.group_id for part in parts} == {"g"}


def test_group_without_members_is_described_once():
    state_machine = Machine()
    state_machine.join("a")
    state_machine.beat("a", -1)
    assert isinstance(state_machine.group, ConsumerGroup)
    group, = described(state_machine)
    assert (group.group_state, group.members) == ("Empty", [])


def test_description_of_another_group_type_reports_no_consumer_group():
    mixed = Mixed()
    mixed.classic_group()
    for group_id in ("g", "none"):
        answer, = described(mixed, group_id=group_id)
        assert (answer.group_id, answer.error_code, answer.error_message) == (
            group_id, 69, "there is no such consumer group")

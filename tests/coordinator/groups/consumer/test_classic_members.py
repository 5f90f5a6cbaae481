"""Classic members in a consumer group, and groups that change their protocol (KIP-848's migration):
without a broker, on a virtual clock.
"""

import pytest

from pylog.coordinator.groups.classic.protocol import SentResponse
from pylog.coordinator.groups.consumer.group import ConsumerGroup
from pylog.coordinator.groups.state import consumer_protocol
from pylog.coordinator.groups.state.classic_group import Group
from pylog.coordinator.groups.state.group_config import ConsumerLimits
from pylog.protocol import codec, messages
from pylog.protocol.errors import ErrorCode, ProtocolError
from tests.coordinator.groups.consumer.test_heartbeat import IMAGE, Machine, T, U
from tests.coordinator.world import LIMITS

SUBSCRIPTION = messages.ConsumerProtocolSubscription
ASSIGNMENT = messages.ConsumerProtocolAssignment
JOIN = messages.JoinGroupRequest
SESSION_MS, REBALANCE_MS = 10_000, 3_000


def subscription(*topics, owned=(), version=3, rack_id=None, user_data=None) -> bytes:
    made = SUBSCRIPTION(topics=list(topics), user_data=user_data, owned_partitions=[
        SUBSCRIPTION.TopicPartition(topic=topic, partitions=list(partitions))
        for topic, partitions in owned])
    if rack_id is not None:
        made.rack_id = rack_id
    return codec.program("ConsumerProtocolSubscription", version).encode(
        made, version.to_bytes(2, "big"))


def assignment(*rows, user_data=None) -> bytes:
    made = ASSIGNMENT(user_data=user_data, assigned_partitions=[
        ASSIGNMENT.TopicPartition(topic=topic, partitions=list(partitions))
        for topic, partitions in rows])
    return codec.program("ConsumerProtocolAssignment", 1).encode(made, b"\0\1")


def partitions_of(data: bytes) -> dict:
    return {row.topic: row.partitions
            for row in consumer_protocol.assignment(data).assigned_partitions}


class Mixed(Machine):
    """Sends requests of both protocols to one group."""

    def __init__(self, upgrade=True, downgrade=True, members_max=100, classic_max=100):
        super().__init__(LIMITS._replace(members_max=classic_max, consumer=ConsumerLimits(
            members_max=members_max, may_upgrade=upgrade, may_downgrade=downgrade)))
        self._sent = []

    @property
    def sent(self) -> list:
        """Return the responses that no caller has taken; none waits for a flush."""
        replies, self.groups.responses = self.groups.responses, []
        for token, message in replies:
            if isinstance(token, SentResponse):
                token.respond(message)
            else:
                self._sent.append(message)
        return self._sent

    def call(self, request, *more):
        self.groups.join(request, *more, "c", "/h", "token")
        return self.sent.pop() if self.sent else None

    def join_classic(self, member_id="", topics=("t",), version=9, metadata=None, owned=(),
                     names=("range",), **fields):
        fields = {"protocol_type": "consumer", "session_timeout_ms": SESSION_MS,
                  "rebalance_timeout_ms": REBALANCE_MS, **fields}
        data = subscription(*topics, owned=owned) if metadata is None else metadata
        answer = self.call(JOIN(
            group_id="g", member_id=member_id, protocols=[
                JOIN.JoinGroupRequestProtocol(name=name, metadata=data) for name in names],
            **fields), version)
        self.check()
        return answer

    def sync(self, member_id, generation, assignments=(), **fields):
        request = messages.SyncGroupRequest
        fields = {"protocol_type": "consumer", "protocol_name": "range", **fields}
        self.groups.sync(request(
            group_id="g", member_id=member_id, generation_id=generation, assignments=[
                request.SyncGroupRequestAssignment(member_id=id_, assignment=data)
                for id_, data in assignments], **fields), "token")
        self.check()
        return self.sent.pop() if self.sent else None

    def beat_classic(self, member_id, generation, instance_id=None):
        found = self.groups.heartbeat(messages.HeartbeatRequest(
            group_id="g", member_id=member_id, generation_id=generation,
            group_instance_id=instance_id))
        self.check()
        return found

    def check(self):
        group = self.groups.groups.get("g")
        if isinstance(group, ConsumerGroup):
            group.check()

    def classic_group(self, *assigned, **fields):
        """Create a stable classic group of one member and return its id. assigned: rows of its
        assignment.
        """
        member_id = self.join_classic(**fields).member_id
        self.join_classic(member_id, **fields)
        self.run(LIMITS.initial_delay_ms)
        answer = self.sent.pop()
        data = assignment(*(assigned or [("t", range(4))]))
        assert self.sync(member_id, answer.generation_id, [(member_id, data)]).error_code == 0
        return member_id

    def mixed_group(self):
        """Create a consumer group with a member "new" and a classic one; return the classic
        member's id.
        """
        self.join("new")
        answer = self.join_classic("old", version=3)
        assert answer.error_code == 0
        self.generation = answer.generation_id
        return answer.member_id

    def settled(self):
        """Like mixed_group(), after both members have their half of the partitions."""
        member_id = self.mixed_group()
        kept = self.group.targets["new"][T.id]
        answer = self.beat("new", 2, topic_partitions=rows(T, *kept))
        assert self.join_classic(member_id).error_code == 0
        self.beat("new", answer.member_epoch)
        self.generation = self.group.members[member_id].epoch
        assert self.sync(member_id, self.generation).error_code == 0
        return member_id


def rows(topic, *partitions):
    return [messages.ConsumerGroupHeartbeatRequest.TopicPartitions(
        topic_id=topic.id, partitions=list(partitions))]


@pytest.fixture
def mixed():
    return Mixed()


# A classic group becomes a consumer group.

def test_consumer_protocol_member_upgrades_a_classic_group(mixed):
    """The migration changes no member's partitions."""
    old = mixed.classic_group(("t", (0, 1, 2, 3)), metadata=subscription("t", rack_id="r"))
    generation = mixed.group.generation
    mixed.groups.records.clear()
    assert mixed.join("new").error_code == 0
    group = mixed.group
    assert isinstance(group, ConsumerGroup) and set(group.members) == {old, "new"}
    member = group.members[old]
    assert (member.epoch, member.previous_epoch) == (generation, generation)
    assert member.assigned == {T.id: dict.fromkeys(range(4), generation)}
    assert (member.topics, member.rack_id, member.rebalance_ms) == ({"t"}, "r", REBALANCE_MS)
    assert (member.client_id, member.client_host) == ("c", "/h")
    assert member.classic.session_ms == SESSION_MS and group.epoch == generation + 1
    assert mixed.groups.records[0][1] is None, "the classic group's record is gone first"
    assert mixed.beat_classic(old, generation) == ErrorCode.REBALANCE_IN_PROGRESS


def test_empty_classic_group_becomes_a_consumer_group_under_any_policy():
    mixed = Mixed(upgrade=False)
    old = mixed.classic_group()
    mixed.groups.leave("g", [(old, None)])
    assert mixed.join("new").error_code == 0 and isinstance(mixed.group, ConsumerGroup)


@pytest.mark.parametrize(("limits", "fields", "assigned", "reason"), [
    ({"upgrade": False}, {}, (), "the migration policy does not allow it"),
    ({}, {"protocol_type": "connect"}, (), "its members are not consumers"),
    ({"members_max": 0}, {}, (), "it has too many members"),
    ({}, {"metadata": b"\0"}, (), "its members' metadata cannot be parsed"),
    ({}, {"metadata": b"\xff\xff"}, (), "its members' metadata cannot be parsed")])
def test_inconvertible_group_reports_the_reason_and_stays_classic(limits, fields, assigned, reason):
    mixed = Mixed(**limits)
    old = mixed.join_classic(**fields).member_id
    mixed.join_classic(old, **fields)
    mixed.run(LIMITS.initial_delay_ms)
    generation = mixed.sent.pop().generation_id
    mixed.sync(old, generation, [(old, b"")], protocol_type=None)
    mixed.groups.records.clear()
    answer = mixed.join("new")
    assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert f"the classic group g cannot become a consumer group: {reason}" in answer.error_message
    assert isinstance(mixed.group, Group) and not mixed.groups.records
    assert mixed.group.generation == generation


def test_full_classic_group_is_upgraded_and_rejects_new_members():
    mixed = Mixed(members_max=1)
    mixed.classic_group()
    assert mixed.join("new").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_group_with_assignor_user_data_is_not_upgraded(mixed):
    old = mixed.join_classic().member_id
    mixed.join_classic(old)
    mixed.run(LIMITS.initial_delay_ms)
    generation = mixed.sent.pop().generation_id
    mixed.sync(old, generation, [(old, assignment(("t", [0]), user_data=b"x"))])
    answer = mixed.join("new")
    assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert "stores data in the assignment" in answer.error_message


def test_group_with_a_twice_assigned_partition_is_not_upgraded(mixed):
    for name in ("x", "y"):
        mixed.join_classic(group_instance_id=name)
    mixed.run(LIMITS.initial_delay_ms)
    mixed.run(LIMITS.initial_delay_ms)
    answers = list(mixed.sent)
    mixed.sent.clear()
    given = [(answer.member_id, assignment(("t", [0, 1]))) for answer in answers]
    mixed.sync("x-", answers[0].generation_id, given, group_instance_id="x")
    mixed.sent.clear()
    answer = mixed.join("new")
    assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert "two members have the same partition" in answer.error_message


def test_unreadable_second_protocol_has_no_effect(mixed):
    mixed.join("new")
    rows = [JOIN.JoinGroupRequestProtocol(name="range", metadata=subscription("t")),
            JOIN.JoinGroupRequestProtocol(name="odd", metadata=b"\xff")]
    old = mixed.call(JOIN(group_id="g", member_id="", protocol_type="consumer",
                          session_timeout_ms=SESSION_MS, rebalance_timeout_ms=REBALANCE_MS,
                          protocols=rows), 3)
    others = [JOIN.JoinGroupRequestProtocol(name="odd", metadata=subscription("t"))]
    other = mixed.call(JOIN(group_id="g", member_id="", protocol_type="consumer",
                            session_timeout_ms=SESSION_MS, rebalance_timeout_ms=REBALANCE_MS,
                            protocols=others), 3)
    assert (old.error_code, other.error_code) == (0, 0)
    mixed.beat("new", -1)
    assert isinstance(mixed.group, Group) and set(mixed.group.members) == {
        old.member_id, other.member_id}


# A consumer group becomes a classic group.

def test_group_is_downgraded_when_the_last_consumer_member_leaves(mixed):
    old = mixed.settled()
    epoch, held = mixed.group.epoch, sorted(mixed.group.members[old].assigned[T.id])
    mixed.groups.records.clear()
    mixed.beat("new", -1)
    group = mixed.group
    assert isinstance(group, Group) and list(group.members) == [old]
    assert group.generation == epoch and group.state == "PreparingRebalance"
    member = group.members[old]
    assert len(held) == 2 and partitions_of(member.assignment) == {"t": held}
    assert (member.session_ms, member.rebalance_ms) == (SESSION_MS, REBALANCE_MS)
    assert mixed.beat_classic(old, epoch) == ErrorCode.REBALANCE_IN_PROGRESS
    assert mixed.groups.records[-1][1] is not None and mixed.groups.records[0][1] is None


def test_group_is_not_downgraded_if_disabled():
    mixed = Mixed(downgrade=False)
    old = mixed.settled()
    mixed.beat("new", -1)
    assert isinstance(mixed.group, ConsumerGroup) and list(mixed.group.members) == [old]


@pytest.mark.parametrize(("classic_max", "kind"), [(1, Group), (0, ConsumerGroup)])
def test_group_is_downgraded_if_the_classic_size_limit_allows(classic_max, kind):
    mixed = Mixed(classic_max=classic_max)
    mixed.settled()
    mixed.beat("new", -1)
    assert isinstance(mixed.group, kind)


def test_empty_group_keeps_its_type(mixed):
    mixed.join("new")
    mixed.beat("new", -1)
    assert isinstance(mixed.group, ConsumerGroup)


def test_group_without_members_becomes_classic_for_a_classic_member(mixed):
    mixed.join("new")
    mixed.beat("new", -1)
    answer = mixed.join_classic("m")
    assert (answer.error_code, answer.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "m")
    assert isinstance(mixed.group, ConsumerGroup)
    answer = mixed.join_classic()
    assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED and isinstance(mixed.group, Group)


def test_static_member_returning_with_the_classic_protocol_downgrades_the_group(mixed):
    """The last member of the new protocol is replaced by a classic one, which keeps the partitions.
    """
    mixed.join("new", instance_id="i")
    answer = mixed.join_classic(group_instance_id="i")
    assert answer.error_code == 0 and answer.generation_id == 2
    assert isinstance(mixed.group, Group) and list(mixed.group.members) == [answer.member_id]
    assert mixed.group.state == "Stable"
    found = mixed.sync(answer.member_id, 2, group_instance_id="i")
    assert partitions_of(found.assignment) == {"t": [0, 1, 2, 3]}


def test_static_member_returning_with_other_topics_triggers_a_rebalance(mixed):
    mixed.join("new", instance_id="i")
    mixed.join_classic(group_instance_id="i", topics=("u",))
    assert isinstance(mixed.group, Group) and mixed.group.state == "PreparingRebalance"


# JoinGroup.

def test_joining_classic_member_gets_its_epoch_and_is_not_leader(mixed):
    mixed.join("new")
    first = mixed.join_classic()
    assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED and len(first.member_id) == 36
    assert set(mixed.group.members) == {"new"}
    answer = mixed.join_classic(first.member_id, names=("range", "sticky"))
    assert (answer.error_code, answer.member_id) == (0, first.member_id)
    assert (answer.generation_id, answer.protocol_type, answer.protocol_name) == (
        3, "consumer", "range")
    assert answer.leader == "" and answer.members == []


@pytest.mark.parametrize(("version", "instance_id", "code"), [
    (3, None, 0), (4, None, ErrorCode.MEMBER_ID_REQUIRED), (9, "i", 0)])
def test_only_clients_that_know_of_it_have_to_come_with_an_id(mixed, version, instance_id, code):
    """KIP-394 starts with version 4; a static instance needs no second JoinGroup."""
    mixed.join("new")
    assert mixed.join_classic(version=version, group_instance_id=instance_id).error_code == code


@pytest.mark.parametrize(("policy", "code"), [
    ({}, 0), ({"downgrade": False}, 0), ({"upgrade": False}, 0),
    ({"upgrade": False, "downgrade": False}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)])
def test_disabled_migration_policy_rejects_classic_members(policy, code):
    mixed = Mixed(**policy)
    mixed.join("new")
    assert mixed.join_classic(version=3).error_code == code


@pytest.mark.parametrize("fields", [
    {"protocol_type": "connect"}, {"names": ()}, {"metadata": b"\0"}, {"metadata": b""},
    {"metadata": b"\xff\xff"}])
def test_non_consumer_protocol_is_rejected(mixed, fields):
    mixed.join("new")
    answer = mixed.join_classic("m", version=3, **fields)
    assert (answer.error_code, answer.member_id) == (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "m")
    assert set(mixed.group.members) == {"new"}


def test_unshared_classic_protocol_is_rejected(mixed):
    mixed.join("new")
    assert mixed.join_classic("a", version=3, names=("range", "sticky")).error_code == 0
    assert mixed.join_classic("b", version=3, names=("other",)).error_code \
        == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert mixed.join_classic("b", version=3, names=("other", "sticky")).error_code == 0


@pytest.mark.parametrize(("most", "code"), [(2, 0), (1, ErrorCode.GROUP_MAX_SIZE_REACHED)])
def test_group_accepts_members_up_to_its_limit(most, code):
    mixed = Mixed(members_max=most)
    mixed.join("new")
    assert mixed.join_classic("m", version=3).error_code == code


def test_omitted_fields_stay_unchanged(mixed):
    mixed.join("new")
    mixed.join_classic("m", version=3, metadata=subscription("t", rack_id="r"))
    mixed.join_classic("m", version=3, topics=("u",), rebalance_timeout_ms=-1)
    member = mixed.group.members["m"]
    assert (member.topics, member.rack_id, member.rebalance_ms) == ({"u"}, "r", REBALANCE_MS)


def test_static_member_with_a_new_id_keeps_its_partitions(mixed):
    mixed.join("new")
    first = mixed.join_classic(group_instance_id="i").member_id
    second = mixed.join_classic(group_instance_id="i").member_id
    assert first != second and set(mixed.group.members) == {"new", second}
    assert mixed.group.members[second].instance_id == "i"
    assert mixed.join_classic(first, group_instance_id="i").error_code \
        == ErrorCode.FENCED_INSTANCE_ID


# SyncGroup and Heartbeat.

def test_member_is_assigned_partitions_that_others_revoked(mixed):
    old = mixed.mixed_group()
    assert partitions_of(mixed.sync(old, mixed.generation).assignment) == {}
    # The other member has not revoked yet: rejoining would be useless.
    assert mixed.beat_classic(old, mixed.generation) == ErrorCode.NONE
    mixed.beat("new", 2, topic_partitions=rows(T, *mixed.group.targets["new"][T.id]))
    assert mixed.beat_classic(old, mixed.generation) == ErrorCode.REBALANCE_IN_PROGRESS
    answer = mixed.join_classic(old)
    found = mixed.sync(old, answer.generation_id)
    assert (found.protocol_type, found.protocol_name) == ("consumer", "range")
    assert sorted(partitions_of(found.assignment)["t"]) == sorted(
        mixed.group.targets[old][T.id])
    assert mixed.beat_classic(old, answer.generation_id) == ErrorCode.NONE


def test_member_revokes_before_it_is_assigned_more(mixed):
    old = mixed.settled()
    mixed.join("third")
    epoch = mixed.group.members[old].epoch
    assert mixed.beat_classic(old, epoch) == ErrorCode.REBALANCE_IN_PROGRESS
    held = sorted(mixed.group.members[old].assigned[T.id])
    answer = mixed.join_classic(old, owned=[("t", held)])
    # It still owns these partitions: it must revoke, then rejoin.
    left = partitions_of(mixed.sync(old, answer.generation_id).assignment)["t"]
    assert set(left) < set(held)
    assert mixed.beat_classic(old, answer.generation_id) == ErrorCode.REBALANCE_IN_PROGRESS
    answer = mixed.join_classic(old, owned=[("t", left)])
    assert mixed.sync(old, answer.generation_id).error_code == 0
    assert answer.generation_id == mixed.group.epoch


@pytest.mark.parametrize(("fields", "code"), [
    ({}, 0), ({"protocol_type": None, "protocol_name": None}, 0),
    ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ({"protocol_name": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ({"generation": 1}, ErrorCode.ILLEGAL_GENERATION),
    ({"generation": -1}, ErrorCode.ILLEGAL_GENERATION),
    ({"member_id": "other"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ({"member_id": "new", "generation": 2}, ErrorCode.UNKNOWN_MEMBER_ID),
    ({"group_instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID)])
def test_mismatching_sync_is_rejected(mixed, fields, code):
    fields = {"member_id": mixed.mixed_group(), "generation": mixed.generation, **fields}
    assert mixed.sync(**fields).error_code == code


def test_sync_of_a_past_epoch_requires_a_rejoin(mixed):
    old = mixed.mixed_group()
    mixed.join("third")
    assert mixed.sync(old, mixed.generation).error_code == ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize(("member_id", "generation", "instance_id", "code"), [
    ("other", 3, None, ErrorCode.UNKNOWN_MEMBER_ID), ("new", 2, None, ErrorCode.UNKNOWN_MEMBER_ID),
    (None, 2, None, ErrorCode.ILLEGAL_GENERATION), (None, 4, None, ErrorCode.ILLEGAL_GENERATION),
    (None, 3, "i", ErrorCode.UNKNOWN_MEMBER_ID), (None, 3, None, ErrorCode.NONE)])
def test_mismatching_heartbeat_is_rejected(mixed, member_id, generation, instance_id, code):
    old = mixed.mixed_group()
    assert mixed.beat_classic(member_id or old, generation, instance_id) == code


# Timeouts.

def test_member_that_does_not_sync_in_time_is_fenced(mixed):
    old = mixed.mixed_group()
    mixed.run(REBALANCE_MS - 1)
    assert old in mixed.group.members
    mixed.run(1)
    assert old not in mixed.group.members


def test_synced_member_expires_only_after_its_session(mixed):
    old = mixed.mixed_group()
    mixed.sync(old, mixed.generation)
    mixed.run(SESSION_MS - 1)
    assert old in mixed.group.members
    mixed.run(1)
    assert old not in mixed.group.members


def test_heartbeat_restarts_the_session(mixed):
    old = mixed.mixed_group()
    mixed.sync(old, mixed.generation)
    mixed.run(SESSION_MS - 1)
    mixed.beat_classic(old, mixed.generation)
    mixed.run(SESSION_MS - 1)
    assert old in mixed.group.members
    mixed.run(1)
    assert old not in mixed.group.members


def test_rejoin_timeout_counts_from_the_first_notification(mixed):
    old = mixed.settled()
    mixed.join("third")
    epoch = mixed.group.members[old].epoch
    assert mixed.beat_classic(old, epoch) == ErrorCode.REBALANCE_IN_PROGRESS
    mixed.run(REBALANCE_MS - 1)
    assert mixed.beat_classic(old, epoch) == ErrorCode.REBALANCE_IN_PROGRESS
    assert old in mixed.group.members
    mixed.run(1)
    assert old not in mixed.group.members


def test_member_that_rejoined_in_time_must_sync_but_not_rejoin(mixed):
    old = mixed.settled()
    mixed.join("third")
    mixed.beat_classic(old, mixed.group.members[old].epoch)
    mixed.run(REBALANCE_MS - 1)
    held = sorted(mixed.group.members[old].assigned[T.id])
    answer = mixed.join_classic(old, owned=[("t", held)])
    mixed.run(REBALANCE_MS - 1)
    assert old in mixed.group.members
    mixed.sync(old, answer.generation_id)
    mixed.run(1)
    assert old in mixed.group.members


# LeaveGroup.

def test_each_leaving_member_gets_a_separate_result(mixed):
    old = mixed.mixed_group()
    before = mixed.groups.events["member_left"]
    assert mixed.groups.leave("g", [("other", None), (old, None, "done"), (old, "i")]) == [
        ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert list(mixed.group.members) == ["new"]
    assert mixed.groups.events["member_left"] == before + 1


@pytest.mark.parametrize(("member_id", "code"), [
    ("", ErrorCode.NONE), ("other", ErrorCode.FENCED_INSTANCE_ID)])
def test_an_administrator_removes_an_instance_by_its_name(mixed, member_id, code):
    mixed.join("new")
    mixed.join_classic(group_instance_id="i")
    assert mixed.groups.leave("g", [(member_id, "i")]) == [code]
    assert len(mixed.group.members) == 1 + (code != ErrorCode.NONE)


# Encoding of the members' metadata.

@pytest.mark.parametrize(("data", "version"), [
    (b"\0\0", 0), (b"\0\3", 3), (b"\0\4x", 3), (b"\x7f\xff", 3), (b"", None), (b"\0", None),
    (b"\xff\xff", None)])
def test_newer_subscription_version_is_parsed_as_the_latest_supported(data, version):
    if version is None:
        with pytest.raises(ProtocolError, match="no version"):
            consumer_protocol.version_of(data)
    else:
        assert consumer_protocol.version_of(data) == version


def test_assignment_is_encoded_in_the_members_version_without_deleted_topics():
    data = consumer_protocol.assignment_bytes(
        IMAGE, {T.id: frozenset((3, 1)), bytes(16): frozenset([0]), U.id: frozenset([2])},
        subscription("t", version=1))
    assert data[:2] == b"\0\1" and partitions_of(data) == {"t": [1, 3], "u": [2]}
    assigned = consumer_protocol.assignment(data).assigned_partitions
    assert consumer_protocol.by_id(IMAGE, assigned) == {
        T.id: {1, 3}, U.id: {2}}
    assert consumer_protocol.by_id(IMAGE, None) == {}
    assert partitions_of(b"") == {}

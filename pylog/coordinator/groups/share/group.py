"""A share group: its members, assignment and share partitions, and its records in
`__consumer_offsets`.

Owns: the state of the group.
Invariants: replaying records_of(group) in order gives an equal group; only members have a target
  assignment.
Source: KIP-932; Kafka's coordinator schemas, keys 10 to 15.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from pylog.coordinator.groups.assignors.share import Assignment
from pylog.protocol import messages, records
from pylog.protocol.errors import UnsupportedVersion

EMPTY, STABLE = "Empty", "Stable"
TYPE = "share"
STEM = "records_group"
VALUE_VERSION = 0
FIRST_EPOCH = 1  # Of a group before its first member, as in Kafka.
STATE_STABLE = 0  # The only member state in records.
KINDS = frozenset((
    "ShareGroupMemberMetadataKey", "ShareGroupMetadataKey", "ShareGroupTargetAssignmentMetadataKey",
    "ShareGroupTargetAssignmentMemberKey", "ShareGroupCurrentMemberAssignmentKey",
    "ShareGroupStatePartitionMetadataKey"))
Record = tuple[bytes, bytes | None]


class TopicPartitions(NamedTuple):
    """Partitions of a topic. since_ms: when their initialization was requested, if in progress."""

    name: str
    partitions: frozenset[int]
    since_ms: int = 0


class ShareMember:
    """A member (KIP-932). host: for display. topics: the topic names it subscribes to."""

    __slots__ = ("assigned", "client_id", "epoch", "host", "id", "previous_epoch", "rack", "topics")

    def __init__(self, id_: str):
        self.id = id_
        self.epoch = self.previous_epoch = 0
        self.rack: str | None = None
        self.client_id = self.host = ""
        self.topics: frozenset[str] = frozenset()
        self.assigned: Assignment = {}


class ShareGroup:
    """A share group.

    topics_seen: the image's topics that `hash` was computed for, compared by identity.
    """

    __slots__ = ("assigned_ms", "deleting", "epoch", "hash", "id", "initialized", "initializing",
                 "members", "target", "target_epoch", "topics_seen")

    def __init__(self, id_: str):
        self.id = id_
        self.epoch = FIRST_EPOCH
        self.hash = 0
        self.members: dict[str, ShareMember] = {}
        self.target: dict[str, Assignment] = {}
        self.target_epoch = FIRST_EPOCH
        self.assigned_ms = 0
        self.initializing: dict[bytes, TopicPartitions] = {}
        self.initialized: dict[bytes, TopicPartitions] = {}
        self.deleting: dict[bytes, str] = {}
        self.topics_seen: object = None

    @property
    def state(self) -> str:
        return STABLE if self.members else EMPTY

    @property
    def topics(self) -> frozenset[str]:
        """Return the topics that any member subscribes to."""
        return frozenset().union(*(member.topics for member in self.members.values()))


# ---- records ------------------------------------------------------------------------------------


def member_record(group_id: str, member: ShareMember) -> Record:
    return _record(
        messages.ShareGroupMemberMetadataKey(group_id=group_id, member_id=member.id),
        messages.ShareGroupMemberMetadataValue(
            rack_id=member.rack, client_id=member.client_id, client_host=member.host,
            subscribed_topic_names=sorted(member.topics)))


def group_record(group: ShareGroup) -> Record:
    return _record(messages.ShareGroupMetadataKey(group_id=group.id),
                   messages.ShareGroupMetadataValue(epoch=group.epoch, metadata_hash=group.hash))


def target_record(group_id: str, member_id: str, target: Assignment) -> Record:
    new = messages.ShareGroupTargetAssignmentMemberValue
    return _record(
        messages.ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        new(topic_partitions=[new.TopicPartition(topic_id=topic, partitions=list(indexes))
                              for topic, indexes in target.items()]))


def target_epoch_record(group: ShareGroup) -> Record:
    return _record(
        messages.ShareGroupTargetAssignmentMetadataKey(group_id=group.id),
        messages.ShareGroupTargetAssignmentMetadataValue(
            assignment_epoch=group.target_epoch, assignment_timestamp=group.assigned_ms))


def current_record(group_id: str, member: ShareMember) -> Record:
    new = messages.ShareGroupCurrentMemberAssignmentValue
    return _record(
        messages.ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.id),
        new(member_epoch=member.epoch, previous_member_epoch=member.previous_epoch,
            state=STATE_STABLE, assigned_partitions=[
                new.TopicPartitions(topic_id=topic, partitions=list(indexes))
                for topic, indexes in member.assigned.items()]))


def partitions_record(group: ShareGroup) -> Record:
    new = messages.ShareGroupStatePartitionMetadataValue

    def rows(partitions: dict[bytes, TopicPartitions]) -> list[Any]:
        return [new.TopicPartitionsInfo(topic_id=topic, topic_name=row.name,
                                        partitions=sorted(row.partitions))
                for topic, row in partitions.items()]

    return _record(
        messages.ShareGroupStatePartitionMetadataKey(group_id=group.id),
        new(initializing_topics=rows(group.initializing), initialized_topics=rows(
            group.initialized), deleting_topics=[
                new.TopicInfo(topic_id=topic, topic_name=name)
                for topic, name in group.deleting.items()]))


def _record(key: Any, value: Any) -> Record:
    return records.encode_key(key), records.encode_value(VALUE_VERSION, value)


def member_tombstones(group_id: str, member_id: str) -> list[Record]:
    """Return the tombstones of a member."""
    return [(records.encode_key(kind(group_id=group_id, member_id=member_id)), None)
            for kind in (messages.ShareGroupCurrentMemberAssignmentKey,
                         messages.ShareGroupTargetAssignmentMemberKey,
                         messages.ShareGroupMemberMetadataKey)]


def group_tombstones(group_id: str) -> list[Record]:
    """Return the tombstones of a group without members."""
    return [(records.encode_key(kind(group_id=group_id)), None)
            for kind in (messages.ShareGroupTargetAssignmentMetadataKey,
                         messages.ShareGroupStatePartitionMetadataKey,
                         messages.ShareGroupMetadataKey)]


def records_of(group: ShareGroup) -> Iterator[Record]:
    """Yield all records of the group. Replaying them in order gives an equal group."""
    yield group_record(group)
    for member in group.members.values():
        yield member_record(group.id, member)
        yield current_record(group.id, member)
    for member_id, target in group.target.items():
        yield target_record(group.id, member_id, target)
    if group.assigned_ms:
        yield target_epoch_record(group)
    if group.initializing or group.initialized or group.deleting:
        yield partitions_record(group)


def decode(key: bytes, value: bytes | None) -> tuple[Any, Any] | None:
    """Parse a share group record into (key message, value message or None).

    Returns None for other records. Raises ProtocolError.
    """
    try:
        row = records.decode_key(STEM, key)
    except UnsupportedVersion:
        return None
    if type(row).__name__ not in KINDS:
        return None
    return row, None if value is None else records.decode_value(row, value)[1]


def replay(groups: dict[str, ShareGroup], key: Any, value: Any, wall_ms: int) -> None:
    """Apply one decoded record. groups: by id."""
    kind = type(key).__name__
    if value is None:
        _forget(groups, kind, key)
        return
    group = groups.get(key.group_id)
    if group is None:
        group = groups[key.group_id] = ShareGroup(key.group_id)
    if kind == "ShareGroupMetadataKey":
        group.epoch, group.hash = value.epoch, value.metadata_hash
    elif kind == "ShareGroupTargetAssignmentMetadataKey":
        group.target_epoch = value.assignment_epoch
        group.assigned_ms = value.assignment_timestamp
    elif kind == "ShareGroupTargetAssignmentMemberKey":
        group.target[key.member_id] = _assignment(value.topic_partitions)
    elif kind == "ShareGroupStatePartitionMetadataKey":
        group.initializing = _topic_partitions(value.initializing_topics, wall_ms)
        group.initialized = _topic_partitions(value.initialized_topics, wall_ms)
        group.deleting = {bytes(row.topic_id): row.topic_name for row in value.deleting_topics}
    else:
        member = group.members.setdefault(key.member_id, ShareMember(key.member_id))
        _take(member, kind, value)


def _take(member: ShareMember, kind: str, value: Any) -> None:
    if kind == "ShareGroupMemberMetadataKey":
        member.rack, member.client_id = value.rack_id, value.client_id
        member.host, member.topics = value.client_host, frozenset(value.subscribed_topic_names)
    else:
        member.epoch, member.previous_epoch = value.member_epoch, value.previous_member_epoch
        member.assigned = _assignment(value.assigned_partitions)


def _forget(groups: dict[str, ShareGroup], kind: str, key: Any) -> None:
    group = groups.get(key.group_id)
    if group is None:
        return
    if kind == "ShareGroupMetadataKey":
        del groups[key.group_id]
    elif kind == "ShareGroupTargetAssignmentMetadataKey":
        group.target_epoch, group.assigned_ms = FIRST_EPOCH, 0
    elif kind == "ShareGroupTargetAssignmentMemberKey":
        group.target.pop(key.member_id, None)
    elif kind == "ShareGroupStatePartitionMetadataKey":
        group.initializing, group.initialized, group.deleting = {}, {}, {}
    elif kind == "ShareGroupMemberMetadataKey":
        group.members.pop(key.member_id, None)
    elif key.member_id in group.members:
        member = group.members[key.member_id]
        member.assigned = {}


def _assignment(rows: Iterable[Any]) -> Assignment:
    return {bytes(row.topic_id): tuple(row.partitions) for row in rows}


def _topic_partitions(rows: Iterable[Any], wall_ms: int) -> dict[bytes, TopicPartitions]:
    return {bytes(row.topic_id): TopicPartitions(row.topic_name, frozenset(row.partitions), wall_ms)
            for row in rows}

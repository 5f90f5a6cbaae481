"""Encode classic groups and offsets as records of `__consumer_offsets`, and parse them.

Owns: nothing.
Invariants: decoding an encoded group or offset gives an equal one; records of other group types are
  skipped, not misread.
Source: Kafka's coordinator schemas: keys 0 and 1 (offsets), 2 (classic groups).
"""

import functools

from pylog.coordinator.groups.state.classic_group import (
    COMPLETING,
    EMPTY,
    NO_TIME,
    STABLE,
    Group,
    Member,
    Offset,
)
from pylog.protocol import messages, records
from pylog.protocol.errors import UnsupportedVersion

GROUP_VERSION = 3
OFFSET_VERSION = 3
OFFSET_WITH_TOPIC_ID_VERSION = 4
OFFSET_WITH_EXPIRY_VERSION = 1
NO_ID = bytes(16)
STEM = "records_group"


def offset_key(group_id: str, topic: str, partition: int) -> bytes:
    return records.encode_key(messages.OffsetCommitKey(
        group=group_id, topic=topic, partition=partition))


def offset_keys(group: Group, topic: str) -> bytes:
    """Return the start of the keys of a group's offsets for a topic, before the int32 partition.

    It is cached in the group, because most groups commit repeatedly.
    """
    keys = group.offset_keys.get(topic)
    if keys is None:
        keys = group.offset_keys[topic] = offset_key(group.id, topic, 0)[:-4]
    return keys


def group_value(group: Group) -> bytes:
    """Encode a classic group.

    During a rebalance the record has no leader: a reader makes its members rejoin, because the
    recorded assignments are incomplete. A member that joins for the first time is not recorded yet.
    """
    new = messages.GroupMetadataValue
    protocol = group.protocol
    settled = group.state in (STABLE, EMPTY)
    return records.encode_value(GROUP_VERSION, new(
        protocol_type=group.protocol_type or "", generation=group.generation, protocol=protocol,
        leader=group.leader if settled else None, current_state_timestamp=group.state_ms,
        members=[new.MemberMetadata(
            member_id=member.id, group_instance_id=member.instance_id, client_id=member.client_id,
            client_host=member.client_host, rebalance_timeout=member.rebalance_ms,
            session_timeout=member.session_ms,
            subscription=member.metadata(protocol) if protocol else b"",
            assignment=member.assignment)
            for member in group.members.values() if not member.is_new]))


def offset_value(entry: Offset) -> bytes:
    offset, epoch, metadata, commit_ms, expire_ms, topic_id = entry
    if expire_ms != NO_TIME:
        # Only this version has a separate expiry time.
        return _offset_writer(OFFSET_WITH_EXPIRY_VERSION)(messages.OffsetCommitValue(
            offset=offset, metadata=metadata, commit_timestamp=commit_ms,
            expire_timestamp=expire_ms))
    if topic_id != NO_ID:
        return _offset_writer(OFFSET_WITH_TOPIC_ID_VERSION)(messages.OffsetCommitValue(
            offset=offset, leader_epoch=epoch, metadata=metadata, commit_timestamp=commit_ms,
            topic_id=topic_id))
    return _offset_writer(OFFSET_VERSION)(messages.OffsetCommitValue(
        offset=offset, leader_epoch=epoch, metadata=metadata, commit_timestamp=commit_ms))


@functools.cache
def _offset_writer(version: int):
    """Return a fast records.encode_value() for one type, because every commit uses it."""
    return records.value_writer("OffsetCommitValue", version)


def decode(key: bytes, value: bytes | None):
    """Parse a record: ("group", id, Group or None) or ("offset", id, (topic, partition), Offset or
    None).

    Returns None for records of other group types. Raises ProtocolError.
    """
    try:
        row = records.decode_key(STEM, key)
    except UnsupportedVersion:
        return None
    kind = type(row).__name__
    if kind == "GroupMetadataKey":
        return "group", row.group, None if value is None else group_from(row.group, value)
    if kind in ("OffsetCommitKey", "LegacyOffsetCommitKey"):
        topic_partition = row.topic, row.partition
        if value is None:
            return "offset", row.group, topic_partition, None
        # Both key versions have the same values; version 0 is from older clients.
        of = messages.OffsetCommitKey(group=row.group, topic=row.topic, partition=row.partition)
        found = records.decode_value(of, value)[1]
        return "offset", row.group, topic_partition, Offset(
            found.offset, found.leader_epoch, found.metadata, found.commit_timestamp,
            found.expire_timestamp, bytes(found.topic_id))
    return None


def group_from(group_id: str, value: bytes) -> Group:
    """Parse a group's value, without offsets. Raises ProtocolError."""
    row = records.decode_value(messages.GroupMetadataKey(group=group_id), value)[1]
    group = Group(group_id, row.current_state_timestamp)
    group.generation = row.generation
    for cell in row.members:
        rebalance_ms = cell.rebalance_timeout if cell.rebalance_timeout >= 0 \
            else cell.session_timeout
        group.add(Member(cell.member_id, cell.group_instance_id, cell.client_id, cell.client_host,
                         rebalance_ms, cell.session_timeout,
                         [(row.protocol, bytes(cell.subscription))], bytes(cell.assignment)),
                  row.protocol_type)
    group.protocol_type = row.protocol_type or None
    group.protocol = row.protocol if group.members else None
    group.leader = row.leader if row.leader in group.members else next(iter(group.members), None)
    group.state = group.previous = EMPTY
    if group.members:
        group.state = group.previous = STABLE if row.leader is not None else COMPLETING
    return group

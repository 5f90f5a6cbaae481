"""Encode a consumer group as records of `__consumer_offsets`, and replay them.

Owns: nothing.
Invariants: replaying the records of a group gives an equal group; records may be replayed twice,
  and compacted records in any order that a log can have.
Source: Kafka's coordinator schemas: keys 3 (group), 4 (topics, older Kafka versions), 5 (member), 6
  and 7 (target), 8 (assignment), 16 (regular expression).
"""

from collections.abc import Callable
from typing import Any

from pylog.coordinator.groups.assignors.partitions import Assignment
from pylog.coordinator.groups.consumer.group import (
    KIND,
    ClassicMember,
    ConsumerGroup,
    ConsumerMember,
    Held,
    Resolved,
)
from pylog.coordinator.groups.state import modern_records
from pylog.coordinator.groups.state.modern_records import apply, dated
from pylog.coordinator.runtime.journal import Record
from pylog.protocol import messages, records
from pylog.protocol.errors import UnsupportedVersion

STEM = "records_group"
target_epoch_record, member_gone = KIND.target_epoch_record, KIND.member_gone


# ---- to records ---------------------------------------------------------------------------------

def group_record(group: ConsumerGroup) -> Record:
    return KIND.group_key(group.id), records.encode_value(
        0, messages.ConsumerGroupMetadataValue(epoch=group.epoch, metadata_hash=group.hash))


def member_record(group: ConsumerGroup, member: ConsumerMember) -> Record:
    new = messages.ConsumerGroupMemberMetadataValue
    classic = None if member.classic is None else new.ClassicMemberMetadata(
        session_timeout_ms=member.classic.session_ms, supported_protocols=[
            new.ClassicProtocol(name=name, metadata=metadata)
            for name, metadata in member.classic.protocols])
    return KIND.member_key(group.id, member.id), records.encode_value(0, new(
        instance_id=member.instance_id, rack_id=member.rack_id, client_id=member.client_id,
        client_host=member.client_host, subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.regex, rebalance_timeout_ms=member.rebalance_ms,
        server_assignor=member.assignor, classic_member_metadata=classic))


def target_record(group: ConsumerGroup, member_id: str, target: Assignment) -> Record:
    new = messages.ConsumerGroupTargetAssignmentMemberValue
    return KIND.target_key(group.id, member_id), records.encode_value(0, new(topic_partitions=[
        new.TopicPartition(topic_id=topic_id, partitions=sorted(partitions))
        for topic_id, partitions in sorted(target.items())]))


def assignment_record(group: ConsumerGroup, member: ConsumerMember) -> Record:
    return KIND.assignment_key(group.id, member.id), records.encode_value(
        0, messages.ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=member.epoch, previous_member_epoch=member.previous_epoch,
            state=member.state, assigned_partitions=_held_rows(member.assigned),
            partitions_pending_revocation=_held_rows(member.revoking)))


def expression_record(group: ConsumerGroup, text: str) -> Record:
    resolved = group.resolved[text]
    return expression_gone(group.id, text)[0], records.encode_value(
        0, messages.ConsumerGroupRegularExpressionValue(
            topics=sorted(resolved.topics), version=resolved.version, timestamp=resolved.ms))


def _held_rows(held: Held) -> list:
    new = messages.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions
    return [new(topic_id=topic_id, partitions=sorted(partitions),
                assignment_epochs=[partitions[index] for index in sorted(partitions)])
            for topic_id, partitions in sorted(held.items())]


# ---- tombstones ---------------------------------------------------------------------------------

def expression_gone(group_id: str, text: str) -> Record:
    return KIND.key("RegularExpression", group_id=group_id, regular_expression=text), None


def old_metadata_gone(group_id: str) -> Record:
    return KIND.key("PartitionMetadata", group_id=group_id), None


# ---- complete state -----------------------------------------------------------------------------

def member_state(group: ConsumerGroup, member_id: str) -> list[Record]:
    """Return the records of one member, in replay order; none if the member is gone."""
    return modern_records.member_state(group, member_id, member_record, target_record,
                                       assignment_record)


def group_state(group: ConsumerGroup) -> list[Record]:
    """Return the records of the group itself."""
    return [group_record(group), target_epoch_record(group),
            *(expression_record(group, text) for text in group.resolved)]


def created(group: ConsumerGroup) -> list[Record]:
    """Return all records of a converted group, in Kafka's order."""
    members = list(group.members.values())
    return [*(member_record(group, member) for member in members), group_record(group),
            *(target_record(group, member.id, group.targets.get(member.id, {}))
              for member in members),
            target_epoch_record(group),
            *(assignment_record(group, member) for member in members)]


# ---- from records -------------------------------------------------------------------------------

def replay(key: bytes, value: bytes | None, find: Callable[[str], ConsumerGroup | None],
           make: Callable[[str], ConsumerGroup]) -> tuple[str, str | None] | None:
    """Apply a record of a consumer group; replaying it twice is safe.

    Returns (group id, member id or None), or None for other records. find: returns the group if it
    is a consumer group. make: returns it, creating it if needed. Raises ProtocolError.
    """
    try:
        row = records.decode_key(STEM, key)
    except UnsupportedVersion:
        return None
    if type(row).__name__ not in _STEPS:
        return None
    return apply(row, value, _STEPS, _GONE, find, make)


def _replay_group(group: ConsumerGroup, row: Any, value: Any) -> None:
    group.epoch, group.hash = value.epoch, value.metadata_hash


def _replay_old_metadata(group: ConsumerGroup, row: Any, value: Any) -> None:
    group.had_old_metadata = True


def _replay_member(group: ConsumerGroup, row: Any, value: Any) -> None:
    member = KIND.copy_of(group, row.member_id)
    classic = value.classic_member_metadata
    member.instance_id, member.rack_id = value.instance_id, value.rack_id
    member.client_id, member.client_host = value.client_id, value.client_host
    member.topics = frozenset(value.subscribed_topic_names)
    member.regex = value.subscribed_topic_regex or ""
    member.rebalance_ms, member.assignor = value.rebalance_timeout_ms, value.server_assignor
    member.classic = None if classic is None else ClassicMember(
        classic.session_timeout_ms, tuple(
            (protocol.name, bytes(protocol.metadata)) for protocol in classic.supported_protocols))
    group.put(member)


def _replay_target(group: ConsumerGroup, row: Any, value: Any) -> None:
    group.targets[row.member_id] = {
        bytes(cell.topic_id): frozenset(cell.partitions) for cell in value.topic_partitions}


def _replay_assignment(group: ConsumerGroup, row: Any, value: Any) -> None:
    member = KIND.copy_of(group, row.member_id)
    member.epoch, member.previous_epoch = value.member_epoch, value.previous_member_epoch
    member.state = value.state
    member.assigned = dated(value.assigned_partitions, _topic_id, value.member_epoch)
    member.revoking = dated(value.partitions_pending_revocation, _topic_id, value.member_epoch)
    group.put(member)


def _topic_id(row: Any) -> bytes:
    return bytes(row.topic_id)


def _replay_expression(group: ConsumerGroup, row: Any, value: Any) -> None:
    group.resolved[row.regular_expression] = Resolved(
        frozenset(value.topics), value.version, value.timestamp)


def _forget_expression(group: ConsumerGroup, row: Any) -> None:
    group.resolved.pop(row.regular_expression, None)


def _forget_old_metadata(group: ConsumerGroup, row: Any) -> None:
    group.had_old_metadata = False


_STEPS = KIND.steps(
    Metadata=_replay_group, PartitionMetadata=_replay_old_metadata, MemberMetadata=_replay_member,
    TargetAssignmentMember=_replay_target, CurrentMemberAssignment=_replay_assignment,
    RegularExpression=_replay_expression)
_GONE = KIND.gone(
    PartitionMetadata=_forget_old_metadata, RegularExpression=_forget_expression)

"""A consumer group as records of `__consumer_offsets`, and back.

Owns: nothing.
Called by: coordinator.consumer_groups and the modules beside it, coordinator.groups (replay),
  coordinator.snapshot.
Invariants: (1) replaying what state() gives makes an equal group; (2) records of a group may be
  replayed twice, and compacted ones in any order in which a log can hold them.
Source: Kafka's coordinator schemas: keys 3 (group), 4 (topics, older Kafkas'), 5 (member), 6 and 7
  (target), 8 (assignment), 16 (expression).
"""

from collections.abc import Callable, Iterable
from typing import Any

from pylog.coordinator.assigned_group import FIRST_EPOCH
from pylog.coordinator.assignors import Assignment
from pylog.coordinator.consumer_group import (
    NO_RECORD,
    ClassicMember,
    ConsumerGroup,
    ConsumerMember,
    Held,
    Resolved,
)
from pylog.coordinator.journal import Record
from pylog.protocol import messages, records
from pylog.protocol.errors import UnsupportedVersion

STEM = "records_group"


# ---- to records ---------------------------------------------------------------------------------

def group_record(group: ConsumerGroup) -> Record:
    return (records.encode_key(messages.ConsumerGroupMetadataKey(group_id=group.id)),
            records.encode_value(0, messages.ConsumerGroupMetadataValue(
                epoch=group.epoch, metadata_hash=group.hash)))


def member_record(group: ConsumerGroup, member: ConsumerMember) -> Record:
    new = messages.ConsumerGroupMemberMetadataValue
    classic = None if member.classic is None else new.ClassicMemberMetadata(
        session_timeout_ms=member.classic.session_ms, supported_protocols=[
            new.ClassicProtocol(name=name, metadata=metadata)
            for name, metadata in member.classic.protocols])
    return _member_key(group.id, member.id), records.encode_value(0, new(
        instance_id=member.instance_id, rack_id=member.rack_id, client_id=member.client_id,
        client_host=member.client_host, subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.regex, rebalance_timeout_ms=member.rebalance_ms,
        server_assignor=member.assignor, classic_member_metadata=classic))


def target_epoch_record(group: ConsumerGroup) -> Record:
    return _target_epoch_key(group.id), records.encode_value(
        0, messages.ConsumerGroupTargetAssignmentMetadataValue(
            assignment_epoch=group.assignment_epoch, assignment_timestamp=group.assignment_ms))


def target_record(group: ConsumerGroup, member_id: str, target: Assignment) -> Record:
    new = messages.ConsumerGroupTargetAssignmentMemberValue
    return _target_key(group.id, member_id), records.encode_value(0, new(topic_partitions=[
        new.TopicPartition(topic_id=topic_id, partitions=sorted(partitions))
        for topic_id, partitions in sorted(target.items())]))


def assignment_record(group: ConsumerGroup, member: ConsumerMember) -> Record:
    return _assignment_key(group.id, member.id), records.encode_value(
        0, messages.ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=member.epoch, previous_member_epoch=member.previous_epoch,
            state=member.state, assigned_partitions=_held_rows(member.assigned),
            partitions_pending_revocation=_held_rows(member.revoking)))


def expression_record(group: ConsumerGroup, text: str) -> Record:
    resolved = group.resolved[text]
    return _expression_key(group.id, text), records.encode_value(
        0, messages.ConsumerGroupRegularExpressionValue(
            topics=sorted(resolved.topics), version=resolved.version, timestamp=resolved.ms))


def _held_rows(held: Held) -> list:
    new = messages.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions
    return [new(topic_id=topic_id, partitions=sorted(partitions),
                assignment_epochs=[partitions[index] for index in sorted(partitions)])
            for topic_id, partitions in sorted(held.items())]


# ---- tombstones ---------------------------------------------------------------------------------

def member_gone(group_id: str, member_id: str) -> list[Record]:
    """In Kafka's order: its replay insists on it."""
    return [(_assignment_key(group_id, member_id), None), (_target_key(group_id, member_id), None),
            (_member_key(group_id, member_id), None)]


def expression_gone(group_id: str, text: str) -> Record:
    return _expression_key(group_id, text), None


def old_metadata_gone(group_id: str) -> Record:
    return records.encode_key(messages.ConsumerGroupPartitionMetadataKey(group_id=group_id)), None


def group_gone(group: ConsumerGroup) -> list[Record]:
    """In Kafka's order, as member_gone()."""
    id_ = group.id
    members = list(group.members)
    return [*((_assignment_key(id_, member_id), None) for member_id in members),
            *((_target_key(id_, member_id), None) for member_id in members),
            (_target_epoch_key(id_), None),
            *((_member_key(id_, member_id), None) for member_id in members),
            *(expression_gone(id_, text) for text in group.resolved),
            old_metadata_gone(id_),
            (records.encode_key(messages.ConsumerGroupMetadataKey(group_id=id_)), None)]


# ---- the whole ----------------------------------------------------------------------------------

def member_state(group: ConsumerGroup, member_id: str) -> list[Record]:
    """The records of one member, in an order that can be replayed; none when it is gone."""
    member = group.members.get(member_id)
    if member is None:
        return []
    found = [member_record(group, member)]
    target = group.targets.get(member_id)
    if target is not None:
        found.append(target_record(group, member_id, target))
    return [*found, assignment_record(group, member)]


def group_state(group: ConsumerGroup) -> list[Record]:
    """The records of the group itself."""
    return [group_record(group), target_epoch_record(group),
            *(expression_record(group, text) for text in group.resolved)]


def created(group: ConsumerGroup) -> list[Record]:
    """All records of a group that was something else before, in Kafka's order."""
    members = list(group.members.values())
    return [*(member_record(group, member) for member in members), group_record(group),
            *(target_record(group, member.id, group.targets.get(member.id, {}))
              for member in members),
            target_epoch_record(group),
            *(assignment_record(group, member) for member in members)]


# ---- from records -------------------------------------------------------------------------------

def replay(key: bytes, value: bytes | None, find: Callable[[str], ConsumerGroup | None],
           make: Callable[[str], ConsumerGroup]) -> tuple[str, str | None] | None:
    """Applies a record of a consumer group. Returns (group id, member id or None), or None for any
    other record. find: the group of an id if it is a consumer group; make: that, made if need be.
    Keeps (2). Raises ProtocolError."""
    try:
        row = records.decode_key(STEM, key)
    except UnsupportedVersion:
        return None
    kind = type(row).__name__
    if kind not in _STEPS:
        return None
    if value is not None:
        _STEPS[kind](make(row.group_id), row, records.decode_value(row, value)[1])
    else:
        group = find(row.group_id)
        if group is not None:
            _GONE[kind](group, row)
    return row.group_id, getattr(row, "member_id", None)


def _replay_group(group: ConsumerGroup, row: Any, value: Any) -> None:
    group.epoch, group.hash = value.epoch, value.metadata_hash


def _replay_old_metadata(group: ConsumerGroup, row: Any, value: Any) -> None:
    group.had_old_metadata = True


def _replay_member(group: ConsumerGroup, row: Any, value: Any) -> None:
    member = _copy_of(group, row.member_id)
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


def _replay_target_epoch(group: ConsumerGroup, row: Any, value: Any) -> None:
    group.assignment_epoch = value.assignment_epoch
    group.assignment_ms = value.assignment_timestamp


def _replay_target(group: ConsumerGroup, row: Any, value: Any) -> None:
    group.targets[row.member_id] = {
        bytes(cell.topic_id): frozenset(cell.partitions) for cell in value.topic_partitions}


def _replay_assignment(group: ConsumerGroup, row: Any, value: Any) -> None:
    member = _copy_of(group, row.member_id)
    member.epoch, member.previous_epoch = value.member_epoch, value.previous_member_epoch
    member.state = value.state
    member.assigned = _held(value.assigned_partitions, value.member_epoch)
    member.revoking = _held(value.partitions_pending_revocation, value.member_epoch)
    group.put(member)


def _replay_expression(group: ConsumerGroup, row: Any, value: Any) -> None:
    group.resolved[row.regular_expression] = Resolved(
        frozenset(value.topics), value.version, value.timestamp)


def _copy_of(group: ConsumerGroup, member_id: str) -> ConsumerMember:
    member = group.members.get(member_id)
    return ConsumerMember(member_id) if member is None else member.copy()


def _held(rows: Iterable[Any], epoch: int) -> Held:
    """Older Kafkas wrote no epochs: then it is the member's."""
    return {bytes(row.topic_id): dict(zip(
        row.partitions, row.assignment_epochs or [epoch] * len(row.partitions), strict=True))
        for row in rows if row.partitions}


def _forget_member(group: ConsumerGroup, row: Any) -> None:
    if row.member_id in group.members:
        group.remove(row.member_id)


def _forget_target(group: ConsumerGroup, row: Any) -> None:
    group.targets.pop(row.member_id, None)


def _forget_target_epoch(group: ConsumerGroup, row: Any) -> None:
    group.assignment_epoch, group.assignment_ms = FIRST_EPOCH, 0


def _forget_assignment(group: ConsumerGroup, row: Any) -> None:
    member = group.members.get(row.member_id)
    if member is not None:
        fresh = member.copy()
        fresh.epoch, fresh.previous_epoch = -1, -1
        fresh.assigned, fresh.revoking = {}, {}
        group.put(fresh)


def _forget_expression(group: ConsumerGroup, row: Any) -> None:
    group.resolved.pop(row.regular_expression, None)


def _forget_old_metadata(group: ConsumerGroup, row: Any) -> None:
    group.had_old_metadata = False


def _forget_group(group: ConsumerGroup, row: Any) -> None:
    """What is left of it has no record any more."""
    group.epoch, group.hash = NO_RECORD, 0


_STEPS: dict[str, Callable[[ConsumerGroup, Any, Any], None]] = {
    "ConsumerGroupMetadataKey": _replay_group,
    "ConsumerGroupPartitionMetadataKey": _replay_old_metadata,
    "ConsumerGroupMemberMetadataKey": _replay_member,
    "ConsumerGroupTargetAssignmentMetadataKey": _replay_target_epoch,
    "ConsumerGroupTargetAssignmentMemberKey": _replay_target,
    "ConsumerGroupCurrentMemberAssignmentKey": _replay_assignment,
    "ConsumerGroupRegularExpressionKey": _replay_expression,
}
_GONE: dict[str, Callable[[ConsumerGroup, Any], None]] = {
    "ConsumerGroupMetadataKey": _forget_group,
    "ConsumerGroupPartitionMetadataKey": _forget_old_metadata,
    "ConsumerGroupMemberMetadataKey": _forget_member,
    "ConsumerGroupTargetAssignmentMetadataKey": _forget_target_epoch,
    "ConsumerGroupTargetAssignmentMemberKey": _forget_target,
    "ConsumerGroupCurrentMemberAssignmentKey": _forget_assignment,
    "ConsumerGroupRegularExpressionKey": _forget_expression,
}


# ---- keys ---------------------------------------------------------------------------------------

def _member_key(group_id: str, member_id: str) -> bytes:
    return records.encode_key(messages.ConsumerGroupMemberMetadataKey(
        group_id=group_id, member_id=member_id))


def _target_epoch_key(group_id: str) -> bytes:
    return records.encode_key(messages.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id))


def _target_key(group_id: str, member_id: str) -> bytes:
    return records.encode_key(messages.ConsumerGroupTargetAssignmentMemberKey(
        group_id=group_id, member_id=member_id))


def _assignment_key(group_id: str, member_id: str) -> bytes:
    return records.encode_key(messages.ConsumerGroupCurrentMemberAssignmentKey(
        group_id=group_id, member_id=member_id))


def _expression_key(group_id: str, text: str) -> bytes:
    return records.encode_key(messages.ConsumerGroupRegularExpressionKey(
        group_id=group_id, regular_expression=text))

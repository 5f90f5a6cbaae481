"""A Streams group as records of `__consumer_offsets`, and back.

Owns: nothing.
Called by: coordinator.streams_groups, coordinator.machine, coordinator.groups (replay),
  coordinator.snapshot.
Invariants: (1) replaying what member_state() and group_state() give makes an equal group; (2)
  records of a group may be replayed twice, and compacted ones in any order in which a log can hold
  them.
Source: Kafka's coordinator schemas: keys 17 (group), 19 (member), 20 and 21 (target), 22
  (assignment), 23 (topology).
"""

from collections.abc import Callable, Iterable
from typing import Any

from pylog.coordinator.assigned_group import FIRST_EPOCH
from pylog.coordinator.journal import Record
from pylog.coordinator.streams_group import (
    NO_RECORD,
    NOTHING_HELD,
    Assignment,
    Dated,
    Held,
    StreamsGroup,
    StreamsMember,
    Tasks,
)
from pylog.coordinator.streams_topology import Internal, Topology, topology_from
from pylog.protocol import messages, records

STEM = "records_group"


# ---- to records ---------------------------------------------------------------------------------

def group_record(group: StreamsGroup) -> Record:
    new = messages.StreamsGroupMetadataValue
    return (records.encode_key(messages.StreamsGroupMetadataKey(group_id=group.id)),
            records.encode_value(0, new(
                epoch=group.epoch, metadata_hash=group.hash,
                validated_topology_epoch=group.validated, last_assignment_configs=[
                    new.LastAssignmentConfig(key=name, value=value)
                    for name, value in sorted(group.configs.items())])))


def topology_record(group_id: str, topology: Topology) -> Record:
    new = messages.StreamsGroupTopologyValue

    def internal(rows: Iterable[Internal]) -> list[Any]:
        return [new.TopicInfo(
            name=row.name, partitions=row.partitions, replication_factor=row.factor,
            topic_configs=[new.TopicConfig(key=name, value=value) for name, value in row.configs])
            for row in rows]

    return _topology_key(group_id), records.encode_value(0, new(
        epoch=topology.epoch, subtopologies=[new.Subtopology(
            subtopology_id=row.id, source_topics=list(row.sources),
            source_topic_regex=list(row.patterns), state_changelog_topics=internal(row.changelogs),
            repartition_sink_topics=list(row.sinks),
            repartition_source_topics=internal(row.repartitions), copartition_groups=[
                new.CopartitionGroup(
                    source_topics=list(group.sources), source_topic_regex=list(group.patterns),
                    repartition_source_topics=list(group.repartitions))
                for group in row.copartitions])
            for row in topology.subtopologies.values()]))


def member_record(group: StreamsGroup, member: StreamsMember) -> Record:
    new = messages.StreamsGroupMemberMetadataValue
    endpoint = None if member.endpoint is None else new.Endpoint(
        host=member.endpoint[0], port=member.endpoint[1])
    return _member_key(group.id, member.id), records.encode_value(0, new(
        instance_id=member.instance_id, rack_id=member.rack_id, client_id=member.client_id,
        client_host=member.client_host, rebalance_timeout_ms=member.rebalance_ms,
        topology_epoch=member.topology_epoch, process_id=member.process_id,
        user_endpoint=endpoint, client_tags=[
            new.KeyValue(key=name, value=value) for name, value in sorted(member.tags.items())]))


def target_epoch_record(group: StreamsGroup) -> Record:
    return _target_epoch_key(group.id), records.encode_value(
        0, messages.StreamsGroupTargetAssignmentMetadataValue(
            assignment_epoch=group.assignment_epoch, assignment_timestamp=group.assignment_ms))


def target_record(group: StreamsGroup, member_id: str, target: Assignment) -> Record:
    new = messages.StreamsGroupTargetAssignmentMemberValue
    active, standby, warmup = (_rows(new.TaskIds, tasks) for tasks in target)
    return _target_key(group.id, member_id), records.encode_value(0, new(
        active_tasks=active, standby_tasks=standby, warmup_tasks=warmup))


def assignment_record(group: StreamsGroup, member: StreamsMember) -> Record:
    new = messages.StreamsGroupCurrentMemberAssignmentValue
    assigned, revoking = member.assigned, member.revoking
    return _assignment_key(group.id, member.id), records.encode_value(0, new(
        member_epoch=member.epoch, previous_member_epoch=member.previous_epoch,
        state=member.state, active_tasks=_dated_rows(new.TaskIds, assigned.active),
        standby_tasks=_rows(new.TaskIds, assigned.standby),
        warmup_tasks=_rows(new.TaskIds, assigned.warmup),
        active_tasks_pending_revocation=_dated_rows(new.TaskIds, revoking.active),
        standby_tasks_pending_revocation=_rows(new.TaskIds, revoking.standby),
        warmup_tasks_pending_revocation=_rows(new.TaskIds, revoking.warmup)))


def _rows(new: Any, tasks: Tasks) -> list[Any]:
    return [new(subtopology_id=id_, partitions=sorted(partitions))
            for id_, partitions in sorted(tasks.items())]


def _dated_rows(new: Any, tasks: Dated) -> list[Any]:
    return [new(subtopology_id=id_, partitions=sorted(partitions),
                assignment_epochs=[partitions[index] for index in sorted(partitions)])
            for id_, partitions in sorted(tasks.items())]


# ---- tombstones ---------------------------------------------------------------------------------

def member_gone(group_id: str, member_id: str) -> list[Record]:
    """In Kafka's order: its replay insists on it."""
    return [(_assignment_key(group_id, member_id), None), (_target_key(group_id, member_id), None),
            (_member_key(group_id, member_id), None)]


def group_gone(group: StreamsGroup) -> list[Record]:
    """In Kafka's order, as member_gone(); of a group without members."""
    assert not group.members, group.id
    return [(_target_epoch_key(group.id), None),
            (records.encode_key(messages.StreamsGroupMetadataKey(group_id=group.id)), None),
            (_topology_key(group.id), None)]


# ---- the whole ----------------------------------------------------------------------------------

def member_state(group: StreamsGroup, member_id: str) -> list[Record]:
    """The records of one member, in an order that can be replayed; none when it is gone."""
    member = group.members.get(member_id)
    if member is None:
        return []
    found = [member_record(group, member)]
    target = group.targets.get(member_id)
    if target is not None:
        found.append(target_record(group, member_id, target))
    return [*found, assignment_record(group, member)]


def group_state(group: StreamsGroup) -> list[Record]:
    """The records of the group itself."""
    found = [group_record(group), target_epoch_record(group)]
    return found if group.topology is None else [*found, topology_record(group.id, group.topology)]


# ---- from records -------------------------------------------------------------------------------

def replay(key: bytes, value: bytes | None, find: Callable[[str], StreamsGroup | None],
           make: Callable[[str], StreamsGroup]) -> tuple[str, str | None]:
    """Applies a record of a Streams group. Returns (group id, member id or None). find: the group
    of an id if it is a Streams group; make: that, made if need be. Keeps (2). Raises ProtocolError.
    """
    row = records.decode_key(STEM, key)
    kind = type(row).__name__
    if value is not None:
        _STEPS[kind](make(row.group_id), row, records.decode_value(row, value)[1])
    else:
        group = find(row.group_id)
        if group is not None:
            _GONE[kind](group, row)
    return row.group_id, getattr(row, "member_id", None)


def _replay_group(group: StreamsGroup, row: Any, value: Any) -> None:
    group.epoch, group.hash = value.epoch, value.metadata_hash
    group.validated = value.validated_topology_epoch
    group.configs = {config.key: config.value for config in value.last_assignment_configs or ()}


def _replay_topology(group: StreamsGroup, row: Any, value: Any) -> None:
    group.topology = topology_from(value)
    group.configured = None


def _replay_member(group: StreamsGroup, row: Any, value: Any) -> None:
    member = _copy_of(group, row.member_id)
    member.instance_id, member.rack_id = value.instance_id, value.rack_id
    member.client_id, member.client_host = value.client_id, value.client_host
    member.rebalance_ms, member.topology_epoch = value.rebalance_timeout_ms, value.topology_epoch
    member.process_id = value.process_id
    endpoint = value.user_endpoint
    member.endpoint = None if endpoint is None else (endpoint.host, endpoint.port)
    member.tags = {tag.key: tag.value for tag in value.client_tags}
    group.put(member)


def _replay_target_epoch(group: StreamsGroup, row: Any, value: Any) -> None:
    group.assignment_epoch = value.assignment_epoch
    group.assignment_ms = value.assignment_timestamp


def _replay_target(group: StreamsGroup, row: Any, value: Any) -> None:
    group.targets[row.member_id] = assignment_from(value)


def _replay_assignment(group: StreamsGroup, row: Any, value: Any) -> None:
    member = _copy_of(group, row.member_id)
    member.epoch, member.previous_epoch = value.member_epoch, value.previous_member_epoch
    member.state = value.state
    member.assigned = Held(
        _dated(value.active_tasks, value.member_epoch), _tasks(value.standby_tasks),
        _tasks(value.warmup_tasks))
    member.revoking = Held(
        _dated(value.active_tasks_pending_revocation, value.member_epoch),
        _tasks(value.standby_tasks_pending_revocation),
        _tasks(value.warmup_tasks_pending_revocation))
    group.put(member)


def assignment_from(message: Any) -> Assignment:
    """The tasks that a request or a record names; those of a subtopology may come in pieces."""
    return Assignment(_tasks(message.active_tasks), _tasks(message.standby_tasks),
                      _tasks(message.warmup_tasks))


def _tasks(rows: Iterable[Any]) -> Tasks:
    found: Tasks = {}
    for row in rows:
        if row.partitions:
            found[row.subtopology_id] = found.get(
                row.subtopology_id, frozenset()) | frozenset(row.partitions)
    return found


def _dated(rows: Iterable[Any], epoch: int) -> Dated:
    """Older Kafkas wrote no epochs: then it is the member's."""
    return {row.subtopology_id: dict(zip(
        row.partitions, row.assignment_epochs or [epoch] * len(row.partitions), strict=True))
        for row in rows if row.partitions}


def _copy_of(group: StreamsGroup, member_id: str) -> StreamsMember:
    member = group.members.get(member_id)
    return StreamsMember(member_id) if member is None else member.copy()


def _forget_member(group: StreamsGroup, row: Any) -> None:
    if row.member_id in group.members:
        group.remove(row.member_id)


def _forget_target(group: StreamsGroup, row: Any) -> None:
    group.targets.pop(row.member_id, None)


def _forget_target_epoch(group: StreamsGroup, row: Any) -> None:
    group.assignment_epoch, group.assignment_ms = FIRST_EPOCH, 0


def _forget_assignment(group: StreamsGroup, row: Any) -> None:
    member = group.members.get(row.member_id)
    if member is not None:
        fresh = member.copy()
        fresh.epoch, fresh.previous_epoch = -1, -1
        fresh.assigned = fresh.revoking = NOTHING_HELD
        group.put(fresh)


def _forget_topology(group: StreamsGroup, row: Any) -> None:
    group.topology = group.configured = None


def _forget_group(group: StreamsGroup, row: Any) -> None:
    """What is left of it has no record any more."""
    group.epoch, group.hash = NO_RECORD, 0


_STEPS: dict[str, Callable[[StreamsGroup, Any, Any], None]] = {
    "StreamsGroupMetadataKey": _replay_group,
    "StreamsGroupMemberMetadataKey": _replay_member,
    "StreamsGroupTargetAssignmentMetadataKey": _replay_target_epoch,
    "StreamsGroupTargetAssignmentMemberKey": _replay_target,
    "StreamsGroupCurrentMemberAssignmentKey": _replay_assignment,
    "StreamsGroupTopologyKey": _replay_topology,
}
_GONE: dict[str, Callable[[StreamsGroup, Any], None]] = {
    "StreamsGroupMetadataKey": _forget_group,
    "StreamsGroupMemberMetadataKey": _forget_member,
    "StreamsGroupTargetAssignmentMetadataKey": _forget_target_epoch,
    "StreamsGroupTargetAssignmentMemberKey": _forget_target,
    "StreamsGroupCurrentMemberAssignmentKey": _forget_assignment,
    "StreamsGroupTopologyKey": _forget_topology,
}


# ---- keys ---------------------------------------------------------------------------------------

def _member_key(group_id: str, member_id: str) -> bytes:
    return records.encode_key(messages.StreamsGroupMemberMetadataKey(
        group_id=group_id, member_id=member_id))


def _target_epoch_key(group_id: str) -> bytes:
    return records.encode_key(messages.StreamsGroupTargetAssignmentMetadataKey(group_id=group_id))


def _target_key(group_id: str, member_id: str) -> bytes:
    return records.encode_key(messages.StreamsGroupTargetAssignmentMemberKey(
        group_id=group_id, member_id=member_id))


def _assignment_key(group_id: str, member_id: str) -> bytes:
    return records.encode_key(messages.StreamsGroupCurrentMemberAssignmentKey(
        group_id=group_id, member_id=member_id))


def _topology_key(group_id: str) -> bytes:
    return records.encode_key(messages.StreamsGroupTopologyKey(group_id=group_id))

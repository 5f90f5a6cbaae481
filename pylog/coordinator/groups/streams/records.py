"""Encode a Streams group as records of `__consumer_offsets`, and replay them.

Owns: nothing.
Invariants: replaying member_state() and group_state() gives an equal group; records may be replayed
  twice, and compacted records in any order that a log can have.
Source: Kafka's coordinator schemas: keys 17 (group), 19 (member), 20 and 21 (target), 22
  (assignment), 23 (topology).
"""

from collections.abc import Callable, Iterable
from typing import Any

from pylog.coordinator.groups.state import modern_records
from pylog.coordinator.groups.state.modern_records import apply, dated
from pylog.coordinator.groups.assignors.tasks import Assignment, Tasks
from pylog.coordinator.groups.streams.group import (
    KIND,
    Dated,
    Held,
    StreamsGroup,
    StreamsMember,
)
from pylog.coordinator.groups.streams.topology import Internal, Topology, topology_from
from pylog.coordinator.runtime.journal import Record
from pylog.protocol import messages, records

STEM = "records_group"
target_epoch_record, member_gone = KIND.target_epoch_record, KIND.member_gone


# ---- to records ---------------------------------------------------------------------------------

def group_record(group: StreamsGroup) -> Record:
    new = messages.StreamsGroupMetadataValue
    return KIND.group_key(group.id), records.encode_value(0, new(
        epoch=group.epoch, metadata_hash=group.hash, validated_topology_epoch=group.validated,
        last_assignment_configs=[new.LastAssignmentConfig(key=name, value=value)
                                 for name, value in sorted(group.configs.items())]))


def topology_record(group_id: str, topology: Topology) -> Record:
    new = messages.StreamsGroupTopologyValue

    def internal(rows: Iterable[Internal]) -> list[Any]:
        return [new.TopicInfo(
            name=row.name, partitions=row.partitions, replication_factor=row.factor,
            topic_configs=[new.TopicConfig(key=name, value=value) for name, value in row.configs])
            for row in rows]

    return KIND.key("Topology", group_id=group_id), records.encode_value(0, new(
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
    return KIND.member_key(group.id, member.id), records.encode_value(0, new(
        instance_id=member.instance_id, rack_id=member.rack_id, client_id=member.client_id,
        client_host=member.client_host, rebalance_timeout_ms=member.rebalance_ms,
        topology_epoch=member.topology_epoch, process_id=member.process_id,
        user_endpoint=endpoint, client_tags=[
            new.KeyValue(key=name, value=value) for name, value in sorted(member.tags.items())]))


def target_record(group: StreamsGroup, member_id: str, target: Assignment) -> Record:
    new = messages.StreamsGroupTargetAssignmentMemberValue
    active, standby, warmup = (_rows(new.TaskIds, tasks) for tasks in target)
    return KIND.target_key(group.id, member_id), records.encode_value(0, new(
        active_tasks=active, standby_tasks=standby, warmup_tasks=warmup))


def assignment_record(group: StreamsGroup, member: StreamsMember) -> Record:
    new = messages.StreamsGroupCurrentMemberAssignmentValue
    assigned, revoking = member.assigned, member.revoking
    return KIND.assignment_key(group.id, member.id), records.encode_value(0, new(
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

# ---- complete state -----------------------------------------------------------------------------

def member_state(group: StreamsGroup, member_id: str) -> list[Record]:
    """Return the records of one member, in replay order; none if the member is gone."""
    return modern_records.member_state(group, member_id, member_record, target_record,
                                       assignment_record)


def group_state(group: StreamsGroup) -> list[Record]:
    """Return the records of the group itself."""
    found = [group_record(group), target_epoch_record(group)]
    return found if group.topology is None else [*found, topology_record(group.id, group.topology)]


# ---- from records -------------------------------------------------------------------------------

def replay(key: bytes, value: bytes | None, find: Callable[[str], StreamsGroup | None],
           make: Callable[[str], StreamsGroup]) -> tuple[str, str | None]:
    """Apply a record of a Streams group; replaying it twice is safe.

    Returns (group id, member id or None). find: returns the group if it is a Streams group. make:
    returns it, creating it if needed. Raises ProtocolError.
    """
    return apply(records.decode_key(STEM, key), value, _STEPS, _GONE, find, make)


def _replay_group(group: StreamsGroup, row: Any, value: Any) -> None:
    group.epoch, group.hash = value.epoch, value.metadata_hash
    group.validated = value.validated_topology_epoch
    group.configs = {config.key: config.value for config in value.last_assignment_configs or ()}


def _replay_topology(group: StreamsGroup, row: Any, value: Any) -> None:
    group.topology = topology_from(value)
    group.configured = None


def _replay_member(group: StreamsGroup, row: Any, value: Any) -> None:
    member = KIND.copy_of(group, row.member_id)
    member.instance_id, member.rack_id = value.instance_id, value.rack_id
    member.client_id, member.client_host = value.client_id, value.client_host
    member.rebalance_ms, member.topology_epoch = value.rebalance_timeout_ms, value.topology_epoch
    member.process_id = value.process_id
    endpoint = value.user_endpoint
    member.endpoint = None if endpoint is None else (endpoint.host, endpoint.port)
    member.tags = {tag.key: tag.value for tag in value.client_tags}
    group.put(member)


def _replay_target(group: StreamsGroup, row: Any, value: Any) -> None:
    group.targets[row.member_id] = assignment_from(value)


def _replay_assignment(group: StreamsGroup, row: Any, value: Any) -> None:
    member = KIND.copy_of(group, row.member_id)
    member.epoch, member.previous_epoch = value.member_epoch, value.previous_member_epoch
    member.state = value.state
    member.assigned = Held(
        dated(value.active_tasks, _subtopology, value.member_epoch), _tasks(value.standby_tasks),
        _tasks(value.warmup_tasks))
    member.revoking = Held(
        dated(value.active_tasks_pending_revocation, _subtopology, value.member_epoch),
        _tasks(value.standby_tasks_pending_revocation),
        _tasks(value.warmup_tasks_pending_revocation))
    group.put(member)


def _subtopology(row: Any) -> str:
    name: str = row.subtopology_id
    return name


def assignment_from(message: Any) -> Assignment:
    """Parse the tasks in a request or record. A subtopology may occur several times."""
    return Assignment(_tasks(message.active_tasks), _tasks(message.standby_tasks),
                      _tasks(message.warmup_tasks))


def _tasks(rows: Iterable[Any]) -> Tasks:
    found: Tasks = {}
    for row in rows:
        if row.partitions:
            found[row.subtopology_id] = found.get(
                row.subtopology_id, frozenset()) | frozenset(row.partitions)
    return found


def _forget_topology(group: StreamsGroup, row: Any) -> None:
    group.topology = group.configured = None


_STEPS = KIND.steps(
    Metadata=_replay_group, MemberMetadata=_replay_member, TargetAssignmentMember=_replay_target,
    CurrentMemberAssignment=_replay_assignment, Topology=_replay_topology)
_GONE = KIND.gone(Topology=_forget_topology)

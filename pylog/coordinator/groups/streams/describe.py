"""Responses about a Streams group: tasks, statuses, endpoints for interactive queries, and
descriptions.

Owns: nothing.
Invariants: nothing is changed except the endpoint information epoch.
Source: KIP-1071; Kafka's responses.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from pylog.coordinator.groups.assignors import tasks as task_assignor
from pylog.coordinator.groups.assignors.tasks import Assignment
from pylog.coordinator.groups.streams.group import StreamsGroup, StreamsMember
from pylog.coordinator.groups.streams.topology import (
    DELAYED, MISSING_CLIENT_TAGS, SHUTDOWN, STALE_TOPOLOGY, Internal,
)
from pylog.metadata.image.image import Topic
from pylog.protocol import messages
from pylog.protocol.errors import Error, ErrorCode


# ---- heartbeats ---------------------------------------------------------------------------------

def statuses(group: StreamsGroup, member: StreamsMember, waits: str | None,
             tags: list[str]) -> list[Any]:
    """Return the statuses of a heartbeat response. waits: why there is no assignment yet. tags:
    names of the client tags that the member must have.
    """
    assert group.topology is not None and group.configured is not None, group.id
    found: list[tuple[int, str]] = []
    if member.topology_epoch < group.topology.epoch:
        found.append((STALE_TOPOLOGY, f"The member's topology epoch {member.topology_epoch} is "
                      f"behind the group's topology epoch {group.topology.epoch}."))
    if waits is not None:
        found.append((DELAYED, waits))
    if group.configured.status is not None:
        found.append(group.configured.status)
    if group.shutdown is not None:
        found.append((SHUTDOWN, f"Streams group member {group.shutdown} encountered a fatal error "
                      "and requested a shutdown for the entire application."))
    missing = [tag for tag in tags if tag not in member.tags]
    if missing:
        found.append((MISSING_CLIENT_TAGS, "Missing required client tags for rack-aware standby "
                      f"assignment: [{', '.join(missing)}]. Configure them via "
                      "'client.tag.<tagKey>' in your Streams config."))
    new = messages.StreamsGroupHeartbeatResponse.Status
    return [new(status_code=code, status_detail=text) for code, text in found]


def with_tasks(response: Any, member: StreamsMember) -> None:
    new = messages.StreamsGroupHeartbeatResponse.TaskIds
    held = member.assigned
    response.active_tasks, response.standby_tasks, response.warmup_tasks = (
        _rows(new, tasks) for tasks in (held.active, held.standby, held.warmup))


def _rows(new: Any, tasks: Mapping[str, Iterable[int]]) -> list[Any]:
    return [new(subtopology_id=id_, partitions=sorted(tasks[id_])) for id_ in sorted(tasks)]


def with_endpoints(response: Any, group: StreamsGroup, member: StreamsMember,
                   topics: Mapping[str, Topic], changed: bool, is_new: bool,
                   known: int) -> None:
    """Add the endpoints to the response if the member has an older version.

    changed: True if its endpoint changed, or the tasks of a member with an endpoint. known: the
    version that it has. is_new: True for a new group, whose version stays 0 as in Kafka.
    """
    version = group.endpoint_epoch + changed
    if not is_new:
        group.endpoint_epoch = version
    if version != known:
        response.partitions_by_user_endpoint = [
            row for other in (*(other for other in group.members.values() if other.id != member.id),
                              member)
            if (row := _endpoint(group, other, topics)) is not None]
    response.endpoint_information_epoch = group.endpoint_epoch


def _endpoint(group: StreamsGroup, member: StreamsMember,
              topics: Mapping[str, Topic]) -> Any:
    if member.endpoint is None:
        return None
    new = messages.StreamsGroupHeartbeatResponse
    host, port = member.endpoint

    def partitions(tasks: Mapping[str, Iterable[int]]) -> list[Any]:
        assert group.topology is not None, group.id
        return [new.TopicPartition(topic=name, partitions=[
            index for index in sorted(indexes) if index < len(topics[name].partitions)])
            for id_, indexes in sorted(tasks.items()) if id_ in group.topology.subtopologies
            for name in group.topology.subtopologies[id_].read() if name in topics]

    return new.EndpointToPartitions(
        user_endpoint=new.Endpoint(host=host, port=port),
        active_partitions=partitions(member.assigned.active),
        standby_partitions=partitions(member.assigned.standby))


# ---- descriptions -------------------------------------------------------------------------------

def undescribed(group_id: str, error: Error) -> Any:
    """Return a DescribedGroup with an error."""
    return messages.StreamsGroupDescribeResponse.DescribedGroup(
        group_id=group_id, error_code=error,
        error_message="there is no such streams group"
        if error == ErrorCode.GROUP_ID_NOT_FOUND else None)


def described(group: StreamsGroup, members_max: int) -> Iterator[Any]:
    """Yield a DescribedGroup with some of the members, then further ones with the rest."""
    new = messages.StreamsGroupDescribeResponse
    state, topology = group.state, _topology(new, group)
    members = iter(list(group.members.values()))
    some = list(islice(members, members_max))
    while True:
        yield new.DescribedGroup(
            group_id=group.id, group_state=state, group_epoch=group.epoch,
            assignment_epoch=group.assignment_epoch, topology=topology,
            assignor_name=task_assignor.NAME,
            members=[_member(new, group, member) for member in some])
        some = list(islice(members, members_max))
        if not some:
            return


def _topology(new: Any, group: StreamsGroup) -> Any:
    """Return the topology, with the partitions of internal topics once all of them exist."""
    topology, configured = group.topology, group.configured
    if topology is None:
        return None
    known = configured.internal if configured is not None and configured.status is None else {}

    def rows(topics: tuple[Internal, ...]) -> list[Any]:
        return [new.TopicInfo(
            name=topic.name, partitions=topic.partitions or known.get(topic.name, 0),
            replication_factor=topic.factor, topic_configs=[
                new.KeyValue(key=name, value=value) for name, value in topic.configs])
            for topic in sorted(topics)]

    return new.Topology(epoch=topology.epoch, subtopologies=[new.Subtopology(
        subtopology_id=id_, source_topics=sorted(row.sources),
        repartition_sink_topics=sorted(row.sinks), state_changelog_topics=rows(row.changelogs),
        repartition_source_topics=rows(row.repartitions))
        for id_, row in sorted(topology.subtopologies.items())])


def _member(new: Any, group: StreamsGroup, member: StreamsMember) -> Any:
    target = group.targets.get(member.id, Assignment())
    endpoint = None if member.endpoint is None else new.Endpoint(
        host=member.endpoint[0], port=member.endpoint[1])
    return new.Member(
        member_id=member.id, member_epoch=member.epoch, instance_id=member.instance_id,
        rack_id=member.rack_id, client_id=member.client_id, client_host=member.client_host,
        topology_epoch=member.topology_epoch, process_id=member.process_id,
        user_endpoint=endpoint, client_tags=[
            new.KeyValue(key=name, value=value) for name, value in sorted(member.tags.items())],
        assignment=_assignment(new, *member.assigned), target_assignment=_assignment(new, *target))


def _assignment(new: Any, *tasks: Mapping[str, Iterable[int]]) -> Any:
    active, standby, warmup = (_rows(new.TaskIds, some) for some in tasks)
    return new.Assignment(active_tasks=active, standby_tasks=standby, warmup_tasks=warmup)

"""Write and read committed offsets at the group's coordinator.

Owns: nothing.
Invariants: requests go to the cached coordinator; after NOT_COORDINATOR and similar errors it is
  looked up again; topic ids are used only if all of them are known.
Source: Kafka's OffsetCommit and OffsetFetch; KIP-447 (require stable), KIP-848 (member epochs),
  KIP-516 (topic ids, version 10).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple

from pylog.client.errors import KafkaError, error, raise_among
from pylog.client.network.cluster import COORDINATOR, GROUP, Cluster
from pylog.client.types import OffsetAndMetadata, TopicPartition
from pylog.protocol import messages
from pylog.protocol.codec import ZERO_UUID
from pylog.protocol.errors import ErrorCode

TOPIC_IDS = 10
GROUPS = 8
GROUPS_PER_REQUEST = 1000
_LOST = {int(ErrorCode.NOT_COORDINATOR), int(ErrorCode.COORDINATOR_NOT_AVAILABLE),
         int(ErrorCode.REQUEST_TIMED_OUT), int(ErrorCode.NETWORK_EXCEPTION)}


class Identity(NamedTuple):
    """The committer: a group member, or no member (generation -1)."""

    group: str
    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None


async def ask_coordinator(cluster: Cluster, group: str, build: Any, *, channel: str = COORDINATOR,
                          timeout_s: float | None = None) -> Any:
    """Send one request to the group's coordinator. build: connection -> (request, version or None).

    Raises KafkaError; forgets the coordinator if it cannot be reached.
    """
    node = await cluster.coordinator(GROUP, group)
    try:
        connection = await cluster.connection(node, channel)
        request, version = build(connection)
        return await connection.send(request, version=version, timeout_s=timeout_s)
    except KafkaError as failure:
        if failure.stale_metadata:
            cluster.forget_coordinator(GROUP, group)
        raise


async def ask_coordinators(
        cluster: Cluster, groups: Iterable[str],
        query: Callable[[int, Any, list[str], dict[str, Any]], Awaitable[None]]) -> dict[str, Any]:
    """Run query(node, connection, groups, found) for up to GROUPS_PER_REQUEST groups of one
    coordinator at a time. It adds the result or the KafkaError of each group to `found`.

    Returns `found`; forgets a coordinator that cannot be reached.
    """
    found: dict[str, Any] = {}
    by_node: dict[int, list[str]] = {}
    for group, node in (await cluster.coordinators(GROUP, groups)).items():
        if isinstance(node, KafkaError):
            found[group] = node
        else:
            by_node.setdefault(node, []).append(group)

    async def query_at(node: int, names: list[str]) -> None:
        try:
            connection = await cluster.connection(node, COORDINATOR)
            for at in range(0, len(names), GROUPS_PER_REQUEST):
                await query(node, connection, names[at:at + GROUPS_PER_REQUEST], found)
        except KafkaError as failure:
            for group in names:
                if group not in found:
                    found[group] = failure
                    if failure.stale_metadata:
                        cluster.forget_coordinator(GROUP, group)

    await asyncio.gather(*[query_at(node, names) for node, names in by_node.items()])
    return found


def refused(cluster: Cluster, group: str, code: int, context: str = "") -> KafkaError:
    """Return the exception for a coordinator's error code; forget a coordinator that has moved."""
    if code in _LOST:
        cluster.forget_coordinator(GROUP, group)
    return error(code, context=context or f"group {group!r}")


def _ids(cluster: Cluster, topics: Iterable[str]) -> dict[str, bytes]:
    return {topic: cluster.metadata.topic_id(topic) for topic in topics}


def _version(connection: Any, cls: type, ids: Mapping[str, bytes]) -> int:
    """Return the request version: topic ids only if all are known."""
    known = ids and ZERO_UUID not in ids.values()
    return int(connection.version(cls, None if known else TOPIC_IDS - 1))


async def commit(cluster: Cluster, who: Identity,
                 offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
    """Commit once. Raises the KafkaError of the first partition that failed, with `results`."""
    if not offsets:
        return
    request = messages.OffsetCommitRequest
    ids = _ids(cluster, {tp[0] for tp in offsets})

    def build(connection: Any) -> tuple[Any, int]:
        topics: dict[str, Any] = {}
        for tp, given in offsets.items():
            row = topics.get(tp[0])
            if row is None:
                row = topics[tp[0]] = request.OffsetCommitRequestTopic(
                    name=tp[0], topic_id=ids[tp[0]])
            row.partitions.append(request.OffsetCommitRequestPartition(
                partition_index=tp[1], committed_offset=given.offset,
                committed_leader_epoch=given.leader_epoch, committed_metadata=given.metadata))
        return request(
            group_id=who.group, generation_id_or_member_epoch=who.generation,
            member_id=who.member_id, group_instance_id=who.instance_id,
            topics=list(topics.values())), _version(connection, request, ids)

    response = await ask_coordinator(cluster, who.group, build)
    names = {id_: name for name, id_ in ids.items()}
    failures: dict[TopicPartition, KafkaError] = {}
    for topic in response.topics:
        for row in topic.partitions:
            if row.error_code:
                tp = TopicPartition(topic.name or names.get(topic.topic_id, "?"),
                                    row.partition_index)
                failures[tp] = refused(cluster, who.group, row.error_code,
                                       f"group {who.group!r}, {tp}")
    if failures:
        raise_among({**dict.fromkeys(offsets), **failures})


async def committed(cluster: Cluster, who: Identity, partitions: Iterable[TopicPartition] | None,
                    require_stable: bool = True) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the committed offsets of these partitions, or (None) of all; omits those without one.

    Raises KafkaError, or UnstableOffsetCommitError while a transaction is open.
    """
    wanted = _by_topic(partitions)
    ids = _ids(cluster, wanted or ())

    def build(connection: Any) -> tuple[Any, int]:
        version = _version(connection, messages.OffsetFetchRequest, ids)
        if version < GROUPS:
            return _old_request(who.group, wanted, require_stable and version >= 7), version
        return messages.OffsetFetchRequest(groups=[_group_row(who, wanted, ids)],
                                           require_stable=require_stable), version

    response = await ask_coordinator(cluster, who.group, build)
    group = response.groups[0] if response.groups else response
    return _read_offsets(cluster, who.group, group, {id_: name for name, id_ in ids.items()})


async def committed_by_groups(
        cluster: Cluster, wanted: Mapping[str, list[TopicPartition] | None],
        require_stable: bool = False
) -> dict[str, dict[TopicPartition, OffsetAndMetadata] | KafkaError]:
    """Return the committed offsets of many groups, or the error of each, with few requests to each
    coordinator.
    """
    ids = _ids(cluster, {tp[0] for parts in wanted.values() for tp in parts or ()})
    names = {id_: name for name, id_ in ids.items()}

    async def query(node: int, connection: Any, groups: list[str], found: dict[str, Any]) -> None:
        # A response about all partitions has topics of unknown ids.
        version = _version(connection, messages.OffsetFetchRequest,
                           {} if None in wanted.values() else ids)
        if version < GROUPS:
            for group in groups:
                try:
                    found[group] = await committed(
                        cluster, Identity(group), wanted[group], require_stable)
                except KafkaError as failure:
                    found[group] = failure
            return
        response = await connection.send(messages.OffsetFetchRequest(
            require_stable=require_stable,
            groups=[_group_row(Identity(group), _by_topic(wanted[group]), ids)
                    for group in groups]), version=version)
        for row in response.groups:
            try:
                found[row.group_id] = _read_offsets(cluster, row.group_id, row, names)
            except KafkaError as failure:
                found[row.group_id] = failure

    return await ask_coordinators(cluster, wanted, query)


def _by_topic(partitions: Iterable[TopicPartition] | None) -> dict[str, list[int]] | None:
    if partitions is None:
        return None
    found: dict[str, list[int]] = {}
    for topic, number in partitions:
        found.setdefault(topic, []).append(number)
    return found


def _read_offsets(cluster: Cluster, name: str, group: Any, names: Mapping[bytes, str]
                  ) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets in one group's part of a response. Raises KafkaError."""
    if group.error_code:
        raise refused(cluster, name, group.error_code)
    found = {}
    for topic in group.topics:
        topic_name = topic.name or names[topic.topic_id]
        for row in topic.partitions:
            if row.error_code:
                context = f"group {name!r}, {topic_name}-{row.partition_index}"
                raise refused(cluster, name, row.error_code, context)
            if row.committed_offset >= 0:
                found[TopicPartition(topic_name, row.partition_index)] = OffsetAndMetadata(
                    row.committed_offset, row.metadata or "", row.committed_leader_epoch)
    return found


def _group_row(who: Identity, wanted: dict[str, list[int]] | None, ids: Mapping[str, bytes]) -> Any:
    request = messages.OffsetFetchRequest
    return request.OffsetFetchRequestGroup(
        group_id=who.group, member_id=who.member_id or None, member_epoch=who.generation,
        topics=None if wanted is None else [
            request.OffsetFetchRequestTopics(
                name=name, topic_id=ids[name], partition_indexes=numbers)
            for name, numbers in wanted.items()])


def _old_request(group: str, wanted: dict[str, list[int]] | None, require_stable: bool) -> Any:
    request = messages.OffsetFetchRequest
    return request(
        group_id=group, require_stable=require_stable,
        topics=None if wanted is None else [
            request.OffsetFetchRequestTopic(name=name, partition_indexes=numbers)
            for name, numbers in wanted.items()])

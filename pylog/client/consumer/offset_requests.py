"""Write and read committed offsets at the group's coordinator.

Owns: nothing.
Invariants: requests go to the cached coordinator; after NOT_COORDINATOR and similar errors it is
  looked up again; topic ids are used only if all of them are known.
Source: Kafka's OffsetCommit and OffsetFetch; KIP-447 (require stable), KIP-848 (member epochs),
  KIP-516 (topic ids, version 10).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pylog.client.errors import KafkaError, error, raise_among
from pylog.client.network.cluster import COORDINATOR, GROUP, Cluster
from pylog.client.types import OffsetAndMetadata, TopicPartition
from pylog.protocol import messages
from pylog.protocol.codec import ZERO_UUID
from pylog.protocol.errors import ErrorCode

TOPIC_IDS = 10
GROUPS = 8
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

    answer = await ask_coordinator(cluster, who.group, build)
    names = {id_: name for name, id_ in ids.items()}
    failures: dict[TopicPartition, KafkaError] = {}
    for topic in answer.topics:
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
    wanted: dict[str, list[int]] = {}
    for topic, number in partitions or ():
        wanted.setdefault(topic, []).append(number)
    ids = _ids(cluster, wanted)

    def build(connection: Any) -> tuple[Any, int]:
        version = _version(connection, messages.OffsetFetchRequest, ids)
        rows = None if partitions is None else wanted
        if version < GROUPS:
            return _old_request(who.group, rows, require_stable and version >= 7), version
        return _request(who, rows, ids, require_stable), version

    answer = await ask_coordinator(cluster, who.group, build)
    group = answer.groups[0] if answer.groups else answer
    if group.error_code:
        raise refused(cluster, who.group, group.error_code)
    names = {id_: name for name, id_ in ids.items()}
    found = {}
    for topic in group.topics:
        name = topic.name or names[topic.topic_id]
        for row in topic.partitions:
            if row.error_code:
                context = f"group {who.group!r}, {name}-{row.partition_index}"
                raise refused(cluster, who.group, row.error_code, context)
            if row.committed_offset >= 0:
                found[TopicPartition(name, row.partition_index)] = OffsetAndMetadata(
                    row.committed_offset, row.metadata or "", row.committed_leader_epoch)
    return found


def _request(who: Identity, wanted: dict[str, list[int]] | None, ids: Mapping[str, bytes],
             require_stable: bool) -> Any:
    request = messages.OffsetFetchRequest
    group = request.OffsetFetchRequestGroup(
        group_id=who.group, member_id=who.member_id or None, member_epoch=who.generation,
        topics=None if wanted is None else [
            request.OffsetFetchRequestTopics(
                name=name, topic_id=ids[name], partition_indexes=numbers)
            for name, numbers in wanted.items()])
    return request(groups=[group], require_stable=require_stable)


def _old_request(group: str, wanted: dict[str, list[int]] | None, require_stable: bool) -> Any:
    request = messages.OffsetFetchRequest
    return request(
        group_id=group, require_stable=require_stable,
        topics=None if wanted is None else [
            request.OffsetFetchRequestTopic(name=name, partition_indexes=numbers)
            for name, numbers in wanted.items()])

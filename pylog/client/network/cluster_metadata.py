"""An immutable snapshot of cluster metadata, and how a response changes it.

Owns: nothing; snapshots are replaced, never changed.
Invariants: a partition's leader epoch never decreases unless its topic was re-created; `ids` and
  `topics` contain the same topics.
Source: Kafka's Metadata request; KIP-320 (leader epochs), KIP-516 (topic ids).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from pylog.protocol.codec import ZERO_UUID
from pylog.protocol.errors import ErrorCode

_GONE = {int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), int(ErrorCode.UNKNOWN_TOPIC_ID)}


class Node(NamedTuple):
    """A broker as the cluster advertises it."""

    id: int
    host: str
    port: int
    rack: str | None = None


class PartitionInfo(NamedTuple):
    """A partition. leader: node id, -1 without a leader."""

    topic: str
    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...]
    error_code: int


class TopicInfo(NamedTuple):
    """A topic with its partitions by number. error_code: why it is unusable, otherwise 0."""

    name: str
    id: bytes
    is_internal: bool
    error_code: int
    partitions: dict[int, PartitionInfo]


@dataclass(frozen=True)
class Metadata:
    """A snapshot of the cluster. version increases with every response."""

    version: int = 0
    cluster_id: str | None = None
    controller: int = -1
    nodes: dict[int, Node] = field(default_factory=dict)
    topics: dict[str, TopicInfo] = field(default_factory=dict)
    ids: dict[bytes, str] = field(default_factory=dict)

    def leader(self, topic: str, partition: int) -> int:
        """Return the leader's node id, or -1 if it is unknown."""
        info = self.partition(topic, partition)
        return -1 if info is None or info.leader not in self.nodes else info.leader

    def partition(self, topic: str, partition: int) -> PartitionInfo | None:
        found = self.topics.get(topic)
        return None if found is None else found.partitions.get(partition)

    def partition_count(self, topic: str) -> int:
        """Return the partition count; 0 for an unknown or unusable topic."""
        found = self.topics.get(topic)
        return 0 if found is None or found.error_code else len(found.partitions)

    def topic_id(self, topic: str) -> bytes:
        """Return the topic id; 16 zero bytes if unknown."""
        found = self.topics.get(topic)
        return ZERO_UUID if found is None else found.id


def merged(old: Metadata, response: Any, asked_all: bool) -> Metadata:
    """Return the snapshot after a MetadataResponse. asked_all: topics it does not include are gone.
    """
    topics = {} if asked_all else dict(old.topics)
    for row in response.topics:
        if row.name is None:
            continue
        if row.error_code in _GONE and row.name in topics:
            del topics[row.name]
        elif row.error_code == 0 or row.name not in topics or row.error_code not in _PASSING:
            topics[row.name] = _topic(row, old.topics.get(row.name))
    nodes = {row.node_id: Node(row.node_id, row.host, row.port, row.rack)
             for row in response.brokers}
    return Metadata(
        version=old.version + 1, cluster_id=response.cluster_id, controller=response.controller_id,
        nodes=nodes or old.nodes, topics=topics,
        ids={topic.id: topic.name for topic in topics.values() if topic.id != ZERO_UUID},
    )


def with_leader(old: Metadata, topic: str, partition: int, leader: int, epoch: int) -> Metadata:
    """Return the snapshot with a newer leader, or `old` if the leader is not newer."""
    known = old.partition(topic, partition)
    if known is None or leader not in old.nodes or epoch <= known.leader_epoch:
        return old
    info = old.topics[topic]
    parts = {**info.partitions, partition: known._replace(leader=leader, leader_epoch=epoch)}
    return replace(old, version=old.version + 1,
                   topics={**old.topics, topic: info._replace(partitions=parts)})


# Errors during which a usable topic keeps its known metadata.
_PASSING = {int(ErrorCode.LEADER_NOT_AVAILABLE)}


def _topic(row: Any, old: TopicInfo | None) -> TopicInfo:
    known = old.partitions if old is not None and old.id == row.topic_id else {}
    partitions = {}
    for part in row.partitions:
        before = known.get(part.partition_index)
        if before is not None and -1 != part.leader_epoch < before.leader_epoch:
            partitions[part.partition_index] = before  # The leader epoch never decreases.
            continue
        partitions[part.partition_index] = PartitionInfo(
            row.name, part.partition_index, part.leader_id, part.leader_epoch,
            tuple(part.replica_nodes), tuple(part.isr_nodes), tuple(part.offline_replicas),
            part.error_code)
    ordered = {number: partitions[number] for number in sorted(partitions)}
    return TopicInfo(row.name, row.topic_id, row.is_internal, row.error_code, ordered)

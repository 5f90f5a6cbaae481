"""Arguments and results of the admin client: new topics, settings, groups, log directories.

Owns: nothing.
Invariants: names are those of Kafka's Admin client.
Source: Kafka 4.3's org.apache.kafka.clients.admin, for names and meanings.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from pylog.client.network.cluster_metadata import Node, PartitionInfo, TopicInfo
from pylog.client.types import OffsetAndMetadata, TopicPartition


@dataclass(frozen=True)
class NewTopic:
    """A topic to create. -1: the broker's default. replica_assignments: partition -> broker ids,
    instead of counts.
    """

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    replica_assignments: dict[int, list[int]] = field(default_factory=dict)
    configs: dict[str, str] = field(default_factory=dict)


class ResourceType(IntEnum):
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigResource(NamedTuple):
    """The owner of settings: ConfigResource(ResourceType.TOPIC, "orders")."""

    type: ResourceType
    name: str


class ConfigSource(IntEnum):
    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8


class ConfigEntry(NamedTuple):
    name: str
    value: str | None
    source: int
    is_default: bool
    is_read_only: bool
    is_sensitive: bool
    documentation: str | None


class OpType(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class AlterConfigOp(NamedTuple):
    """One change of one setting."""

    name: str
    value: str | None = None
    op: OpType = OpType.SET


class ClusterDescription(NamedTuple):
    cluster_id: str
    controller: int
    nodes: list[Node]


class GroupListing(NamedTuple):
    group_id: str
    protocol: str
    state: str
    type: str


class MemberDescription(NamedTuple):
    member_id: str
    group_instance_id: str | None
    client_id: str
    host: str
    assignment: list[TopicPartition]


class GroupDescription(NamedTuple):
    group_id: str
    state: str
    type: str
    assignor: str
    coordinator: int
    members: list[MemberDescription]


class ShareMemberDescription(NamedTuple):
    member_id: str
    client_id: str
    host: str
    assignment: list[TopicPartition]


class ShareGroupDescription(NamedTuple):
    group_id: str
    state: str
    assignor: str
    coordinator: int
    members: list[ShareMemberDescription]


class ShareOffset(NamedTuple):
    """A share group's progress in a partition. start_offset: the first unprocessed record, or -1 if
    not started. lag: number of unprocessed records, or -1 if unknown.
    """

    start_offset: int
    leader_epoch: int
    lag: int


class StreamsTask(NamedTuple):
    """The task of a subtopology that reads this partition of each of its topics."""

    subtopology: str
    partition: int


class StreamsAssignment(NamedTuple):
    active: list[StreamsTask]
    standby: list[StreamsTask]
    warmup: list[StreamsTask]


class StreamsMemberDescription(NamedTuple):
    """A Streams member. endpoint: "host:port" for interactive queries, or None. target: the
    assignment its tasks will change to.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    rack_id: str | None
    process_id: str
    endpoint: str | None
    member_epoch: int
    topology_epoch: int
    is_classic: bool
    assignment: StreamsAssignment
    target: StreamsAssignment


class StreamsSubtopology(NamedTuple):
    """Names of the source, repartition and changelog topics."""

    id: str
    sources: list[str]
    repartition_sources: list[str]
    repartition_sinks: list[str]
    changelogs: list[str]


class StreamsGroupDescription(NamedTuple):
    """A Streams group. topology_epoch: None before the group has a topology."""

    group_id: str
    state: str
    group_epoch: int
    assignment_epoch: int
    topology_epoch: int | None
    coordinator: int
    subtopologies: list[StreamsSubtopology]
    members: list[StreamsMemberDescription]


class ReplicaInfo(NamedTuple):
    """A replica. size: bytes on disk; offset_lag: records behind the leader."""

    size: int
    offset_lag: int
    is_future: bool


class LogDirDescription(NamedTuple):
    """A log directory. total_bytes, usable_bytes: of the volume, or -1 if the broker does not
    report them.
    """

    path: str
    error_code: int
    total_bytes: int
    usable_bytes: int
    replicas: dict[TopicPartition, ReplicaInfo]


class QuotaAlteration(NamedTuple):
    """A quota change. entity: {"user": name or None for the default}; ops: quota -> value, None
    removes it.
    """

    entity: dict[str, str | None]
    ops: dict[str, float | None]


class TransactionListing(NamedTuple):
    """One transactional id. coordinator: its broker's id."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


class TransactionDescription(NamedTuple):
    """A transaction. start_ms: wall clock, or -1 without one."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int
    partitions: tuple[TopicPartition, ...]
    coordinator: int


class ProducerDescription(NamedTuple):
    """A producer's state in a partition. transaction_start: offset, or -1 without an open
    transaction.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_start: int


class AclBinding(NamedTuple):
    """One ACL, with Kafka's names: resource_type TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID,
    DELEGATION_TOKEN or USER; pattern_type LITERAL or PREFIXED; principal `User:name`, or `User:*`
    for all users; host an address or *; permission ALLOW or DENY.
    """

    resource_type: str
    resource_name: str
    pattern_type: str
    principal: str
    host: str
    operation: str
    permission: str


class AclFilter(NamedTuple):
    """A filter for ACLs. None and ANY match every value. pattern_type MATCH: all ACLs that apply to
    a resource of that name.
    """

    resource_type: str = "ANY"
    resource_name: str | None = None
    pattern_type: str = "ANY"
    principal: str | None = None
    host: str | None = None
    operation: str = "ANY"
    permission: str = "ANY"


class ScramCredentialInfo(NamedTuple):
    mechanism: str
    iterations: int


class ScramUpsertion(NamedTuple):
    """A new SCRAM credential. mechanism: SCRAM-SHA-256 or SCRAM-SHA-512."""

    user: str
    password: str
    mechanism: str = "SCRAM-SHA-512"
    iterations: int = 4096

    def __repr__(self) -> str:
        return f"ScramUpsertion({self.user!r}, ..., {self.mechanism!r}, {self.iterations})"


class ScramDeletion(NamedTuple):
    user: str
    mechanism: str


class DelegationToken(NamedTuple):
    """A delegation token. owner, renewers: `User:name`. Times in ms since 1970; valid until
    expires_ms, renewable until ends_ms.
    """

    token_id: str
    hmac: bytes
    owner: str
    renewers: tuple[str, ...]
    issued_ms: int
    expires_ms: int
    ends_ms: int

    @property
    def password(self) -> str:
        """Return the SCRAM password; the user name is the token id."""
        return base64.b64encode(self.hmac).decode()

    def __repr__(self) -> str:
        return f"DelegationToken({self.token_id!r}, ..., {self.owner!r})"


__all__ = [
    "AclBinding", "AclFilter", "AlterConfigOp", "ClusterDescription", "ConfigEntry",
    "ConfigResource", "ConfigSource", "DelegationToken", "GroupDescription", "GroupListing",
    "LogDirDescription", "MemberDescription", "NewTopic", "Node", "OffsetAndMetadata",
    "OpType", "PartitionInfo", "ProducerDescription", "QuotaAlteration", "ReplicaInfo",
    "ResourceType", "ScramCredentialInfo", "ScramDeletion", "ScramUpsertion", "TopicInfo",
    "TopicPartition", "TransactionDescription", "TransactionListing",
]

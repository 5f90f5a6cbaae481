"""The same requests by the same principals, to Apache Kafka and to brokerd: with no permission,
with every single permission; and rejected ACLs.
"""

import time

import pytest

from pylog.protocol import api, messages
from pylog.security import authorizer
from pylog.security.authorization.access import STANDARD
from pylog.testing import Broker
from tests.security.caller import Caller
from tests.wire import raw

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(570)]
JAAS = ('org.apache.kafka.common.security.plain.PlainLoginModule required username="admin" '
        'password="admin" user_admin="admin" user_alice="alice";')
SETTINGS = {
    "authorizer.class.name": STANDARD, "super.users": "User:admin;User:ANONYMOUS",
    "sasl.enabled.mechanisms": "PLAIN", "auto.create.topics.enable": "true",
    "connection.failed.authentication.delay.ms": "1",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
    "offsets.topic.num.partitions": "1", "group.initial.rebalance.delay.ms": "0"}
THERE, ABSENT, GROUP, TXN = "there", "absent", "group", "txn"
KINDS = {authorizer.TOPIC: "*", authorizer.GROUP: GROUP, authorizer.TRANSACTIONAL_ID: TXN,
         authorizer.CLUSTER: authorizer.CLUSTER_NAME}
SINGLE = [(kind, operation) for kind, operations in (
    (authorizer.TOPIC, authorizer.OPERATIONS[authorizer.TOPIC]),
    (authorizer.GROUP, (authorizer.READ, authorizer.DELETE, authorizer.DESCRIBE,
                        authorizer.DESCRIBE_CONFIGS, authorizer.ALTER_CONFIGS)),
    (authorizer.TRANSACTIONAL_ID, (authorizer.DESCRIBE, authorizer.WRITE)),
    (authorizer.CLUSTER, authorizer.OPERATIONS[authorizer.CLUSTER])) for operation in operations]
# Fields that differ between any two clusters.
LEFT_OUT = {"throttle_time_ms", "error_message", "cluster_id", "host", "port", "topic_id",
            "leader_epoch", "timestamp", "offset", "end_offset", "configs", "brokers", "nodes",
            "log_dir", "api_keys", "results_of", "producer_id", "controller_id", "members",
            "committed_leader_epoch", "total_bytes", "usable_bytes", "isr_nodes", "replica_nodes",
            "offline_replicas", "entries_of", "low_watermark", "current_voters", "observers",
            "high_watermark", "leader_id", "metadata", "base_offset", "log_append_time_ms",
            "log_start_offset", "finalized_features", "record_errors", "session_lifetime_ms",
            "responses_of", "node_id", "rack", "node_endpoints", "endpoint_type",
            "eligible_leader_replicas", "last_known_elr", "group_state", "coordinator_epoch",
            "protocol_name", "generation_id", "leader", "member_id", "assignment"}


class Side:
    def __init__(self, open_port: int, port: int, wait_s: float):
        self.open_port, self.port, self.wait_s = open_port, port, wait_s

    def admin(self, key, version, request):
        with Caller(self.open_port) as caller:
            return caller.ask(key, version, request)

    def allow(self, *rights) -> None:
        """Replace alice's ACLs by these: (resource type, operation)."""
        new = messages.DeleteAclsRequest
        self.admin(api.DELETE_ACLS, 3, new(filters=[new.DeleteAclsFilter(
            resource_type_filter=1, resource_name_filter=None, pattern_type_filter=1,
            principal_filter="User:alice", host_filter=None, operation=1, permission_type=1)]))
        if rights:
            new = messages.CreateAclsRequest
            answer = self.admin(api.CREATE_ACLS, 3, new(creations=[new.AclCreation(
                resource_type=kind, resource_name=KINDS[kind], resource_pattern_type=3,
                principal="User:alice", host="*", operation=operation, permission_type=3)
                for kind, operation in rights]))
            assert not any(row.error_code for row in answer.results), answer
        end_s = time.monotonic() + 30
        # Kafka responds before its broker applies the ACLs.
        while self.rules() != set(rights):
            assert time.monotonic() < end_s
            time.sleep(self.wait_s)

    def rules(self) -> set:
        answer = self.admin(api.DESCRIBE_ACLS, 3, messages.DescribeAclsRequest(
            resource_type_filter=1, resource_name_filter=None, pattern_type_filter=1,
            principal_filter="User:alice", host_filter=None, operation=1, permission_type=1))
        return {(row.resource_type, rule.operation)
                for row in answer.resources for rule in row.acls}

    def answers(self) -> dict:
        """Return label -> alice's response, for each request."""
        found = {}
        for label, key, version, request in requests():
            with Caller(self.port) as caller:
                assert caller.plain("alice", "alice").error_code == 0
                try:
                    answer = caller.ask(key, version, request)
                    while getattr(answer, "error_code", 0) == 14:
                        # Kafka's first block of producer ids.
                        time.sleep(self.wait_s)
                        answer = caller.ask(key, version, request)
                    found[label] = flat(answer)
                except raw.Closed:
                    found[label] = "closed"
        return found


def flat(message, path: str = ""):
    """Return error codes, names and numbers of a response, sorted."""
    if isinstance(message, list | tuple):
        return sorted((flat(row) for row in message), key=str)
    fields = [name for name in dir(message) if not name.startswith("_")] \
        if hasattr(type(message), "__mro__") and type(message).__mro__[1:2] != (object,) else None
    if fields is None or isinstance(message, str | bytes | int | float | memoryview):
        return message
    return {name: flat(getattr(message, name)) for name in fields
            if name not in LEFT_OUT and not isinstance(getattr(message, name), type)}


def requests():
    """Yield (label, api key, version, request): no success changes the result of another request.
    """
    m = messages
    for name in (THERE, ABSENT):
        yield from [
            (f"metadata {name}", 3, 12, m.MetadataRequest(
                topics=[m.MetadataRequest.MetadataRequestTopic(name=name)],
                allow_auto_topic_creation=False, include_topic_authorized_operations=True)),
            (f"list offsets {name}", 2, 7, m.ListOffsetsRequest(replica_id=-1, topics=[
                m.ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=[
                    m.ListOffsetsRequest.ListOffsetsPartition(
                        partition_index=0, timestamp=-1)])])),
            (f"epochs {name}", 23, 4, m.OffsetForLeaderEpochRequest(replica_id=-1, topics=[
                m.OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=name, partitions=[
                    m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
                        partition=0, leader_epoch=0)])])),
            (f"delete records {name}", 21, 2, m.DeleteRecordsRequest(timeout_ms=5000, topics=[
                m.DeleteRecordsRequest.DeleteRecordsTopic(name=name, partitions=[
                    m.DeleteRecordsRequest.DeleteRecordsPartition(
                        partition_index=0, offset=0)])])),
            (f"create partitions {name}", 37, 3, m.CreatePartitionsRequest(
                timeout_ms=5000, validate_only=True, topics=[
                    m.CreatePartitionsRequest.CreatePartitionsTopic(
                        name=name, count=2, assignments=None)])),
            (f"producers {name}", 61, 0, m.DescribeProducersRequest(topics=[
                m.DescribeProducersRequest.TopicRequest(name=name, partition_indexes=[0])])),
            (f"topic partitions {name}", 75, 0, m.DescribeTopicPartitionsRequest(
                topics=[m.DescribeTopicPartitionsRequest.TopicRequest(name=name)],
                response_partition_limit=100)),
            (f"commit {name}", 8, 8, m.OffsetCommitRequest(
                group_id=GROUP, generation_id_or_member_epoch=-1, topics=[
                    m.OffsetCommitRequest.OffsetCommitRequestTopic(name=name, partitions=[
                        m.OffsetCommitRequest.OffsetCommitRequestPartition(
                            partition_index=0, committed_offset=1)])])),
            (f"fetch offsets {name}", 9, 8, m.OffsetFetchRequest(groups=[
                m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id=GROUP, topics=[
                    m.OffsetFetchRequest.OffsetFetchRequestTopics(
                        name=name, partition_indexes=[0])])])),
            (f"fetch offsets as before {name}", 9, 5, m.OffsetFetchRequest(
                group_id=GROUP, topics=[m.OffsetFetchRequest.OffsetFetchRequestTopic(
                    name=name, partition_indexes=[0])])),
            (f"delete offsets {name}", 47, 0, m.OffsetDeleteRequest(group_id="none", topics=[
                m.OffsetDeleteRequest.OffsetDeleteRequestTopic(name=name, partitions=[
                    m.OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=0)])])),
            (f"create {name}", 19, 7, m.CreateTopicsRequest(
                timeout_ms=5000, validate_only=True, topics=[
                    m.CreateTopicsRequest.CreatableTopic(
                        name=name, num_partitions=1, replication_factor=1)])),
            # A member that has joined names no topology: rejected if everything else is allowed.
            (f"streams heartbeat {name}", 88, 0, m.StreamsGroupHeartbeatRequest(
                group_id=GROUP, member_id="m", member_epoch=1,
                topology=m.StreamsGroupHeartbeatRequest.Topology(epoch=0, subtopologies=[
                    m.StreamsGroupHeartbeatRequest.Subtopology(
                        subtopology_id="0", source_topics=[name])]))),
        ]
        yield from of_settings(name)
    yield from of_topics()
    yield from of_groups()
    yield from of_the_cluster()


def of_settings(name):
    m = messages
    yield from [
        (f"describe configs {name}", 32, 4, m.DescribeConfigsRequest(resources=[
            m.DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=2, resource_name=name, configuration_keys=["flush.ms"])])),
        (f"alter configs {name}", 44, 1, m.IncrementalAlterConfigsRequest(
            validate_only=True, resources=[
                m.IncrementalAlterConfigsRequest.AlterConfigsResource(
                    resource_type=2, resource_name=name, configs=[
                        m.IncrementalAlterConfigsRequest.AlterableConfig(
                            name="flush.ms", config_operation=0, value="7")])])),
        (f"replace configs {name}", 33, 2, m.AlterConfigsRequest(
            validate_only=True, resources=[m.AlterConfigsRequest.AlterConfigsResource(
                resource_type=2, resource_name=name, configs=[])])),
    ]


def of_topics():
    m = messages
    yield from [
        ("metadata of all", 3, 9, m.MetadataRequest(
            topics=None, include_cluster_authorized_operations=True)),
        ("metadata by a strange id", 3, 12, m.MetadataRequest(topics=[
            m.MetadataRequest.MetadataRequestTopic(name=None, topic_id=b"x" * 16)])),
        ("delete absent", 20, 6, m.DeleteTopicsRequest(
            topics=[m.DeleteTopicsRequest.DeleteTopicState(name=ABSENT)], timeout_ms=5000)),
        ("delete as before", 20, 5, m.DeleteTopicsRequest(
            topic_names=[ABSENT], timeout_ms=5000)),
        ("topic partitions of all", 75, 0, m.DescribeTopicPartitionsRequest(
            topics=[], response_partition_limit=100)),
        ("fetch all offsets", 9, 8, m.OffsetFetchRequest(groups=[
            m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id=GROUP, topics=None)])),
    ]


def of_groups():
    m = messages
    yield from [
        ("find group", 10, 4, m.FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP])),
        ("find group as before", 10, 2, m.FindCoordinatorRequest(key_type=0, key=GROUP)),
        ("heartbeat", 12, 4, m.HeartbeatRequest(group_id=GROUP, member_id="m", generation_id=1)),
        ("leave", 13, 4, m.LeaveGroupRequest(group_id=GROUP, members=[])),
        ("sync", 14, 5, m.SyncGroupRequest(
            group_id=GROUP, member_id="m", generation_id=1, protocol_type="consumer",
            protocol_name="range")),
        ("join", 11, 9, m.JoinGroupRequest(
            group_id=GROUP, session_timeout_ms=1, protocol_type="consumer", protocols=[
                m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")])),
        ("describe groups", 15, 5, m.DescribeGroupsRequest(
            groups=[GROUP], include_authorized_operations=True)),
        ("list groups", 16, 4, m.ListGroupsRequest()),
        ("streams heartbeat", 88, 0, m.StreamsGroupHeartbeatRequest(
            group_id=GROUP, member_id="m", member_epoch=1)),
        ("describe streams groups", 89, 0, m.StreamsGroupDescribeRequest(
            group_ids=[GROUP, "none"], include_authorized_operations=True)),
        ("delete groups", 42, 2, m.DeleteGroupsRequest(groups_names=["none"])),
    ]


def of_the_cluster():
    m = messages
    yield from [
        ("configs of the broker", 32, 4, m.DescribeConfigsRequest(resources=[
            m.DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=4, resource_name="1", configuration_keys=["num.io.threads"])])),
        ("configs of the group", 32, 4, m.DescribeConfigsRequest(resources=[
            m.DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=32, resource_name=GROUP, configuration_keys=["x"])])),
        ("alter configs of the broker", 44, 1, m.IncrementalAlterConfigsRequest(
            validate_only=True, resources=[
                m.IncrementalAlterConfigsRequest.AlterConfigsResource(
                    resource_type=4, resource_name="1", configs=[])])),
        ("producer id", 22, 4, m.InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=1000)),
        ("log dirs", 35, 4, m.DescribeLogDirsRequest(topics=[])),
        ("move", 34, 2, m.AlterReplicaLogDirsRequest(dirs=[
            m.AlterReplicaLogDirsRequest.AlterReplicaLogDir(path="/none", topics=[
                m.AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(
                    name=ABSENT, partitions=[0])])])),
        ("elect", 43, 2, m.ElectLeadersRequest(topic_partitions=[
            m.ElectLeadersRequest.TopicPartitions(topic=ABSENT, partitions=[0])])),
        ("reassign", 45, 0, m.AlterPartitionReassignmentsRequest(topics=[])),
        ("list reassignments", 46, 0, m.ListPartitionReassignmentsRequest(topics=None)),
        ("quotas", 48, 1, m.DescribeClientQuotasRequest(components=[])),
        ("alter quotas", 49, 1, m.AlterClientQuotasRequest(validate_only=True, entries=[
            m.AlterClientQuotasRequest.EntryData(
                entity=[m.AlterClientQuotasRequest.EntityData(
                    entity_type="user", entity_name="x")], ops=[])])),
        ("users", 50, 0, m.DescribeUserScramCredentialsRequest(users=[
            m.DescribeUserScramCredentialsRequest.UserName(name="nobody")])),
        ("alter users", 51, 0, m.AlterUserScramCredentialsRequest(upsertions=[], deletions=[
            m.AlterUserScramCredentialsRequest.ScramCredentialDeletion(
                name="nobody", mechanism=1)])),
        ("quorum", 55, 0, m.DescribeQuorumRequest(topics=[
            m.DescribeQuorumRequest.TopicData(topic_name="__cluster_metadata", partitions=[
                m.DescribeQuorumRequest.PartitionData(partition_index=0)])])),
        ("features", 57, 1, m.UpdateFeaturesRequest(validate_only=True, feature_updates=[])),
        ("cluster", 60, 1, m.DescribeClusterRequest(
            include_cluster_authorized_operations=True)),
        ("config resources", 74, 1, m.ListConfigResourcesRequest(resource_types=[8])),
        ("acls", 29, 3, m.DescribeAclsRequest(
            resource_type_filter=2, resource_name_filter="none", pattern_type_filter=3,
            principal_filter=None, host_filter=None, operation=1, permission_type=1)),
        ("create acls", 30, 3, m.CreateAclsRequest(creations=[m.CreateAclsRequest.AclCreation(
            resource_type=2, resource_name="x", resource_pattern_type=3, principal="nobody",
            host="*", operation=3, permission_type=3)])),
        ("delete acls", 31, 3, m.DeleteAclsRequest(filters=[
            m.DeleteAclsRequest.DeleteAclsFilter(
                resource_type_filter=2, resource_name_filter="none", pattern_type_filter=3,
                principal_filter="User:none", host_filter=None, operation=1,
                permission_type=1)])),
        ("a handshake again", 17, 1, m.SaslHandshakeRequest(mechanism="PLAIN")),
    ]


def prepared(side: Side) -> Side:
    new = messages.CreateTopicsRequest
    answer = side.admin(api.CREATE_TOPICS, 7, new(timeout_ms=10000, topics=[new.CreatableTopic(
        name=THERE, num_partitions=1, replication_factor=1)]))
    assert answer.topics[0].error_code == 0, answer
    end_s = time.monotonic() + 60
    while side.admin(api.FIND_COORDINATOR, 4, messages.FindCoordinatorRequest(
            key_type=0, coordinator_keys=[GROUP])).coordinators[0].error_code:
        assert time.monotonic() < end_s
        time.sleep(0.1)
    return side


@pytest.fixture(scope="module")
def sides(tmp_path_factory):
    from bench.kafka import KafkaBroker
    from pylog.testing.ports import free_port

    port, sasl, controller = free_port(), free_port(), free_port()
    ours = free_port(), free_port()
    overrides = {
        **SETTINGS, "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{sasl},"
                     f"CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port},"
                                f"SASL_PLAINTEXT://127.0.0.1:{sasl}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
                                          "SASL_PLAINTEXT:SASL_PLAINTEXT"}
    with KafkaBroker(tmp_path_factory.mktemp("kafka") / "data", port, overrides) as _, \
            Broker(settings={**SETTINGS, "node.id": "1", "listeners": (
                f"PLAINTEXT://127.0.0.1:{ours[0]},SASL_PLAINTEXT://127.0.0.1:{ours[1]}")}):
        yield prepared(Side(port, sasl, 0.05)), prepared(Side(*ours, 0))


def compare(kafka: dict, brokerd: dict, what: str) -> None:
    wrong = [f"{what}: {label}\n  kafka   {kafka[label]}\n  brokerd {brokerd[label]}"
             for label in kafka if kafka[label] != brokerd[label]]
    assert not wrong, "\n".join(wrong)


def test_every_request_without_permission_is_rejected_the_same(sides):
    for side in sides:
        side.allow()
    compare(sides[0].answers(), sides[1].answers(), "no right")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "operation"), SINGLE)
def test_each_single_right_opens_the_same(sides, kind, operation):
    for side in sides:
        side.allow((kind, operation))
    compare(sides[0].answers(), sides[1].answers(), f"{kind} {operation}")

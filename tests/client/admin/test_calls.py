"""Requests of the admin client, their targets, parsing of responses, and retries; the test plays
the brokers.
"""

import asyncio
from types import SimpleNamespace

import pytest

from pylog.client.admin.admin import Admin
from pylog.client.admin.types import (
    AlterConfigOp,
    ConfigResource,
    NewTopic,
    OpType,
    QuotaAlteration,
    ResourceType,
)
from pylog.client.errors import (
    KafkaConnectionError, KafkaError, KafkaTimeoutError, UnsupportedByBrokerError,
)
from pylog.client.types import TopicPartition
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode
from tests.client.played_admin import ANY, CONTROLLER, TRIES_MAX, admin_of

LATER, EXISTS = ErrorCode.NOT_CONTROLLER, ErrorCode.TOPIC_ALREADY_EXISTS
MISSING = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
BROKER, TOPIC = ConfigResource(ResourceType.BROKER, "2"), ConfigResource(ResourceType.TOPIC, "t")


def created(**codes):
    new = messages.CreateTopicsResponse
    return new(topics=[new.CreatableTopicResult(
        name=name, error_code=code, error_message=None, topic_id=name.encode() * 16)
        for name, code in codes.items()])


def raised(call):
    with pytest.raises(KafkaError) as found:
        asyncio.run(call)
    return found.value


# Several items in one call.

def test_only_retriable_failures_are_retried():
    admin, cluster = admin_of(created(a=0, b=LATER), created(b=LATER), created(b=0))
    assert asyncio.run(admin.create_topics(["a", "b"])) == {"a": b"a" * 16, "b": b"b" * 16}
    assert [[row.name for row in request.topics] for _, request, _ in cluster.asked] == [
        ["a", "b"], ["b"], ["b"]]
    assert {node for node, _, _ in cluster.asked} == {CONTROLLER}


def test_permanent_failure_is_raised_with_all_results_after_the_others_complete():
    admin, cluster = admin_of(created(a=EXISTS, b=LATER, c=0), created(b=0))
    error = raised(admin.create_topics(["a", "b", "c"]))
    assert error.code == EXISTS and len(cluster.asked) == 2
    assert (error.results["a"], error.results["b"], error.results["c"]) == (
        error, b"b" * 16, b"c" * 16)


def test_create_topics_does_not_retry_a_missing_branch_source():
    admin, cluster = admin_of(created(a=MISSING))
    assert raised(admin.create_topics(["a"])).code == MISSING and len(cluster.asked) == 1


def test_persistent_retriable_error_is_raised_at_last():
    admin, cluster = admin_of(*[created(a=LATER)] * TRIES_MAX)
    assert raised(admin.create_topics(["a"])).code == LATER and cluster.answers == []


def test_timeout_reports_the_results_of_completed_items():
    late = KafkaTimeoutError("late")
    admin, cluster = admin_of(created(a=0, b=LATER), late, *[late] * TRIES_MAX)
    error = raised(admin.create_topics(["a", "b"]))
    assert error is late and error.results["a"] == b"a" * 16
    assert error.results["b"].code == LATER
    admin, cluster = admin_of(*[late] * TRIES_MAX)
    assert raised(admin.create_topics(["a", "b"])).results == {"a": late, "b": late}


def test_items_missing_in_a_response_are_not_successes():
    admin, _ = admin_of(created(a=0))
    error = raised(admin.create_topics(["a", "b"]))
    assert error.code == ErrorCode.UNKNOWN_SERVER_ERROR and error.results["a"] == b"a" * 16


def test_empty_request_is_not_sent():
    admin, cluster = admin_of()
    assert asyncio.run(admin.create_topics([])) == {} and cluster.tries == 0


# Topics.

def test_topic_is_created_by_counts_or_assignments_but_not_both():
    admin, cluster = admin_of(created(a=0, b=0, c=0))
    asyncio.run(admin.create_topics([
        NewTopic("a", 3, 2, configs={"retention.ms": 5}), NewTopic("b", 3, 2, {0: [1, 2], 1: [2]}),
        "c"], validate_only=True, timeout=2))
    request = cluster.asked[0][1]
    assert (request.validate_only, request.timeout_ms) == (True, 2000)
    assert [(row.num_partitions, row.replication_factor, [
        (part.partition_index, part.broker_ids) for part in row.assignments])
        for row in request.topics] == [
            (3, 2, []), (-1, -1, [(0, [1, 2]), (1, [2])]), (-1, -1, [])]
    assert [(row.name, row.value) for row in request.topics[0].configs] == [("retention.ms", "5")]


def test_topics_are_created_unless_validate_only():
    admin, cluster = admin_of(created(a=0))
    asyncio.run(admin.create_topics(["a"]))
    assert cluster.asked[0][1].validate_only is False


def deleted(kind, row, field, code):
    return getattr(messages, kind)(**{field: [getattr(getattr(messages, kind), row)(
        name="t", error_code=code, error_message=None)]})


@pytest.mark.parametrize(("call", "answer"), [
    (lambda admin: admin.delete_topics(["t"]),
     lambda code: deleted("DeleteTopicsResponse", "DeletableTopicResult", "responses", code)),
    (lambda admin: admin.create_partitions({"t": 4}),
     lambda code: deleted("CreatePartitionsResponse", "CreatePartitionsTopicResult", "results",
                          code))])
def test_missing_topic_is_reported_without_waiting(call, answer):
    admin, cluster = admin_of(answer(LATER), answer(MISSING))
    assert raised(call(admin)).code == MISSING and len(cluster.asked) == 2
    admin, cluster = admin_of(answer(0))
    asyncio.run(call(admin))
    assert cluster.asked[0][0] == CONTROLLER


def test_partitions_are_added_unless_validate_only():
    for check in (False, True):
        admin, cluster = admin_of(deleted(
            "CreatePartitionsResponse", "CreatePartitionsTopicResult", "results", 0))
        asyncio.run(admin.create_partitions({"t": 4}, **({"validate_only": True} if check else {})))
        request = cluster.asked[0][1]
        assert request.validate_only is check and request.topics[0].count == 4


def test_internal_topics_are_listed_on_request():
    admin, cluster = admin_of()
    topics = {"b": SimpleNamespace(is_internal=False), "__a": SimpleNamespace(is_internal=True)}
    cluster.metadata.topics = topics

    async def every_topic():
        return cluster.metadata

    cluster.every_topic = every_topic
    assert asyncio.run(admin.list_topics()) == {"b": topics["b"]}
    assert list(asyncio.run(admin.list_topics(internal=True))) == ["__a", "b"]


def test_a_cluster_is_described_as_the_newest_picture_has_it():
    admin, cluster = admin_of()
    found = asyncio.run(admin.describe_cluster())
    assert (found.cluster_id, found.controller) == ("", CONTROLLER)
    assert [node.id for node in found.nodes] == [1, 2, 3] and cluster.asked == []


# Leaders and moves.

@pytest.mark.parametrize("unclean", [False, True])
def test_leaders_are_elected_of_some_partitions_or_of_all(unclean):
    new = messages.ElectLeadersResponse
    answer = new(error_code=0, replica_election_results=[new.ReplicaElectionResult(
        topic="t", partition_result=[
            new.PartitionResult(partition_id=0, error_code=0),
            new.PartitionResult(partition_id=1, error_code=LATER, error_message="why")])])
    admin, cluster = admin_of(answer, answer)
    found = asyncio.run(admin.elect_leaders([T0, T1, U0], unclean))
    assert found[T0] is None and found[T1].code == LATER and "why" in str(found[T1])
    asyncio.run(admin.elect_leaders(unclean=unclean))
    some, every = (request for _, request, _ in cluster.asked)
    assert [(row.topic, row.partitions) for row in some.topic_partitions] == [
        ("t", [0, 1]), ("u", [0])]
    assert every.topic_partitions is None and every.election_type == int(unclean)


@pytest.mark.parametrize(("call", "answer"), [
    (lambda admin: admin.elect_leaders(), messages.ElectLeadersResponse),
    (lambda admin: admin.list_partition_reassignments(),
     messages.ListPartitionReassignmentsResponse),
    (lambda admin: admin.list_config_resources(), messages.ListConfigResourcesResponse),
    (lambda admin: admin.describe_client_quotas(), messages.DescribeClientQuotasResponse)])
def test_request_follows_a_new_controller(call, answer):
    admin, cluster = admin_of(answer(error_code=LATER), answer(error_code=0))
    assert not asyncio.run(call(admin)) and len(cluster.asked) == 2


def test_error_of_a_whole_election_is_raised():
    admin, _ = admin_of(messages.ElectLeadersResponse(
        error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    assert raised(admin.elect_leaders()).code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_reassignments_are_requested_by_topic_and_cancelled_with_none():
    new = messages.AlterPartitionReassignmentsResponse

    def answer(code, **fields):
        return new(error_code=code, error_message=None, responses=[
            new.ReassignableTopicResponse(name=name, partitions=[
                new.ReassignablePartitionResponse(partition_index=number, error_code=fault)
                for number, fault in rows]) for name, rows in fields.items()])

    admin, cluster = admin_of(answer(0, t=[(0, LATER), (1, 0)], u=[(0, 0)]), answer(0, t=[(0, 0)]))
    asyncio.run(admin.alter_partition_reassignments({T0: [1, 2], T1: None, U0: [3]}))
    assert [[(topic.name, [(row.partition_index, row.replicas) for row in topic.partitions])
             for topic in request.topics] for _, request, _ in cluster.asked] == [
        [("t", [(0, [1, 2]), (1, None)]), ("u", [(0, [3])])], [("t", [(0, [1, 2])])]]
    admin, _ = admin_of(answer(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    assert raised(admin.alter_partition_reassignments({T0: None})).code == \
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    admin, cluster = admin_of(answer(0, t=[(0, MISSING), (1, 0)]))
    error = raised(admin.alter_partition_reassignments({T0: [9], T1: [1]}))
    assert error.code == MISSING and error.results[T1] is None and len(cluster.asked) == 1


def test_running_reassignments_are_listed_unless_rejected():
    new = messages.ListPartitionReassignmentsResponse
    admin, _ = admin_of(new(error_code=0, topics=[new.OngoingTopicReassignment(
        name="t", partitions=[new.OngoingPartitionReassignment(
            partition_index=1, replicas=[1, 2], adding_replicas=[2], removing_replicas=[3])])]))
    assert asyncio.run(admin.list_partition_reassignments()) == {T1: ([1, 2], [2], [3])}
    admin, _ = admin_of(new(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    assert raised(admin.list_partition_reassignments()).code


# Settings.

def described(*resources, code=0):
    new = messages.DescribeConfigsResponse
    return new(results=[new.DescribeConfigsResult(
        error_code=code, error_message=None, resource_type=int(kind), resource_name=name,
        configs=[new.DescribeConfigsResourceResult(
            name="a", value="1", read_only=True, config_source=5, is_sensitive=False),
            new.DescribeConfigsResourceResult(
            name="b", value=None, read_only=False, config_source=1, is_sensitive=True)])
        for kind, name in resources])


def test_broker_settings_are_requested_from_that_broker_and_others_from_any():
    default = ConfigResource(ResourceType.BROKER, "")
    admin, cluster = admin_of(described(BROKER), described(TOPIC, default))
    found = asyncio.run(admin.describe_configs([BROKER, TOPIC, default]))
    assert set(found) == {BROKER, TOPIC, default}
    assert [(node, [row.resource_name for row in request.resources])
            for node, request, _ in cluster.asked] == [(2, ["2"]), (ANY, ["t", ""])]
    one, other = found[TOPIC]["a"], found[TOPIC]["b"]
    assert (one.value, one.is_default, one.is_read_only, one.is_sensitive) == (
        "1", True, True, False)
    assert (other.value, other.is_default, other.is_read_only, other.is_sensitive) == (
        None, False, False, True)


def test_a_broker_that_is_down_hides_no_other_settings():
    down = KafkaConnectionError("down")
    admin, cluster = admin_of(down, described(TOPIC), *[down] * TRIES_MAX)
    error = raised(admin.describe_configs([BROKER, TOPIC]))
    assert error is down and error.results[BROKER] is down and error.results[TOPIC]["a"]
    assert [node for node, _, _ in cluster.asked] == [2, ANY] + [2] * (TRIES_MAX - 1)


def test_settings_of_an_old_broker_come_without_their_documentation():
    admin, cluster = admin_of(UnsupportedByBrokerError("old"), described(TOPIC))
    assert asyncio.run(admin.describe_configs([TOPIC]))[TOPIC]["a"].value == "1"
    assert [request.include_documentation for _, request, _ in cluster.asked] == [True, False]


def test_settings_of_a_missing_topic_are_not_awaited():
    admin, cluster = admin_of(described(TOPIC, code=MISSING))
    assert raised(admin.describe_configs([TOPIC])).code == MISSING and len(cluster.asked) == 1


def test_broker_is_looked_up_before_its_settings_are_requested():
    admin, cluster = admin_of(described(BROKER))
    nodes, looks = cluster.metadata.nodes, []
    cluster.metadata.nodes = {}

    async def refresh():
        looks.append(len(cluster.asked))
        cluster.metadata.nodes = nodes
        return cluster.metadata

    cluster.refresh = refresh
    asyncio.run(admin.describe_configs([BROKER]))
    assert looks == [0]


@pytest.mark.parametrize(("given", "ops"), [
    ({"a": 5, "b": None}, [("a", 0, "5"), ("b", 1, None)]),
    ([AlterConfigOp("c", "x", OpType.APPEND), ("d", "y", OpType.SUBTRACT)],
     [("c", 2, "x"), ("d", 3, "y")])])
def test_settings_are_changed_by_name_or_by_operation(given, ops):
    new = messages.IncrementalAlterConfigsResponse
    for check in (False, True):
        admin, cluster = admin_of(new(responses=[new.AlterConfigsResourceResponse(
            error_code=0, resource_type=2, resource_name="t")]))
        asyncio.run(admin.incremental_alter_configs(
            {TOPIC: given}, **({"validate_only": True} if check else {})))
        request = cluster.asked[0][1]
        assert request.validate_only is check
        assert [(row.name, row.config_operation, row.value)
                for row in request.resources[0].configs] == ops


# Quotas.

def test_quotas_are_matched_by_name_by_default_or_by_any():
    new = messages.DescribeClientQuotasResponse
    answer = new(error_code=0, entries=[new.EntryData(
        entity=[new.EntityData(entity_type="user", entity_name=None)],
        values=[new.ValueData(key="rate", value=5.0)])])
    admin, cluster = admin_of(answer, new(error_code=0, entries=None))
    assert asyncio.run(admin.describe_client_quotas(
        {"user": "u", "ip": None, "client-id": "*"})) == [({"user": None}, {"rate": 5.0})]
    assert [(row.entity_type, row.match_type, row.match)
            for row in cluster.asked[0][1].components] == [
        ("user", 0, "u"), ("ip", 1, None), ("client-id", 2, None)]
    assert cluster.asked[0][1].strict is False
    assert asyncio.run(admin.describe_client_quotas(strict=True)) == []
    assert cluster.asked[1][1].strict is True and cluster.asked[1][1].components == []


def test_quotas_are_set_and_removed_and_errors_are_raised():
    new = messages.AlterClientQuotasResponse

    def answer(code):
        return new(entries=[new.EntryData(error_code=fault, entity=[
            new.EntityData(entity_type="user", entity_name=name)])
            for fault, name in ((0, "t"), (code, "u"))])

    admin, cluster = admin_of(answer(LATER), answer(0), answer(ErrorCode.INVALID_REQUEST))
    wanted = [QuotaAlteration({"user": "u"}, {"a": 5, "b": None})]
    asyncio.run(admin.alter_client_quotas(wanted))
    assert [(row.key, row.value, row.remove) for row in cluster.asked[0][1].entries[0].ops] == [
        ("a", 5, False), ("b", 0.0, True)]
    assert cluster.asked[0][0] == CONTROLLER and cluster.asked[0][1].validate_only is False
    error = raised(admin.alter_client_quotas(wanted))
    assert error.code == ErrorCode.INVALID_REQUEST
    assert error.results == {(("user", "t"),): None, (("user", "u"),): error}


# Directories.

def test_log_dirs_are_requested_from_every_or_the_named_brokers():
    new = messages.DescribeLogDirsResponse

    def answer(request):
        assert request.topics is None
        return new(error_code=0, results=[new.DescribeLogDirsResult(
            log_dir="/d", error_code=0, total_bytes=9, usable_bytes=4, topics=[
                new.DescribeLogDirsTopic(name="t", partitions=[new.DescribeLogDirsPartition(
                    partition_index=1, partition_size=7, offset_lag=2, is_future_key=True)])])])

    admin, cluster = admin_of(*[answer] * 4)
    found = asyncio.run(admin.describe_log_dirs())
    assert set(found) == {1, 2, 3} == {node for node, _, _ in cluster.asked}
    directory = found[2]["/d"]
    assert (directory.total_bytes, directory.usable_bytes) == (9, 4)
    replica = directory.replicas[T1]
    assert (replica.size, replica.offset_lag, replica.is_future) == (7, 2, True)
    assert set(asyncio.run(admin.describe_log_dirs([2]))) == {2}


# Cluster.

def test_admin_lookups_create_no_topic_and_an_unused_admin_can_be_closed():
    admin = Admin(bootstrap_servers="b:1")
    asyncio.run(admin.close())
    assert admin._made is None
    assert admin.cluster is admin.cluster and admin.cluster.may_create_topics is False

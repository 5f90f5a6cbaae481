"""A controller without broker role, on its listener: brokers register, and tools send requests."""

import asyncio
import time

import pytest

from pylog.peer.connection import Peer
from pylog.peer.errors import PeerError
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode as E
from pylog.testing.ports import free_port
from tests.fixtures.brokers import Brokerd

# Longer than any test waits.
SESSION_MS = 600_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A controller with the id 100, and brokers 1 and 2."""
    root, port = tmp_path_factory.mktemp("cluster"), free_port()
    of_all = {"controller.quorum.voters": f"100@127.0.0.1:{port}",
              "controller.listener.names": "CONTROLLER"}
    controller = Brokerd(root / "controller", {
        **of_all, "process.roles": "controller", "node.id": "100",
        "broker.session.timeout.ms": str(SESSION_MS),
        "listeners": f"CONTROLLER://127.0.0.1:{port}"})
    nodes = [controller] + [Brokerd(root / f"{id_}", {
        **of_all, "process.roles": "broker", "node.id": str(id_),
        "broker.heartbeat.interval.ms": "300"}) for id_ in (1, 2)]
    try:
        yield [node.start() for node in nodes]
    finally:
        for node in reversed(nodes):
            node.kill()


def asked(node, message, version):
    """Return the node's response."""
    async def ask():
        peer = await Peer.connect("127.0.0.1", node.port, "test")
        try:
            return await peer.call(message, version)
        finally:
            peer.close()
    return asyncio.run(ask())


def creation(name):
    new = messages.CreateTopicsRequest
    return new(timeout_ms=5000, topics=[
        new.CreatableTopic(name=name, num_partitions=2, replication_factor=2)])


def brokers_of(node):
    """Return broker id -> True if it is fenced."""
    answer = asked(node, messages.DescribeClusterRequest(
        endpoint_type=1, include_fenced_brokers=True), 2)
    return {broker.broker_id: broker.is_fenced for broker in answer.brokers}


def fetched(node, offset=0, epoch=1, last_epoch=0, cluster_id=None, **fields):
    """Return the row of a fetch of the metadata log."""
    new = messages.FetchRequest
    answer = asked(node, new(
        cluster_id=cluster_id, max_wait_ms=0, min_bytes=0, session_epoch=-1, topics=[new.FetchTopic(
            topic_id=bytes(15) + b"\1", partitions=[new.FetchPartition(
                partition=0, current_leader_epoch=epoch, fetch_offset=offset,
                last_fetched_epoch=last_epoch, partition_max_bytes=1 << 20, **fields)])]), 17)
    return answer if answer.error_code else answer.responses[0].partitions[0]


def test_brokers_join_and_follow_the_metadata_log(cluster):
    controller, first, _ = cluster
    assert brokers_of(first) == {1: False, 2: False}
    new = messages.DescribeQuorumRequest
    answer = asked(controller, new(topics=[new.TopicData(
        topic_name="__cluster_metadata", partitions=[new.PartitionData(partition_index=0)])]), 2)
    partition = answer.topics[0].partitions[0]
    assert partition.leader_id == 100
    assert {observer.replica_id for observer in partition.observers} == {1, 2}


def test_topics_are_created_through_a_broker_and_at_the_controller(cluster):
    controller, first, second = cluster
    assert asked(first, creation("t"), 7).topics[0].error_code == E.NONE
    assert asked(controller, creation("t"), 7).topics[0].error_code == E.TOPIC_ALREADY_EXISTS
    new = messages.DescribeTopicPartitionsRequest
    while True:
        # The other broker applies it later.
        topic = asked(second, new(topics=[new.TopicRequest(name="t")]), 0).topics[0]
        if not topic.error_code:
            break
        time.sleep(0.01)
    assert {tuple(sorted(row.replica_nodes)) for row in topic.partitions} == {(1, 2)}


def test_controller_listener_serves_exactly_kafkas_requests(cluster):
    controller, first, _ = cluster
    versions = asked(controller, messages.ApiVersionsRequest(
        client_software_name="t", client_software_version="1"), 3)
    keys = {row.api_key for row in versions.api_keys}
    assert {1, 19, 55, 56, 58, 59, 62, 63, 64, 67, 73} <= keys and not keys & {0, 3, 11}
    described = asked(controller, messages.DescribeClusterRequest(endpoint_type=2), 2)
    assert [(node.broker_id, node.port) for node in described.brokers] == [
        (100, controller.port)] and described.controller_id == 100
    with pytest.raises(PeerError):
        asked(controller, messages.MetadataRequest(), 12)
    with pytest.raises(PeerError):
        asked(first, messages.BrokerHeartbeatRequest(broker_id=1), 0)


def test_the_metadata_log_is_sent_from_any_offset_of_its_history(cluster):
    controller, _, _ = cluster
    row = fetched(controller)
    assert row.error_code == E.NONE and row.records and row.current_leader.leader_id == 100
    end = row.high_watermark
    assert fetched(controller, end, last_epoch=1, high_watermark=0).records == b""
    assert fetched(controller, end + 5, last_epoch=1).diverging_epoch.end_offset >= end
    assert fetched(controller, 1, last_epoch=9).diverging_epoch.epoch == 1
    assert fetched(controller, epoch=0).error_code == E.FENCED_LEADER_EPOCH
    assert fetched(controller, epoch=2).error_code == E.UNKNOWN_LEADER_EPOCH
    assert fetched(controller, last_epoch=-1).error_code == E.INVALID_REQUEST
    assert fetched(controller, cluster_id="other").error_code == E.INCONSISTENT_CLUSTER_ID
    assert fetched(controller, epoch=0).high_watermark == -1


@pytest.mark.parametrize("version, endpoints", [(0, 0), (1, 1)])
def test_missing_snapshot_is_reported_in_each_version(cluster, version, endpoints):
    new = messages.FetchSnapshotRequest
    answer = asked(cluster[0], new(topics=[new.TopicSnapshot(
        name="__cluster_metadata", partitions=[new.PartitionSnapshot(
            partition=0, current_leader_epoch=1, position=0,
            snapshot_id=new.SnapshotId(end_offset=1 << 40, epoch=1))])]), version)
    assert answer.topics[0].partitions[0].error_code == E.SNAPSHOT_NOT_FOUND
    assert len(answer.node_endpoints) == endpoints


@pytest.mark.parametrize("version, error", [(0, E.INVALID_REQUEST),
                                            (1, E.MISMATCHED_ENDPOINT_TYPE)])
def test_a_controller_does_not_describe_brokers(cluster, version, error):
    answer = asked(cluster[0], messages.DescribeClusterRequest(endpoint_type=1), version)
    assert answer.error_code == error and answer.brokers == []


def test_killed_broker_is_fenced_early_unregistered_and_can_return(cluster):
    _, first, second = cluster
    second.kill()
    while not brokers_of(first)[2]:
        time.sleep(0.02)
    # Through a broker, as kafka-cluster does.
    assert asked(first, messages.UnregisterBrokerRequest(broker_id=2), 0).error_code == E.NONE
    while brokers_of(first) != {1: False}:
        time.sleep(0.02)
    second.start()
    # The broker is notified that it is unfenced; the first one follows a moment later.
    while brokers_of(first) != {1: False, 2: False}:
        time.sleep(0.02)

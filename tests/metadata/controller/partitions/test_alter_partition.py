"""AlterPartition: permitted senders, permitted ISRs, and the end of a reassignment."""

import pytest

from pylog.metadata.controller.partitions import alter_partition
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode as E
from tests.metadata.controller.test_broker_registration import Cluster

REQUEST = messages.AlterPartitionRequest


def asked(cluster, members, broker_id=1, index=0, leader_epoch=0, partition_epoch=0, recovery=0,
          topic_id=None):
    """Return the response for one partition; its record is applied."""
    records, response = alter_partition.change_isr(cluster.rules,
                                                   REQUEST(broker_id=broker_id, topics=[
        REQUEST.TopicData(
            topic_id=cluster.image.topics["t"].id if topic_id is None else topic_id,
            partitions=[REQUEST.PartitionData(
                partition_index=index, leader_epoch=leader_epoch, partition_epoch=partition_epoch,
                leader_recovery_state=recovery, new_isr_with_epochs=[
                    REQUEST.BrokerState(broker_id=id_, broker_epoch=epoch)
                    for id_, epoch in members])])]), 3)
    cluster.take(records)
    return response.topics[0].partitions[0]


def recovering(cluster):
    """Return the response to the leader of the only partition while it recovers."""
    cluster.take([messages.PartitionChangeRecord(
        partition_id=0, topic_id=cluster.image.topics["t"].id, isr=[1], leader_recovery_state=1)])
    return cluster


def three():
    return Cluster().join(1, 2, 3).create((1, 2, 3), **{"min.insync.replicas": "2"})


def test_an_isr_shrinks_and_grows_by_its_leader():
    cluster = three()
    answer = asked(cluster, [(1, -1)])
    assert (answer.error_code, answer.isr, answer.partition_epoch) == (0, [1], 1)
    assert cluster.state().eligible_leader_replicas == (2, 3)
    answer = asked(cluster, [(1, -1), (2, cluster.image.brokers[2].epoch)], partition_epoch=1)
    assert (answer.error_code, answer.isr, answer.partition_epoch) == (0, [1, 2], 2)
    assert cluster.state().eligible_leader_replicas == ()


@pytest.mark.parametrize(("fields", "error"), [
    ({"leader_epoch": 1}, E.NOT_CONTROLLER), ({"partition_epoch": 1}, E.NOT_CONTROLLER),
    ({"leader_epoch": -1}, E.FENCED_LEADER_EPOCH), ({"broker_id": 2}, E.INVALID_REQUEST),
    ({"partition_epoch": -1}, E.INVALID_UPDATE_VERSION), ({"index": 1},
                                                          E.UNKNOWN_TOPIC_OR_PARTITION),
    ({"topic_id": bytes(16)}, E.UNKNOWN_TOPIC_ID), ({"recovery": 1}, E.INVALID_REQUEST),
    ({"recovery": 7}, E.INVALID_REQUEST), ({"members": [(2, -1)]}, E.INVALID_REQUEST),
    ({"members": [(1, -1), (9, -1)]}, E.INVALID_REQUEST), ({"members": []}, E.INVALID_REQUEST),
    ({"members": [(1, -1), (1, -1)]}, E.INVALID_REQUEST),
    ({"members": [(1, -1), (2, 999)]}, E.INELIGIBLE_REPLICA)])
def test_invalid_changes_are_rejected(fields, error):
    cluster = three()
    before = cluster.image
    assert asked(cluster, fields.pop("members", [(1, -1), (2, -1)]), **fields).error_code == error
    assert cluster.image is before


def test_fenced_or_stopping_broker_cannot_join_the_isr():
    cluster = three()
    cluster.process_heartbeat(2, want_fence=True)
    epoch = cluster.state().partition_epoch
    assert asked(cluster, [(1, -1), (2, -1)], partition_epoch=epoch).error_code == \
        E.INELIGIBLE_REPLICA
    cluster.process_heartbeat(1, want_shut_down=True)
    state = cluster.state()
    assert asked(cluster, [(3, -1), (1, -1)], broker_id=3, leader_epoch=state.leader_epoch,
                 partition_epoch=state.partition_epoch).error_code == E.INELIGIBLE_REPLICA


def test_completed_reassignment_moves_the_leader():
    cluster = Cluster().join(1, 2, 3).create((1,))
    cluster.take([messages.PartitionChangeRecord(
        partition_id=0, topic_id=cluster.image.topics["t"].id, replicas=[2, 3, 1],
        adding_replicas=[2, 3], removing_replicas=[1],
        directories=[bytes([id_]) * 16 for id_ in (2, 3, 1)])])
    assert asked(cluster, [(1, -1), (2, -1)], partition_epoch=1).error_code == 0
    assert cluster.state().replicas == (2, 3, 1)
    answer = asked(cluster, [(1, -1), (2, -1), (3, -1)], partition_epoch=2)
    assert answer.error_code == E.NEW_LEADER_ELECTED
    state = cluster.state()
    assert (state.replicas, state.isr, state.leader, state.adding_replicas) == (
        (2, 3), (2, 3), 2, ())
    assert state.directories == (bytes([2]) * 16, bytes([3]) * 16)


@pytest.mark.parametrize(("members", "recovery", "error", "state"), [
    ([(1, -1)], 1, E.NONE, 1), ([(1, -1)], 0, E.NONE, 0), ([(1, -1), (2, -1)], 0, E.NONE, 0),
    ([(1, -1), (2, -1)], 1, E.INVALID_REQUEST, 1),
    ([(1, -1), (2, -1), (3, -1)], 1, E.INVALID_REQUEST, 1)])
def test_recovering_leader_is_the_only_in_sync_replica(members, recovery, error, state):
    cluster = recovering(three())
    answer = asked(cluster, members, recovery=recovery, partition_epoch=1)
    assert answer.error_code == error
    assert cluster.state().leader_recovery_state == state


def test_replica_in_an_unknown_directory_can_join_the_isr():
    cluster = three()
    cluster.take([messages.PartitionChangeRecord(
        partition_id=0, topic_id=cluster.image.topics["t"].id, isr=[1], directories=[])])
    assert asked(cluster, [(1, -1), (2, -1)], partition_epoch=1).error_code == 0


def test_an_older_version_names_members_without_their_epochs():
    cluster = three()
    request = REQUEST(broker_id=1, topics=[REQUEST.TopicData(
        topic_id=cluster.image.topics["t"].id, partitions=[REQUEST.PartitionData(
            partition_index=0, leader_epoch=0, partition_epoch=0, new_isr=[1, 3])])])
    records, response = alter_partition.change_isr(cluster.rules, request, 2)
    cluster.take(records)
    assert response.topics[0].partitions[0].error_code == 0
    assert cluster.state().isr == (1, 3)

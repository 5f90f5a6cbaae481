"""Cluster commands: on ours and with --against kafka; simulated metadata for several brokers."""

import time

import pytest

from pylog.client import Admin, NewTopic
from pylog.client.network.cluster_metadata import Metadata, Node, PartitionInfo, TopicInfo
from pylog.monitor.overview import quorum_troubles
from pylog.protocol import messages
from pylog.security.authorization.access import STANDARD
from pylog.testing import Broker
from pylog.testing.cluster import Cluster
from pylog.tools.cli.session import ToolError
from pylog.tools.cluster.health import members_of
from pylog.tools.cluster.placement import planned
from pylog.tools.cluster.replica_state import Facts, sentences
from tests.tools.support import run, topic_of
from tests.tools.topics.test_topics import records
from tests.wire.talk import append


def test_a_sound_cluster_is_well_and_so_are_its_partitions(target):
    topic = topic_of(target, partitions=1)
    append(target.port, topic, records(3))
    assert "is healthy: 1 broker," in run("cluster", "status", broker=target).out
    assert run("cluster", "status", "--json", broker=target).json["troubles"] == []
    assert run("cluster", "explain", f"{topic}-0", broker=target).out == (
        f"{topic}-0 is healthy: led by broker 1, its only replica.\n")
    told = run("cluster", "explain", f"{topic}-0", "--json", broker=target).json
    assert told["in_sync_min"] == 1 and told["lags"] == {"1": 0}


def test_a_topic_that_the_user_may_not_describe_is_reported_as_not_checked():
    with Broker(settings={"authorizer.class.name": STANDARD, "super.users": "User:root",
                          "allow.everyone.if.no.acl.found": "true"}) as broker:
        topic_of(broker)
        assert "may not describe" not in run("cluster", "status", broker=broker).out
        run("acl", "add", "--deny", "User:ANONYMOUS", "--operation", "describe", "--topic",
            topic_of(broker), broker=broker)
        assert ("not checked: the partitions of 1 topic that this user may not describe"
                in run("cluster", "status", broker=broker).out)
        assert run("cluster", "--json", broker=broker).json["hidden_topics"] == 1


def test_an_isolated_broker_does_not_report_a_healthy_state():
    with Cluster(3) as cluster:
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            admin.create_topics([NewTopic("orders", 1, 3)])
        end_s = time.monotonic() + 30
        while "orders" not in run("topics", "list", broker=cluster[3]).out:
            assert time.monotonic() < end_s
        cluster.isolate(3)
        explained = run("cluster", "explain", "orders-0", "--timeout", "3", broker=cluster[3])
        assert "is healthy" not in explained.out and "may be outdated" in explained.out
        checked = run("doctor", "--json", "--timeout", "3", broker=cluster[3], fails=True).json
        found, = [row for row in checked["findings"] if row["check"] == "controller"]
        assert found["status"] == "fail" and "does not respond" in found["detail"]


def test_missing_partition_is_reported_instead_of_explained(target):
    topic = topic_of(target, partitions=1)
    assert "has no partition 7" in run(
        "cluster", "explain", f"{topic}-7", broker=target, fails=True).err
    assert "a dash and a partition" in run(
        "cluster", "explain", "x", broker=target, fails=True).err
    assert "there is no broker 77" in run(
        "cluster", "move", topic, "--to", "77", "--yes", broker=target, fails=True).err
    assert "there is no broker 77" in run(
        "cluster", "drain", "77", "--yes", broker=target, fails=True).err
    assert "only 0 brokers" in run(
        "cluster", "drain", "1", "--yes", broker=target, fails=True).err


def test_replicas_are_compared(target):
    topic = topic_of(target, partitions=2)
    append(target.port, topic, records(3))
    append(target.port, topic, records(2))
    assert run("cluster", "verify", topic, broker=target).out == (
        "2 partitions, 0 batches: the same on all replicas\n")


def voters(**fetched_ms):
    """Return a DescribeQuorumResponse's partition of voters n1, n2 ..., with these fetch times. n1
    responds when 90 s have passed.
    """
    new = messages.DescribeQuorumResponse
    return new.PartitionData(leader_id=1, current_voters=[new.ReplicaState(
        replica_id=int(name[1:]), last_fetch_timestamp=time_ms,
        last_caught_up_timestamp=90_000 if name == "n1" else time_ms)
        for name, time_ms in fetched_ms.items()])


@pytest.mark.parametrize("row,said", [
    (voters(n1=90_000, n2=90_000, n3=85_000), []),
    (voters(n1=90_000, n2=90_000, n3=48_000), [
        "controller 3 of the quorum cannot be used: "
        "controller 1 received its last fetch 42.0 s ago",
        "if one more member fails, metadata cannot change and no leader can be elected"]),
    (voters(n1=90_000, n2=-1, n3=-1), [
        "controller 2 of the quorum cannot be used: controller 1 has not received a fetch from it "
        "yet",
        "controller 3 of the quorum cannot be used: controller 1 has not received a fetch from it "
        "yet",
        "the quorum has no majority: metadata cannot change and no leader can be elected"]),
    (voters(n1=40_000, n2=40_000, n3=40_000), [
        *[f"controller {number} of the quorum cannot be used: "
          "controller 1 received its last fetch 50.0 s ago"
          for number in (1, 2, 3)],
        "the quorum has no majority: metadata cannot change and no leader can be elected"]),
    (voters(), [])])
def test_silent_voters_of_the_quorum_are_reported(row, said):
    assert quorum_troubles(members_of(row)) == said


def facts(**changed):
    return Facts("t", 0, **{"leader": 1, "replicas": (1, 2, 3), "isr": (1, 2, 3),
                            "alive": frozenset((1, 2, 3)), "in_sync_min": 2, **changed})


@pytest.mark.parametrize("changed,words", [
    ({}, ["is healthy: led by broker 1, all 3 replicas"]),
    ({"isr": (1, 2), "alive": frozenset((1, 2))},
     ["under-replicated", "broker 3 is not in sync", "Broker 3 is not running"]),
    ({"isr": (1, 2), "lags": {3: 500}}, ["Broker 3 is 500 records behind"]),
    ({"isr": (1, 2), "lags": {3: 500}, "gains": {3: 250.0}},
     ["500 records behind and gains 250 a second: in sync in about 2 s"]),
    ({"isr": (1, 2), "lags": {3: 500}, "gains": {3: -4.0}}, ["does not catch up"]),
    ({"isr": (1, 2), "adding": (3,), "removing": (1,)},
     ["broker 3 gets a replica, broker 1 gives theirs up then"]),
    ({"isr": (1, 2), "lags": {3: 0}}, ["about to be in sync"]),
    ({"isr": (1, 2), "lags": {}}, ["does not report its position"]),
    ({"isr": (1, 2), "offline": (3,)}, ["cannot use the log directory"]),
    ({"isr": (1, 2), "offline": (3,), "unreachable": {3: "refused"}},
     ["under-replicated", "Broker 3 does not respond (refused): start it"]),
    ({"unconfirmed": "no answer"},
     ["counts as led by broker 1 with all 3 replicas in sync, but that may be outdated",
      "The active controller does not answer (no answer)"]),
    ({"unreachable": {3: "refused"}}, ["not every broker answers", "Broker 3 does not respond"]),
    ({"unreachable": {1: "refused"}},
     ["Broker 1 does not respond", "until the controller elects another leader"]),
    ({"leader": -1, "isr": (2,), "unreachable": {2: "refused"}},
     ["broker 2 has every acknowledged record and is not there"]),
    ({"isr": (1,)}, ["brokers 2, 3 are not in sync", "acks=all are refused: 1 in sync"]),
    ({"leader": 2}, ["Broker 1 should lead it"]),
    ({"leader": -1, "isr": (), "eligible": (2, 3), "alive": frozenset((1,))},
     ["is offline", "brokers 2, 3 have every acknowledged record", "start any one of them"]),
    ({"leader": -1, "isr": (2,), "alive": frozenset((1,))}, ["broker 2 has every", "start it"]),
    ({"leader": -1, "isr": (2,)}, ["broker 2 is running but does not serve it"]),
    ({"leader": -1, "isr": (), "eligible": (), "last_known": (3,)},
     ["No replica is known", "Broker 3 led it last"]),
])
def test_a_partition_is_explained(changed, words):
    told = " ".join(sentences(facts(**changed)))
    assert all(word in told for word in words), told


def cluster_of(racks, *replicas):
    nodes = {number: Node(number, "h", 1, rack) for number, rack in racks.items()}
    parts = {index: PartitionInfo("t", index, row[0], 0, row, row, (), 0)
             for index, row in enumerate(replicas)}
    return Metadata(nodes=nodes, topics={"t": TopicInfo("t", bytes(16), False, 0, parts)})


def test_drained_replicas_move_to_the_least_loaded_brokers():
    metadata = cluster_of(dict.fromkeys((1, 2, 3, 4)), (1, 2), (2, 3), (3, 1), (2, 4))
    plan = planned(metadata, metadata.topics["t"].partitions.values(), {2, 3, 4})
    assert plan == {("t", 0): [4, 2], ("t", 2): [3, 4]}


def test_replica_is_placed_on_a_rack_without_one():
    metadata = cluster_of({1: "a", 2: "b", 3: "a", 4: "b"}, (1, 2), (3, 4))
    assert planned(metadata, metadata.topics["t"].partitions.values(), {2, 3, 4}) == {
        ("t", 0): [3, 2]}


def test_partitions_grow_without_moving_existing_replicas():
    metadata = cluster_of(dict.fromkeys((1, 2, 3, 4)), (1,), (2, 1), (1, 2, 3))
    plan = planned(metadata, metadata.topics["t"].partitions.values(), {1, 2, 3, 4},
                   lambda count: max(count, 3))
    assert plan == {("t", 0): [1, 4, 3], ("t", 1): [2, 1, 4]}


def test_offline_broker_keeps_its_replicas_during_reassignments():
    metadata = cluster_of(dict.fromkeys((1, 2, 4)), (1, 3), (3,), (3, 2))
    parts = metadata.topics["t"].partitions.values()
    assert planned(metadata, parts, {1, 2, 4}, lambda count: max(count, 2), {3}) == {
        ("t", 1): [3, 4]}
    assert planned(metadata, parts, {1, 4}, retained={3}) == {("t", 2): [3, 4]}
    with pytest.raises(ToolError, match="needs 5 replicas"):
        planned(metadata, parts, {1, 2, 4}, lambda count: 5, {3})


def test_replicas_shrink_onto_the_remaining_brokers():
    metadata = cluster_of(dict.fromkeys((1, 2, 3)), (1, 2, 3), (2, 3), (3, 1), (1,))
    parts = metadata.topics["t"].partitions.values()
    assert planned(metadata, parts, {1}, lambda count: min(count, 1)) == {
        ("t", 0): [1], ("t", 1): [1], ("t", 2): [1]}
    assert planned(metadata, parts, {1, 2}, lambda count: min(count, 2)) == {
        ("t", 0): [1, 2], ("t", 1): [2, 1], ("t", 2): [2, 1]}


def test_too_few_brokers_are_reported():
    metadata = cluster_of({1: None, 2: None}, (1, 2))
    with pytest.raises(ToolError, match="is only 1 broker for"):
        planned(metadata, metadata.topics["t"].partitions.values(), {2})

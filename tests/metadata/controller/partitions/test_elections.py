"""Leader elections, requested or by the controller itself."""

import pytest

from pylog.metadata.controller.partitions import elections
from pylog.metadata.controller.partitions.partition_change import PREFERRED, UNCLEAN
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode as E
from tests.metadata.controller.partitions.test_topics import decided
from tests.metadata.controller.test_broker_registration import Cluster

RISKY = {"unclean.leader.election.enable": "true"}


def three(*replicas, keeps_eligible=True, **configs):
    return Cluster(keeps_eligible).join(1, 2, 3).create(*replicas, **configs)


def led(cluster, *leaders, name="t", **fields):
    """Make these brokers the leaders of the partitions."""
    cluster.take([messages.PartitionChangeRecord(
        partition_id=index, topic_id=cluster.image.topics[name].id, leader=leader, **fields)
        for index, leader in enumerate(leaders)])
    return cluster


def leaders(cluster, name="t"):
    return [state.leader for state in cluster.image.topics[name].partitions]


def elected(cluster, election, topics):
    """Return the error of each partition, in order; apply the elections."""
    records, results = decided(elections.elect_leaders(cluster.rules, election, topics))
    cluster.take(records)
    return [(name, index, outcome.error) for name, outcomes in results
            for index, outcome in outcomes]


def test_leadership_moves_only_back_to_preferred_replicas():
    cluster = led(three((1, 2), (2, 1), (3, 1), (3, 2)), 2, 2, 1, 3)
    records = decided(elections.balanced(cluster.rules))
    assert [record.partition_id for record in records] == [0, 2]
    cluster.take(records)
    assert leaders(cluster) == [1, 2, 3, 3]
    assert decided(elections.balanced(cluster.rules)) == []


def test_offline_partitions_and_ineligible_preferred_replicas_are_not_balanced():
    cluster = led(three((1, 2), (2, 1)), -1, 1)
    cluster.process_heartbeat(2, want_fence=True)
    assert decided(elections.balanced(cluster.rules)) == []


def test_elections_per_batch_are_limited(monkeypatch):
    monkeypatch.setattr(elections, "ELECTIONS_MAX", 2)
    cluster = led(three((1, 2), (1, 2), (1, 2)), 2, 2, 2)
    counts = []
    while records := decided(elections.balanced(cluster.rules)):
        counts.append(len(cluster.take(records)))
    assert counts == [2, 1] and leaders(cluster) == [1, 1, 1]


def test_unclean_leader_is_elected_only_if_the_topic_allows_it():
    cluster = three((1, 2), **RISKY, keeps_eligible=False)
    cluster.create((1, 2), name="safe")
    for name in ("t", "safe"):
        led(cluster, -1, name=name, isr=[1])
    cluster.process_heartbeat(1, want_fence=True)
    cluster.take(decided(elections.unclean(cluster.rules)))
    assert (leaders(cluster), leaders(cluster, "safe")) == ([2], [-1])


def test_preferred_leaders_are_elected_where_possible():
    cluster = led(three((1, 2), (2, 1), (3, 1)), 2, 2, 1)
    cluster.process_heartbeat(3, want_fence=True)
    assert elected(cluster, PREFERRED, [("t", [0, 1, 2, 3, -1]), ("x", [0])]) == [
        ("t", 0, E.NONE), ("t", 1, E.ELECTION_NOT_NEEDED),
        ("t", 2, E.PREFERRED_LEADER_NOT_AVAILABLE),
        ("t", 3, E.UNKNOWN_TOPIC_OR_PARTITION), ("t", -1, E.UNKNOWN_TOPIC_OR_PARTITION),
        ("x", 0, E.UNKNOWN_TOPIC_OR_PARTITION)]
    assert leaders(cluster) == [1, 2, 1]


def test_election_of_all_partitions_omits_those_that_need_none():
    cluster = led(three((1, 2), (2, 1)), 2, 2)
    assert elected(cluster, PREFERRED, None) == [("t", 0, E.NONE)]
    assert elected(cluster, PREFERRED, None) == []


@pytest.mark.parametrize(("gone", "errors", "after"), [
    ((), [E.NONE, E.ELECTION_NOT_NEEDED], [2, 2]),
    ((2,), [E.ELIGIBLE_LEADERS_NOT_AVAILABLE, E.ELECTION_NOT_NEEDED], [-1, 3])])
def test_unclean_election_affects_only_partitions_without_a_leader(gone, errors, after):
    cluster = three((1, 2), (2, 3), keeps_eligible=False)
    led(cluster, -1, 2)
    cluster.take([messages.PartitionChangeRecord(
        partition_id=0, topic_id=cluster.image.topics["t"].id, isr=[1])])
    cluster.process_heartbeat(1, want_fence=True)
    for id_ in gone:
        cluster.process_heartbeat(id_, want_fence=True)
    assert [error for _, _, error in elected(cluster, UNCLEAN, [("t", [0, 1])])] == errors
    assert leaders(cluster) == after


def test_partitions_of_a_broker_include_isr_and_eligible_replicas():
    cluster = three((1, 2), (2, 3))
    cluster.take([messages.PartitionChangeRecord(
        partition_id=0, topic_id=cluster.image.topics["t"].id, isr=[1],
        eligible_leader_replicas=[2])])
    topic = cluster.image.topics["t"]

    def named(steps):
        return [found for found in steps if found is not None]
    assert named(elections.in_sync_on(cluster.image, 2)) == [(topic, 1)]
    assert named(elections.eligible_on(cluster.image, 2)) == [(topic, 0)]
    assert named(elections.without_leader(led(cluster, -1, 2).image)) == [
        (cluster.image.topics["t"], 0)]
    assert [elections.leads_any(cluster.image, id_) for id_ in (1, 2)] == [False, True]


def test_long_reassignment_is_split_into_slices():
    cluster = three(*[(1, 2)] * 250)
    steps = elections.moved(
        cluster.rules, elections.in_sync_on(cluster.image, 1), leaving=1)
    assert len(list(steps)) == 3  # one for the topic, two for each hundred records

"""Decisions on partitions of existing topics, in a cluster of several brokers."""

import random

import pytest

from pylog.config import Settings
from pylog.metadata.controller.partitions import (
    elections,
    partitions,
    reassignments,
)
from pylog.metadata.controller.partitions import (
    topics,
)
from pylog.metadata.controller.partitions.partition_change import Rules
from pylog.metadata.image.image import apply
from pylog.protocol import messages
from pylog.protocol.api_error import Refusal
from pylog.protocol.errors import ErrorCode as E
from tests.metadata.controller.partitions.test_topics import (
    cluster,
    create,
    decided,
    error_of,
    topic,
)

MORE = messages.CreatePartitionsRequest
MOVE = messages.AlterPartitionReassignmentsRequest
CHANGE = messages.PartitionChangeRecord
MOST = topics.PARTITIONS_PER_REQUEST_MAX
PREFERRED, UNCLEAN = 0, 1


def on_three(replicas=(1, 2), count=1):
    """Return brokers 1 to 3 and a topic `t` whose partitions have these replicas."""
    return create(cluster(3), topic(
        "t", partitions=-1, factor=-1, assignments=[(index, list(replicas))
                                                    for index in range(count)]))[0]


def after(image, records):
    return apply(image, records, image.offset + max(1, len(records)), 1)


def changed(image, index=0, **fields):
    return after(image, [CHANGE(partition_id=index, topic_id=image.topics["t"].id, **fields)])


def fenced(image, *ids):
    for id_ in ids:
        image = after(image, [messages.FenceBrokerRecord(id=id_, epoch=image.brokers[id_].epoch)])
    return image


class Account:
    """A client's mutation quota."""

    def __init__(self, left):
        self.left = left

    def charge(self, count):
        self.left -= count
        return self.left >= 0


# ---- more partitions ----------------------------------------------------------------------------


def more(image, *wanted, mutations=None):
    """wanted: (name, count, assignments or None)."""
    asked = [MORE.CreatePartitionsTopic(
        name=name, count=count, assignments=None if given is None else [
            MORE.CreatePartitionsAssignment(broker_ids=ids)
            for ids in given])
        for name, count, given in wanted]
    return decided(partitions.create_partitions(image, asked, random.Random(4), mutations))


def test_new_partitions_have_as_many_replicas_as_existing_ones():
    image = on_three((1, 2), count=2)
    records, results = more(image, ("t", 5, None))
    assert [(name, outcome.error) for name, outcome in results] == [("t", E.NONE)]
    grown = after(image, records).topics["t"].partitions
    assert len(grown) == 5 and grown[:2] == image.topics["t"].partitions
    assert all(len(set(state.replicas)) == 2 and state.leader in state.isr for state in grown)


@pytest.mark.parametrize(("name", "count", "given", "error"), [
    ("x", 2, None, E.UNKNOWN_TOPIC_OR_PARTITION), ("t", 1, None, E.INVALID_PARTITIONS),
    ("t", 0, None, E.INVALID_PARTITIONS), ("t", -1, None, E.INVALID_PARTITIONS),
    ("t", 3, [[1, 2]], E.INVALID_REPLICA_ASSIGNMENT),
    ("t", 2, [[1, 2], [2, 3]], E.INVALID_REPLICA_ASSIGNMENT),
    ("t", 2, [], E.INVALID_REPLICA_ASSIGNMENT), ("t", 2, [[]], E.INVALID_REPLICA_ASSIGNMENT),
    ("t", 2, [[1, 1]], E.INVALID_REPLICA_ASSIGNMENT),
    ("t", 2, [[1, 9]], E.INVALID_REPLICA_ASSIGNMENT),
    ("t", 2, [[1]], E.INVALID_REPLICA_ASSIGNMENT),
    ("t", 2 + MOST, None, E.POLICY_VIOLATION)])
def test_invalid_partition_counts_do_not_affect_other_topics(
        name, count, given, error):
    image = create(on_three(), topic("other", factor=2))[0]
    records, results = more(image, (name, count, given), ("other", 2, None))
    assert [outcome.error for _, outcome in results] == [error, E.NONE] and len(records) == 1
    assert results[0][1].message or error == E.UNKNOWN_TOPIC_OR_PARTITION


def test_added_partitions_per_request_are_limited():
    image = create(on_three(), topic("other", factor=2))[0]
    records, results = more(image, ("t", 1 + MOST, None), ("other", 2, None))
    assert [outcome.error for _, outcome in results] == [E.NONE, E.POLICY_VIOLATION]
    assert len(records) == MOST


def test_repeated_topic_gets_no_partitions():
    records, results = more(on_three(), ("t", 2, None), ("t", 3, None))
    assert records == [] and [outcome.error for _, outcome in results] == [E.INVALID_REQUEST]


def test_given_replicas_are_used_and_the_first_active_one_leads():
    image = fenced(on_three(), 3)
    records, _ = more(image, ("t", 3, [[3, 1], [2, 3]]))
    assert [(record.partition_id, record.replicas, record.isr, record.leader)
            for record in records] == [(1, [3, 1], [1], 1), (2, [2, 3], [2], 2)]
    records, results = more(fenced(image, 2), ("t", 2, [[3, 2]]))
    assert records == [] and results[0][1].error == E.INVALID_REPLICA_ASSIGNMENT


def test_new_partitions_need_enough_brokers_and_an_active_one():
    image = on_three((1, 2, 3))
    assert more(image, ("t", 2, None))[1][0][1].error == E.NONE
    records, _ = more(fenced(image, 2), ("t", 2, None))
    assert set(records[0].replicas) == {1, 2, 3} and set(records[0].isr) == {1, 3}
    for gone in (after(image, [messages.UnregisterBrokerRecord(broker_id=2)]),
                 fenced(image, 1, 2, 3)):
        records, results = more(gone, ("t", 2, None))
        assert records == [] and results[0][1].error == E.INVALID_REPLICATION_FACTOR


def test_partitions_are_charged_to_the_client():
    account = Account(3)
    image = create(on_three(), topic("other", factor=2))[0]
    _, results = more(image, ("t", 4, None), ("other", 2, None), mutations=account)
    assert [outcome.error for _, outcome in results] == [E.NONE, E.THROTTLING_QUOTA_EXCEEDED]
    assert account.left == -1


# ---- elections ----------------------------------------------------------------------------------


def elect(image, kind, topics=(("t", [0]),), lost=frozenset()):
    rules = Rules(image, Settings(), lost)
    records, results = decided(elections.elect_leaders(rules, kind, topics))
    return records, [(name, index, outcome.error) for name, told in results
                     for index, outcome in told]


def test_preferred_replica_leads_again_when_healthy_and_in_sync():
    image = changed(on_three(), leader=2)
    records, told = elect(image, PREFERRED)
    assert told == [("t", 0, E.NONE)]
    state = after(image, records).partition("t", 0)
    assert (state.leader, state.isr, state.leader_epoch) == (1, (1, 2), 2)
    for worse, lost in ((changed(image, isr=[2]), ()), (fenced(image, 1), ()),
                        (image, {(1, "t", 0)})):
        assert elect(worse, PREFERRED, lost=lost) == ([], [
            ("t", 0, E.PREFERRED_LEADER_NOT_AVAILABLE)])
    assert elect(image, PREFERRED, lost={(1, "t", 1), (2, "t", 0)})[1][0][2] == E.NONE


def test_unneeded_elections_and_unknown_partitions_are_reported():
    image = on_three()
    assert elect(image, PREFERRED) == ([], [("t", 0, E.ELECTION_NOT_NEEDED)])
    assert elect(image, UNCLEAN) == ([], [("t", 0, E.ELECTION_NOT_NEEDED)])
    assert elect(changed(image, leader=2), UNCLEAN)[1] == [("t", 0, E.ELECTION_NOT_NEEDED)]
    assert elect(image, UNCLEAN, [("t", [1, -1]), ("x", [0])])[1] == [
        ("t", 1, E.UNKNOWN_TOPIC_OR_PARTITION), ("t", -1, E.UNKNOWN_TOPIC_OR_PARTITION),
        ("x", 0, E.UNKNOWN_TOPIC_OR_PARTITION)]


def test_election_of_all_omits_partitions_that_need_none():
    image = changed(on_three(count=3), index=1, leader=2)
    records, results = decided(elections.elect_leaders(Rules(image, Settings()), PREFERRED, None))
    assert [record.partition_id for record in records] == [1]
    assert [(name, [index for index, _ in told]) for name, told in results] == [("t", [1])]


def test_unclean_election_prefers_in_sync_replicas_and_shrinks_the_isr():
    image = changed(on_three((1, 2, 3)), leader=-1, isr=[2])
    records, told = elect(image, UNCLEAN)
    state = after(image, records).partition("t", 0)
    assert told == [("t", 0, E.NONE)] and (state.leader, state.isr) == (2, (2,))
    records, _ = elect(fenced(image, 2), UNCLEAN)
    state = after(image, records).partition("t", 0)
    assert (state.leader, state.isr) == (1, (1,))
    records, _ = elect(image, UNCLEAN, lost={(2, "t", 0), (1, "t", 0)})
    assert after(image, records).partition("t", 0).leader == 3
    assert elect(fenced(image, 1, 2, 3), UNCLEAN) == ([], [
        ("t", 0, E.ELIGIBLE_LEADERS_NOT_AVAILABLE)])


def test_failed_disk_moves_leadership_to_the_next_in_sync_replica_or_none():
    image = changed(on_three((1, 2, 3), count=3), index=1, leader=2)
    image = changed(image, index=2, isr=[1])
    records = elections.leave_offline(image, 1, [("t", 0), ("t", 1), ("t", 2), ("t", 9), ("x", 0)])
    states = after(image, records).topics["t"].partitions
    assert [(state.leader, state.isr) for state in states] == [
        (2, (2, 3)), (2, (1, 2, 3)), (-1, (1,))]
    records = elections.leave_offline(fenced(image, 2), 1, [("t", 0)])
    assert (records[0].leader, records[0].isr) == (3, [3])


# ---- reassignments ------------------------------------------------------------------------------


def move(image, replicas, index=0, name="t", factor_may_change=True):
    asked = [MOVE.ReassignableTopic(name=name, partitions=[
        MOVE.ReassignablePartition(partition_index=index, replicas=replicas)])]
    records, [(_, [(told, outcome)])] = reassignments.alter(
        Rules(image, Settings()), asked, factor_may_change)
    assert told == index
    return records, outcome.error


def test_reassignment_adds_replicas_and_can_be_cancelled():
    image = on_three((1, 2))
    records, error = move(image, [3, 1])
    moving = after(image, records)
    state = moving.partition("t", 0)
    assert (error, state.replicas, state.adding_replicas, state.removing_replicas) == (
        E.NONE, (3, 1, 2), (3,), (2,))
    assert reassignments.under_way(image, None) == []
    assert reassignments.under_way(moving, None) == [("t", [(0, state)])]
    assert reassignments.under_way(moving, [("t", [0, 7]), ("x", [0])]) == [("t", [(0, state)])]
    records, error = move(moving, None)
    again = after(moving, records).partition("t", 0)
    assert (error, again.replicas, again.adding_replicas, again.removing_replicas) == (
        E.NONE, (1, 2), (), ())


def test_reordering_replicas_is_immediate_and_no_change_writes_no_record():
    image = on_three((1, 2))
    assert move(image, [1, 2]) == ([], E.NONE)
    records, error = move(image, [2, 1])
    state = after(image, records).partition("t", 0)
    assert (error, state.replicas, state.adding_replicas) == (E.NONE, (2, 1), ())


@pytest.mark.parametrize(("replicas", "where", "may_change", "error"), [
    ([1, 3], {"name": "x"}, True, E.UNKNOWN_TOPIC_OR_PARTITION),
    ([1, 3], {"index": 1}, True, E.UNKNOWN_TOPIC_OR_PARTITION),
    (None, {}, True, E.NO_REASSIGNMENT_IN_PROGRESS),
    ([], {}, True, E.INVALID_REPLICA_ASSIGNMENT), ([1, 1], {}, True, E.INVALID_REPLICA_ASSIGNMENT),
    ([1, 4], {}, True, E.INVALID_REPLICA_ASSIGNMENT),
    ([3], {}, False, E.INVALID_REPLICATION_FACTOR),
    ([1, 2, 3], {}, False, E.INVALID_REPLICATION_FACTOR),
    ([1, 3], {}, False, E.NONE), ([3], {}, True, E.NONE)])
def test_invalid_reassignments_are_rejected(replicas, where, may_change, error):
    records, found = move(on_three((1, 2)), replicas, factor_may_change=may_change, **where)
    assert found == error and bool(records) == (error == E.NONE)


# ---- exact limits of a creation -----------------------------------------------------------------


def test_partitions_and_topics_per_request_are_limited():
    image = cluster()
    _, results = create(image, topic("a", partitions=MOST - 1), topic("b"))
    assert [result.error for result in results] == [E.NONE] * 2
    _, results = create(image, topic("a", partitions=MOST), topic("b"))
    assert [result.error for result in results] == [E.POLICY_VIOLATION] * 2
    _, results = create(image, topic("a", partitions=MOST), topic("b", partitions=0))
    assert [result.error for result in results] == [E.NONE, E.INVALID_PARTITIONS]
    _, results = create(image, topic("a", partitions=MOST), topic("b", partitions=-1))
    assert [result.error for result in results] == [E.POLICY_VIOLATION] * 2


@pytest.mark.parametrize(("length", "error"), [(249, E.NONE), (250, E.INVALID_TOPIC_EXCEPTION)])
def test_a_name_may_have_so_many_characters(length, error):
    after_, results = create(cluster(), topic("n" * length))
    assert results[0].error == error and ("n" * length in after_.topics) == (error == E.NONE)


def test_a_creation_is_charged_to_the_client_topic_by_topic():
    account = Account(3)
    request = messages.CreateTopicsRequest(topics=[
        topic("a", partitions=3), topic("b", partitions=1)])
    records, results = decided(topics.create_topics(
        cluster(), request, Settings(), random.Random(4), account))
    assert [result.error for result in results] == [E.NONE, E.THROTTLING_QUOTA_EXCEEDED]
    assert {record.name for record in records if hasattr(record, "name")} == {"a"}
    with pytest.raises(Refusal):
        topics.charge(Account(0), 1)
    topics.charge(Account(1), 1)
    topics.charge(None, 10**9)


def test_replicas_that_differ_in_number_are_rejected():
    image = cluster(2)
    for assignments in ([(0, [1]), (1, [1, 2])], [(0, [1]), (2, [1])], [(1, [1])],
                        [(0, [1]), (0, [2])], [(0, [1, 1])], [(0, [3])], [(0, [])]):
        assert error_of(image, "t", -1, -1, assignments) == E.INVALID_REPLICA_ASSIGNMENT
    made, _ = create(fenced(image, 1), topic("t", -1, -1, [(0, [1, 2])]))
    assert made.partition("t", 0).isr == (2,) and made.partition("t", 0).leader == 2
    assert error_of(fenced(image, 1), "t", -1, -1, [(0, [1])]) == E.INVALID_REPLICA_ASSIGNMENT


def test_producer_ids_are_allocated_up_to_the_last_block():
    last = topics.PRODUCER_ID_MAX - topics.PRODUCER_IDS_PER_BLOCK
    image = after(cluster(), [messages.ProducerIdsRecord(next_producer_id=last)])
    records, block = topics.allocate_producer_ids(image, 1)
    assert (block.first, block.count) == (last, 1000)
    with pytest.raises(OverflowError):
        topics.allocate_producer_ids(after(image, records), 1)

"""Assignments of members with different subscriptions, and stickiness."""

import pytest

from pylog.coordinator.groups.assignors import partitions as partition_assignors
from pylog.coordinator.groups.assignors.partitions import (
    Subscriber,
    TopicShape,
    assign_range,
    assign_uniform,
)
from tests.coordinator.groups.assignors.test_partitions import A, B, members, shown

C = b"c" * 16


def who(id_, topics, **assigned) -> Subscriber:
    """assigned: by the name of the topic's constant."""
    return Subscriber(id_, None, None, frozenset(topics), {
        {"A": A, "B": B, "C": C}[name]: frozenset(mine) for name, mine in assigned.items()})


def uniform(subscribers, **counts):
    shapes = {{"A": A, "B": B, "C": C}[name]: TopicShape(count) for name, count in counts.items()}
    found = assign_uniform(subscribers, shapes)
    assert partition_assignors.checked(found, subscribers, shapes) == {
        id_: {topic: mine for topic, mine in held.items() if mine} for id_, held in found.items()}
    return shown(found)


def test_empty_input_gives_an_empty_assignment():
    assert assign_uniform([], {A: TopicShape(3)}) == {}
    assert assign_uniform(members("x", "y"), {}) == {"x": {}, "y": {}}
    assert assign_range([], {A: TopicShape(3)}) == {}


def test_range_leaves_surplus_members_without_partitions():
    found = assign_range(members("x", "y", "z"), {A: TopicShape(2)})
    assert shown(found) == {"x": {A: [0]}, "y": {A: [1]}, "z": {}}


def test_range_shares_a_topic_among_its_subscribers_only():
    found = assign_range([who("x", (A,)), who("y", (A, B)), who("z", (B,))],
                         {A: TopicShape(3), B: TopicShape(3)})
    assert shown(found) == {"x": {A: [0, 1]}, "y": {A: [2], B: [0, 1]}, "z": {B: [2]}}


def test_equal_subscribers_keep_their_extra_partitions():
    found = uniform([who("x", (A,), A=(0,)), who("y", (A,), A=(1, 2)), who("z", (A,))], A=4)
    assert found == {"x": {A: [0]}, "y": {A: [1, 2]}, "z": {A: [3]}}


def test_overloaded_member_releases_its_last_partitions():
    found = uniform([who("x", (A, B), A=(0, 1, 2), B=(0, 1)), who("y", (A, B))], A=3, B=2)
    assert found == {"x": {A: [0, 1, 2]}, "y": {B: [0, 1]}}
    found = uniform([who("x", (A,), A=range(4)), who("y", (A,))], A=4)
    assert found == {"x": {A: [0, 1]}, "y": {A: [2, 3]}}


def test_missing_or_unsubscribed_partitions_are_not_kept():
    found = uniform([who("x", (A,), A=(0, 4), B=(0,)), who("y", (A,), C=(1,))], A=4)
    assert sorted(index for held in found.values() for index in held[A]) == [0, 1, 2, 3]
    assert 0 in found["x"][A] and all(set(held) == {A} for held in found.values())


@pytest.mark.parametrize("mine, found", [
    # A difference of one is fair: nothing moves.
    (((0, 1), (2,)), ((0, 1), (2,))),
    # A difference of two is not: the last one moves.
    (((0, 1, 2), (3,)), ((0, 1), (2, 3))),
    (((0, 1, 2, 3), ()), ((0, 1), (2, 3)))])
def test_between_members_of_different_topics_a_partition_moves_for_a_gain_only(mine, found):
    """"z" makes the subscriptions differ and does not affect the others."""
    count = sum(map(len, mine))
    made = uniform([who("x", (A,), A=mine[0]), who("y", (A,), A=mine[1]),
                    who("z", (B,), B=(0,))], A=count, B=1)
    assert {id_: made[id_].get(A, []) for id_ in "xy"} \
        == {"x": sorted(found[0]), "y": sorted(found[1])}
    assert made["z"] == {B: [0]}


def test_free_partitions_go_to_the_least_loaded_member():
    made = uniform([who("x", (A, B), B=(0, 1, 2)), who("y", (A,), A=(0,)), who("z", (A,))],
                   A=5, B=3)
    assert sorted(len(made[id_][A]) for id_ in "yz") == [2, 3] and 0 in made["y"][A]
    assert made["x"] == {B: [0, 1, 2]}


def test_restricted_member_gets_its_topic_and_others_compensate():
    made = uniform([who("x", (A,)), who("y", (A, B, C)), who("z", (C,))], A=4, B=4, C=4)
    assert made["y"][B] == [0, 1, 2, 3]
    assert {id_: sum(map(len, held.values())) for id_, held in made.items()} \
        == {"x": 4, "y": 4, "z": 4}


@pytest.mark.parametrize("levels", [[0], [0, 0], [2, 0], [0, 2], [5, 1, 0], [3, 3, 3], [1, 4, 4]])
@pytest.mark.parametrize("count", range(12))
def test_bulk_distribution_equals_least_loaded_assignment(levels, count):
    after = list(levels)
    for _ in range(count):
        after[after.index(min(after))] += 1
    poured = dict(partition_assignors._poured(levels, "abc"[:len(levels)], count))
    assert sorted(level + poured.get(id_, 0) for id_, level in zip("abc", levels, strict=False)) \
        == sorted(after)
    assert min(poured.values()) >= 0


def test_the_assignors_of_the_broker_are_loaded_in_the_order_of_the_setting():
    assert list(partition_assignors.load(["range", "uniform"])) == ["range", "uniform"]
    assert list(partition_assignors.load(["uniform"])) == ["uniform"]
    assert partition_assignors.load([]) == {}


@pytest.mark.parametrize("given", [{"x": {A: [-1]}}, {"x": {A: [2]}}, {"x": {A: [0, 0]}}])
def test_missing_partition_is_not_assigned(given):
    with pytest.raises(ValueError):
        partition_assignors.checked(given, members("x"), {A: TopicShape(2)})


def test_assignment_is_checked_for_all_members_without_empty_topics():
    assert partition_assignors.checked({"x": {A: [1, 0], B: []}}, members("x", "y", topics=(A, B)),
                                       {A: TopicShape(2), B: TopicShape(2)}) \
        == {"x": {A: frozenset((0, 1))}, "y": {}}

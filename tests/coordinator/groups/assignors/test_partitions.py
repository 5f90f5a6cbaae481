"""Assignments: every partition has one subscriber, with fair shares and few moves."""

import random

import pytest

from pylog.config.errors import ConfigError
from pylog.coordinator.groups.assignors import partitions as partition_assignors
from pylog.coordinator.groups.assignors.partitions import (
    Subscriber,
    TopicShape,
    assign_range,
    assign_uniform,
)

A, B = b"a" * 16, b"b" * 16


def members(*ids: str, topics=(A,), assigned=None) -> list[Subscriber]:
    held = assigned or {}
    return [Subscriber(id_, None, None, frozenset(topics), held.get(id_, {})) for id_ in ids]


def shown(found) -> dict:
    return {id_: {topic: sorted(mine) for topic, mine in held.items()}
            for id_, held in found.items()}


def test_range_assigns_contiguous_partitions_with_extras_to_the_first_members():
    found = assign_range(members("z", "x", "y", topics=(A, B)),
                         {A: TopicShape(5), B: TopicShape(2)})
    assert shown(found) == {"x": {A: [0, 1], B: [0]}, "y": {A: [2, 3], B: [1]}, "z": {A: [4]}}


def test_range_puts_instances_first():
    one = Subscriber("a", None, None, frozenset((A,)), {})
    other = Subscriber("z", "i", None, frozenset((A,)), {})
    assert shown(assign_range([one, other], {A: TopicShape(2)})) == {"z": {A: [0]}, "a": {A: [1]}}


def test_uniform_moves_as_few_partitions_as_possible():
    before = assign_uniform(members("x", "y"), {A: TopicShape(6)})
    after = assign_uniform(members("x", "y", "z", assigned=before), {A: TopicShape(6)})
    moved = sum(len(mine[A] - after[id_].get(A, frozenset())) for id_, mine in before.items())
    assert sorted(len(mine[A]) for mine in after.values()) == [2, 2, 2] and moved == 2
    assert assign_uniform(members("x", "y", "z", assigned=after), {A: TopicShape(6)}) == after


@pytest.mark.parametrize("assign", [assign_range, assign_uniform])
def test_every_partition_has_one_subscriber(random_source, assign):
    for _ in range(300):
        seed = random_source.randrange(1 << 40)
        print("seed", seed)
        _check_some(random.Random(seed), assign)


def _check_some(picks: random.Random, assign) -> None:
    topics = {bytes([number]): TopicShape(picks.randrange(12)) for number in range(4)}
    same = picks.random() < 0.4
    before: dict = {}
    for _ in range(4):
        found = [Subscriber(
            f"m{number}", f"i{9 - number}" if picks.random() < 0.3 else None, None,
            frozenset(topics) if same else frozenset(
                topic for topic in topics if picks.random() < 0.6), before.get(f"m{number}", {}))
            for number in range(picks.randrange(1, 7))]
        wanted = {topic for member in found for topic in member.topics}
        shapes = {topic: topics[topic] for topic in wanted}
        before = partition_assignors.checked(assign(found, shapes), found, shapes)
        given = sorted((topic, index) for mine in before.values()
                       for topic, held in mine.items() for index in held)
        assert given == sorted((topic, index) for topic, shape in shapes.items()
                               for index in range(shape.partitions))
        counts = [sum(map(len, mine.values())) for mine in before.values()]
        if same and assign is assign_uniform:
            assert max(counts) - min(counts) <= 1


def test_members_with_different_topics_are_balanced():
    found = [*members("x", topics=(A,)), *members("y", topics=(A, B)), *members("z", topics=(B,))]
    given = assign_uniform(found, {A: TopicShape(9), B: TopicShape(9)})
    counts = sorted(sum(map(len, mine.values())) for mine in given.values())
    assert sum(counts) == 18 and counts[-1] - counts[0] <= 2


def everything_to_the_first(found, topics):
    return {found[0].id: {topic: range(shape.partitions) for topic, shape in topics.items()}}


def test_custom_assignor_is_called_by_its_name():
    known = partition_assignors.load(["range", f"{__name__}:everything_to_the_first"])
    assert list(known) == ["range", "everything_to_the_first"]
    found = members("x", "y")
    shapes = {A: TopicShape(2)}
    made = partition_assignors.checked(known["everything_to_the_first"](found, shapes), found,
                                       shapes)
    assert shown(made) == {"x": {A: [0, 1]}, "y": {}}


@pytest.mark.parametrize("name", ["sticky", "no.such.module:f", f"{__name__}:missing",
                                  f"{__name__}:A"])
def test_unknown_assignor_is_a_configuration_error(name):
    with pytest.raises(ConfigError):
        partition_assignors.load([name])


@pytest.mark.parametrize("given", [{"x": {A: [0]}, "y": {A: [0]}}, {"x": {A: [7]}},
                                   {"x": {B: [0]}}, {"nobody": {A: [0]}}])
def test_invalid_result_of_an_assignor_is_detected(given):
    with pytest.raises(ValueError):
        partition_assignors.checked(given, members("x", "y"), {A: TopicShape(2), B: TopicShape(1)})

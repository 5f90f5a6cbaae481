"""A topology in a cluster: tasks, partitions of internal topics, errors."""

import pytest

from pylog.coordinator.groups.streams import topology as streams_topology
from pylog.coordinator.groups.streams.topology import (
    MISSING_INTERNAL,
    MISSING_SOURCES,
    WRONG_PARTITIONS,
    configure,
    fault,
    topics_of,
    topology_from,
)
from pylog.protocol.api_error import Refusal
from tests.coordinator.streams_world import subtopology, topology


def configured(topics: dict[str, int], *subtopologies):
    made = topology_from(topology(*subtopologies))
    assert fault(made) is None
    return configure(made, topics.get)


def test_a_subtopology_has_as_many_tasks_as_the_most_partitions_that_it_reads():
    found = configured({"a": 2, "b": 5}, subtopology("0", ["a", "b"]), subtopology("1", ["a"]))
    assert (found.tasks, found.status, found.missing) == ({"0": 5, "1": 2}, None, ())


def test_repartition_topic_has_the_partitions_of_its_sources():
    found = configured({"a": 2, "b": 5}, subtopology("0", ["a", "b"], sinks=["r"]),
                       subtopology("1", repartitions=["r"], sinks=["s"]),
                       subtopology("2", repartitions=["s"], changelogs=["c"]))
    assert [(row.name, row.partitions) for row in found.missing] == [
        ("r", 5), ("s", 5), ("c", 5)]
    assert found.tasks == {"0": 5, "1": 5, "2": 5} and found.status[0] == MISSING_INTERNAL


def test_client_may_set_the_partition_count():
    found = configured({"a": 2}, subtopology("0", ["a"], sinks=["r"]),
                       subtopology("1", repartitions=[("r", 7)], changelogs=["c"]))
    assert {row.name: row.partitions for row in found.missing} == {"r": 7, "c": 7}


def test_copartitioned_topics_have_the_sources_partition_count():
    found = configured(
        {"a": 2, "b": 6}, subtopology("0", ["a"], sinks=["r"]),
        subtopology("1", ["b"], repartitions=["r"], copartitions=[([0], [0])]))
    assert {row.name: row.partitions for row in found.missing} == {"r": 6}


def test_repartition_topics_only_get_the_maximum_or_the_fixed_count():
    parts = [subtopology("0", ["a"], sinks=["r"]), subtopology("1", ["b"], sinks=["s"])]
    found = configured({"a": 2, "b": 6}, *parts,
                       subtopology("2", repartitions=["r", "s"], copartitions=[([], [0, 1])]))
    assert {row.name: row.partitions for row in found.missing} == {"r": 6, "s": 6}
    found = configured({"a": 2, "b": 6}, *parts,
                       subtopology("2", repartitions=[("r", 3), "s"],
                                   copartitions=[([], [0, 1])]))
    assert {row.name: row.partitions for row in found.missing} == {"r": 3, "s": 3}


@pytest.mark.parametrize("subtopologies", [
    [subtopology("0", ["a", "b"], copartitions=[([0, 1], [])])],
    [subtopology("0", ["a"], sinks=["r"]),
     subtopology("1", ["b"], repartitions=[("r", 2)], copartitions=[([0], [0])])],
    [subtopology("0", ["a"], sinks=["r", "s"]),
     subtopology("1", repartitions=[("r", 2), ("s", 3)], copartitions=[([], [0, 1])])],
    [subtopology("0", ["a"], changelogs=["b"])],
])
def test_incompatible_partition_counts_are_reported(subtopologies):
    found = configured({"a": 2, "b": 6}, *subtopologies)
    assert (found.tasks, found.status[0], found.missing) == (None, WRONG_PARTITIONS, ())


@pytest.mark.parametrize(("names", "shown"), [
    ("a", "a"), ("abc", "a, b, c"), ("abcd", "a, b, c and 1 additional topics"),
    ("edcba", "a, b, c and 2 additional topics")])
def test_of_many_topics_the_first_three_are_named(names, shown):
    found = configured({}, subtopology("0", list(names)))
    assert found.status == (MISSING_SOURCES, f"Source topics {shown} are missing.")


@pytest.mark.parametrize(("subtopologies", "said"), [
    ([subtopology("0")], "No source topics found for subtopology 0"),
    ([subtopology("0", repartitions=["r"])], None),
    ([subtopology("0", ["a"], copartitions=[([1], [])])], "names a topic that it has not"),
    ([subtopology("0", ["a"], copartitions=[([-1], [])])], "names a topic that it has not"),
    ([subtopology("0", ["a"], copartitions=[([0], [0])])], "names a topic that it has not"),
    ([subtopology("0", ["a"], repartitions=["r"], copartitions=[([0], [0])])], None),
    ([subtopology("0", ["a"], repartitions=["r"], copartitions=[([0], [-1])])],
     "names a topic that it has not"),
    ([subtopology("0", ["a"], repartitions=[("r", -1)])], "r cannot have -1 partitions"),
    ([subtopology("0", ["a"], changelogs=[("c", -1)])], "c cannot have -1 partitions")])
def test_impossible_topology_is_reported(subtopologies, said):
    found = fault(topology_from(topology(*subtopologies)))
    assert found is None if said is None else said in found


@pytest.mark.parametrize("count", [2, 3])
def test_subtopologies_and_tasks_have_a_bound(monkeypatch, count):
    monkeypatch.setattr(streams_topology, "SUBTOPOLOGIES_MAX", 2)
    made = topology_from(topology(*[subtopology(str(id_), ["a"]) for id_ in range(count)]))
    assert (fault(made) is None) == (count == 2)
    monkeypatch.setattr(streams_topology, "TASKS_MAX", 8)
    if count == 2:
        assert configure(made, {"a": 4}.get).tasks == {"0": 4, "1": 4}
        with pytest.raises(Refusal, match="more than 8 tasks"):
            configure(made, {"a": 5}.get)


def test_repartition_topic_without_a_writer_is_rejected():
    with pytest.raises(Refusal, match="never used as a sink topic"):
        configured({"a": 2}, subtopology("0", ["a"], repartitions=["r"]))


@pytest.mark.parametrize(("there", "wrong"), [(4, False), (3, True), (5, True)])
def test_existing_internal_topic_must_match_or_stops_the_group(there, wrong):
    found = configured({"a": 4, "c": there}, subtopology("0", ["a"], changelogs=["c"]))
    if wrong:
        assert found.status == (WRONG_PARTITIONS, "Existing topic c has different number of "
                                f"partitions: expected 4, found {there}")
    else:
        assert (found.status, found.missing, found.internal) == (None, (), {"c": 4})


def test_existing_repartition_topic_keeps_its_count_for_readers():
    found = configured({"a": 2, "r": 2}, subtopology("0", ["a"], sinks=["r"]),
                       subtopology("1", repartitions=["r"], changelogs=["c"]))
    assert found.tasks == {"0": 2, "1": 2}
    assert [(row.name, row.partitions, row.factor) for row in found.missing] == [("c", 2, -1)]


def test_shared_internal_topic_is_requested_once():
    found = configured({"a": 2}, subtopology("0", ["a"], changelogs=["c"]),
                       subtopology("1", ["a"], changelogs=["c"]))
    assert [row.name for row in found.missing] == ["c"]


def test_differing_partition_counts_are_all_reported_in_order():
    found = configured({"b": 6, "a": 2}, subtopology(
        "0", ["b", "a"], copartitions=[([0, 1], [])]))
    assert found.status[1].endswith("[{a=2, b=6}]")
    found = configured({"a": 2, "b": 6}, subtopology("0", ["a"], sinks=["r"]), subtopology(
        "1", ["b"], repartitions=[("r", 5)], copartitions=[([0], [0])]))
    assert "Number of partitions [5] of repartition topic [r]" in found.status[1]
    assert "[6] of the source topic" in found.status[1]


def test_a_loop_without_a_source_is_rejected():
    with pytest.raises(Refusal):
        configured({}, subtopology("0", repartitions=["r"], sinks=["s"]),
                   subtopology("1", repartitions=["s"], sinks=["r"]))


def test_topologies_with_equal_content_are_equal():
    parts = [subtopology("0", ["a"], sinks=["r"]), subtopology("1", repartitions=["r"])]
    assert topology_from(topology(*parts)) == topology_from(topology(*parts[::-1]))
    assert topology_from(topology(*parts)) != topology_from(topology(*parts, epoch=1))
    assert topology_from(topology(*parts)) != topology_from(topology(parts[0]))
    assert topics_of(topology(*parts)) == ["a", "r"]
    made = topology_from(topology(*parts, subtopology("2", ["b"], changelogs=["c"])))
    assert made.sources() == {"a": "0", "r": "1", "b": "2"}
    assert made.required() == {"a", "r", "b", "c"}

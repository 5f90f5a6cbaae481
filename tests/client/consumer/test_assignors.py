"""Assignments: complete, balanced, and with minimal changes."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pylog.client.consumer.assignors import (
    ASSIGNORS, Member, assign_cooperative, assign_range, assign_roundrobin, assign_sticky,
    pack_sticky, unpack_sticky,
)

TOPICS = ("a", "b", "c")
COUNTS = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 12))
SUBSCRIPTIONS = st.lists(st.frozensets(st.sampled_from(TOPICS), min_size=1), min_size=1,
                         max_size=7)
# A slow machine must not fail the test.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def fresh(*topics_of_members):
    return {f"m{place}": Member(frozenset(topics))
            for place, topics in enumerate(topics_of_members)}


def again(members, made, generation=1):
    return {id_: Member(member.topics, tuple(made.get(id_, ())), generation, member.instance_id)
            for id_, member in members.items()}


def test_range_assigns_contiguous_partitions():
    made = assign_range({"a": 5}, fresh("a", "a"))
    assert made == {"m0": [("a", 0), ("a", 1), ("a", 2)], "m1": [("a", 3), ("a", 4)]}


def test_roundrobin_distributes_across_topics():
    made = assign_roundrobin({"a": 3, "b": 3}, fresh("ab", "ab"))
    assert made["m0"] == [("a", 0), ("a", 2), ("b", 1)]
    assert made["m1"] == [("a", 1), ("b", 0), ("b", 2)]


def test_static_members_keep_their_place_when_member_ids_change():
    first = {"x": Member(frozenset("a"), instance_id="1"), "y": Member(frozenset("a"),
                                                                      instance_id="2")}
    later = {"z": first["x"], "b": first["y"]}
    assert assign_range({"a": 2}, first)["x"] == assign_range({"a": 2}, later)["z"]


@pytest.mark.parametrize("name", [name for name in ASSIGNORS])
@PATIENT
@given(counts=COUNTS, subscriptions=SUBSCRIPTIONS)
def test_each_partition_is_assigned_to_one_subscriber(name, counts, subscriptions):
    members = fresh(*subscriptions)
    made = ASSIGNORS[name].assign(counts, members)
    given_out = [part for parts in made.values() for part in parts]
    wanted = {topic for topics in subscriptions for topic in topics}
    assert sorted(given_out) == sorted(
        (topic, number) for topic, count in counts.items() if topic in wanted
        for number in range(count))
    for id_, parts in made.items():
        assert {topic for topic, _ in parts} <= members[id_].topics


@PATIENT
@given(count=st.integers(0, 40), before=st.integers(1, 8), after=st.integers(1, 8))
def test_sticky_assignment_moves_a_minimum_of_partitions(count, before, after):
    first = fresh(*["a"] * before)
    made = assign_sticky({"a": count}, first)
    grown = {**again(first, made), **{id_: member for id_, member in fresh(*["a"] * after).items()
                                      if id_ not in first}}
    remaining = {id_: grown[id_] for id_ in sorted(grown)[:after]}
    next_made = assign_sticky({"a": count}, remaining)
    loads = [len(parts) for parts in next_made.values()]
    assert max(loads) - min(loads) <= 1
    floor, more = divmod(count, len(remaining))
    kept = sum(len(set(made.get(id_, ())) & set(parts)) for id_, parts in next_made.items())
    had = sorted([len(made.get(id_, ())) for id_ in remaining], reverse=True)
    most = sum(min(load, floor + (place < more)) for place, load in enumerate(had))
    assert kept == most


@PATIENT
@given(counts=COUNTS, subscriptions=SUBSCRIPTIONS)
def test_sticky_repeated_changes_nothing(counts, subscriptions):
    members = fresh(*subscriptions)
    made = assign_sticky(counts, members)
    assert assign_sticky(counts, again(members, made)) == made


def test_cooperative_does_not_assign_owned_partitions():
    members = fresh("a")
    made = assign_cooperative({"a": 4}, members)
    both = {**again(members, made), "m1": Member(frozenset("a"))}
    first = assign_cooperative({"a": 4}, both)
    assert len(first["m0"]) == 2 and first["m1"] == []
    second = assign_cooperative({"a": 4}, again(both, first, 2))
    assert second["m0"] == first["m0"] and len(second["m1"]) == 2


def test_the_later_generation_owns_a_partition_that_two_claim():
    members = {"m0": Member(frozenset("a"), (("a", 0), ("a", 1)), 3),
               "m1": Member(frozenset("a"), (("a", 0),), 4)}
    made = assign_sticky({"a": 2}, members)
    assert made == {"m0": [("a", 1)], "m1": [("a", 0)]}


def test_sticky_user_data_survives_encoding():
    owned = [("a", 0), ("a", 3), ("topic-\u00e4", 1)]
    assert unpack_sticky(pack_sticky(owned, 7)) == (tuple(owned), 7)
    with pytest.raises(ValueError):
        unpack_sticky(b"\0\0\0\1\0\7")


def test_sticky_user_data_that_ends_early_is_rejected_unless_only_the_generation_is_missing():
    data = pack_sticky([("a", 0), ("a", 3), ("bc", 1)], 7)
    assert data == (b"\0\0\0\2\0\1a\0\0\0\2\0\0\0\0\0\0\0\3\0\2bc\0\0\0\1\0\0\0\1\0\0\0\7")
    owned = (("a", 0), ("a", 3), ("bc", 1))
    for size in range(len(data)):
        if size >= len(data) - 4:
            assert unpack_sticky(data[:size]) == (owned, -1)
        else:
            with pytest.raises(ValueError, match="no sticky user data"):
                unpack_sticky(data[:size])
    assert unpack_sticky(data + b"more") == (owned, 7)


@PATIENT
@given(counts=COUNTS, subscriptions=SUBSCRIPTIONS, moved=st.randoms(use_true_random=False))
def test_sticky_is_balanced_as_far_as_subscriptions_allow(counts, subscriptions, moved):
    members = fresh(*subscriptions)
    parts = [(topic, number) for topic in counts for number in range(counts[topic])]
    had = {id_: [] for id_ in members}
    for part in parts:
        had[moved.choice(list(had))].append(part)
    made = assign_sticky(counts, again(members, had))
    for mine in made.values():
        assert mine == sorted(set(mine))
        for topic, _ in mine:
            for other, member in members.items():
                if topic in member.topics:
                    assert len(mine) <= len(made[other]) + 1


def test_sticky_assignment_serves_restricted_topics_first():
    members = fresh("ab", "a", "ab")
    made = assign_sticky({"a": 2, "b": 4}, members)
    assert made == {"m0": [("b", 0), ("b", 2)], "m1": [("a", 0), ("a", 1)],
                    "m2": [("b", 1), ("b", 3)]}
    # A member keeps its partitions, except those above its fair share.
    had = again(members, {"m0": [("b", 0), ("b", 1), ("b", 2), ("b", 3)], "m1": [("a", 1)]})
    made = assign_sticky({"a": 2, "b": 4}, had)
    assert made == {"m0": [("b", 1), ("b", 2), ("b", 3)], "m1": [("a", 1)],
                    "m2": [("a", 0), ("b", 0)]}


def test_partition_claimed_twice_in_one_generation_belongs_to_no_member():
    members = {"m0": Member(frozenset("a"), (("a", 0), ("a", 2)), 3),
               "m1": Member(frozenset("a"), (("a", 1), ("a", 2)), 3)}
    assert assign_cooperative({"a": 4}, members) == {
        "m0": [("a", 0), ("a", 2)], "m1": [("a", 1), ("a", 3)]}
    # Partitions that no longer exist, or whose topic is no longer subscribed, are not kept.
    gone = {"m0": Member(frozenset("a"), (("a", 4), ("b", 0), ("a", 3)), 3),
            "m1": Member(frozenset("a"))}
    assert assign_sticky({"a": 4, "b": 1}, gone) == {"m0": [("a", 0), ("a", 3)],
                                                     "m1": [("a", 1), ("a", 2)]}


def test_range_and_roundrobin_deal_past_members_that_want_less():
    members = {"z": Member(frozenset("ab"), instance_id="1"), "y": Member(frozenset("b")),
               "x": Member(frozenset("ab"))}
    counts = {"b": 5, "a": 4, "c": 2}
    assert assign_range(counts, members) == {
        "z": [("a", 0), ("a", 1), ("b", 0), ("b", 1)],
        "x": [("a", 2), ("a", 3), ("b", 2), ("b", 3)], "y": [("b", 4)]}
    assert assign_roundrobin(counts, members) == {
        "z": [("a", 0), ("a", 2), ("b", 1), ("b", 4)], "x": [("a", 1), ("a", 3), ("b", 2)],
        "y": [("b", 0), ("b", 3)]}

"""The assignor of share groups."""

import random

from pylog.coordinator.groups.assignors.share import assign

T, U = b"t" * 16, b"u" * 16


def places(assignment):
    return {(topic, index) for topic, indexes in assignment.items() for index in indexes}


def test_partitions_are_shared_evenly():
    found = assign({"a": [T], "b": [T]}, {T: range(4)}, {})
    assert sorted(len(places(row)) for row in found.values()) == [2, 2]
    assert set().union(*map(places, found.values())) == {(T, index) for index in range(4)}


def test_more_members_than_partitions_share_a_partition():
    found = assign({name: [T] for name in "abcde"}, {T: range(2)}, {})
    assert all(len(places(row)) >= 1 for row in found.values())


def test_member_gets_only_subscribed_partitions():
    found = assign({"a": [T], "b": [T, U]}, {T: range(2), U: range(2)}, {})
    assert {topic for topic, _ in places(found["a"])} == {T}
    assert {(U, 0), (U, 1)} <= places(found["b"])


def test_uninitialized_partition_is_not_assigned():
    assert assign({"a": [T, U]}, {T: (1,)}, {}) == {"a": {T: (1,)}}
    assert assign({"a": [T]}, {}, {"a": {T: (0,)}}) == {"a": {}}


def test_every_partition_has_a_member_with_few_moves():
    for seed in range(300):
        rng = random.Random(seed)
        had = {}
        for _ in range(6):
            members = rng.sample("abcdefgh", rng.randrange(1, 9))
            count = rng.randrange(1, 9)
            found = assign(dict.fromkeys(members, [T]), {T: range(count)}, had)
            covered = set().union(*map(places, found.values()))
            assert covered == {(T, index) for index in range(count)}, seed
            sizes = [len(places(row)) for row in found.values()]
            assert max(sizes) - min(sizes) <= 1, (seed, sizes)
            again = assign(dict.fromkeys(members, [T]), {T: range(count)}, found)
            assert again == found, seed
            had = found

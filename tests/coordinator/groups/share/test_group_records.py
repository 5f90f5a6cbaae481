"""A share group and its records: each record has its own part of the state."""

from pylog.coordinator.groups.share import group as share_group
from pylog.coordinator.groups.share.group import TopicPartitions, ShareGroup, ShareMember

T, U = b"t" * 16, b"u" * 16


def full() -> ShareGroup:
    """Return a group in which no two fields are equal."""
    group = ShareGroup("g")
    group.epoch, group.hash, group.target_epoch, group.assigned_ms = 7, 8, 6, 5
    one, two = ShareMember("m"), ShareMember("n")
    one.epoch, one.previous_epoch, one.rack, one.client_id, one.host = 4, 3, "r", "c", "/h"
    one.topics, one.assigned = frozenset("tu"), {T: (0, 2), U: (1,)}
    group.members = {"m": one, "n": two}
    group.target = {"m": {T: (0, 2)}, "n": {U: (1, 3)}}
    group.initializing = {T: TopicPartitions("t", frozenset((4, 5)), 11)}
    group.initialized = {U: TopicPartitions("u", frozenset((6,)), 11)}
    group.deleting = {b"v" * 16: "v"}
    return group


def told(group):
    """Return all fields, including the members', in comparable form."""
    members = {name: {field: getattr(member, field) for field in ShareMember.__slots__}
               for name, member in group.members.items()}
    return {**{field: getattr(group, field) for field in ShareGroup.__slots__}, "members": members}


def replayed(records, groups=None, wall_ms=11):
    groups = {} if groups is None else groups
    for key, value in records:
        share_group.replay(groups, *share_group.decode(key, value), wall_ms)
    return groups


def test_a_new_group_and_a_new_member_have_nothing():
    assert told(ShareGroup("g")) == {
        "id": "g", "epoch": 1, "hash": 0, "members": {}, "target": {}, "target_epoch": 1,
        "assigned_ms": 0, "initializing": {}, "initialized": {}, "deleting": {},
        "topics_seen": None}
    assert {field: getattr(ShareMember("m"), field) for field in ShareMember.__slots__} == {
        "id": "m", "epoch": 0, "previous_epoch": 0, "rack": None, "client_id": "", "host": "",
        "topics": frozenset(), "assigned": {}}


def test_group_equals_its_records_in_any_order():
    group = full()
    records = list(share_group.records_of(group))
    assert len(records) == len({key for key, _ in records}) == 9
    assert told(replayed(records)["g"]) == told(group)
    # A second time over the existing state, and backwards where order does not matter.
    assert told(replayed(records, replayed(records))["g"]) == told(group)
    assert told(replayed(records[::-1])["g"]) == told(group)
    empty = ShareGroup("g")
    assert [key for key, _ in share_group.records_of(empty)] == [share_group.group_record(empty)[0]]
    for name in ("initializing", "initialized", "deleting"):
        some = ShareGroup("g")
        setattr(some, name, getattr(group, name))
        assert told(replayed(share_group.records_of(some))["g"]) == told(some)


def test_states_and_topics_are_those_of_the_members():
    group = full()
    assert (group.state, group.topics) == ("Stable", {"t", "u"})
    group.members = {}
    assert (group.state, group.topics) == ("Empty", frozenset())


def test_member_and_group_are_removed_by_their_tombstones():
    group = full()
    groups = replayed(share_group.records_of(group))
    tombstones = share_group.member_tombstones("g", "m")
    current, target, member = tombstones
    replayed([current], groups)
    expected = full()
    expected.members["m"].assigned = {}
    assert told(groups["g"]) == told(expected)
    replayed([target], groups)
    del expected.target["m"]
    assert told(groups["g"]) == told(expected)
    replayed([member], groups)
    del expected.members["m"]
    assert told(groups["g"]) == told(expected)
    replayed(tombstones, groups)
    assert told(groups["g"]) == told(expected)
    target_epoch, places, last = share_group.group_tombstones("g")
    replayed([target_epoch], groups)
    expected.target_epoch, expected.assigned_ms = 1, 0
    assert told(groups["g"]) == told(expected)
    replayed([places], groups)
    expected.initializing, expected.initialized, expected.deleting = {}, {}, {}
    assert told(groups["g"]) == told(expected)
    replayed([last], groups)
    assert groups == {}
    replayed([*tombstones, last, target_epoch, places], groups)
    assert groups == {}


def test_records_of_other_types_are_ignored():
    from pylog.protocol import messages, records

    key = messages.GroupMetadataKey(group="g")
    assert share_group.decode(records.encode_key(key), None) is None

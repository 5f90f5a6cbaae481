"""One classic group: its generations, and session timeouts."""

import pytest

from pylog.coordinator.groups.state.classic_group import COMPLETING, EMPTY, Group, Member

LAST = 2**31 - 1


def member(id_="m", **fields):
    made = Member(id_, None, "c", "/h", 1000, 500, [("range", b"r"), ("roundrobin", b"o")])
    for name, value in fields.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(("before", "after"), [(0, 1), (LAST - 1, LAST), (LAST, 0)])
def test_generations_wrap_around_after_the_highest_encodable_one(before, after):
    group = Group("g", 5)
    group.generation = before
    group.next_generation(7)
    assert (group.generation, group.state, group.state_ms) == (after, EMPTY, 7)


def test_a_generation_with_members_waits_for_their_assignments():
    group = Group("g", 5)
    group.add(member(), "consumer")
    group.unsynced.add("m")
    group.next_generation(7)
    assert (group.state, group.protocol, group.unsynced) == (COMPLETING, "range", set())


def test_new_group_is_unchanged_and_a_member_is_new_only_while_marked():
    assert Group("g", 5).grown is False and member().is_new is False


@pytest.mark.parametrize(("fields", "may_expire"), [
    ({}, True), ({"join_token": 1}, False), ({"sync_token": 1}, False),
    ({"join_token": 1, "is_new": True}, True), ({"sync_token": 1, "is_new": True}, True)])
def test_member_waiting_for_a_response_does_not_expire_unless_new(fields, may_expire):
    assert member(**fields).may_expire() is may_expire


@pytest.mark.parametrize(("protocol", "metadata"), [
    ("range", b"r"), ("roundrobin", b"o"), ("other", b""), (None, b"")])
def test_member_has_metadata_for_each_of_its_protocols(protocol, metadata):
    assert member().metadata(protocol) == metadata


# Members.

def with_members(*ids, **fields):
    made = Group("g", 5)
    for id_ in ids:
        made.add(member(id_, **fields), "consumer")
    return made


def test_the_first_to_join_leads_and_names_the_kind_of_protocol():
    group = with_members("a")
    group.add(member("b"), "other")
    assert (group.leader, group.protocol_type, list(group.members)) == ("a", "consumer", ["a", "b"])


def test_any_remaining_member_becomes_leader():
    group = with_members("a", "b", "c")
    group.unsynced.update("ab")
    group.remove("b")
    assert group.leader == "a" and group.unsynced == {"a"}
    group.remove("a")
    assert group.leader == "c" and group.supported == {"range": 1, "roundrobin": 1}
    group.remove("c")
    assert group.leader is None and group.supported == {} and group.unsynced == set()


@pytest.mark.parametrize(("id_", "instance", "fault"), [
    ("a", "i", None), ("b", "i", "fenced"), ("a", "j", "unknown"), ("c", None, "unknown"),
    ("b", None, None), ("a", None, None)])
def test_instance_id_belongs_to_one_member(id_, instance, fault):
    group = Group("g", 5)
    group.add(member("a", instance_id="i"), "consumer")
    group.add(member("b"), "consumer")
    assert group.fault_of(id_, instance) == fault


@pytest.mark.parametrize("first", [True, False])
def test_an_instance_that_is_back_has_its_part_under_the_new_id(first):
    group = Group("g", 5)
    for id_ in ("a", "b") if first else ("b", "a"):
        group.add(member(id_, instance_id=f"i-{id_}", assignment=b"share"), "consumer")
    if first:
        group.unsynced.add("a")
    made = group.replace(group.members["a"], "new")
    assert (made.assignment, made.instance_id) == (b"share", "i-a")
    assert group.leader == ("new" if first else "b")
    assert group.unsynced == ({"new"} if first else set())
    assert group.statics == {"i-a": "new", "i-b": "b"} and set(group.members) == {"b", "new"}


@pytest.mark.parametrize(("joined", "leads", "elected"), [
    ("", "a", False), ("a", "a", True), ("b", "b", True), ("bc", "b", True), ("abc", "a", True)])
def test_leader_has_joined(joined, leads, elected):
    group = with_members("a", "b", "c")
    for id_ in joined:
        group.members[id_].join_token = object()
    assert group.elect() is elected and group.leader == leads


def test_group_without_members_has_no_leader():
    assert Group("g", 5).elect() is False


@pytest.mark.parametrize(("awaiting", "pending", "joined"), [
    (2, set(), True), (1, set(), False), (2, {"x"}, False)])
def test_join_phase_is_complete_when_no_member_is_missing(awaiting, pending, joined):
    group = with_members("a", "b")
    group.awaiting, group.pending = awaiting, pending
    assert group.all_joined() is joined


def test_member_with_an_issued_id_is_no_longer_pending():
    group = Group("g", 5)
    group.pending = {"a", "b"}
    group.add(member("a"), "consumer")
    assert group.pending == {"b"}


def test_rebalance_timeout_is_the_longest_of_the_members():
    group = with_members("a")
    group.add(member("b", rebalance_ms=5000), "consumer")
    assert group.rebalance_ms == 5000 and Group("g", 5).rebalance_ms == 0


@pytest.mark.parametrize("left", ["members", "pending", "offsets", "unstable", None])
def test_group_without_members_and_offsets_is_removable(left):
    group = Group("g", 5)
    if left is not None:
        getattr(group, left).update({"x": 1} if left != "pending" else {"x"})
    assert group.is_spent is (left is None)
    group.state = COMPLETING
    assert not group.is_spent


# Protocols.

def speaking(*members):
    """Return a group in COMPLETING; members: the protocols of each, in order of preference."""
    group = Group("g", 5)
    for number, names in enumerate(members):
        group.add(member(str(number), protocols=[(name, b"") for name in names]), "consumer")
    group.state = COMPLETING
    return group


@pytest.mark.parametrize(("members", "before", "chosen"), [
    (["ab", "ab"], None, "a"), (["ab", "ba", "ba"], None, "b"), (["ab", "b"], None, "b"),
    (["ab", "ba"], "a", "a"), (["ab", "ba"], "b", "b"), (["cab", "ab", "ba"], "b", "a"),
    (["ab", "ba", "ba"], "a", "b")])
def test_most_preferred_common_protocol_is_chosen(
        members, before, chosen):
    group = speaking(*members)
    group.protocol = before
    assert group.select_protocol() == chosen


@pytest.mark.parametrize(("kind", "names", "fits"), [
    ("consumer", "b", True), ("consumer", "xb", True), ("consumer", "a", False),
    ("consumer", "", False), ("other", "b", False)])
def test_joining_member_must_share_a_protocol(kind, names, fits):
    assert speaking("ab", "bc").supports(kind, names) is fits


@pytest.mark.parametrize(("kind", "names", "fits"), [
    ("consumer", "a", True), ("", "a", False), ("consumer", "", False)])
def test_empty_group_accepts_any_protocol(kind, names, fits):
    assert Group("g", 5).supports(kind, names) is fits


@pytest.mark.parametrize(("kind", "names", "fits"), [
    ("consumer", "a", True), ("consumer", "", False), ("other", "a", False)])
def test_group_emptied_during_a_rebalance_keeps_its_protocol_type(kind, names, fits):
    group = speaking("ab")
    group.remove("0")
    assert group.supports(kind, names) is fits


def test_a_protocol_that_a_member_drops_is_not_everybodys_any_more():
    group = speaking("ab", "ab")
    group.set_protocols(group.members["0"], [("b", b"x"), ("b", b"y")])
    assert group.supported == {"a": 1, "b": 2} and group.select_protocol() == "b"

"""Rejections of each request of the group protocol, and the last accepted value."""

import pytest

from pylog.coordinator.groups import describe as group_describe
from pylog.coordinator.groups import offsets
from pylog.coordinator.groups.state.classic_group import COMPLETING, EMPTY, PREPARING, STABLE
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode as E
from tests.coordinator.groups.test_shard import LIMITS, Machine
from tests.coordinator.world import loaded

BYTES_MAX, PROTOCOLS_MAX = 512 << 10, 1000


@pytest.fixture
def store():
    return Machine()


JOINS = [
    ({"group": ""}, E.INVALID_GROUP_ID),
    ({"session_ms": LIMITS.session_ms_min - 1}, E.INVALID_SESSION_TIMEOUT),
    ({"session_ms": LIMITS.session_ms_max + 1}, E.INVALID_SESSION_TIMEOUT),
    ({"protocols": tuple((f"p{n}", b"") for n in range(PROTOCOLS_MAX + 1))}, E.INVALID_REQUEST),
    ({"protocols": (("range", bytes(BYTES_MAX - 4)),)}, E.MESSAGE_TOO_LARGE),
    ({"protocols": (("a", bytes(BYTES_MAX // 2)), ("b", bytes(BYTES_MAX // 2 - 1)))},
     E.MESSAGE_TOO_LARGE),
    ({"protocols": ()}, E.INCONSISTENT_GROUP_PROTOCOL),
    ({"kind": ""}, E.INCONSISTENT_GROUP_PROTOCOL),
]


@pytest.mark.parametrize(("changed", "error"), JOINS)
def test_invalid_join_is_rejected_immediately(store, changed, error):
    answer = store.join("a", **changed)
    assert answer.error_code == error and answer.member_id == ""
    assert not any(group.members for group in store.groups.groups.values())


@pytest.mark.parametrize("changed", [
    {"session_ms": LIMITS.session_ms_min}, {"session_ms": LIMITS.session_ms_max},
    {"protocols": tuple((f"p{n}", b"") for n in range(PROTOCOLS_MAX))},
    {"protocols": (("range", bytes(BYTES_MAX - 5)),)}])
def test_join_at_the_size_limit_is_accepted(store, changed):
    assert store.join("a", **changed) is None
    assert store.run(100).answers["a"].error_code == 0


def test_join_of_an_unknown_member_is_rejected_with_its_id(store):
    for group in ("g", "unknown"):
        store.stable("a") if group == "g" else None
        answer = store.join(f"in {group}", "stranger", group=group)
        assert (answer.error_code, answer.member_id) == (E.UNKNOWN_MEMBER_ID, "stranger")
    assert "unknown" not in store.groups.groups


def test_join_without_a_shared_protocol_is_rejected(store):
    store.stable("a")
    assert store.join("b", protocols=(("other", b""),)).error_code == 23
    assert store.join("c", kind="connect").error_code == 23
    assert store.join("d", protocols=(("other", b""), ("range", b""))) is None


def test_while_members_join_as_many_may_wait_as_are_allowed(store):
    first, second, third = store.stable("a", "b", "c")
    store.join("a again", first, protocols=(("range", b"n"),))
    store.join("new", rebalance_ms=500)
    store.join("b again", second)
    assert "new" not in store.answers
    assert store.join("c late", third).error_code == E.GROUP_MAX_SIZE_REACHED
    assert store.join("a once more", first) is None, "it waits already"


def sync(store, token, member, generation, **fields):
    store.groups.sync(messages.SyncGroupRequest(
        member_id=member, generation_id=generation, **{"group_id": "g", **fields}), token)
    return store.settle().answers.get(token)


def test_invalid_sync_is_rejected(store):
    assert sync(store, 1, "a", 1, group_id="").error_code == E.INVALID_GROUP_ID
    assert sync(store, 2, "a", 1).error_code == E.UNKNOWN_MEMBER_ID
    store.join("a")
    store.run(100)
    member = store.answers["a"].member_id
    for token, fields, error in (
            (3, {"member_id": "x"}, E.UNKNOWN_MEMBER_ID),
            (4, {"generation": 2}, E.ILLEGAL_GENERATION),
            (5, {"generation": 0}, E.ILLEGAL_GENERATION),
            (6, {"protocol_type": "connect"}, E.INCONSISTENT_GROUP_PROTOCOL),
            (7, {"protocol_name": "other"}, E.INCONSISTENT_GROUP_PROTOCOL),
            (8, {"group_instance_id": "i"}, E.UNKNOWN_MEMBER_ID)):
        got = sync(store, token, fields.pop("member_id", member),
                   fields.pop("generation", 1), **fields)
        assert got.error_code == error and got.assignment == b"", (token, got)
    assert store.group.state == COMPLETING
    assert sync(store, 9, member, 1, protocol_type="consumer",
                protocol_name="range").error_code == 0


def test_sync_during_a_rebalance_reports_it(store):
    first, second = store.stable("a", "b")
    store.join("a again", first, protocols=(("range", b"n"),))
    assert store.group.state == PREPARING
    assert sync(store, "s", second, 1).error_code == E.REBALANCE_IN_PROGRESS


def test_sync_in_a_stable_group_returns_the_assignment(store):
    first, second = store.stable("a", "b")
    got = sync(store, "again", second, 1)
    assert (got.error_code, got.assignment) == (0, second.encode())
    assert (got.protocol_type, got.protocol_name) == ("consumer", "range")


def test_invalid_heartbeat_is_rejected(store):
    assert store.heartbeat("x", 1) == E.UNKNOWN_MEMBER_ID
    member, = store.stable("a")
    assert store.heartbeat("x", 1) == E.UNKNOWN_MEMBER_ID
    assert store.heartbeat(member, 0) == store.heartbeat(member,
                                                                         2) == E.ILLEGAL_GENERATION
    assert store.heartbeat(member, 1, instance="i") == E.UNKNOWN_MEMBER_ID
    assert store.heartbeat(member, 1) == E.NONE
    store.groups.heartbeat(messages.HeartbeatRequest(group_id="", member_id=member))
    assert store.groups.heartbeat(
        messages.HeartbeatRequest(group_id="", member_id=member)) == E.INVALID_GROUP_ID


def test_leaving_a_missing_group_is_reported(store):
    assert store.groups.leave("", [("a", None)]) == E.INVALID_GROUP_ID
    assert store.groups.leave("g", [("a", None), ("", "i")]) == [E.UNKNOWN_MEMBER_ID] * 2
    store.join("a", instance="i")
    store.run(100)
    assert store.groups.leave("g", [("other", "i")]) == [E.FENCED_INSTANCE_ID]
    assert store.groups.leave("g", [("i-0", "i")]) == [E.NONE]


def test_next_joined_member_leads_if_the_leader_does_not_rejoin(store):
    first, second, third = store.stable("a", "b", "c")
    assert store.group.leader == first
    store.join("b again", second, protocols=(("range", b"n"),))
    store.join("c again", third)
    store.run(500)
    assert store.answers["b again"].leader == second and len(
        store.answers["b again"].members) == 2


def test_absent_static_members_keep_their_group_until_their_sessions_end(store):
    store.join("a", instance="i", session_ms=3000, rebalance_ms=500)
    store.join("b", instance="k", session_ms=3000, rebalance_ms=500)
    store.run(100).run(100)
    store.sync("a syncs", "i-0", 1, {}, "i")
    store.sync("b syncs", "k-1", 1, None, "k")
    store.join("c", rebalance_ms=500)
    store.groups.leave("g", [("client-2", None)])
    store.settle()
    for _ in range(4):
        store.run(500)
        assert store.group.state == PREPARING and len(store.group.members) == 2
    store.join("a back", "i-0", instance="i", session_ms=3000, rebalance_ms=500)
    assert "a back" not in store.answers
    store.run(500)
    assert store.answers["a back"].generation_id == 2, "nobody waits longer for the other"
    store.run(499)
    store.run(1)
    assert "k" not in store.group.statics


def test_waiting_replayed_member_does_not_expire(store):
    first, second = store.stable("a", "b")
    again = Machine()
    loaded(again.groups, store.log)
    again.join("a again", first, session_ms=300, rebalance_ms=5000, protocols=(("range", b"n"),))
    for _ in range(3):
        again.run(300)
        assert again.heartbeat(second, 1) == 27 and "a again" not in again.answers
    again.join("b again", second, rebalance_ms=5000)
    assert again.answers["a again"].error_code == 0


def listed(store, states=(), types=()):
    return sorted((row.group_id, row.group_state, row.protocol_type, row.group_type)
                  for row in group_describe.listed(store.groups, set(states), set(types)))


def test_groups_are_listed_by_state_and_type(store):
    store.stable("a")
    store.join("x", group="h")
    store.groups.find_or_make("e")
    stable, empty = ("g", STABLE, "consumer", "classic"), ("e", EMPTY, "", "classic")
    joining = "h", PREPARING, "consumer", "classic"
    assert listed(store) == [empty, stable, joining]
    assert listed(store, ["stable"]) == [stable]
    assert listed(store, ["empty", "preparingrebalance"]) == [empty, joining]
    assert listed(store, ["dead"]) == [] == listed(store, types=["consumer"])
    assert listed(store, ["stable"], ["classic", "consumer"]) == [stable]


def test_missing_group_is_described_as_dead(store):
    for version, error, text in ((5, 0, None), (6, 69, "Group g not found.")):
        row, = group_describe.described(store.groups, "g", version, 10)
        assert (row.error_code, row.error_message, row.group_state) == (error, text, "Dead")


def test_a_group_is_described_in_parts_of_so_many_members(store):
    members = store.stable("a", "b", "c")
    for most, sizes in ((1, [1, 1, 1]), (2, [2, 1]), (3, [3]), (4, [3])):
        rows = list(group_describe.described(store.groups, "g", 5, most))
        assert [len(row.members) for row in rows] == sizes
        assert [row.member_id for part in rows for row in part.members] == members


@pytest.mark.parametrize(("length", "error"), [(10, 0), (11, 12)])
def test_the_text_of_a_commit_may_have_so_many_characters(store, length, error):
    request = messages.OffsetCommitRequest(group_id="g", retention_time_ms=-1)
    got = offsets.commit(store.groups, request, [
        ("t", bytes(16), 0, 5, -1, "\u00e4" * length), ("t", bytes(16), 1, 6, -1, None)])
    assert got == (0 if not error else [12, 0])
    found = dict(offsets.fetch(store.groups, "g", [("t", [0, 1, 2])], False)[0][1])
    assert (found[0] is None) == bool(error) and found[1].offset == 6 and found[2] is None


@pytest.mark.parametrize(("version", "error"), [(8, 22), (9, 69)])
def test_commit_with_a_generation_and_no_group_is_rejected(store, version, error):
    request = messages.OffsetCommitRequest(
        group_id="g", member_id="m", generation_id_or_member_epoch=0)
    assert offsets.commit(store.groups, request, [("t", bytes(16), 0, 5, -1, "")],
                          version) == error
    assert "g" not in store.groups.groups


def test_a_commit_while_the_leader_assigns_is_rejected(store):
    store.join("a")
    store.run(100)
    assert store.group.state == COMPLETING and store.commit(5, "client-0", 1) == 27
    store.sync("s", "client-0", 1, {})
    assert store.commit(5, "client-0", 1) == 0


def test_commit_during_a_rebalance_is_accepted_and_extends_the_session(store):
    first, second = store.stable("a", "b")
    store.join("a again", first, rebalance_ms=5000, protocols=(("range", b"n"),))
    for _ in range(3):
        store.run(900)
        assert store.commit(5, second, 1) == 0
    assert second in store.group.members


def test_offsets_of_other_protocols_than_consumers_are_deleted_when_the_group_is_empty(store):
    store.join("a", kind="connect")
    store.run(100)
    store.sync("s", "client-0", 1, {})
    store.commit(5, "client-0", 1)
    assert offsets.delete(store.groups, "g", [("t", [0])]) == (E.NON_EMPTY_GROUP, {})
    store.groups.leave("g", [("client-0", None)])
    assert offsets.delete(store.groups, "g", [("t", [0])]) == (E.NONE, {"t": E.NONE})


def test_unreadable_subscription_prevents_offset_deletion(store):
    member, = store.stable("a")
    store.commit(5, member, 1)
    assert offsets.delete(store.groups, "g", [("t", [0])]) == (
        E.NONE, {"t": E.GROUP_SUBSCRIBED_TO_TOPIC})


@pytest.mark.parametrize("step", [1, 2, 3, 5, 100])
def test_all_offsets_come_in_parts_of_so_many(store, step):
    for partition in range(5):
        for topic in ("t", "u"):
            request = messages.OffsetCommitRequest(group_id="g", retention_time_ms=-1)
            offsets.commit(store.groups, request, [(topic, bytes(16), partition, 7, -1, "")])
    parts = list(offsets.everything(store.groups, "g").parts(step))
    assert all(sum(len(rows) for _, rows in part) <= step for part in parts)
    assert len(offsets.everything(store.groups, "g")) == 10
    found = sorted((topic, partition) for part in parts for topic, rows in part
                   for partition, _ in rows)
    assert found == [(topic, partition) for topic in "tu" for partition in range(5)]

"""Rejected requests of a classic group at each boundary, and the end of its join phase."""

import pytest

from pylog.coordinator.groups import describe as group_describe
from pylog.coordinator.groups.classic import protocol
from pylog.coordinator.groups.state.classic_group import COMPLETING, EMPTY, PREPARING, STABLE
from pylog.protocol import messages
from tests.coordinator.groups.test_shard import LIMITS, Machine

NO_ID, LOADING, GENERATION, INCONSISTENT = 24, 14, 22, 23
UNKNOWN, TIMEOUT, REBALANCING, INVALID = 25, 26, 27, 42
TOO_LARGE, ID_NEEDED, FULL, FENCED = 10, 79, 81, 82
DELAY_MS, REBALANCE_MS, SESSION_MS = LIMITS.initial_delay_ms, 500, 1000
JOIN_BYTES, ASSIGNMENT_BYTES = 512 << 10, 8 << 20


@pytest.fixture
def store():
    return Machine()


def joined(store, token) -> int | None:
    """Return the error of a join, None while it is pending."""
    answer = store.answers.get(token)
    return None if answer is None else answer.error_code


def sync(store, token, member, generation, shares=None, **fields):
    request = messages.SyncGroupRequest
    store.groups.sync(request(**{
        "group_id": "g", "generation_id": generation, "member_id": member, "assignments": [
            request.SyncGroupRequestAssignment(member_id=name, assignment=share)
            for name, share in (shares or {}).items()], **fields}), token)
    store.settle()
    answer = store.answers.get(token)
    return None if answer is None else answer.error_code


# ---- JoinGroup ----------------------------------------------------------------------------------

@pytest.mark.parametrize("fields, error", [
    ({"group": ""}, NO_ID), ({"session_ms": 9}, TIMEOUT), ({"session_ms": 10}, None),
    ({"session_ms": 60_000}, None), ({"session_ms": 60_001}, TIMEOUT),
    ({"protocols": [(f"{number}", b"") for number in range(1000)]}, None),
    ({"protocols": [(f"{number}", b"") for number in range(1001)]}, INVALID),
    ({"protocols": [("range", b"m" * (JOIN_BYTES - 5))]}, None),
    ({"protocols": [("range", b"m" * (JOIN_BYTES - 4))]}, TOO_LARGE),
    ({"member": "other"}, UNKNOWN)])
def test_rejected_join_creates_no_group(store, fields, error):
    store.join("a", **fields)
    assert joined(store, "a") == error
    assert bool(store.groups.groups) == bool(store.log) == (error is None)
    if error:
        answer = store.answers["a"]
        assert answer.member_id == fields.get("member", "") and answer.protocol_name is None


def test_a_group_that_is_being_deleted_is_not_joined(store):
    store.groups.deleting.add("g")
    store.join("a")
    assert joined(store, "a") == LOADING and not store.groups.groups


@pytest.mark.parametrize("version, instance, error", [
    (3, None, None), (4, None, ID_NEEDED), (4, "i", None)])
def test_member_id_is_required_only_from_clients_that_support_it(
        store, version, instance, error):
    store.join("a", version=version, instance=instance)
    assert joined(store, "a") == error
    assert bool(store.group.pending) == (error is not None)
    assert store.group.state == (EMPTY if error else PREPARING)
    if error:
        assert store.answers["a"].member_id == "client-0"
        store.join("again", "client-0", version=version)
        assert joined(store, "again") is None and not store.group.pending
        assert list(store.group.members) == ["client-0"]
    elif instance:
        assert list(store.group.members) == ["i-0"]


def test_issued_member_id_is_reserved_for_a_session(store):
    store.join("a", version=4)
    store.join("b", version=4)
    store.run(SESSION_MS - 1)
    assert store.group.pending == {"client-0", "client-1"}
    assert store.groups.leave("g", [("client-0", None)]) == [0]
    assert store.group.pending == {"client-1"}
    assert store.groups.events["member_left"] == 0
    store.run(1)
    assert store.group.pending == set() and store.groups.events["member_expired"] == 0


def test_member_without_a_common_protocol_is_rejected(store):
    store.join("a", protocols=(("one", b""), ("two", b"")))
    for token, fields, error in (
            ("b", {"protocols": (("two", b""),)}, None),
            ("c", {"protocols": (("three", b""),)}, INCONSISTENT),
            ("d", {"protocols": (("one", b""),)}, INCONSISTENT),
            ("e", {"protocols": (("two", b""),), "kind": "connect"}, INCONSISTENT)):
        store.join(token, **fields)
        assert joined(store, token) == error
    assert len(store.group.members) == 2


def test_full_group_accepts_only_existing_members(store):
    first, *_ = store.stable("a", "b", "c")
    store.join("d")
    assert joined(store, "d") == FULL and store.answers["d"].member_id == ""
    store.join("again", first, protocols=(("range", b"other"),))
    assert joined(store, "again") is None and store.group.state == PREPARING
    store.join("e")
    store.join("f")
    assert (joined(store, "e"), joined(store, "f")) == (None, None)
    store.join("h")
    assert joined(store, "h") == FULL
    store.join("and again", first)
    assert joined(store, "and again") is None and joined(store, "again") == REBALANCING


def test_rejoining_follower_gets_the_same_response_and_a_leader_restarts(store):
    leader, follower = store.stable("a", "b")
    assert store.group.leader == leader
    store.join("follows", follower)
    answer = store.answers["follows"]
    assert (answer.error_code, answer.generation_id, answer.members) == (0, 1, [])
    assert store.group.state == STABLE
    store.join("leads", leader)
    assert joined(store, "leads") is None and store.group.state == PREPARING
    assert store.group.awaiting == 1


def test_changed_metadata_during_assignment_restarts_the_join(store):
    store.join("a")
    store.run(DELAY_MS)
    assert store.group.state == COMPLETING
    store.join("same", "client-0")
    assert joined(store, "same") == 0 and store.group.state == COMPLETING
    store.join("other", "client-0", protocols=(("range", b"other"),))
    assert store.answers["other"].generation_id == 2


def test_fields_of_a_rejoin_take_effect(store):
    member, = store.stable("a")
    store.join("again", member, session_ms=5000, rebalance_ms=700,
                 protocols=(("range", b"new"),))
    found = store.group.members[member]
    assert (found.session_ms, found.rebalance_ms, found.protocols) == (
        5000, 700, [("range", b"new")])
    assert sync(store, "s", member, 2) == 0
    store.run(4999)
    assert member in store.group.members
    store.run(1)
    assert not store.group.members


@pytest.mark.parametrize("rebalance_ms, found", [(-1, SESSION_MS), (0, 0), (7, 7)])
def test_missing_rebalance_timeout_defaults_to_the_session_timeout(store, rebalance_ms, found):
    store.join("a", rebalance_ms=rebalance_ms)
    member, = store.group.members.values()
    assert member.rebalance_ms == found


# ---- the join phase -----------------------------------------------------------------------------

@pytest.mark.parametrize("late_ms, ends_ms", [((), 100), ((50,), 200), ((50, 150), 300)])
def test_initial_join_phase_is_extended_while_members_join(store, late_ms, ends_ms):
    store.join("a")
    for at_ms in range(ends_ms):
        if at_ms in late_ms:
            store.join(f"at {at_ms}")
        assert store.group.state == PREPARING
        store.run(1)
    assert store.group.state == COMPLETING
    assert store.groups.events["generation"] == 1


def test_the_first_join_phase_is_no_longer_than_the_members_rebalance_time():
    """250 ms: the delay and then 150 more, of which each new member may add 100."""
    store = Machine(LIMITS._replace(members_max=100))
    store.join("0", rebalance_ms=250)
    for number in range(1, 25):
        store.run(10)
        store.join(str(number), rebalance_ms=250)
        assert store.group.state == PREPARING
    store.run(9)
    assert store.group.state == PREPARING
    store.run(1)
    assert store.group.state == COMPLETING and len(store.group.members) == 25


def test_later_join_phase_ends_with_the_last_member_or_its_timeout(store):
    first, second = store.stable("a", "b")
    store.join("c")
    store.join("a again", first)
    assert store.group.state == PREPARING
    store.join("b again", second)
    assert store.group.state == COMPLETING
    store.run(REBALANCE_MS - 1)
    assert store.group.state == COMPLETING and len(store.group.members) == 3


def test_join_phase_with_a_missing_member_ends_at_the_rebalance_timeout(store):
    first, second = store.stable("a", "b")
    store.join("a again", first)
    store.run(REBALANCE_MS - 1)
    assert store.group.state == PREPARING and second in store.group.members
    store.run(1)
    assert store.group.state == COMPLETING and list(store.group.members) == [first]
    assert store.heartbeat(second, 2) == UNKNOWN


def test_newly_joined_member_is_awaited_longer_than_its_session(store):
    """It does not have its id before the response, and cannot send heartbeats."""
    store.stable("a")
    store.join("new", session_ms=50, rebalance_ms=10_000)
    store.run(999)
    assert len(store.group.members) == 2
    store.run(1)
    assert store.answers["new"].error_code == 0 and len(store.group.members) == 1


def test_rejoined_member_does_not_expire_while_its_response_is_pending(store):
    store.join("slow", session_ms=9000, rebalance_ms=9000)
    store.join("a")
    store.run(DELAY_MS).run(DELAY_MS)
    sync(store, "leads", "client-0", 1)
    sync(store, "follows", "client-1", 1)
    store.join("again", "client-1", protocols=(("range", b"other"),))
    store.run(2 * SESSION_MS)
    assert joined(store, "again") is None and len(store.group.members) == 2


def test_only_a_joined_group_is_notified_to_rejoin(store):
    store.stable("a")
    for rebalances in (2, 2):
        protocol.rebalance(store.groups, store.group)
        assert store.group.state == PREPARING
        assert store.groups.events["rebalance"] == rebalances


def test_members_without_sync_are_removed_at_the_rebalance_timeout(store):
    for token in "ab":
        store.join(token, session_ms=5000)
    store.run(DELAY_MS).run(DELAY_MS)
    store.run(REBALANCE_MS - 1)
    assert store.group.state == COMPLETING
    store.run(1)
    assert store.group.state == EMPTY and not store.group.members


def test_fully_synced_group_has_no_sync_deadline(store):
    store.stable("a", "b")
    store.run(REBALANCE_MS)
    assert store.group.state == STABLE and len(store.group.members) == 2


# ---- SyncGroup, Heartbeat, LeaveGroup -----------------------------------------------------------

def test_sync_with_a_wrong_generation_member_or_protocol_is_rejected(store):
    member, = store.stable("a")
    for number, (fields, error) in enumerate((
            ({"group_id": ""}, NO_ID), ({"group_id": "other"}, UNKNOWN),
            ({"member_id": "other"}, UNKNOWN), ({"generation_id": 0}, GENERATION),
            ({"generation_id": 2}, GENERATION), ({"protocol_type": "connect"}, INCONSISTENT),
            ({"protocol_name": "other"}, INCONSISTENT),
            ({"protocol_type": "consumer", "protocol_name": "range"}, 0), ({}, 0))):
        assert sync(store, f"s{number}", member, 1, **fields) == error, fields
    store.join("b")
    assert sync(store, "late", member, 1) == REBALANCING


@pytest.mark.parametrize("more, error", [(0, 0), (1, TOO_LARGE)])
def test_an_assignment_has_a_bound(store, more, error):
    store.join("a")
    store.run(DELAY_MS)
    shares = {"client-0": b"x" * (ASSIGNMENT_BYTES - 1), "nobody": b"y" * (1 + more)}
    assert sync(store, "s", "client-0", 1, shares) == error
    assert store.group.state == (COMPLETING if error else STABLE)


def test_member_without_partitions_has_an_empty_assignment(store):
    for token in "ab":
        store.join(token)
    store.run(DELAY_MS).run(DELAY_MS)
    sync(store, "follows", "client-1", 1)
    assert sync(store, "leads", "client-0", 1, {"client-0": b"all"}) == 0
    assert store.answers["follows"].assignment == b""
    answer = store.answers["leads"]
    assert (answer.assignment, answer.protocol_type, answer.protocol_name) == (
        b"all", "consumer", "range")


def test_rejected_heartbeat_does_not_extend_the_session(store):
    member, = store.stable("a")
    assert store.heartbeat("other", 1) == UNKNOWN
    store.run(SESSION_MS - 1)
    assert store.heartbeat(member, 2) == store.heartbeat(member, 0) == GENERATION
    assert store.groups.heartbeat(messages.HeartbeatRequest(group_id="")) == NO_ID
    assert store.groups.heartbeat(messages.HeartbeatRequest(
        group_id="other", member_id=member, generation_id=1)) == UNKNOWN
    store.run(1)
    assert not store.group.members and store.groups.events["member_expired"] == 1


def test_heartbeat_during_a_rebalance_extends_the_session_and_requires_a_rejoin(store):
    first, _ = store.stable("a", "b")
    store.join("c", rebalance_ms=10_000)
    store.run(SESSION_MS - 1)
    assert store.heartbeat(first, 1) == REBALANCING
    store.run(1)
    assert first in store.group.members and len(store.group.members) == 2


def test_each_leaving_member_gets_a_result_and_others_rejoin(store):
    first, second = store.stable("a", "b")
    assert store.groups.leave("", []) == NO_ID
    assert store.groups.leave("other", [("a", None), ("b", None)]) == [UNKNOWN, UNKNOWN]
    assert store.group.state == STABLE
    assert store.groups.leave("g", [
        ("nobody", None), (second, None), ("", "no instance"), ("", None)]) == [
            UNKNOWN, 0, UNKNOWN, UNKNOWN]
    store.settle()
    assert store.group.state == PREPARING and list(store.group.members) == [first]
    assert store.groups.events["member_left"] == 1


def test_member_that_leaves_while_waiting_gets_unknown_member(store):
    first, second = store.stable("a", "b")
    store.join("again", second, protocols=(("range", b"other"),))
    store.groups.leave("g", [(second, None)])
    store.settle()
    answer = store.answers["again"]
    assert (answer.error_code, answer.member_id) == (UNKNOWN, "")
    assert store.group.awaiting == 0 and list(store.group.members) == [first]


def test_member_waiting_for_its_assignment_is_notified_of_a_rebalance(store):
    for token in "ab":
        store.join(token)
    store.run(DELAY_MS).run(DELAY_MS)
    sync(store, "follows", "client-1", 1)
    store.join("c")
    assert store.answers["follows"].error_code == REBALANCING
    store.run(REBALANCE_MS)
    assert [member.client_id for member in store.group.members.values()] == ["client"]


def test_each_event_is_counted_once(store):
    first, second = store.stable("a", "b")
    events = store.groups.events
    assert (events["member_joined"], events["rebalance"], events["generation"]) == (2, 1, 1)
    store.groups.leave("g", [(second, None)])
    assert (events["rebalance"], events["member_left"]) == (2, 1)
    store.join("again", first)
    assert (events["rebalance"], events["generation"], events["member_joined"]) == (2, 2, 2)
    described, = group_describe.described(store.groups, "g", 5, 1000)
    assert described.group_state == COMPLETING


def test_returning_static_member_of_an_old_client_gets_the_old_leader(store):
    store.join("a", instance="i")
    store.run(DELAY_MS)
    store.sync("s", "i-0", 1, {"i-0": b"x"}, "i")
    store.join("back", instance="i", version=8)
    answer = store.answers["back"]
    assert (answer.leader, answer.members, answer.skip_assignment) == ("i-0", [], False)
    store.join("and back", instance="i", version=9)
    answer = store.answers["and back"]
    assert answer.leader == answer.member_id == "i-2" and answer.skip_assignment
    assert len(answer.members) == 1
    assert store.join("old", "i-1", instance="i").error_code == FENCED


def test_static_members_without_a_rebalance_timeout_do_not_cause_busy_checks(
        store):
    store.join("a", instance="i")
    store.run(100).run(100).run(100)
    member = store.answers["a"].member_id
    store.sync("s", member, 1, {member: b"x"})
    store.group.members[member].rebalance_ms = 0
    protocol.rebalance(store.groups, store.group)
    store.run(1)
    due_ms = store.groups.timers._deadlines["join", "g"]
    assert store.group.state == PREPARING and due_ms >= store.clock.now_ms() + 500


def test_a_member_id_fits_a_record_however_long_its_clients_name_is(store):
    store.join("a", instance="\u00fc" * 16_000)
    member_id, = store.group.members
    assert len(member_id.encode()) < 2100

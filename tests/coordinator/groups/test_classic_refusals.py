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
def machine():
    return Machine()


def joined(machine, token) -> int | None:
    """Return the error of a join, None while it is pending."""
    answer = machine.answers.get(token)
    return None if answer is None else answer.error_code


def sync(machine, token, member, generation, shares=None, **fields):
    request = messages.SyncGroupRequest
    machine.groups.sync(request(**{
        "group_id": "g", "generation_id": generation, "member_id": member, "assignments": [
            request.SyncGroupRequestAssignment(member_id=name, assignment=share)
            for name, share in (shares or {}).items()], **fields}), token)
    machine.settle()
    answer = machine.answers.get(token)
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
def test_rejected_join_creates_no_group(machine, fields, error):
    machine.join("a", **fields)
    assert joined(machine, "a") == error
    assert bool(machine.groups.groups) == bool(machine.log) == (error is None)
    if error:
        answer = machine.answers["a"]
        assert answer.member_id == fields.get("member", "") and answer.protocol_name is None


def test_a_group_that_is_being_deleted_is_not_joined(machine):
    machine.groups.deleting.add("g")
    machine.join("a")
    assert joined(machine, "a") == LOADING and not machine.groups.groups


@pytest.mark.parametrize("version, instance, error", [
    (3, None, None), (4, None, ID_NEEDED), (4, "i", None)])
def test_member_id_is_required_only_from_clients_that_support_it(
        machine, version, instance, error):
    machine.join("a", version=version, instance=instance)
    assert joined(machine, "a") == error
    assert bool(machine.group.pending) == (error is not None)
    assert machine.group.state == (EMPTY if error else PREPARING)
    if error:
        assert machine.answers["a"].member_id == "client-0"
        machine.join("again", "client-0", version=version)
        assert joined(machine, "again") is None and not machine.group.pending
        assert list(machine.group.members) == ["client-0"]
    elif instance:
        assert list(machine.group.members) == ["i-0"]


def test_issued_member_id_is_reserved_for_a_session(machine):
    machine.join("a", version=4)
    machine.join("b", version=4)
    machine.run(SESSION_MS - 1)
    assert machine.group.pending == {"client-0", "client-1"}
    assert machine.groups.leave("g", [("client-0", None)]) == [0]
    assert machine.group.pending == {"client-1"}
    assert machine.groups.events["member_left"] == 0
    machine.run(1)
    assert machine.group.pending == set() and machine.groups.events["member_expired"] == 0


def test_member_without_a_common_protocol_is_rejected(machine):
    machine.join("a", protocols=(("one", b""), ("two", b"")))
    for token, fields, error in (
            ("b", {"protocols": (("two", b""),)}, None),
            ("c", {"protocols": (("three", b""),)}, INCONSISTENT),
            ("d", {"protocols": (("one", b""),)}, INCONSISTENT),
            ("e", {"protocols": (("two", b""),), "kind": "connect"}, INCONSISTENT)):
        machine.join(token, **fields)
        assert joined(machine, token) == error
    assert len(machine.group.members) == 2


def test_full_group_accepts_only_existing_members(machine):
    first, *_ = machine.stable("a", "b", "c")
    machine.join("d")
    assert joined(machine, "d") == FULL and machine.answers["d"].member_id == ""
    machine.join("again", first, protocols=(("range", b"other"),))
    assert joined(machine, "again") is None and machine.group.state == PREPARING
    machine.join("e")
    machine.join("f")
    assert (joined(machine, "e"), joined(machine, "f")) == (None, None)
    machine.join("h")
    assert joined(machine, "h") == FULL
    machine.join("and again", first)
    assert joined(machine, "and again") is None and joined(machine, "again") == REBALANCING


def test_rejoining_follower_gets_the_same_response_and_a_leader_restarts(machine):
    leader, follower = machine.stable("a", "b")
    assert machine.group.leader == leader
    machine.join("follows", follower)
    answer = machine.answers["follows"]
    assert (answer.error_code, answer.generation_id, answer.members) == (0, 1, [])
    assert machine.group.state == STABLE
    machine.join("leads", leader)
    assert joined(machine, "leads") is None and machine.group.state == PREPARING
    assert machine.group.awaiting == 1


def test_changed_metadata_during_assignment_restarts_the_join(machine):
    machine.join("a")
    machine.run(DELAY_MS)
    assert machine.group.state == COMPLETING
    machine.join("same", "client-0")
    assert joined(machine, "same") == 0 and machine.group.state == COMPLETING
    machine.join("other", "client-0", protocols=(("range", b"other"),))
    assert machine.answers["other"].generation_id == 2


def test_fields_of_a_rejoin_take_effect(machine):
    member, = machine.stable("a")
    machine.join("again", member, session_ms=5000, rebalance_ms=700,
                 protocols=(("range", b"new"),))
    found = machine.group.members[member]
    assert (found.session_ms, found.rebalance_ms, found.protocols) == (
        5000, 700, [("range", b"new")])
    assert sync(machine, "s", member, 2) == 0
    machine.run(4999)
    assert member in machine.group.members
    machine.run(1)
    assert not machine.group.members


@pytest.mark.parametrize("rebalance_ms, found", [(-1, SESSION_MS), (0, 0), (7, 7)])
def test_missing_rebalance_timeout_defaults_to_the_session_timeout(machine, rebalance_ms, found):
    machine.join("a", rebalance_ms=rebalance_ms)
    member, = machine.group.members.values()
    assert member.rebalance_ms == found


# ---- the join phase -----------------------------------------------------------------------------

@pytest.mark.parametrize("late_ms, ends_ms", [((), 100), ((50,), 200), ((50, 150), 300)])
def test_initial_join_phase_is_extended_while_members_join(machine, late_ms, ends_ms):
    machine.join("a")
    for at_ms in range(ends_ms):
        if at_ms in late_ms:
            machine.join(f"at {at_ms}")
        assert machine.group.state == PREPARING
        machine.run(1)
    assert machine.group.state == COMPLETING
    assert machine.groups.events["generation"] == 1


def test_the_first_join_phase_is_no_longer_than_the_members_rebalance_time():
    """250 ms: the delay and then 150 more, of which each new member may add 100."""
    machine = Machine(LIMITS._replace(members_max=100))
    machine.join("0", rebalance_ms=250)
    for number in range(1, 25):
        machine.run(10)
        machine.join(str(number), rebalance_ms=250)
        assert machine.group.state == PREPARING
    machine.run(9)
    assert machine.group.state == PREPARING
    machine.run(1)
    assert machine.group.state == COMPLETING and len(machine.group.members) == 25


def test_later_join_phase_ends_with_the_last_member_or_its_timeout(machine):
    first, second = machine.stable("a", "b")
    machine.join("c")
    machine.join("a again", first)
    assert machine.group.state == PREPARING
    machine.join("b again", second)
    assert machine.group.state == COMPLETING
    machine.run(REBALANCE_MS - 1)
    assert machine.group.state == COMPLETING and len(machine.group.members) == 3


def test_join_phase_with_a_missing_member_ends_at_the_rebalance_timeout(machine):
    first, second = machine.stable("a", "b")
    machine.join("a again", first)
    machine.run(REBALANCE_MS - 1)
    assert machine.group.state == PREPARING and second in machine.group.members
    machine.run(1)
    assert machine.group.state == COMPLETING and list(machine.group.members) == [first]
    assert machine.heartbeat(second, 2) == UNKNOWN


def test_newly_joined_member_is_awaited_longer_than_its_session(machine):
    """It does not have its id before the response, and cannot send heartbeats."""
    machine.stable("a")
    machine.join("new", session_ms=50, rebalance_ms=10_000)
    machine.run(999)
    assert len(machine.group.members) == 2
    machine.run(1)
    assert machine.answers["new"].error_code == 0 and len(machine.group.members) == 1


def test_rejoined_member_does_not_expire_while_its_response_is_pending(machine):
    machine.join("slow", session_ms=9000, rebalance_ms=9000)
    machine.join("a")
    machine.run(DELAY_MS).run(DELAY_MS)
    sync(machine, "leads", "client-0", 1)
    sync(machine, "follows", "client-1", 1)
    machine.join("again", "client-1", protocols=(("range", b"other"),))
    machine.run(2 * SESSION_MS)
    assert joined(machine, "again") is None and len(machine.group.members) == 2


def test_member_that_never_fetches_its_first_response_expires_after_five_minutes(machine):
    machine.join("a", session_ms=60_000)
    machine.run(DELAY_MS)
    sync(machine, "s", "client-0", 1)
    machine.join("new", session_ms=60_000, rebalance_ms=10**6)
    for _ in range(5):
        machine.run(50_000)
        assert machine.heartbeat("client-0", 1) == REBALANCING
    machine.run(49_999)
    assert len(machine.group.members) == 2
    machine.run(1)
    assert joined(machine, "new") == UNKNOWN and list(machine.group.members) == ["client-0"]


def test_only_a_joined_group_is_notified_to_rejoin(machine):
    machine.stable("a")
    for rebalances in (2, 2):
        protocol.rebalance(machine.groups, machine.group)
        assert machine.group.state == PREPARING
        assert machine.groups.events["rebalance"] == rebalances


def test_members_without_sync_are_removed_at_the_rebalance_timeout(machine):
    for token in "ab":
        machine.join(token, session_ms=5000)
    machine.run(DELAY_MS).run(DELAY_MS)
    machine.run(REBALANCE_MS - 1)
    assert machine.group.state == COMPLETING
    machine.run(1)
    assert machine.group.state == EMPTY and not machine.group.members


def test_fully_synced_group_has_no_sync_deadline(machine):
    machine.stable("a", "b")
    machine.run(REBALANCE_MS)
    assert machine.group.state == STABLE and len(machine.group.members) == 2


# ---- SyncGroup, Heartbeat, LeaveGroup -----------------------------------------------------------

def test_sync_with_a_wrong_generation_member_or_protocol_is_rejected(machine):
    member, = machine.stable("a")
    for number, (fields, error) in enumerate((
            ({"group_id": ""}, NO_ID), ({"group_id": "other"}, UNKNOWN),
            ({"member_id": "other"}, UNKNOWN), ({"generation_id": 0}, GENERATION),
            ({"generation_id": 2}, GENERATION), ({"protocol_type": "connect"}, INCONSISTENT),
            ({"protocol_name": "other"}, INCONSISTENT),
            ({"protocol_type": "consumer", "protocol_name": "range"}, 0), ({}, 0))):
        assert sync(machine, f"s{number}", member, 1, **fields) == error, fields
    machine.join("b")
    assert sync(machine, "late", member, 1) == REBALANCING


@pytest.mark.parametrize("more, error", [(0, 0), (1, TOO_LARGE)])
def test_an_assignment_has_a_bound(machine, more, error):
    machine.join("a")
    machine.run(DELAY_MS)
    shares = {"client-0": b"x" * (ASSIGNMENT_BYTES - 1), "nobody": b"y" * (1 + more)}
    assert sync(machine, "s", "client-0", 1, shares) == error
    assert machine.group.state == (COMPLETING if error else STABLE)


def test_member_without_partitions_has_an_empty_assignment(machine):
    for token in "ab":
        machine.join(token)
    machine.run(DELAY_MS).run(DELAY_MS)
    sync(machine, "follows", "client-1", 1)
    assert sync(machine, "leads", "client-0", 1, {"client-0": b"all"}) == 0
    assert machine.answers["follows"].assignment == b""
    answer = machine.answers["leads"]
    assert (answer.assignment, answer.protocol_type, answer.protocol_name) == (
        b"all", "consumer", "range")


def test_rejected_heartbeat_does_not_extend_the_session(machine):
    member, = machine.stable("a")
    assert machine.heartbeat("other", 1) == UNKNOWN
    machine.run(SESSION_MS - 1)
    assert machine.heartbeat(member, 2) == machine.heartbeat(member, 0) == GENERATION
    assert machine.groups.heartbeat(messages.HeartbeatRequest(group_id="")) == NO_ID
    assert machine.groups.heartbeat(messages.HeartbeatRequest(
        group_id="other", member_id=member, generation_id=1)) == UNKNOWN
    machine.run(1)
    assert not machine.group.members and machine.groups.events["member_expired"] == 1


def test_heartbeat_during_a_rebalance_extends_the_session_and_requires_a_rejoin(machine):
    first, _ = machine.stable("a", "b")
    machine.join("c", rebalance_ms=10_000)
    machine.run(SESSION_MS - 1)
    assert machine.heartbeat(first, 1) == REBALANCING
    machine.run(1)
    assert first in machine.group.members and len(machine.group.members) == 2


def test_each_leaving_member_gets_a_result_and_others_rejoin(machine):
    first, second = machine.stable("a", "b")
    assert machine.groups.leave("", []) == NO_ID
    assert machine.groups.leave("other", [("a", None), ("b", None)]) == [UNKNOWN, UNKNOWN]
    assert machine.group.state == STABLE
    assert machine.groups.leave("g", [
        ("nobody", None), (second, None), ("", "no instance"), ("", None)]) == [
            UNKNOWN, 0, UNKNOWN, UNKNOWN]
    machine.settle()
    assert machine.group.state == PREPARING and list(machine.group.members) == [first]
    assert machine.groups.events["member_left"] == 1


def test_member_that_leaves_while_waiting_gets_unknown_member(machine):
    first, second = machine.stable("a", "b")
    machine.join("again", second, protocols=(("range", b"other"),))
    machine.groups.leave("g", [(second, None)])
    machine.settle()
    answer = machine.answers["again"]
    assert (answer.error_code, answer.member_id) == (UNKNOWN, "")
    assert machine.group.awaiting == 0 and list(machine.group.members) == [first]


def test_member_waiting_for_its_assignment_is_notified_of_a_rebalance(machine):
    for token in "ab":
        machine.join(token)
    machine.run(DELAY_MS).run(DELAY_MS)
    sync(machine, "follows", "client-1", 1)
    machine.join("c")
    assert machine.answers["follows"].error_code == REBALANCING
    machine.run(REBALANCE_MS)
    assert [member.client_id for member in machine.group.members.values()] == ["client"]


def test_each_event_is_counted_once(machine):
    first, second = machine.stable("a", "b")
    events = machine.groups.events
    assert (events["member_joined"], events["rebalance"], events["generation"]) == (2, 1, 1)
    machine.groups.leave("g", [(second, None)])
    assert (events["rebalance"], events["member_left"]) == (2, 1)
    machine.join("again", first)
    assert (events["rebalance"], events["generation"], events["member_joined"]) == (2, 2, 2)
    described, = group_describe.described(machine.groups, "g", 5, 1000)
    assert described.group_state == COMPLETING


def test_returning_static_member_of_an_old_client_gets_the_old_leader(machine):
    machine.join("a", instance="i")
    machine.run(DELAY_MS)
    machine.sync("s", "i-0", 1, {"i-0": b"x"}, "i")
    machine.join("back", instance="i", version=8)
    answer = machine.answers["back"]
    assert (answer.leader, answer.members, answer.skip_assignment) == ("i-0", [], False)
    machine.join("and back", instance="i", version=9)
    answer = machine.answers["and back"]
    assert answer.leader == answer.member_id == "i-2" and answer.skip_assignment
    assert len(answer.members) == 1
    assert machine.join("old", "i-1", instance="i").error_code == FENCED


def test_static_members_without_a_rebalance_timeout_do_not_cause_busy_checks(
        machine):
    machine.join("a", instance="i")
    machine.run(100).run(100).run(100)
    member = machine.answers["a"].member_id
    machine.sync("s", member, 1, {member: b"x"})
    machine.group.members[member].rebalance_ms = 0
    protocol.rebalance(machine.groups, machine.group)
    machine.run(1)
    due_ms = machine.groups.timers._deadlines["join", "g"]
    assert machine.group.state == PREPARING and due_ms >= machine.clock.now_ms() + 500


def test_a_member_id_fits_a_record_however_long_its_clients_name_is(machine):
    machine.join("a", instance="\u00fc" * 16_000)
    member_id, = machine.group.members
    assert len(member_id.encode()) < 2100

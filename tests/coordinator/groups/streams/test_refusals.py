"""Rejected requests of a Streams group at each boundary, effects of a member's changes, and delays
of the target assignment.
"""

import pytest

from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode
from tests.coordinator.groups.streams.test_heartbeat import Machine, word_count
from tests.coordinator.streams_world import SESSION_MS, SOURCE, rows, subtopology, topology

REQUEST = messages.StreamsGroupHeartbeatRequest
INVALID, FENCED = ErrorCode.INVALID_REQUEST, ErrorCode.FENCED_MEMBER_EPOCH
UNKNOWN, NO_GROUP, FULL = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND,
                           ErrorCode.GROUP_MAX_SIZE_REACHED)
TASKS = {"0": {0, 1}, "1": {0, 1}}


@pytest.fixture
def machine():
    return Machine()


def epoch_of(machine, member_id="a") -> int:
    return machine.group.members[member_id].epoch


def taken(machine) -> int:
    """Return the number of new records since the last call."""
    found, machine.groups.records = len(machine.groups.records), []
    return found


@pytest.mark.parametrize(("fields", "code", "text"), [
    ({"instance_id": "i"}, INVALID, "Static membership"), ({"rack_id": ""}, INVALID, "rack id"),
    ({"rebalance_timeout_ms": -1}, INVALID, "rebalance timeout"),
    ({"rebalance_timeout_ms": 0}, 0, None),
    ({"active_tasks": rows({"0": {0}})}, INVALID, "must not own tasks"),
    ({"standby_tasks": rows({"0": {0}})}, INVALID, "must not own tasks"),
    ({"warmup_tasks": rows({"0": {0}})}, INVALID, "Warmup"), ({"task_offsets": []}, INVALID, "O"),
    ({"task_end_offsets": []}, INVALID, "Offsets of tasks"),
    ({"active_tasks": None}, INVALID, "must be sent together"),
    ({"active_tasks": None, "standby_tasks": None, "warmup_tasks": None}, 0, None), ({}, 0, None)])
def test_rejected_join_creates_no_group(machine, fields, code, text):
    answer = machine.join("a", **fields)
    assert answer.error_code == code
    assert (answer.error_message is None) if text is None else text in answer.error_message
    assert ("g" in machine.groups.groups) == bool(machine.groups.records) == (code == 0)


@pytest.mark.parametrize(("member_id", "epoch", "code"), [
    ("", -1, INVALID), ("a", -2, INVALID), ("a", -1, NO_GROUP), ("a", 1, NO_GROUP)])
def test_only_a_joining_member_creates_a_group(machine, member_id, epoch, code):
    assert machine.beat(member_id, epoch).error_code == code
    assert not machine.groups.groups and not machine.groups.records


def test_only_a_joining_member_sends_a_topology(machine):
    assert "topology" in machine.beat(
        "a", 0, rebalance_timeout_ms=1, active_tasks=[], standby_tasks=[],
        warmup_tasks=[]).error_message
    machine.join("a")
    answer = machine.beat("a", epoch_of(machine), topology=word_count())
    assert (answer.error_code, answer.error_message) == (
        INVALID, "only a joining member may send its topology")


def test_topology_with_a_negative_epoch_is_rejected(machine):
    named = word_count()
    named.epoch = -1
    assert machine.join("a", named).error_code == INVALID and not machine.groups.groups


def test_sources_by_expression_are_rejected(machine):
    named = topology(subtopology("0", [SOURCE]))
    named.subtopologies[0].source_topic_regex = ["s.*"]
    assert machine.join("a", named).error_code == INVALID and not machine.groups.groups


def test_a_group_that_is_being_deleted_or_a_share_groups_name_is_not_joined(machine):
    machine.groups.deleting.add("g")
    assert machine.join("a").error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    machine.groups.deleting.clear()
    machine.groups.shares["g"] = None
    assert machine.join("a").error_code == NO_GROUP and not machine.groups.groups


@pytest.mark.parametrize("most, code", [(1, FULL), (2, 0)])
def test_full_group_rejects_new_members(machine, most, code):
    machine.groups.limits = machine.groups.limits._replace(streams_members_max=most)
    machine.join("a")
    answer = machine.join("b")
    assert answer.error_code == code
    assert answer.error_message == ("the group has 1 member" if code else None)


def test_unknown_member_is_rejected_without_effect(machine):
    machine.join("a")
    taken(machine)
    for epoch in (1, -1):
        assert machine.beat("b", epoch).error_code == UNKNOWN
    assert taken(machine) == 0 and machine.groups.events["member_left"] == 0


@pytest.mark.parametrize("step, owned, code", [
    (0, None, 0), (1, None, FENCED), (-1, None, FENCED), (-1, {"0": {0}}, 0),
    (-2, {"0": {0}}, FENCED)])
def test_previous_epoch_is_accepted_with_assigned_tasks(
        machine, step, owned, code):
    machine.join("a")
    member = machine.group.members["a"].copy()
    member.previous_epoch, member.epoch = member.epoch, member.epoch + 1
    machine.group.put(member)
    machine.group.epoch = machine.group.assignment_epoch = member.epoch
    fields = {} if owned is None else {
        "active_tasks": rows(owned), "standby_tasks": [], "warmup_tasks": []}
    assert machine.beat("a", member.epoch + step, **fields).error_code == code


@pytest.mark.parametrize("owned, code", [
    ({"0": {1}}, 0), ({"0": {2}}, INVALID), ({"2": {0}}, INVALID), ({"0": {-1}}, INVALID)])
def test_nonexistent_task_cannot_be_owned(machine, owned, code):
    machine.join("a")
    machine.full("a", epoch_of(machine), TASKS)
    assert machine.full("a", epoch_of(machine), owned).error_code == code


# ---- member changes -----------------------------------------------------------------------------

def test_changed_fields_start_an_epoch_and_repeated_or_omitted_ones_do_not(machine):
    endpoint, tag = REQUEST.Endpoint(host="h", port=80), REQUEST.KeyValue(key="k", value="v")
    machine.join("a", rack_id="r", user_endpoint=endpoint, client_tags=[tag])
    epoch = epoch_of(machine)
    taken(machine)
    machine.beat("a", epoch)
    machine.beat("a", epoch, rack_id="r", user_endpoint=endpoint, client_tags=[tag],
                 rebalance_timeout_ms=1000, process_id="of a")
    assert taken(machine) == 0 and machine.group.epoch == epoch
    found = machine.group.members["a"]
    assert (found.rack_id, found.endpoint, found.tags, found.rebalance_ms, found.process_id) == (
        "r", ("h", 80), {"k": "v"}, 1000, "of a")
    for number, fields in enumerate((
            {"rack_id": "s"}, {"rebalance_timeout_ms": 7}, {"process_id": "p"},
            {"user_endpoint": REQUEST.Endpoint(host="h", port=81)}, {"client_tags": []}), 1):
        machine.beat("a", epoch_of(machine), **fields)
        assert machine.group.epoch == epoch + number, fields
    assert machine.groups.events["member_joined"] == 1
    assert machine.groups.events["rebalance"] == 1 + 5


def test_first_shutdown_request_shuts_down_the_group(machine):
    machine.join("a")
    machine.join("b")
    machine.beat("b", epoch_of(machine, "b"), shutdown_application=True)
    machine.beat("a", -1, shutdown_application=True)
    assert machine.group.shutdown == "b"
    assert machine.groups.events["member_left"] == 1 and list(machine.group.members) == ["b"]


# ---- timing -------------------------------------------------------------------------------------

@pytest.mark.parametrize("ms, made", [(99, False), (100, True)])
def test_the_first_target_waits_for_the_initial_delay(ms, made):
    machine = Machine(initial_rebalance_delay_ms=100)
    machine.join("a")
    machine.run(ms)
    assert bool(machine.group.targets) == made
    machine.beat("a", epoch_of(machine))
    assert machine.group.members["a"].assigned.is_empty() != made


@pytest.mark.parametrize("ms, made", [(99, False), (100, True)])
def test_the_next_target_waits_for_the_interval(ms, made):
    machine = Machine(assignment_interval_ms=100)
    machine.groups.clock.ms += 1
    machine.join("a")
    machine.groups.clock.ms += ms
    machine.join("b")
    assert ("b" in machine.group.targets) == made
    assert (machine.group.assignment_epoch == machine.group.epoch) == made


@pytest.mark.parametrize("ms, members", [(SESSION_MS - 1, 2), (SESSION_MS, 1)])
def test_a_member_is_missed_at_the_end_of_its_session(machine, ms, members):
    machine.join("a")
    machine.join("b")
    machine.full("a", epoch_of(machine))
    machine.groups.clock.ms += ms
    machine.beat("b", epoch_of(machine, "b"))
    machine.run(0)
    assert len(machine.group.members) == members
    assert machine.groups.events["member_expired"] == 2 - members


def test_topics_are_checked_again_only_after_changes(machine):
    machine.join("a")
    epoch = machine.group.epoch
    before = machine.group.configured
    machine.beat("a", epoch_of(machine))
    assert machine.group.configured is before and machine.group.epoch == epoch
    machine.set_topics({SOURCE: 2, "unrelated": 1})
    machine.beat("a", epoch_of(machine))
    assert machine.group.configured is not before and machine.group.epoch == epoch + 1

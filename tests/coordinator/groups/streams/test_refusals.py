"""Rejected requests of a Streams group at each boundary, effects of a member's changes, and delays
of the target assignment.
"""

import pytest

from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode
from tests.coordinator.groups.streams.test_heartbeat import Machine, word_count
from tests.coordinator.streams_world import SESSION_MS, SOURCE, rows, subtopology, topology

REQUEST = messages.StreamsGroupHeartbeatRequest
INVALID = ErrorCode.INVALID_REQUEST
UNKNOWN, NO_GROUP, FULL = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND,
                           ErrorCode.GROUP_MAX_SIZE_REACHED)
TASKS = {"0": {0, 1}, "1": {0, 1}}


@pytest.fixture
def store():
    return Machine()


def epoch_of(store, member_id="a") -> int:
    return store.group.members[member_id].epoch


def taken(store) -> int:
    """Return the number of new records since the last call."""
    found, store.groups.records = len(store.groups.records), []
    return found


@pytest.mark.parametrize(("fields", "code", "text"), [
    ({"instance_id": "i"}, 0, None), ({"instance_id": ""}, INVALID, "instance id"),
    ({"rack_id": ""}, INVALID, "rack id"),
    ({"rebalance_timeout_ms": -1}, INVALID, "rebalance timeout"),
    ({"rebalance_timeout_ms": 0}, 0, None),
    ({"active_tasks": rows({"0": {0}})}, INVALID, "must not own tasks"),
    ({"standby_tasks": rows({"0": {0}})}, INVALID, "must not own tasks"),
    ({"warmup_tasks": rows({"0": {0}})}, INVALID, "must not own tasks"),
    ({"task_offsets": [], "task_end_offsets": []}, 0, None),
    ({"active_tasks": None}, INVALID, "must be sent together"),
    ({"active_tasks": None, "standby_tasks": None, "warmup_tasks": None}, 0, None), ({}, 0, None)])
def test_rejected_join_creates_no_group(store, fields, code, text):
    answer = store.join("a", **fields)
    assert answer.error_code == code
    assert (answer.error_message is None) if text is None else text in answer.error_message
    assert ("g" in store.groups.groups) == bool(store.groups.records) == (code == 0)


@pytest.mark.parametrize(("member_id", "epoch", "code"), [
    ("", -1, INVALID), ("a", -2, INVALID), ("a", -3, INVALID), ("a", -1, NO_GROUP),
    ("a", 1, NO_GROUP)])
def test_only_a_joining_member_creates_a_group(store, member_id, epoch, code):
    assert store.beat(member_id, epoch).error_code == code
    assert not store.groups.groups and not store.groups.records


def test_only_a_joining_member_sends_a_topology(store):
    assert "topology" in store.beat(
        "a", 0, rebalance_timeout_ms=1, active_tasks=[], standby_tasks=[],
        warmup_tasks=[]).error_message
    store.join("a")
    answer = store.beat("a", epoch_of(store), topology=word_count())
    assert (answer.error_code, answer.error_message) == (
        INVALID, "only a joining member may send its topology")


def test_topology_with_a_negative_epoch_is_rejected(store):
    named = word_count()
    named.epoch = -1
    assert store.join("a", named).error_code == INVALID and not store.groups.groups


def test_sources_by_expression_are_rejected(store):
    named = topology(subtopology("0", [SOURCE]))
    named.subtopologies[0].source_topic_regex = ["s.*"]
    assert store.join("a", named).error_code == INVALID and not store.groups.groups


def test_a_group_that_is_being_deleted_or_a_share_groups_name_is_not_joined(store):
    store.groups.deleting.add("g")
    assert store.join("a").error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    store.groups.deleting.clear()
    store.groups.shares["g"] = None
    assert store.join("a").error_code == NO_GROUP and not store.groups.groups


@pytest.mark.parametrize("most, code", [(1, FULL), (2, 0)])
def test_full_group_rejects_new_members(store, most, code):
    store.groups.limits = store.groups.limits._replace(streams_members_max=most)
    store.join("a")
    answer = store.join("b")
    assert answer.error_code == code
    assert answer.error_message == ("the group has 1 member" if code else None)


def test_unknown_member_is_rejected_without_effect(store):
    store.join("a")
    taken(store)
    for epoch in (1, -1):
        assert store.beat("b", epoch).error_code == UNKNOWN
    assert taken(store) == 0 and store.groups.events["member_left"] == 0


@pytest.mark.parametrize("owned, code", [
    ({"0": {1}}, 0), ({"0": {2}}, INVALID), ({"2": {0}}, INVALID), ({"0": {-1}}, INVALID)])
def test_nonexistent_task_cannot_be_owned(store, owned, code):
    store.join("a")
    store.full("a", epoch_of(store), TASKS)
    assert store.full("a", epoch_of(store), owned).error_code == code


# ---- member changes -----------------------------------------------------------------------------

def test_changed_fields_start_an_epoch_and_repeated_or_omitted_ones_do_not(store):
    endpoint, tag = REQUEST.Endpoint(host="h", port=80), REQUEST.KeyValue(key="k", value="v")
    store.join("a", rack_id="r", user_endpoint=endpoint, client_tags=[tag])
    epoch = epoch_of(store)
    taken(store)
    store.beat("a", epoch)
    store.beat("a", epoch, rack_id="r", user_endpoint=endpoint, client_tags=[tag],
                 rebalance_timeout_ms=1000, process_id="of a")
    assert taken(store) == 0 and store.group.epoch == epoch
    found = store.group.members["a"]
    assert (found.rack_id, found.endpoint, found.tags, found.rebalance_ms, found.process_id) == (
        "r", ("h", 80), {"k": "v"}, 1000, "of a")
    for number, fields in enumerate((
            {"rack_id": "s"}, {"rebalance_timeout_ms": 7}, {"process_id": "p"},
            {"user_endpoint": REQUEST.Endpoint(host="h", port=81)}, {"client_tags": []}), 1):
        store.beat("a", epoch_of(store), **fields)
        assert store.group.epoch == epoch + number, fields
    assert store.groups.events["member_joined"] == 1
    assert store.groups.events["rebalance"] == 1 + 5


def test_first_shutdown_request_shuts_down_the_group(store):
    store.join("a")
    store.join("b")
    store.beat("b", epoch_of(store, "b"), shutdown_application=True)
    store.beat("a", -1, shutdown_application=True)
    assert store.group.shutdown == "b"
    assert store.groups.events["member_left"] == 1 and list(store.group.members) == ["b"]


# ---- timing -------------------------------------------------------------------------------------

@pytest.mark.parametrize("ms, made", [(99, False), (100, True)])
def test_the_first_target_waits_for_the_initial_delay(ms, made):
    store = Machine(initial_rebalance_delay_ms=100)
    store.join("a")
    store.run(ms)
    assert bool(store.group.targets) == made
    store.beat("a", epoch_of(store))
    assert store.group.members["a"].assigned.is_empty() != made


@pytest.mark.parametrize("ms, made", [(99, False), (100, True)])
def test_the_next_target_waits_for_the_interval(ms, made):
    store = Machine(assignment_interval_ms=100)
    store.groups.clock.ms += 1
    store.join("a")
    store.groups.clock.ms += ms
    store.join("b")
    assert ("b" in store.group.targets) == made
    assert (store.group.assignment_epoch == store.group.epoch) == made


@pytest.mark.parametrize("ms, members", [(SESSION_MS - 1, 2), (SESSION_MS, 1)])
def test_a_member_is_missed_at_the_end_of_its_session(store, ms, members):
    store.join("a")
    store.join("b")
    store.full("a", epoch_of(store))
    store.groups.clock.ms += ms
    store.beat("b", epoch_of(store, "b"))
    store.run(0)
    assert len(store.group.members) == members
    assert store.groups.events["member_expired"] == 2 - members


def test_topics_are_checked_again_only_after_changes(store):
    store.join("a")
    epoch = store.group.epoch
    before = store.group.configured
    store.beat("a", epoch_of(store))
    assert store.group.configured is before and store.group.epoch == epoch
    store.set_topics({SOURCE: 2, "unrelated": 1})
    store.beat("a", epoch_of(store))
    assert store.group.configured is not before and store.group.epoch == epoch + 1

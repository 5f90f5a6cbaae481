"""Streams groups: limits of a member's request, times of topic checks, and delays of the target
assignment.
"""

import pytest

from pylog.coordinator.groups.state import subscribed_topics
from pylog.coordinator.groups.state.group_config import GROUP_RESOURCE
from pylog.coordinator.groups.streams import heartbeat as streams_heartbeat
from pylog.coordinator.groups.streams.group import UNKNOWN, UNREVOKED
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode
from tests.coordinator.groups.streams.test_heartbeat import Machine, codes, told
from tests.coordinator.streams_world import rows, subtopology, topology

REQUEST = messages.StreamsGroupHeartbeatRequest
LARGE, FENCED = ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.FENCED_MEMBER_EPOCH
NO_GROUP, INVALID = ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.INVALID_REQUEST
SHUTDOWN = 4


@pytest.fixture
def state_machine():
    return Machine()


def epoch_of(state_machine, member_id="a") -> int:
    return state_machine.group.members[member_id].epoch


# Limits.

@pytest.mark.parametrize(("active", "standby", "code"), [
    ({"0": {0, 1}}, {"1": {0}}, NO_GROUP), ({"0": {0, 1}}, {"1": {0, 1}}, LARGE),
    ({"0": {0, 1}, "1": {0, 1}}, {}, LARGE), ({}, {"0": {0, 1, 2, 3}}, NO_GROUP),
    ({}, {"0": {0, 1, 2, 3, 4}}, LARGE)])
def test_the_tasks_that_a_member_owns_have_a_bound_of_all_kinds_together(
        state_machine, monkeypatch, active, standby, code):
    """Each subtopology counts as one more."""
    monkeypatch.setattr(streams_heartbeat, "TASKS_MAX", 5)
    assert state_machine.full("a", 1, active, standby).error_code == code


@pytest.mark.parametrize("fields", [
    {}, {"rack_id": "123456"}, {"process_id": "123456"},
    {"client_tags": [REQUEST.KeyValue(key="12", value="3"), REQUEST.KeyValue(key="4", value="56")]}
])
def test_the_texts_of_a_member_have_a_bound_together(state_machine, monkeypatch, fields):
    member_id = "1234" if fields else "1234567890"
    for most, code in ((10, NO_GROUP), (9, LARGE)):
        monkeypatch.setattr(streams_heartbeat, "BYTES_MAX", most)
        assert state_machine.beat(member_id, 1, **fields).error_code == code


def test_a_topology_has_a_bound_and_its_lengths_count(state_machine, monkeypatch):
    """"in", "log" and "rep" with 2 bytes each, the configs of both with 4, each id with 8."""
    named = topology(subtopology("00", ["in"], sinks=["rep"]),
                     subtopology("1", repartitions=["rep"], changelogs=["log"]))
    last = named.subtopologies[1]
    last.repartition_source_topics[0].topic_configs = [REQUEST.KeyValue(key="k", value="value")]
    last.state_changelog_topics[0].topic_configs = [REQUEST.KeyValue(key="ab", value="cd")] * 2
    size = (4 + 5 + 5) + (10 + 8 + 8) + (10 + 9)
    for most, code in ((size - 1, LARGE), (size, ErrorCode.NONE)):
        monkeypatch.setattr(streams_heartbeat, "BYTES_MAX", most)
        assert state_machine.join("a", named).error_code == code
        assert ("g" in state_machine.groups.groups) == (code == ErrorCode.NONE)


def test_oversized_topology_is_rejected_in_any_epoch(state_machine, monkeypatch):
    named = topology(subtopology("0", ["in"]), epoch=-1)
    assert state_machine.join("a", named).error_code == INVALID
    monkeypatch.setattr(streams_heartbeat, "BYTES_MAX", 6)
    assert state_machine.join("a", named).error_code == LARGE


# Member state.

@pytest.mark.parametrize(("fields", "code"), [
    ({}, FENCED), ({"active_tasks": rows({"0": {0}}), "standby_tasks": []}, FENCED),
    ({"active_tasks": [], "standby_tasks": rows({"0": {0}})}, FENCED),
    ({"active_tasks": [], "standby_tasks": []}, ErrorCode.NONE)])
def test_member_in_an_unknown_state_rejoins_unless_it_owns_nothing(
        state_machine, fields, code):
    state_machine.join("a")
    member = state_machine.group.members["a"].copy()
    member.state = UNKNOWN
    state_machine.group.put(member)
    fields = {**fields, "warmup_tasks": []} if fields else {}
    answer = state_machine.beat("a", epoch_of(state_machine), **fields)
    assert answer.error_code == code
    assert answer.error_message == ("the member's state is unknown" if code else None)


def test_lost_topology_makes_members_rejoin(state_machine):
    state_machine.join("a")
    state_machine.group.topology = None
    answer = state_machine.beat("a", epoch_of(state_machine))
    assert (answer.error_code, answer.error_message) == (
        FENCED, "the group has no topology: join again")
    assert state_machine.join("a").error_code == ErrorCode.NONE


def test_shutdown_request_of_a_leaving_member_reaches_the_others(state_machine):
    state_machine.join("a")
    state_machine.join("b")
    state_machine.beat("a", -1, shutdown_application=True)
    answer = state_machine.beat("b", epoch_of(state_machine, "b"))
    assert state_machine.group.shutdown == "a" and SHUTDOWN in codes(answer)
    state_machine.beat("b", epoch_of(state_machine, "b"), shutdown_application=True)
    assert state_machine.group.shutdown == "a"


def test_leaving_without_a_request_shuts_nothing_down(state_machine):
    state_machine.join("a")
    state_machine.join("b")
    state_machine.beat("a", -1)
    assert state_machine.group.shutdown is None


def test_response_is_repeated_until_the_member_reports_all_tasks(state_machine):
    state_machine.join("a")
    tasks = {"0": {0, 1}, "1": {0, 1}}
    assert told(state_machine.full("a", epoch_of(state_machine), tasks)) is None
    assert told(state_machine.beat("a", epoch_of(state_machine))) is None
    assert told(state_machine.full("a", epoch_of(state_machine), {"0": {0, 1}})) is not None
    assert told(state_machine.join("a")) is not None


# Topic checks.

def test_unchanged_topics_are_checked_again_after_kafkas_maximum_interval(
        state_machine, monkeypatch):
    state_machine.join("a")
    begin_ms, checked_ms = state_machine.groups.clock.ms, []
    metadata_hash = subscribed_topics.metadata_hash

    def recorded_hash(*arguments):
        checked_ms.append(state_machine.groups.clock.ms - begin_ms)
        return metadata_hash(*arguments)

    monkeypatch.setattr(subscribed_topics, "metadata_hash", recorded_hash)
    for at_ms in (1, 2**31 - 2, 2**31 - 1, 2**31, 2**32 - 3, 2**32 - 2):
        state_machine.groups.clock.ms = begin_ms + at_ms
        state_machine.beat("a", epoch_of(state_machine))
    assert checked_ms == [2**31 - 1, 2**32 - 2]


# Target assignment.

def test_group_emptied_during_its_initial_delay_gets_no_target():
    state_machine = Machine(initial_rebalance_delay_ms=100)
    state_machine.join("a")
    state_machine.beat("a", -1)
    state_machine.groups.records.clear()
    state_machine.run(100)
    assert state_machine.groups.records == [] and state_machine.group.targets == {}


def test_initial_delay_starts_with_the_first_member():
    state_machine = Machine(initial_rebalance_delay_ms=100)
    state_machine.join("a")
    state_machine.run(60)
    assert 5 in codes(state_machine.join("b"))
    state_machine.run(40)
    assert set(state_machine.group.targets) == {"a", "b"}
    state_machine.join("c")
    assert "c" in state_machine.group.targets


def test_group_that_was_empty_waits_for_its_initial_delay_again():
    state_machine = Machine(initial_rebalance_delay_ms=100)
    state_machine.join("a")
    state_machine.run(100)
    state_machine.beat("a", -1)
    assert told(state_machine.join("a")) == (set(), set())
    state_machine.run(100)
    active, _ = told(state_machine.beat("a", epoch_of(state_machine)))
    assert len(active) == 4


def test_a_clock_that_was_set_back_holds_no_target_up(monkeypatch):
    state_machine = Machine(assignment_interval_ms=100)
    state_machine.join("a")
    state_machine.group.assignment_ms = state_machine.groups.clock.wall_ms() + 1
    state_machine.join("b")
    assert "b" in state_machine.group.targets


def test_group_has_separate_settings(state_machine):
    interval = state_machine.join("a").heartbeat_interval_ms
    state_machine.image.configs[GROUP_RESOURCE, "g"] = {
        "streams.heartbeat.interval.ms": str(interval + 7), "streams.session.timeout.ms": "1234"}
    state_machine.image.configs[GROUP_RESOURCE, "h"] = {"streams.heartbeat.interval.ms": "1"}
    assert state_machine.beat("a", epoch_of(state_machine)).heartbeat_interval_ms == interval + 7
    state_machine.run(1233)
    assert state_machine.group.members
    state_machine.run(1)
    assert not state_machine.group.members


def test_task_offset_interval_and_recovery_lag_are_the_groups_settings(state_machine):
    joined = state_machine.join("a")
    assert (joined.task_offset_interval_ms, joined.acceptable_recovery_lag) == (60_000, 10_000)
    state_machine.groups.limits.consumer.settings.update({
        "group.streams.task.offset.interval.ms": 20_000,
        "group.streams.acceptable.recovery.lag": 7})
    state_machine.image.configs[GROUP_RESOURCE, "g"] = {"streams.task.offset.interval.ms": "30000"}
    answer = state_machine.beat("a", epoch_of(state_machine))
    assert (answer.task_offset_interval_ms, answer.acceptable_recovery_lag) == (30_000, 7)


def test_pending_revocation_gets_its_full_timeout_after_a_restart(state_machine):
    state_machine.join("a", rebalance_timeout_ms=100)
    state_machine.join("b")
    state_machine.beat("a", epoch_of(state_machine))
    assert state_machine.group.members["a"].state == UNREVOKED
    other = Machine(groups=None)
    for key, value in state_machine.groups.records:
        other.groups.replay(key, value)
    other.groups.loaded()
    other.run(99)
    assert set(other.group.members) == {"a", "b"}
    other.run(1)
    assert set(other.group.members) == {"b"}


# Endpoints for interactive queries.

def test_endpoint_version_rises_only_with_tasks_of_members_with_endpoints(
        state_machine):
    endpoint = REQUEST.Endpoint(host="h", port=80)
    state_machine.join("a", user_endpoint=endpoint)
    state_machine.join("b")
    before = state_machine.group.endpoint_epoch
    tasks = state_machine.group.targets["a"].active
    state_machine.beat("a", epoch_of(state_machine))
    state_machine.full("a", epoch_of(state_machine), tasks)
    moved = state_machine.group.endpoint_epoch
    assert moved > before
    for _ in range(2):
        answer = state_machine.full("a", epoch_of(state_machine), tasks)
        assert answer.endpoint_information_epoch == moved
    state_machine.beat("b", epoch_of(state_machine, "b"))
    state_machine.beat("b", epoch_of(state_machine, "b"), rack_id="r")
    assert state_machine.group.endpoint_epoch == moved

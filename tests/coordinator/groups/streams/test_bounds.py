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
def machine():
    return Machine()


def epoch_of(machine, member_id="a") -> int:
    return machine.group.members[member_id].epoch


# Limits.

@pytest.mark.parametrize(("active", "standby", "code"), [
    ({"0": {0, 1}}, {"1": {0}}, NO_GROUP), ({"0": {0, 1}}, {"1": {0, 1}}, LARGE),
    ({"0": {0, 1}, "1": {0, 1}}, {}, LARGE), ({}, {"0": {0, 1, 2, 3}}, NO_GROUP),
    ({}, {"0": {0, 1, 2, 3, 4}}, LARGE)])
def test_the_tasks_that_a_member_owns_have_a_bound_of_all_kinds_together(
        machine, monkeypatch, active, standby, code):
    """Each subtopology counts as one more."""
    monkeypatch.setattr(streams_heartbeat, "TASKS_MAX", 5)
    assert machine.full("a", 1, active, standby).error_code == code


@pytest.mark.parametrize("fields", [
    {}, {"rack_id": "123456"}, {"process_id": "123456"},
    {"client_tags": [REQUEST.KeyValue(key="12", value="3"), REQUEST.KeyValue(key="4", value="56")]}
])
def test_the_texts_of_a_member_have_a_bound_together(machine, monkeypatch, fields):
    member_id = "1234" if fields else "1234567890"
    for most, code in ((10, NO_GROUP), (9, LARGE)):
        monkeypatch.setattr(streams_heartbeat, "BYTES_MAX", most)
        assert machine.beat(member_id, 1, **fields).error_code == code


def test_a_topology_has_a_bound_and_its_lengths_count(machine, monkeypatch):
    """"in", "log" and "rep" with 2 bytes each, the configs of both with 4, each id with 8."""
    named = topology(subtopology("00", ["in"], sinks=["rep"]),
                     subtopology("1", repartitions=["rep"], changelogs=["log"]))
    last = named.subtopologies[1]
    last.repartition_source_topics[0].topic_configs = [REQUEST.KeyValue(key="k", value="value")]
    last.state_changelog_topics[0].topic_configs = [REQUEST.KeyValue(key="ab", value="cd")] * 2
    size = (4 + 5 + 5) + (10 + 8 + 8) + (10 + 9)
    for most, code in ((size - 1, LARGE), (size, ErrorCode.NONE)):
        monkeypatch.setattr(streams_heartbeat, "BYTES_MAX", most)
        assert machine.join("a", named).error_code == code
        assert ("g" in machine.groups.groups) == (code == ErrorCode.NONE)


def test_oversized_topology_is_rejected_in_any_epoch(machine, monkeypatch):
    named = topology(subtopology("0", ["in"]), epoch=-1)
    assert machine.join("a", named).error_code == INVALID
    monkeypatch.setattr(streams_heartbeat, "BYTES_MAX", 6)
    assert machine.join("a", named).error_code == LARGE


# Member state.

@pytest.mark.parametrize(("fields", "code"), [
    ({}, FENCED), ({"active_tasks": rows({"0": {0}}), "standby_tasks": []}, FENCED),
    ({"active_tasks": [], "standby_tasks": rows({"0": {0}})}, FENCED),
    ({"active_tasks": [], "standby_tasks": []}, ErrorCode.NONE)])
def test_member_in_an_unknown_state_rejoins_unless_it_owns_nothing(
        machine, fields, code):
    machine.join("a")
    member = machine.group.members["a"].copy()
    member.state = UNKNOWN
    machine.group.put(member)
    fields = {**fields, "warmup_tasks": []} if fields else {}
    answer = machine.beat("a", epoch_of(machine), **fields)
    assert answer.error_code == code
    assert answer.error_message == ("the member's state is unknown" if code else None)


def test_lost_topology_makes_members_rejoin(machine):
    machine.join("a")
    machine.group.topology = None
    answer = machine.beat("a", epoch_of(machine))
    assert (answer.error_code, answer.error_message) == (
        FENCED, "the group has no topology: join again")
    assert machine.join("a").error_code == ErrorCode.NONE


def test_shutdown_request_of_a_leaving_member_reaches_the_others(machine):
    machine.join("a")
    machine.join("b")
    machine.beat("a", -1, shutdown_application=True)
    answer = machine.beat("b", epoch_of(machine, "b"))
    assert machine.group.shutdown == "a" and SHUTDOWN in codes(answer)
    machine.beat("b", epoch_of(machine, "b"), shutdown_application=True)
    assert machine.group.shutdown == "a"


def test_leaving_without_a_request_shuts_nothing_down(machine):
    machine.join("a")
    machine.join("b")
    machine.beat("a", -1)
    assert machine.group.shutdown is None


def test_response_is_repeated_until_the_member_reports_all_tasks(machine):
    machine.join("a")
    tasks = {"0": {0, 1}, "1": {0, 1}}
    assert told(machine.full("a", epoch_of(machine), tasks)) is None
    assert told(machine.beat("a", epoch_of(machine))) is None
    assert told(machine.full("a", epoch_of(machine), {"0": {0, 1}})) is not None
    assert told(machine.join("a")) is not None


# Topic checks.

def test_unchanged_topics_are_checked_again_after_kafkas_maximum_interval(
        machine, monkeypatch):
    machine.join("a")
    begin_ms, looks = machine.groups.clock.ms, []
    of = subscribed_topics.metadata_hash

    def metadata_hash(*arguments):
        looks.append(machine.groups.clock.ms - begin_ms)
        return of(*arguments)

    monkeypatch.setattr(subscribed_topics, "metadata_hash", metadata_hash)
    for at_ms in (1, 2**31 - 2, 2**31 - 1, 2**31, 2**32 - 3, 2**32 - 2):
        machine.groups.clock.ms = begin_ms + at_ms
        machine.beat("a", epoch_of(machine))
    assert looks == [2**31 - 1, 2**32 - 2]


# Target assignment.

def test_group_emptied_during_its_initial_delay_gets_no_target():
    machine = Machine(initial_rebalance_delay_ms=100)
    machine.join("a")
    machine.beat("a", -1)
    machine.groups.records.clear()
    machine.run(100)
    assert machine.groups.records == [] and machine.group.targets == {}


def test_initial_delay_starts_with_the_first_member():
    machine = Machine(initial_rebalance_delay_ms=100)
    machine.join("a")
    machine.run(60)
    assert 5 in codes(machine.join("b"))
    machine.run(40)
    assert set(machine.group.targets) == {"a", "b"}
    machine.join("c")
    assert "c" in machine.group.targets


def test_group_that_was_empty_waits_for_its_initial_delay_again():
    machine = Machine(initial_rebalance_delay_ms=100)
    machine.join("a")
    machine.run(100)
    machine.beat("a", -1)
    assert told(machine.join("a")) == (set(), set())
    machine.run(100)
    active, _ = told(machine.beat("a", epoch_of(machine)))
    assert len(active) == 4


def test_joined_member_has_no_tasks_during_the_initial_delay():
    machine = Machine(initial_rebalance_delay_ms=100)
    assert told(machine.join("a")) == (set(), set())
    assert machine.group.assignment_epoch < machine.group.epoch
    assert told(machine.beat("a", epoch_of(machine))) is None


def test_a_clock_that_was_set_back_holds_no_target_up(monkeypatch):
    machine = Machine(assignment_interval_ms=100)
    machine.join("a")
    machine.group.assignment_ms = machine.groups.clock.wall_ms() + 1
    machine.join("b")
    assert "b" in machine.group.targets


def test_group_has_separate_settings(machine):
    interval = machine.join("a").heartbeat_interval_ms
    machine.image.configs[GROUP_RESOURCE, "g"] = {
        "streams.heartbeat.interval.ms": str(interval + 7), "streams.session.timeout.ms": "1234"}
    machine.image.configs[GROUP_RESOURCE, "h"] = {"streams.heartbeat.interval.ms": "1"}
    assert machine.beat("a", epoch_of(machine)).heartbeat_interval_ms == interval + 7
    machine.run(1233)
    assert machine.group.members
    machine.run(1)
    assert not machine.group.members


def test_pending_revocation_gets_its_full_timeout_after_a_restart(machine):
    machine.join("a", rebalance_timeout_ms=100)
    machine.join("b")
    machine.beat("a", epoch_of(machine))
    assert machine.group.members["a"].state == UNREVOKED
    other = Machine(groups=None)
    for key, value in machine.groups.records:
        other.groups.replay(key, value)
    other.groups.loaded()
    other.run(99)
    assert set(other.group.members) == {"a", "b"}
    other.run(1)
    assert set(other.group.members) == {"b"}


# Endpoints for interactive queries.

def test_endpoint_version_rises_only_with_tasks_of_members_with_endpoints(
        machine):
    endpoint = REQUEST.Endpoint(host="h", port=80)
    machine.join("a", user_endpoint=endpoint)
    machine.join("b")
    before = machine.group.endpoint_epoch
    tasks = machine.group.targets["a"].active
    machine.beat("a", epoch_of(machine))
    machine.full("a", epoch_of(machine), tasks)
    moved = machine.group.endpoint_epoch
    assert moved > before
    for _ in range(2):
        answer = machine.full("a", epoch_of(machine), tasks)
        assert answer.endpoint_information_epoch == moved
    machine.beat("b", epoch_of(machine, "b"))
    machine.beat("b", epoch_of(machine, "b"), rack_id="r")
    assert machine.group.endpoint_epoch == moved

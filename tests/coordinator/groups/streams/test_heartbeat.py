"""The Streams group state machine: responses, state and rejected requests; and random histories
from seeds, with restarts and lost messages.
"""

import random

import pytest

from pylog.coordinator.groups import describe as group_describe, offsets
from pylog.coordinator.groups.consumer import heartbeat as consumer_heartbeat
from pylog.coordinator.groups.consumer import target_assignment
from pylog.coordinator.groups.shard import GroupShard
from pylog.coordinator.groups.snapshot import ShardSnapshot
from pylog.coordinator.groups.state.classic_group import STREAMS
from pylog.coordinator.groups.streams import (
    heartbeat as streams_heartbeat, topology as streams_topology,
)
from pylog.coordinator.groups.assignors.tasks import Assignment
from pylog.coordinator.groups.streams.current_assignment import reconciled
from pylog.coordinator.groups.streams.group import UNRELEASED, Held, StreamsGroup, StreamsMember
from pylog.coordinator.groups.streams.records import group_state, member_state
from pylog.metadata.image.state_store import Store
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode
from tests.coordinator.streams_world import (
    CHANGELOG,
    CLIENT,
    DELAY_MS,
    LEAVE_STATIC,
    REPARTITION,
    SESSION_MS,
    SOURCE,
    World,
    codes,
    image_of,
    limits,
    rows,
    subtopology,
    told,
    topology,
    word_count,
)
from tests.coordinator.world import Clock

WALKS = 40
STALE, NO_SOURCE, WRONG, NO_INTERNAL, SHUTDOWN, DELAYED, MISSING_TAGS = range(7)


class Machine:
    """A machine with one group, and heartbeats to it. topics: name -> partitions."""

    def __init__(self, topics=None, groups=None, **settings):
        self.image = image_of(topics if topics is not None else {
            SOURCE: 2, REPARTITION: 2, CHANGELOG: 2})
        settings = {"initial_rebalance_delay_ms": 0, "assignment_interval_ms": 0, **settings}
        self.groups = groups or GroupShard(
            limits(**settings), Clock(), str, image=lambda: self.image)
        if groups is None:
            self.groups.loaded()
        self.missing = ()

    @property
    def group(self):
        return self.groups.groups["g"]

    def beat(self, member_id: str, epoch: int, **fields):
        answer, self.missing = streams_heartbeat.heartbeat(
            self.groups, messages.StreamsGroupHeartbeatRequest(
                group_id="g", member_id=member_id, member_epoch=epoch, **fields), CLIENT)
        if getattr(self.groups.groups.get("g"), "kind", None) == STREAMS:
            self.group.check()
        return answer

    def join(self, member_id: str, named=None, **fields):
        return self.beat(member_id, 0, **{
            "rebalance_timeout_ms": 1000, "topology": named or word_count(),
            "process_id": f"of {member_id}", "active_tasks": [], "standby_tasks": [],
            "warmup_tasks": [], **fields})

    def full(self, member_id: str, epoch: int, active=None, standby=None):
        return self.beat(member_id, epoch, active_tasks=rows(active or {}),
                         standby_tasks=rows(standby or {}), warmup_tasks=[])

    def set_topics(self, topics: dict[str, int]) -> None:
        self.image = image_of(topics, self.image)
        target_assignment.topics_changed(self.groups, set(topics))

    def run(self, ms: int) -> None:
        self.groups.clock.ms += ms
        self.groups.tick()


@pytest.fixture
def state_machine():
    return Machine()


ALL = {(id_, index) for id_ in "01" for index in range(2)}


def test_first_member_gets_all_tasks(state_machine):
    answer = state_machine.join("a")
    assert (answer.error_code, answer.member_epoch, codes(answer)) == (0, 2, [])
    assert told(answer) == (ALL, set())
    assert state_machine.group.state == "Stable"


def test_tasks_move_after_they_are_revoked(state_machine):
    state_machine.join("a")
    answer = state_machine.join("b")
    assert (told(answer), answer.member_epoch) == ((set(), set()), 3)
    assert state_machine.group.state == "Reconciling"
    answer = state_machine.beat("a", 2)
    kept, _ = told(answer)
    assert len(kept) == 2 and answer.member_epoch == 2
    assert told(state_machine.beat("b", 3)) is None
    owned = {id_: {index for one, index in kept if one == id_} for id_ in "01"}
    assert state_machine.full("a", 2, owned).member_epoch == 3
    assert told(state_machine.beat("b", 3)) == (ALL - kept, set())
    assert state_machine.group.state == "Stable"


def test_a_heartbeat_that_changes_nothing_writes_nothing(state_machine, monkeypatch):
    epoch = state_machine.join("a").member_epoch
    state_machine.groups.records.clear()
    for name in ("_assign", "_next_epoch"):
        monkeypatch.setattr(streams_heartbeat, name, None)
    monkeypatch.setattr(streams_topology, "configure", None)
    assert told(state_machine.beat("a", epoch)) is None
    assert state_machine.groups.records == []


def test_missing_topics_are_reported_and_internal_ones_requested():
    state_machine = Machine({})
    answer = state_machine.join("a")
    assert (codes(answer), state_machine.missing, told(answer)) == ([NO_SOURCE], (), (set(), set()))
    assert state_machine.group.state == "NotReady"
    state_machine.set_topics({SOURCE: 3})
    assert codes(state_machine.beat("a", answer.member_epoch)) == [NO_INTERNAL]
    assert {(row.name, row.partitions, row.factor) for row in state_machine.missing} == {
        (REPARTITION, 3, -1), (CHANGELOG, 3, -1)}
    state_machine.set_topics({SOURCE: 3, REPARTITION: 3, CHANGELOG: 3})
    answer = state_machine.beat("a", state_machine.group.members["a"].epoch)
    assert codes(answer) == [] and state_machine.missing == ()
    assert len(told(answer)[0]) == 6 and state_machine.group.state == "Stable"


def test_internal_topics_with_other_partitions_stop_the_group():
    state_machine = Machine({SOURCE: 3, REPARTITION: 2, CHANGELOG: 3})
    assert codes(state_machine.join("a")) == [WRONG]
    assert state_machine.missing == ()


def test_tasks_are_revoked_when_their_topic_is_deleted(state_machine):
    epoch = state_machine.join("a").member_epoch
    state_machine.set_topics({REPARTITION: 2, CHANGELOG: 2})
    target_assignment.topics_changed(state_machine.groups, {SOURCE})
    answer = state_machine.beat("a", epoch)
    assert (codes(answer), told(answer)) == ([NO_SOURCE], (set(), set()))


def test_no_task_is_assigned_before_the_initial_delay():
    state_machine = Machine(initial_rebalance_delay_ms=DELAY_MS)
    for name in "ab":
        answer = state_machine.join(name)
        assert (codes(answer), told(answer), answer.member_epoch) == (
            [DELAYED], (set(), set()), 1)
    state_machine.run(DELAY_MS)
    found = [told(state_machine.beat(name, 1))[0] for name in "ab"]
    assert [len(tasks) for tasks in found] == [2, 2] and found[0] | found[1] == ALL


def test_assignments_keep_their_interval(state_machine):
    state_machine = Machine(assignment_interval_ms=500)
    state_machine.join("a")
    assert codes(state_machine.join("b")) == [DELAYED]
    state_machine.run(SESSION_MS - 1)
    state_machine.beat("a", 2)
    state_machine.beat("b", 2)
    state_machine.run(201)
    assert codes(state_machine.beat("b", 2)) == []
    assert state_machine.group.assignment_epoch == state_machine.group.epoch


def test_copies_of_state_go_to_other_processes():
    state_machine = Machine(num_standby_replicas=1)
    state_machine.join("a")
    state_machine.join("b")
    first = state_machine.full("a", 2, {"0": {0, 1}, "1": {0, 1}})
    active, standby = told(first)
    owned = {id_: {index for one, index in active if one == id_} for id_ in "01"}
    state_machine.full("a", 2, owned)
    active, standby = told(state_machine.beat("b", 3))
    assert standby == {("1", 0), ("1", 1)} - active
    assert state_machine.group.state in ("Stable", "Reconciling")


def test_changed_standby_count_starts_a_rebalance(state_machine):
    epoch = state_machine.join("a").member_epoch
    state_machine.groups.limits.consumer.settings["group.streams.num.standby.replicas"] = 2
    assert state_machine.beat("a", epoch).member_epoch == epoch + 1
    assert state_machine.group.configs == {"num.standby.replicas": "2"}


def test_tasks_of_an_expired_member_move_to_the_others(state_machine):
    state_machine.join("a")
    state_machine.run(SESSION_MS // 2)
    state_machine.join("b")
    state_machine.run(SESSION_MS // 2)
    assert list(state_machine.group.members) == ["b"]
    assert told(state_machine.beat("b", 3)) == (ALL, set())


def test_member_that_does_not_release_tasks_in_time_is_removed(state_machine):
    state_machine.join("a", rebalance_timeout_ms=100)
    state_machine.join("b")
    state_machine.beat("a", 2)
    state_machine.run(100)
    assert list(state_machine.group.members) == ["b"]


def test_lost_response_is_repeated(state_machine):
    state_machine.join("a")
    state_machine.join("b")
    kept, _ = told(state_machine.beat("a", 2))
    owned = {id_: {index for one, index in kept if one == id_} for id_ in "01"}
    state_machine.full("a", 2, owned)
    given = told(state_machine.beat("b", 3))
    assert told(state_machine.beat("b", 3)) is None
    assert told(state_machine.full("b", 3)) == given


def test_older_epoch_is_accepted_with_assigned_tasks_only(state_machine):
    state_machine.join("a")
    state_machine.join("b")
    kept, _ = told(state_machine.beat("a", 2))
    owned = {id_: {index for one, index in kept if one == id_} for id_ in "01"}
    assert state_machine.full("a", 2, owned).member_epoch == 3
    assert state_machine.full("a", 2, owned).member_epoch == 3
    assert state_machine.full("a", 1, owned).error_code == 110
    assert state_machine.full("a", 2, {"0": {0, 1}, "1": {0, 1}}).error_code == 110
    assert state_machine.beat("a", 2).error_code == 110
    assert state_machine.beat("a", 4).error_code == 110


def test_shutdown_is_reported_to_all_members_until_they_leave(state_machine):
    epoch = state_machine.join("a").member_epoch
    state_machine.beat("a", epoch, shutdown_application=True)
    assert codes(state_machine.join("b")) == [SHUTDOWN]
    state_machine.beat("a", -1)
    assert codes(state_machine.beat("b", 3)) == [SHUTDOWN]
    state_machine.beat("b", -1)
    assert codes(state_machine.join("a")) == []


def test_older_topology_is_reported_and_a_newer_one_rejected(state_machine):
    later = word_count()
    later.epoch = 3
    state_machine.join("a", later)
    assert codes(state_machine.join("b")) == [STALE]
    newest = word_count()
    newest.epoch = 4
    for named in (newest, topology(subtopology("0", [SOURCE]), epoch=3)):
        assert state_machine.join("c", named).error_code == 42
    assert list(state_machine.group.members) == ["a", "b"]


@pytest.mark.parametrize("named", [
    topology(subtopology("0")), topology(subtopology("0", [SOURCE], changelogs=[("c", 2)])),
    topology(subtopology("0", [SOURCE]), subtopology("1", repartitions=["nobody's"])),
    topology(subtopology("0", [SOURCE], copartitions=[([1], [])])),
    topology(subtopology("0", [SOURCE], copartitions=[([-1], [])])),
    topology(*(subtopology(str(number), [SOURCE]) for number in range(1001))),
    topology(subtopology("0", repartitions=[("big", 100_001)], sinks=["big"])),
])
def test_impossible_topology_is_rejected_without_effect(state_machine, named):
    assert state_machine.join("a", named).error_code == 130
    assert state_machine.groups.records == [] and "g" not in state_machine.groups.groups


def test_oversized_field_is_rejected(state_machine):
    assert state_machine.join("a", rack_id="r" * (1 << 20)).error_code == 10
    assert state_machine.join("a",
                              topology(subtopology("0" * (1 << 20), [SOURCE]))).error_code == 10
    state_machine.join("a")
    assert state_machine.full("a", 2, {"0": set(range(200_000))}).error_code == 10


def test_a_group_has_as_many_members_as_it_may(state_machine):
    state_machine.groups.limits = state_machine.groups.limits._replace(streams_members_max=1)
    state_machine.join("a")
    assert state_machine.join("b").error_code == 81
    assert state_machine.join("a").error_code == 0


def test_group_id_has_one_type(state_machine):
    state_machine.join("a")
    answer = consumer_heartbeat.heartbeat(
        state_machine.groups, messages.ConsumerGroupHeartbeatRequest(
            group_id="g", member_id="c", rebalance_timeout_ms=1, topic_partitions=[],
            subscribed_topic_names=[SOURCE]), 1, consumer_heartbeat.Client("c", "/h"))
    assert answer.error_code == 69
    other = Machine()
    other.groups.find_or_make("g").offsets[SOURCE, 0] = offsets.Offset(5, -1, "", 0, -1, bytes(16))
    assert other.join("a").error_code == 0
    assert other.group.kind == STREAMS and other.group.offsets[SOURCE, 0].offset == 5


def test_endpoints_are_sent_to_members_with_an_older_version(state_machine):
    endpoint = messages.StreamsGroupHeartbeatRequest.Endpoint(host="h", port=80)
    state_machine.join("a")
    answer = state_machine.join("b", user_endpoint=endpoint)
    assert answer.endpoint_information_epoch == 1
    answer = state_machine.beat("a", 2, endpoint_information_epoch=0)
    row, = answer.partitions_by_user_endpoint
    assert (row.user_endpoint.host, row.active_partitions) == ("h", [])
    version = answer.endpoint_information_epoch
    answer = state_machine.beat("a", 2, endpoint_information_epoch=version)
    assert answer.partitions_by_user_endpoint is None


def test_member_that_joins_without_an_endpoint_has_none(state_machine):
    endpoint = messages.StreamsGroupHeartbeatRequest.Endpoint(host="h", port=80)
    state_machine.join("a", user_endpoint=endpoint)
    state_machine.join("a", user_endpoint=endpoint)
    before = state_machine.group.endpoint_epoch
    assert state_machine.join("a").endpoint_information_epoch == before + 1
    assert state_machine.group.members["a"].endpoint is None


# ---- static members ------------------------------------------------------------------------------

def test_returning_static_member_keeps_its_tasks_without_a_rebalance(state_machine):
    joined = state_machine.join("a", instance_id="i", process_id="p")
    answer = state_machine.beat("a", LEAVE_STATIC, instance_id="i")
    assert (answer.error_code, answer.member_epoch) == (0, LEAVE_STATIC)
    assert state_machine.group.state == "Reconciling"
    answer = state_machine.join("b", instance_id="i", process_id="p")
    assert (told(answer), answer.member_epoch) == (told(joined), joined.member_epoch)
    assert list(state_machine.group.members) == ["b"] and state_machine.group.state == "Stable"


@pytest.mark.parametrize("fields", [
    {"process_id": "q"}, {"rack_id": "r"},
    {"client_tags": [messages.StreamsGroupHeartbeatRequest.KeyValue(key="k", value="v")]}])
def test_static_member_that_returns_in_another_place_starts_a_rebalance(state_machine, fields):
    joined = state_machine.join("a", instance_id="i", process_id="p")
    state_machine.beat("a", LEAVE_STATIC, instance_id="i")
    answer = state_machine.join("b", instance_id="i", **{"process_id": "p", **fields})
    assert answer.member_epoch == joined.member_epoch + 1
    assert told(answer) == told(joined)


def test_instance_id_belongs_to_one_member(state_machine):
    state_machine.join("a", instance_id="i")
    assert state_machine.join("b", instance_id="i").error_code \
        == ErrorCode.UNRELEASED_INSTANCE_ID
    state_machine.beat("a", LEAVE_STATIC, instance_id="i")
    state_machine.join("b", instance_id="i")
    for epoch in (2, -1, LEAVE_STATIC):
        assert state_machine.beat("a", epoch, instance_id="i").error_code \
            == ErrorCode.FENCED_INSTANCE_ID
        assert state_machine.beat("a", epoch, instance_id="j").error_code \
            == ErrorCode.UNKNOWN_MEMBER_ID
    assert state_machine.beat("b", -1, instance_id="i").error_code == 0
    assert state_machine.join("c", instance_id="i").error_code == 0


def test_static_member_that_does_not_return_loses_its_tasks(state_machine):
    state_machine.join("a", instance_id="i")
    state_machine.beat("a", LEAVE_STATIC, instance_id="i")
    state_machine.run(SESSION_MS - 1)
    assert state_machine.group.members
    state_machine.run(1)
    assert not state_machine.group.members and not state_machine.group.statics


def test_offsets_of_an_absent_static_member_can_be_committed_in_any_epoch(state_machine):
    joined = state_machine.join("a", instance_id="i", process_id="p")
    state_machine.beat("a", LEAVE_STATIC, instance_id="i")
    member = state_machine.group.members["a"]
    assert state_machine.group.epoch_of(member, SOURCE, b"", 0) == 0 < joined.member_epoch


def test_missing_client_tags_are_reported_from_version_1():
    state_machine = Machine(rack_aware_assignment_tags=("zone", "cluster"))
    tags = [messages.StreamsGroupHeartbeatRequest.KeyValue(key="zone", value="a")]
    assert codes(state_machine.join("a", client_tags=tags)) == []
    answer, _ = streams_heartbeat.heartbeat(
        state_machine.groups, messages.StreamsGroupHeartbeatRequest(
            group_id="g", member_id="a", member_epoch=2),
        streams_heartbeat.Client("c", "/h", 1))
    assert codes(answer) == [MISSING_TAGS] and "[cluster]" in answer.status[0].status_detail


def test_changed_client_tags_of_the_group_start_a_rebalance(state_machine):
    epoch = state_machine.join("a").member_epoch
    state_machine.groups.limits.consumer.settings[
        "group.streams.rack.aware.assignment.tags"] = ("zone",)
    assert state_machine.beat("a", epoch).member_epoch == epoch + 1


# ---- roles of tasks ------------------------------------------------------------------------------

def member_with(active=None, standby=None, warmup=None):
    group, member = StreamsGroup("g"), StreamsMember("m")
    member.epoch, member.process_id = 3, "p"
    member.assigned = Held({id_: dict.fromkeys(held, 2) for id_, held in (active or {}).items()},
                           standby or {}, warmup or {})
    group.put(member)
    return group, member


ZERO = {"0": frozenset((0,))}


@pytest.mark.parametrize(("held", "target", "assigned", "revoking"), [
    # A copy becomes active without a revocation.
    ({"standby": ZERO}, {"active": ZERO}, Held({"0": {0: 4}}), Held()),
    ({"warmup": ZERO}, {"active": ZERO}, Held({"0": {0: 4}}), Held()),
    # A copy changes its kind at once.
    ({"standby": ZERO}, {"warmup": ZERO}, Held(warmup=ZERO), Held()),
    ({"warmup": ZERO}, {"standby": ZERO}, Held(standby=ZERO), Held()),
    # An active task becomes a standby task, and is revoked.
    ({"active": ZERO}, {"standby": ZERO}, Held(standby=ZERO), Held({"0": {0: 2}})),
])
def test_member_keeps_the_state_of_a_task_that_changes_its_role(held, target, assigned, revoking):
    group, member = member_with(**held)
    after = reconciled(group, member, 4, Assignment(**target), None)
    assert (after.assigned, after.revoking) == (assigned, revoking)


def test_standby_task_stays_until_another_process_releases_the_active_one():
    group, member = member_with(standby=ZERO)
    group.runs["0", 0] = "other"
    after = reconciled(group, member, 4, Assignment(active=ZERO), None)
    assert (after.assigned, after.state, after.epoch) == (Held(standby=ZERO), UNRELEASED, 4)


def test_offsets_are_committed_by_the_tasks_owner(state_machine):
    state_machine.join("a")
    state_machine.join("b")

    def commit(member_id: str, epoch: int, topic: str = SOURCE, version: int = 9):
        return offsets.commit(state_machine.groups, messages.OffsetCommitRequest(
            group_id="g", member_id=member_id, generation_id_or_member_epoch=epoch),
            [(topic, bytes(16), 0, 5, -1, "")], version)

    assert (commit("a", 2), commit("b", 3), commit("c", 2)) == (0, 0, 25)
    # It received its tasks in epoch 2, and is still in that epoch.
    state_machine.full("a", 2, {"0": {0}, "1": {0}})
    assert state_machine.group.members["a"].epoch == 3
    assert (commit("a", 2), commit("a", 1), commit("a", 2, CHANGELOG), commit("a", 4)) == (
        0, 113, 113, 113)
    assert commit("a", 3, version=8) == 35
    assert offsets.delete(state_machine.groups, "g", [(SOURCE, [0]), ("other", [0])]) == (
        0, {SOURCE: 86, "other": 0})


def test_group_is_listed_described_and_deleted_when_empty(state_machine):
    state_machine.join("a", client_tags=[messages.StreamsGroupHeartbeatRequest.KeyValue(
        key="zone", value="z")])
    row, = group_describe.listed(state_machine.groups, {"stable"}, {"streams"})
    assert (row.group_type, row.protocol_type, row.group_state) == ("streams", "streams", "Stable")
    assert list(group_describe.listed(state_machine.groups, {"notready"}, set())) == []
    described, = streams_heartbeat.described(state_machine.groups, "g", 10)
    member, = described.members
    assert (member.member_id, member.process_id, member.member_epoch) == ("a", "of a", 2)
    assert [(tag.key, tag.value) for tag in member.client_tags] == [("zone", "z")]
    assert [(row.name, row.partitions) for sub in described.topology.subtopologies
            for row in sub.state_changelog_topics] == [(CHANGELOG, 2)]
    assert list(group_describe.delete(state_machine.groups, "g")) == []
    state_machine.beat("a", -1)
    list(group_describe.delete(state_machine.groups, "g"))
    assert "g" not in state_machine.groups.groups
    again = GroupShard(limits(), Clock(), str)
    for key, value in state_machine.groups.records:
        again.replay(key, value)
    again.loaded()
    assert again.groups == {} and again.find("g") is None


def test_a_topology_without_members_expires_with_its_offsets(state_machine):
    state_machine.join("a")
    state_machine.beat("a", -1)
    state_machine.groups.records.clear()
    assert offsets.expire(state_machine.groups, state_machine.group) == 0
    assert "g" not in state_machine.groups.groups
    assert [value for _, value in state_machine.groups.records] == [None] * 3


def state(group):
    return [*group_state(group), *(record for member_id in group.members
                                   for record in member_state(group, member_id))]


def test_replay_restores_an_equal_group_and_is_idempotent():
    state_machine = Machine(num_standby_replicas=1)
    state_machine.join("a", rack_id="r",
                       user_endpoint=messages.StreamsGroupHeartbeatRequest.Endpoint(
        host="h", port=80))
    state_machine.join("b")
    state_machine.full("a", 2, {"0": {0, 1}, "1": {0, 1}})
    again = Machine(groups=GroupShard(limits(), Clock(), str, image=lambda: state_machine.image))
    for _ in range(2):
        for key, value in state_machine.groups.records:
            again.groups.replay(key, value)
        again.groups.loaded()
        again.group.check()
        assert state(again.group) == state(state_machine.group)
    again.run(SESSION_MS)
    assert again.group.members == {} and again.group.state == "Empty"


def test_snapshot_contains_groups_and_members(state_machine, tmp_path):
    state_machine.join("a")
    state_machine.join("b")
    store = Store(str(tmp_path))
    try:
        snapshot = ShardSnapshot(store, bytes(16), 0)
        for part in snapshot.rows(state_machine.groups, state_machine.groups.changed):
            snapshot.write(part, None)
        assert state(snapshot.find("g")) == state(state_machine.group)
        state_machine.groups.changed.clear()
        state_machine.beat("a", -1)
        for part in snapshot.rows(state_machine.groups, state_machine.groups.changed):
            snapshot.write(part, None)
        assert state(snapshot.find("g")) == state(state_machine.group)
        assert [(row.id, row.kind) for row in snapshot.names()] == [("g", STREAMS)]
    finally:
        store.close()


@pytest.mark.parametrize("number", range(WALKS))
def test_random_streams_group_runs_every_task_once(random_source, number):
    world = World(random.Random(random_source.randrange(1 << 30)))
    for _ in range(600):
        if not world.step():
            break
    world.calm_down()
    world.check_end()

"""The consumer group state machine: work per heartbeat, state, and rejected requests."""

from types import SimpleNamespace

import pytest

from pylog.coordinator.groups import describe as group_describe
from pylog.coordinator.groups import offsets
from pylog.coordinator.groups.assignors import partitions as partition_assignors
from pylog.coordinator.groups.consumer import heartbeat as consumer_heartbeat
from pylog.coordinator.groups.consumer import target_assignment
from pylog.coordinator.groups.consumer.group import ConsumerGroup
from pylog.coordinator.groups.shard import GroupShard
from pylog.coordinator.groups.snapshot import ShardSnapshot
from pylog.coordinator.groups.state.group_config import ConsumerLimits
from pylog.coordinator.groups.state.group_store import Name
from pylog.metadata.image.image import Image, Topic
from pylog.metadata.image.state_store import Store
from pylog.protocol import messages
from tests.coordinator.world import LIMITS, Clock

T, U = (Topic(name, name.encode() * 16, (SimpleNamespace(replicas=()),) * 4) for name in "tu")
IMAGE = Image(topics={"t": T, "u": U}, topics_by_id={T.id: T, U.id: U}, offset=5)
CLIENT = consumer_heartbeat.Client("c", "/h")
SESSION_MS = 45_000


class Machine:
    """A machine with one group, and heartbeats to it."""

    def __init__(self, limits=LIMITS, groups=None):
        self.groups = groups or GroupShard(limits, Clock(), str, image=lambda: IMAGE)
        if groups is None:
            self.groups.loaded()

    @property
    def group(self):
        return self.groups.groups["g"]

    def beat(self, member_id: str, epoch: int, **fields):
        answer = consumer_heartbeat.heartbeat(self.groups, messages.ConsumerGroupHeartbeatRequest(
            group_id="g", member_id=member_id, member_epoch=epoch, **fields), 1, CLIENT)
        if isinstance(self.groups.groups.get("g"), ConsumerGroup):
            self.group.check()
        return answer

    def join(self, member_id: str, topics=("t",), **fields):
        return self.beat(member_id, 0, topic_partitions=[], subscribed_topic_names=list(topics),
                         **{"rebalance_timeout_ms": 1000, **fields})

    def run(self, ms: int) -> None:
        self.groups.clock.ms += ms
        self.groups.tick()


@pytest.fixture
def store():
    return Machine()


def test_unchanged_heartbeat_writes_nothing_and_visits_no_member(store, monkeypatch):
    store.join("a")
    store.groups.records.clear()
    for name in ("subscribe", "assign_if_due", "topic_ids_of"):
        monkeypatch.setattr(target_assignment, name, None)
    answer = store.beat("a", 2)
    assert (answer.error_code, answer.member_epoch, answer.assignment) == (0, 2, None)
    assert store.groups.records == []


def test_silent_member_expires_and_a_heartbeat_extends_its_session(store):
    store.join("a")
    store.join("b")
    store.run(SESSION_MS - 1)
    store.beat("a", 2)
    store.run(1)
    assert list(store.group.members) == ["a"]
    assert store.beat("b", 3).error_code == 25
    store.run(SESSION_MS)
    assert store.group.state == "Empty"


def test_rebalancing_group_gets_a_short_heartbeat_interval(store):
    assert store.join("a").heartbeat_interval_ms == 500
    store.run(2999)
    assert store.beat("a", 2).heartbeat_interval_ms == 500, "others may come"
    store.run(1)
    assert store.beat("a", 2).heartbeat_interval_ms == 5000
    store.groups.clock.ms -= 60_000
    assert store.beat("a", 2).heartbeat_interval_ms == 5000, "a clock that was put back"


def test_waiting_member_keeps_a_short_heartbeat_interval(store):
    rows = [messages.ConsumerGroupHeartbeatRequest.TopicPartitions(
        topic_id=T.id, partitions=[0, 1, 2, 3])]
    store.join("a", rebalance_timeout_ms=40_000)
    waiting = store.join("b")
    store.run(10_000)
    assert store.beat("b", waiting.member_epoch).heartbeat_interval_ms == 500
    told = store.beat("a", 2, topic_partitions=rows)
    assert told.heartbeat_interval_ms == 500, "it has something to give up"
    store.beat("a", 2,
                       topic_partitions=[messages.ConsumerGroupHeartbeatRequest.TopicPartitions(
        topic_id=T.id, partitions=told.assignment.topic_partitions[0].partitions)])
    assert store.beat("b", waiting.member_epoch).heartbeat_interval_ms == 5000


def test_large_group_gets_an_interval_that_the_coordinator_can_sustain(store):
    for number in range(1000):
        answer = store.join(f"m-{number}", topics=("none",))
    assert answer.heartbeat_interval_ms == 1000
    quick = ConsumerLimits(settings={
        **ConsumerLimits().settings, "group.consumer.heartbeat.interval.ms": 300})
    assert Machine(LIMITS._replace(consumer=quick)).join("a").heartbeat_interval_ms == 300


def test_member_that_does_not_revoke_in_time_is_fenced(store):
    store.join("a")
    store.join("b")
    store.beat("a", 2)
    store.run(1000)
    assert list(store.group.members) == ["b"]
    answer = store.beat("b", 3)
    assert [row.partitions for row in answer.assignment.topic_partitions] == [[0, 1, 2, 3]]


def test_topic_changes_affect_only_subscribed_groups(store, monkeypatch):
    store.join("a")
    grown = Topic("t", T.id, T.partitions + T.partitions)
    image = Image(topics={"t": grown}, topics_by_id={T.id: grown}, offset=6)
    store.groups.image = lambda: image
    target_assignment.topics_changed(store.groups, {"u"})
    assert store.beat("a", 2).member_epoch == 2
    target_assignment.topics_changed(store.groups, {"t"})
    answer = store.beat("a", 2)
    assert answer.member_epoch == 3
    assert [row.partitions for row in answer.assignment.topic_partitions] == [list(range(8))]


def test_replayed_and_stored_groups_are_equal(store, tmp_path):
    store.join("a", instance_id="i", rack_id="r", server_assignor="range")
    store.join("b", topics=(), subscribed_topic_regex="[tu]")
    store.run(2)
    store.join("c")
    store.beat("b", -1)
    groups = store.groups
    commit = SimpleNamespace(group_id="g", generation_id_or_member_epoch=2, member_id="a",
                             group_instance_id=None, retention_time_ms=-1)
    assert offsets.commit(groups, commit, [("t", T.id, 0, 7, -1, "")], 9) == 0
    replayed = GroupShard(LIMITS, Clock(), str, image=lambda: IMAGE)
    for key, value in groups.records:
        replayed.replay(key, value)
    replayed.loaded()
    state_store = Store(tmp_path)
    try:
        snapshot = ShardSnapshot(state_store, bytes(16), 0)
        for rows in snapshot.rows(groups, groups.changed):
            snapshot.write(rows, None)
        restored = GroupShard(LIMITS, Clock(), str, snapshot.find, snapshot.names,
                              image=lambda: IMAGE)
        snapshot.restore(restored)
        names = snapshot.names()
    finally:
        state_store.close()
    assert names == [Name("g", "consumer", "consumer")]
    for other in (replayed.groups["g"], restored.groups["g"]):
        other.check()
        assert _facts(other) == _facts(store.group)


def _facts(group) -> tuple:
    return (group.epoch, group.hash, group.assignment_epoch, group.targets, group.resolved,
            group.offsets, {id_: member.subscription() + member.progress()
                            for id_, member in group.members.items()})


def test_group_is_deleted_when_empty(store):
    store.join("a")
    assert list(group_describe.delete(store.groups, "g")) == []
    assert store.groups.find("g") is not None
    store.beat("a", -1)
    list(group_describe.delete(store.groups, "g"))
    assert store.groups.find("g") is None
    again = GroupShard(LIMITS, Clock(), str, image=lambda: IMAGE)
    for key, value in store.groups.records:
        again.replay(key, value)
    assert again.find("g") is None


def test_request_above_a_limit_is_rejected_without_effect(store):
    small = Machine(LIMITS._replace(consumer=ConsumerLimits(members_max=1)))
    small.join("a")
    small.groups.records.clear()
    assert small.join("b").error_code == 81
    assert store.join("a", topics=["x" * 249] * 5000).error_code == 10
    assert store.join("a", instance_id="x" * (600 << 10)).error_code == 10
    assert store.join("a", subscribed_topic_regex="x" * 5000).error_code == 128
    assert store.groups.groups == {} and store.groups.records == small.groups.records == []


def test_failing_assignor_leaves_the_assignment_unchanged():
    def fails(members, topics):
        if len(members) > 1:
            raise RuntimeError("made up")
        return partition_assignors.assign_range(members, topics)

    store = Machine(LIMITS._replace(consumer=ConsumerLimits(assignors={"own": fails})))
    store.join("a")
    assert store.join("b").error_code == -1
    assert store.beat("a", 2).member_epoch == 2
    store.beat("b", -1)
    assert store.beat("a", 2).member_epoch == 4


def test_many_expressions_are_matched_in_steps(store):
    names = {f"t{number}": Topic(f"t{number}", number.to_bytes(16, "big"), ())
             for number in range(20_000)}
    image = Image(topics=names, topics_by_id={row.id: row for row in names.values()}, offset=6)
    store.groups.image = lambda: image
    store.beat("a", 0, rebalance_timeout_ms=1000, topic_partitions=[],
                 subscribed_topic_regex="t1.*")
    steps = 0
    while store.group.resolving is not None:
        target_assignment.resolve_some(store.groups, store.group)
        steps += 1
    assert steps > 20_000 // target_assignment.MATCHES_STEP
    assert len(store.group.resolved["t1.*"].topics) == 11_111

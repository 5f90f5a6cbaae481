"""The group coordinator without logs: settings of its topic, effects of topic changes, and expiry.
"""

import asyncio
from types import SimpleNamespace

import pytest

from pylog.coordinator.groups import offsets, service
from pylog.coordinator.groups.consumer import target_assignment
from pylog.coordinator.groups.service import TOPIC, GroupCoordinator
from pylog.coordinator.groups.state.classic_group import NO_TIME, Group, Offset
from pylog.coordinator.runtime.deferred_response import DeferredResponse
from pylog.coordinator.runtime.transactional_batches import Marker
from pylog.metadata.image.state_store import Store
from pylog.protocol.errors import ErrorCode
from tests.coordinator import played_runtime

MARKER = Marker(7, 3, 4, True, 2)
T, U = bytes(15) + b"\1", bytes(15) + b"\2"


class World:
    """looked: topics of each notification to groups. machine: the machine that steps run on."""

    def __init__(self, monkeypatch, **settings):
        monkeypatch.setattr(service, "CoordinatorRuntime", played_runtime.Runtime)
        monkeypatch.setattr(target_assignment, "topics_changed",
                            lambda state_machine, names: self.looked.append(set(names)))
        self.looked = []
        self.node = played_runtime.node(**settings)
        self.service = GroupCoordinator(self.node)
        self.runtime = self.service.runtime
        self.runtime.step_each = lambda step: step(self.state_machine)
        self.state_machine = SimpleNamespace(groups={}, shares={}, records=[], cleanups=0)

    def run(self, work, store=None):
        async def whole():
            self.service._store = store
            work()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        asyncio.run(whole())


@pytest.fixture
def world(monkeypatch):
    return World(monkeypatch)


# Internal topic.

def test_internal_topic_is_created_from_the_settings(monkeypatch):
    world = World(
        monkeypatch, offsets_topic_num_partitions="7", offsets_topic_replication_factor="2",
        offsets_topic_segment_bytes="4096", offsets_commit_timeout_ms="2500",
        offsets_retention_check_interval_ms="77")
    coordination = world.runtime.coordination
    assert coordination.topic == (TOPIC, 7, 2, {
        "cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "4096"}, None)
    assert (coordination.write_timeout_s, coordination.expiry_ms) == (2.5, 77)
    assert asyncio.run(world.service.ensure_topic()) == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_group_has_a_partition_once_the_topic_exists(world):
    assert world.service.partition_of("g") == -1
    world.runtime.topic.current = SimpleNamespace(partitions=[None] * 4)
    assert world.service.partition_of("g") == ord("g") % 4


# Topic changes.

def test_topic_changes_are_handled_once_per_tick(world):
    own, other = SimpleNamespace(name=TOPIC), SimpleNamespace(name="t")

    def work():
        world.service.topic_changed(own)
        world.service.topic_changed(other)
        world.service.topic_deleted("u")
        assert world.looked == []

    world.run(work, "store")
    assert world.looked == [{TOPIC, "t", "u"}]
    assert world.runtime.calls == [("topic_changed", own)]
    world.run(lambda: world.service.topic_changed(other), "store")
    assert world.looked[1:] == [{"t"}]


def test_topic_changes_are_ignored_before_the_start_and_for_its_own_end(world):
    world.run(lambda: world.service.topic_changed(SimpleNamespace(name="t")))
    world.run(lambda: world.service.topic_deleted(TOPIC), "store")
    assert world.looked == [] and world.runtime.calls == [("topic_deleted",)]


def test_offsets_of_a_topic_go_with_it(world, monkeypatch):
    forgotten = []
    monkeypatch.setattr(offsets, "forget_topic", lambda state_machine, group,
                        name: forgotten.append(
        (group, name)))
    world.state_machine.groups = {"a": "A", "b": "B"}
    world.run(lambda: world.service.topic_deleted("t"), "store")
    assert forgotten == [("A", "t"), ("B", "t")]


def test_share_groups_are_notified_of_remaining_topics(world, monkeypatch):
    told = []
    monkeypatch.setattr(service.share_heartbeat, "forget_topics",
                        lambda state_machine, ids: told.append(ids))
    world.node.image.topics = {"t": SimpleNamespace(id=T)}
    world.run(lambda: world.service.topic_deleted("u"), "store")
    assert told == []
    world.state_machine.shares = {"s": object()}
    world.run(lambda: world.service.topic_deleted("u"), "store")
    assert told == [{T}]
    # A load may restore offsets deleted since.
    world.runtime.coordination.prepare(world.state_machine)
    assert told == [{T}] * 2


def offset(topic_id):
    return Offset(5, -1, "", 9, NO_TIME, topic_id)


def test_offsets_of_an_earlier_topic_are_deleted_as_a_cleanup(
        world, monkeypatch):
    def forget(state_machine, group, topic, partition):
        del group.offsets[topic, partition]
        state_machine.records.append((topic, partition))

    monkeypatch.setattr(offsets, "forget", forget)
    world.node.image.topics = {"t": SimpleNamespace(id=T)}
    one, two = Group("a", 1), Group("b", 1)
    one.offsets = {("t", 0): offset(T), ("t", 1): offset(U), ("gone", 0): offset(U),
                   ("gone", 1): offset(service.NO_ID)}
    two.offsets = {("t", 2): offset(U)}
    world.state_machine.groups = {"a": one, "b": two}
    world.state_machine.records = ["before"]
    world.runtime.coordination.prepare(world.state_machine)
    assert set(one.offsets) == {("t", 0), ("gone", 1)} and not two.offsets
    assert world.state_machine.cleanups == 3 == len(world.state_machine.records) - 1


# Markers.

@pytest.mark.parametrize(("error", "told"), [
    (ErrorCode.NONE, ErrorCode.NONE),
    (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    (ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.TRANSACTION_COORDINATOR_FENCED)])
def test_marker_for_a_foreign_partition_is_rejected(
        world, error, told):
    pending = DeferredResponse(lambda error: ("refused", error))
    world.runtime.errors = [error]
    world.service.end_transaction(2, MARKER, pending)
    assert pending.message == told
    assert world.runtime.calls[0] == ("as producer", 2, MARKER.fault, 7)
    assert world.runtime.calls[1][3:] == (MARKER,)


# Metrics.

def test_rebalances_and_records_are_counted_and_rebalances_are_history(world):
    kept = []
    world.service._history = SimpleNamespace(add=kept.append, find=lambda group, limit: (
        [group] * limit))
    for took_ms, stopped_ms in ((5, 2), (7, 0)):
        world.service._rebalanced({"took_ms": took_ms, "stopped_ms": stopped_ms})
    world.runtime.records_written = 3
    events = world.service.events
    assert (events["rebalance_ms"], events["member_stopped_ms"], events["record_written"]) == (
        12, 2, 3)
    assert len(kept) == 2 and world.service.history("g", 2) == ["g", "g"]


def test_rebalance_history_is_empty_before_the_start(world):
    assert world.service.history("g", 2) == []
    asyncio.run(world.service.stop())
    assert world.runtime.calls == [("stop",)]


def test_a_start_has_its_history_beside_the_store_and_a_stop_closes_it(world, tmp_path):
    async def work():
        store = Store(str(tmp_path))
        world.service.start(store)
        assert world.service.history("g", 1) == []
        await world.service.stop()
        store.close()
    asyncio.run(work())
    assert world.runtime.calls == [("start",), ("stop",)]


# Expiry.

@pytest.mark.parametrize(("count", "steps"), [(0, 0), (3, 1), (4, 2), (6, 2), (7, 3)])
def test_groups_expire_some_at_a_time_those_in_the_snapshot_too(world, monkeypatch, count, steps):
    monkeypatch.setattr(service, "EXPIRY_STEP", 3)
    expired = []
    monkeypatch.setattr(service, "_expire_group", lambda state_machine, id_: expired.append(id_))
    world.state_machine.groups = dict.fromkeys("ab"[:count])
    world.state_machine.elsewhere = lambda: [(id_, "", "classic") for id_ in "cdefg"[:count - 2]] \
        if count > 2 else []
    walk, seen = world.runtime.coordination.expire(world.state_machine), []
    for _ in walk:
        seen.append(len(expired))
    assert len(seen) == steps and expired == list("abcdefg"[:count])
    assert all(now - before <= 3 for before, now in zip([0, *seen], seen))


@pytest.mark.parametrize(("was_here", "changes", "stays"), [
    (True, False, True), (True, True, True), (False, True, True), (False, False, False)])
def test_group_that_was_only_read_does_not_stay_in_memory(
        world, monkeypatch, was_here, changes, stays):
    state_machine, group = world.state_machine, object()
    state_machine.groups = {"g": group} if was_here else {}
    state_machine.records = ["before"]

    def find(id_):
        state_machine.groups[id_] = group
        return group

    def expire(state_machine, found):
        assert found is group
        state_machine.records += ["record"] * changes

    state_machine.find = find
    monkeypatch.setattr(offsets, "expire", expire)
    service._expire_group(state_machine, "g")
    assert ("g" in state_machine.groups) == stays


def test_deleted_group_does_not_expire(world, monkeypatch):
    monkeypatch.setattr(offsets, "expire", None)
    world.state_machine.find = lambda id_: None
    service._expire_group(world.state_machine, "g")

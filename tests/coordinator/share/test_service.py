"""The share coordinator without logs: settings of its topic, and pruning."""

import asyncio
from types import SimpleNamespace

import pytest

from pylog._native.log.log import LogError
from pylog.coordinator.runtime.deferred_response import DeferredResponse
from pylog.coordinator.share import service as share_service
from pylog.coordinator.share.partition_state import ShareKey
from pylog.coordinator.share.service import TOPIC, ShareCoordinator
from pylog.coordinator.share.shard import ShareStates
from pylog.protocol.errors import ErrorCode
from tests.client.virtual_time import VirtualTime
from tests.coordinator import played_runtime

ID = bytes(15) + b"\1"
KEY = ShareKey("g", ID, 0)
INTERVAL = "share_coordinator_state_topic_prune_interval_ms"


class Shard:
    """unsaved: share partitions without a snapshot since the mark."""

    def __init__(self, index=0, end=10):
        self.index, self.marks, self.appended = index, [], 0
        self.log = SimpleNamespace(end_offset=end, high_watermark=end)
        self.journal = SimpleNamespace(log=self.log, append_now=self._append)
        self.load()

    def load(self):
        self.state_machine = SimpleNamespace(unsaved=set(), mark=lambda: self.marks.append(
            self.log.end_offset))

    def _append(self):
        self.appended += 1
        self.log.end_offset += 1


class World:
    """cut: deleted records, [(topic, partition, offset)]. refusals: partitions whose log fails."""

    def __init__(self, monkeypatch, **settings):
        monkeypatch.setattr(share_service, "CoordinatorRuntime", played_runtime.Runtime)
        self.cut, self.refusals = [], set()
        self.node = played_runtime.node(**settings)
        self.node.logs = SimpleNamespace(move_start=self._move_start)
        self.service = ShareCoordinator(self.node)
        self.runtime = self.service.runtime
        self.coordination = self.runtime.coordination

    def _move_start(self, topic, index, offset):
        if index in self.refusals:
            raise LogError(5, ErrorCode.KAFKA_STORAGE_ERROR, "planted")
        self.cut.append((topic, index, offset))

    def prune(self, *shards, times=1):
        self.runtime.served = list(shards)

        async def work():
            for _ in range(times):
                await self.service.prune()
        asyncio.run(work())


@pytest.fixture
def world(monkeypatch):
    return World(monkeypatch)


# Pruning.

def test_replaced_records_are_pruned_after_everything_was_saved(world):
    shard = Shard()
    world.prune(shard)
    assert world.cut == [] and shard.marks == [11]
    shard.log.high_watermark = shard.log.end_offset = 20
    world.prune(shard)
    assert world.cut == [(TOPIC, 0, 11)] and shard.marks == [11, 21]


def test_gathered_records_are_before_the_mark(world):
    shard = Shard(end=10)
    world.prune(shard)
    assert shard.appended == 1 and shard.marks == [11]


def test_while_a_share_partition_lacks_a_snapshot_since_the_mark_nothing_moves(world):
    shard = Shard()
    world.prune(shard)
    shard.log.high_watermark = 99
    shard.state_machine.unsaved = {KEY}
    world.prune(shard)
    assert world.cut == [] and shard.marks == [11] and shard.appended == 1
    shard.state_machine.unsaved = set()
    world.prune(shard)
    assert world.cut == [(TOPIC, 0, 11)]


@pytest.mark.parametrize(("visible", "cut"), [(10, []), (11, [(TOPIC, 0, 11)])])
def test_only_fully_replicated_records_are_pruned(world, visible, cut):
    shard = Shard()
    world.prune(shard)
    shard.log.high_watermark = visible
    world.prune(shard)
    assert world.cut == cut and len(shard.marks) == 2


def test_reloaded_machine_starts_with_a_new_mark(world):
    shard = Shard()
    world.prune(shard)
    shard.log.high_watermark = 99
    shard.load()
    shard.state_machine.unsaved = {KEY}
    world.prune(shard)
    assert world.cut == [] and len(shard.marks) == 2


def test_failed_log_of_one_partition_does_not_hide_others(world, caplog):
    shards = [Shard(0), Shard(1), Shard(2)]
    world.prune(*shards)
    for shard in shards:
        shard.log.high_watermark = 99
    world.refusals = {1}
    world.prune(*shards)
    assert world.cut == [(TOPIC, 0, 11), (TOPIC, 2, 11)]
    assert [len(shard.marks) for shard in shards] == [2, 1, 2]
    assert [line.partition for line in caplog.records] == [1]
    # Its mark is kept: it is pruned when the disk works again.
    world.refusals = set()
    world.prune(shards[1])
    assert world.cut[-1] == (TOPIC, 1, 11)


def test_pruning_continues_after_an_unexpected_error(monkeypatch, caplog):
    world, time, at = World(monkeypatch, **{INTERVAL: "7000"}), VirtualTime(), []

    async def prune():
        at.append(time.now_s - 1000)
        raise RuntimeError("planted")

    world.service.prune = prune

    async def work():
        world.service.start()
        await asyncio.sleep(15)
        await world.service.stop()

    time.run(work())
    assert at == [7, 14]
    assert [line.exc_text or line.exc_info for line in caplog.records].count(None) == 0


def test_partitions_are_pruned_at_each_interval_until_the_stop(monkeypatch):
    world, time, at = World(monkeypatch, **{INTERVAL: "7000"}), VirtualTime(), []

    async def prune():
        at.append(time.now_s - 1000)

    async def work():
        world.service.start()
        await asyncio.sleep(15)
        await world.service.stop()
        await asyncio.sleep(15)

    monkeypatch.setattr(world.service, "prune", prune)
    time.run(work())
    assert at == [7, 14] and world.runtime.calls == [("start",), ("stop",)]


def test_unstarted_service_can_be_stopped(world):
    asyncio.run(world.service.stop())
    assert world.runtime.calls == [("stop",)]


# Internal topic.

def test_internal_topic_is_created_from_the_settings(monkeypatch):
    world = World(
        monkeypatch, share_coordinator_state_topic_num_partitions="7",
        share_coordinator_state_topic_replication_factor="2",
        share_coordinator_state_topic_min_isr="1",
        share_coordinator_state_topic_segment_bytes="1048576",
        share_coordinator_write_timeout_ms="2500",
        share_coordinator_state_topic_compression_codec="2",
        share_coordinator_cold_partition_snapshot_interval_ms="1234",
        share_coordinator_snapshot_update_records_per_snapshot="77")
    spec = world.runtime.topic.spec
    assert spec[:3] == (TOPIC, 7, 2) and spec.min_insync == 1
    assert spec.configs == {"cleanup.policy": "delete", "retention.ms": "-1",
                            "compression.type": "producer", "segment.bytes": "1048576"}
    assert world.coordination.write_timeout_s == 2.5 and world.coordination.expiry_ms == 1234
    assert world.coordination.codec == 2
    create, _ = world.coordination.open(bytes(16), 0, SimpleNamespace())
    assert create()._updates_max == 77
    assert asyncio.run(world.service.ensure_topic()) == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_states_are_served_once_the_topic_exists(world):
    assert not world.service.has_topic
    world.runtime.topic.current = SimpleNamespace()
    assert world.service.has_topic


@pytest.mark.parametrize(("features", "enabled"), [
    ({}, False), ({"share.version": 0}, False), ({"share.version": 1}, True)])
def test_the_cluster_has_share_groups_by_its_finalized_feature(world, features, enabled):
    world.node.image.features = features
    assert world.service.is_enabled is enabled


def test_topic_deletion_removes_its_share_states(world):
    own, other = SimpleNamespace(name=TOPIC), SimpleNamespace(name="t")
    world.service.topic_changed(other)
    assert world.runtime.calls == []
    world.service.topic_changed(own)
    world.service.topic_deleted(TOPIC)
    world.service.topic_deleted("t")
    assert world.runtime.calls == [("topic_changed", own), ("topic_deleted",),
                                   ("step_each", ShareStates.forget_gone)]


def test_a_step_is_about_the_key_that_found_its_machine(world):
    pending = DeferredResponse(lambda error: error)
    assert world.service.run(KEY, pending, ShareStates.read, 3) is pending
    assert world.runtime.calls == [("run", KEY.text, ShareStates.read, KEY, 3)]


@pytest.mark.parametrize(("partition", "known"), [(0, True), (1, True), (2, False)])
def test_state_machine_uses_current_partition_counts(world, partition, known):
    clock = SimpleNamespace(wall_ms=lambda: 5, now_ms=lambda: 5)
    make, snapshot = world.coordination.open(bytes(16), 0, clock)
    state_machine, key = make(), ShareKey("g", ID, partition)
    assert snapshot is None and make() is not state_machine
    assert state_machine.initialize(key, 1, 0)[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    world.node.image.topics_by_id = {ID: SimpleNamespace(partitions=[
        SimpleNamespace(leader_epoch=0)] * 2)}
    error = ErrorCode.NONE if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert state_machine.initialize(key, 1, 0)[0] == error

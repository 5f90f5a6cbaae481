"""The coordinator over real logs: a failure in one partition causes a reload of that partition and
does not affect the others.
"""

import asyncio
from types import SimpleNamespace

import lmdb
import pytest

from pylog._native.log.log import DISK_FULL, DISK_NO_SYNC, DISK_SYSTEM, Log, LogDir
from pylog.config.settings import Settings
from pylog.coordinator.groups import describe as group_describe, offsets, shard as group_shard
from pylog.coordinator.groups.state import classic_group
from pylog.coordinator.runtime import shard
from pylog.coordinator.runtime.internal_topic import partition_of
from pylog.coordinator.runtime.journal import replay
from pylog.coordinator.runtime.deferred_response import DeferredResponse
from pylog.coordinator.groups.snapshot import ShardSnapshot
from pylog.coordinator.groups.service import TOPIC, GroupCoordinator
from pylog.eventloop.end_of_tick import EndOfTick
from pylog.metadata.image.state_store import Store
from pylog.protocol import messages

PARTITIONS = 4
TOPIC_ID = bytes(15) + b"\x05"
PLACE = "t", TOPIC_ID, 0
FIRST_AT = 0  # a log directory


def commit_request(group_id: str):
    return SimpleNamespace(group_id=group_id, generation_id_or_member_epoch=-1, member_id="",
                           group_instance_id=None, retention_time_ms=-1)


class Node:
    """The broker's interface for a coordinator: a topic whose partitions are on two disks."""

    node_id = 1

    def __init__(self, root):
        self.settings = Settings({"offsets.topic.num.partitions": str(PARTITIONS),
                                  "group.initial.rebalance.delay.ms": "0"})
        self.disks = [LogDir(str(_made(root / name)), 1) for name in ("first", "second")]
        self.parts = [Log.open(self.disks[index % 2], TOPIC, index, bytes(16), now_ms=1)
                      for index in range(PARTITIONS)]
        for one in self.parts:
            one.become_leader(0)
        topic = SimpleNamespace(name=TOPIC, id=bytes(15) + b"\x01", partitions=[
            SimpleNamespace(leader=self.node_id, leader_epoch=0)] * PARTITIONS)
        self.image = SimpleNamespace(topics={
            TOPIC: topic, "t": SimpleNamespace(id=TOPIC_ID)}, offset=0)
        self.logs = SimpleNamespace(get=lambda name, index: self.parts[index])
        self.store = Store(str(root))
        self.now_ms = lambda: 5_000
        self.defer = EndOfTick().defer
        self.groups = None

    async def begin(self) -> None:
        self.groups = GroupCoordinator(self)
        self.groups.start(self.store)
        for index in range(PARTITIONS):
            await self.until(lambda index=index: self.shard(index)[1] == 0)

    def group(self, index: int) -> str:
        """Return the name of a group in partition `index`."""
        return next(name for name in map(str, range(1000))
                    if partition_of(name, PARTITIONS) == index)

    def shard(self, index: int):
        return self.groups.runtime._find(self.group(index))

    def commit(self, index: int, offset: int) -> DeferredResponse:
        """Commit to a group of partition `index`; return the error code."""
        return self.commit_entry(index, (*PLACE, offset, 0, ""))

    def commit_entry(self, index: int, entry: tuple) -> DeferredResponse:
        group = self.group(index)
        return self.groups.run(group, DeferredResponse(lambda code: code), offsets.commit,
                               commit_request(group), [entry])

    def join(self, index: int, member: str = "") -> DeferredResponse:
        pending = DeferredResponse(lambda code: messages.JoinGroupResponse(error_code=code))
        request = messages.JoinGroupRequest(
            group_id=self.group(index), session_timeout_ms=60_000, rebalance_timeout_ms=60_000,
            member_id=member, protocol_type="consumer", protocols=[
                messages.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")])
        return self.groups.run(
            request.group_id, pending, group_shard.GroupShard.join, request, 3, "c", "/h", pending)

    def committed(self, index: int) -> int | None:
        """Return the committed offset in the machine of partition `index`, once it is loaded."""
        entry = offsets.fetch(self.shard(index)[0].state_machine, self.group(index), None, False)
        return entry[0][1][0][1].offset if entry else None

    def elect(self, index: int, leader: int, epoch: int) -> None:
        """Change a partition's leader, as the publisher does."""
        if leader == self.node_id:
            self.parts[index].become_leader(epoch)
        else:
            self.parts[index].become_follower(epoch)
        topic = self.image.topics[TOPIC]
        topic.partitions = list(topic.partitions)
        topic.partitions[index] = SimpleNamespace(leader=leader, leader_epoch=epoch)
        self.groups.topic_changed(topic)

    async def until(self, condition) -> None:
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.01)

    async def committed_at_last(self, index: int, offset: int) -> None:
        """Commit like a client that retries on retriable errors."""
        async with asyncio.timeout(20):
            while await self.commit(index, offset) != 0:
                await asyncio.sleep(0.01)

    async def again(self) -> None:
        """Restart with the state on disk and in state.lmdb, after a clean stop."""
        await self.groups.stop()
        await self.begin()


def _made(folder):
    folder.mkdir()
    return folder


@pytest.fixture
def on_node(tmp_path, monkeypatch):
    """Runs scenario(node) on a loop, between a start and a stop."""
    monkeypatch.setattr(shard, "RELOAD_SECONDS_MIN", 0.02)

    def run(scenario):
        async def whole():
            node = Node(tmp_path)
            await node.begin()
            try:
                await scenario(node)
            finally:
                await node.groups.stop()
                node.store.close()
        asyncio.run(whole())
    return run


def test_temporary_full_disk_reloads_and_discards_unappended_records(
        on_node):
    async def scenario(node):
        assert await node.commit(0, 1) == 0
        node.disks[FIRST_AT].set_disk(DISK_FULL)
        for offset in (2, 3):
            assert await node.commit(0, offset) in (14, 16)
        await node.until(lambda: node.shard(0)[1] == 0)
        assert node.committed(0) == 1
        assert await node.commit(1, 7) == 0
        node.disks[FIRST_AT].set_disk(DISK_SYSTEM)
        await node.committed_at_last(0, 4)
        await node.again()
        assert node.committed(0) == 4
    on_node(scenario)


def test_reloads_on_a_full_disk_back_off(on_node):
    async def scenario(node):
        assert await node.commit(0, 1) == 0
        node.disks[FIRST_AT].set_disk(DISK_FULL)
        found, _ = node.shard(0)
        assert await node.commit(0, 2) == 16
        await node.until(lambda: not found.ready)
        found.journal.reopen()
        pauses = [found.next_pause_s() for _ in range(12)]
        assert pauses == sorted(pauses) and pauses[-1] == shard.RELOAD_SECONDS_MAX
    on_node(scenario)


def test_members_waiting_for_others_are_rejected_on_reload(on_node):
    async def scenario(node):
        first = await node.join(0)
        waiting = node.join(0)
        assert first.error_code == 0 and not waiting.is_set
        node.disks[FIRST_AT].set_disk(DISK_FULL)
        node.shard(0)[0].journal.write([(b"key", b"value")])
        async with asyncio.timeout(20):
            assert (await waiting).error_code == 16
    on_node(scenario)


def test_failed_disk_does_not_block_groups_on_others(on_node):
    async def scenario(node):
        node.disks[FIRST_AT].set_disk(DISK_NO_SYNC)
        for turn in range(20):
            pending = [node.commit(index, turn) for index in range(PARTITIONS)]
            async with asyncio.timeout(20):
                codes = [await one for one in pending]
            assert [code == 0 for code in codes] == [False, True] * 2, codes
        await node.until(lambda: all(node.shard(index)[1] == 16 for index in (0, 2)))
    on_node(scenario)


def test_failed_journal_does_not_stop_others(on_node):
    async def scenario(node):
        def raising():
            raise TypeError("planted")

        bad = node.shard(0)[0]
        bad.journal._flushed = raising
        pending = [node.commit(index, 1) for index in range(PARTITIONS)]
        async with asyncio.timeout(20):
            codes = [await one for one in pending]
        assert codes == [16, 0, 0, 0]
        del bad.journal._flushed
        await node.until(lambda: node.shard(0)[1] == 0)
        await node.committed_at_last(0, 2)
    on_node(scenario)


def test_failed_timer_reloads_only_its_partition(on_node):
    async def scenario(node):
        def raising():
            raise KeyError("planted")

        bad = node.shard(0)[0]
        assert await node.commit(0, 3) == 0
        bad.state_machine.tick = raising
        assert (await node.join(1)).error_code == 0
        node.groups.runtime._tick()
        async with asyncio.timeout(20):
            while bad.state_machine.__dict__.get("tick") is raising:
                await asyncio.sleep(0.01)
        await node.until(lambda: node.shard(0)[1] == 0)
        assert node.committed(0) == 3
        # The timer continues: only the tick ends this join.
        waiting = node.join(2)
        async with asyncio.timeout(20):
            assert (await waiting).error_code == 0
    on_node(scenario)


def test_unreadable_partition_does_not_block_loading_of_others(on_node, monkeypatch):
    async def scenario(node):
        for index in range(PARTITIONS):
            assert await node.commit(index, index) == 0
        await node.groups.stop()
        for index in range(PARTITIONS):
            ShardSnapshot(node.store, bytes(15) + b"\x01", index).clear()
        replay, refused = group_shard.GroupShard.replay, set("0")

        def failing(state_machine, key, value):
            if node.group(0).encode() in key and refused:
                raise AssertionError("planted")
            replay(state_machine, key, value)

        monkeypatch.setattr(group_shard.GroupShard, "replay", failing)
        node.groups = GroupCoordinator(node)
        node.groups.start(node.store)
        await node.until(lambda: [node.shard(index)[1] for index in range(PARTITIONS)]
                         == [16, 0, 0, 0])
        refused.clear()
        await node.until(lambda: node.shard(0)[1] == 0)
        assert [node.committed(index) for index in range(PARTITIONS)] == [0, 1, 2, 3]
    on_node(scenario)


def test_a_map_that_cannot_be_written_costs_nothing_but_the_next_try(on_node, monkeypatch):
    async def scenario(node):
        found, _ = node.shard(0)
        write, full = found.snapshot.write, [True]

        def refused(rows, applied):
            if full:
                raise lmdb.DiskError("planted")
            write(rows, applied)

        found.snapshot.write = refused
        assert await node.commit(0, 5) == 0
        await node.groups.runtime.save(found)
        assert found.state_machine.changed
        full.clear()
        await node.groups.runtime.save(found)
        assert not found.state_machine.changed and found.snapshot.find(node.group(0)).offsets
        assert await node.commit(0, 6) == 0
    on_node(scenario)


def test_stop_during_a_save_completes_it(on_node, monkeypatch):
    async def scenario(node):
        monkeypatch.setattr("pylog.coordinator.runtime.snapshot_writer.SAVE_ROWS", 1)
        found, _ = node.shard(0)
        names = [name for name in map(str, range(100)) if partition_of(name, PARTITIONS) == 0]
        for name in names:
            node.groups.run(name, DeferredResponse(lambda code: code), offsets.commit,
                            commit_request(name), [(*PLACE, 9, 0, "")])
        write = found.snapshot.write
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        def noted(rows, applied):
            loop.call_soon_threadsafe(begun.set)
            write(rows, applied)

        found.snapshot.write = noted
        saving = asyncio.ensure_future(node.groups.runtime.save(found))
        await begun.wait()
        saving.cancel()
        await asyncio.gather(saving, return_exceptions=True)
        assert await node.commit(0, 10) == 0
        await node.again()
        state_machine = node.shard(0)[0].state_machine
        assert {name for name in names if state_machine.find(name) is None} == set()
    on_node(scenario)


def test_late_partition_is_served_once_opened(on_node):
    async def scenario(node):
        await node.groups.stop()
        missing, node.parts[3] = node.parts[3], None
        node.groups = GroupCoordinator(node)
        node.groups.start(node.store)
        await node.until(lambda: node.shard(0)[1] == 0)
        assert node.shard(3)[1] == 16
        node.parts[3] = missing
        await node.committed_at_last(3, 1)
    on_node(scenario)


def test_requests_waiting_for_a_removed_partition_are_rejected(on_node):
    async def scenario(node):
        await node.commit(0, 1)
        found, _ = node.shard(0)
        # Its flush never completes.
        found.journal.woken = lambda: None
        held = node.commit(0, 2)
        await asyncio.sleep(0)
        later = node.commit(0, 3)
        del node.image.topics[TOPIC]
        node.groups.topic_deleted(TOPIC)
        assert node.shard(0)[1] == 16
        assert (await held, await later) == (16, 16)
    on_node(scenario)


def test_commit_for_a_recreated_topic_survives_reloads(on_node):
    async def scenario(node):
        assert await node.commit(0, 1) == 0
        # Without members the group is then only in state.lmdb.
        await node.again()
        node.image.topics["t"] = SimpleNamespace(id=bytes(15) + b"\x06")
        found, _ = node.shard(0)
        entry = "t", node.image.topics["t"].id, 0, 7, 0, ""
        assert await node.commit_entry(0, entry) == 0
        for _ in range(2):
            found.journal.fail("planted")
            await node.until(lambda: node.shard(0)[1] == 0)
            assert node.committed(0) == 7
    on_node(scenario)


@pytest.mark.parametrize("look", [
    lambda state_machine, group_id: state_machine.heartbeat(SimpleNamespace(
        group_id=group_id, member_id="m", group_instance_id=None, generation_id=1)),
    lambda state_machine,
    group_id: next(group_describe.described(state_machine, group_id, 6, 10)).error_code,
], ids=["heartbeat", "describe"])
def test_a_look_at_a_group_with_offsets_of_a_deleted_topic_removes_them(on_node, look):
    async def scenario(node):
        assert await node.commit(0, 1) == 0
        # Without members the group is then only in state.lmdb.
        await node.again()
        del node.image.topics["t"]
        end_offset = node.parts[0].end_offset
        found, error = node.groups.query(node.group(0), look, node.group(0))
        assert (found, error) in ((25, 0), (0, 0))
        assert node.groups.query(node.group(0), look, node.group(0)) == (found, 0)
        await node.until(lambda: node.parts[0].end_offset == end_offset + 1)
        assert node.committed(0) is None
    on_node(scenario)


def test_failed_step_rejects_its_pending_response(on_node):
    async def scenario(node):
        found, waiting = node.shard(0)[0], DeferredResponse(lambda code: code)

        def step():
            found.state_machine.responses.append((waiting, 0))
            raise RuntimeError("planted")

        node.groups.runtime._step(found, step)
        async with asyncio.timeout(20):
            assert await waiting == 16
    on_node(scenario)


def test_a_member_that_waits_is_sent_to_the_new_leader_of_its_partition(on_node):
    async def scenario(node):
        first = await node.join(0)
        waiting = node.join(0)
        assert first.error_code == 0 and not waiting.is_set
        assert await node.commit(1, 3) == 0
        node.elect(0, 2, 1)
        assert waiting.message.error_code == 16
        assert node.commit(0, 5).message == 16
        node.elect(0, node.node_id, 2)
        await node.until(lambda: node.shard(0)[1] == 0)
        # No member has synced yet: as with Kafka, only the empty group is in the log.
        assert not node.shard(0)[0].state_machine.groups[node.group(0)].members
        assert node.committed(1) == 3
    on_node(scenario)


def test_event_counts_continue_across_leader_changes(on_node):
    async def scenario(node):
        await node.commit(0, 1)
        before = node.groups.events
        node.elect(0, 2, 1)
        node.elect(0, node.node_id, 2)
        await node.committed_at_last(0, 2)
        assert node.groups.events == {
            **before, "offset_committed": before["offset_committed"] + 1,
            "record_written": before["record_written"] + 1}
    on_node(scenario)


# ---- deletion of a group with many offsets ------------------------------------------------------

def _fill(node, partitions: int) -> None:
    entries = [("t", TOPIC_ID, partition, 1, 0, "") for partition in range(partitions)]
    node.groups.run(node.group(0), DeferredResponse(lambda code: code), offsets.commit,
                    commit_request(node.group(0)), entries)


def _delete(node) -> DeferredResponse:
    return node.groups.run_in_slices(
        node.group(0), DeferredResponse(lambda code: code), group_describe.delete, node.group(0))


MANY = 5 * offsets.FORGET_STEP


def test_large_deletion_is_written_in_chunks_with_the_group_record_last(on_node):
    async def scenario(node):
        _fill(node, MANY)
        journal, written = node.shard(0)[0].journal, []
        write = journal.write
        journal.write = lambda rows: (written.append(len(rows)), write(rows))
        assert await _delete(node) == 0
        assert written == [offsets.FORGET_STEP] * (MANY // offsets.FORGET_STEP) + [1]
        assert await _delete(node) == 69
        await node.again()
        assert node.shard(0)[0].state_machine.find(node.group(0)) is None
        await node.groups.stop()
        ShardSnapshot(node.store, bytes(15) + b"\x01", 0).clear()
        *_, last = replay(node.parts[0], 0)
        assert last == (classic_group.group_key(node.group(0)), None)
        await node.begin()
        assert node.shard(0)[0].state_machine.find(node.group(0)) is None
    on_node(scenario)


def test_partly_deleted_group_is_hidden_and_its_name_reserved(on_node):
    async def scenario(node):
        _fill(node, MANY)
        deleted = _delete(node)
        state_machine = node.shard(0)[0].state_machine
        assert not deleted.is_set
        assert offsets.fetch(state_machine, node.group(0), None, False) == []
        assert state_machine.find(node.group(0)) is None
        assert list(group_describe.listed(state_machine, set(), set())) == []
        again, taken, joined = _delete(node), node.commit(0, 5), node.join(0)
        assert (await again, await taken, (await joined).error_code) == (14, 14, 14)
        assert await deleted == 0
        assert await node.commit(0, 6) == 0
        assert node.committed(0) == 6
        await node.again()
        assert node.committed(0) == 6
    on_node(scenario)


def test_other_groups_are_served_during_a_deletion(on_node):
    async def scenario(node):
        _fill(node, MANY)
        other = next(name for name in map(str, range(1000, 2000))
                     if partition_of(name, PARTITIONS) == 0)
        deleted = _delete(node)
        assert await node.groups.run(
            other, DeferredResponse(lambda code: code), offsets.commit, commit_request(other),
            [(*PLACE, 3, 0, "")]) == 0
        node.groups.query(other, group_shard.GroupShard.find, other)
        assert await deleted == 0
    on_node(scenario)


def test_deletion_with_a_moving_coordinator_is_rejected_and_can_be_retried(on_node):
    async def scenario(node):
        _fill(node, MANY)
        deleted = _delete(node)
        await asyncio.sleep(0)
        node.elect(0, 2, 1)
        assert await deleted == 16
        node.elect(0, node.node_id, 2)
        await node.until(lambda: node.shard(0)[1] == 0)
        left = node.shard(0)[0].state_machine.find(node.group(0))
        assert 0 < len(left.offsets) < MANY
        assert await _delete(node) == 0
        await node.again()
        assert node.shard(0)[0].state_machine.find(node.group(0)) is None
    on_node(scenario)


def test_deletion_during_a_save_is_complete_after_a_crash(on_node):
    async def scenario(node):
        _fill(node, MANY)
        found, _ = node.shard(0)
        await node.groups.runtime.save(found)
        other = next(name for name in map(str, range(1000, 2000))
                     if partition_of(name, PARTITIONS) == 0)
        deleted = _delete(node)
        node.groups.run(other, DeferredResponse(lambda code: code), offsets.commit,
                        commit_request(other), [(*PLACE, 3, 0, "")])
        await node.groups.runtime.save(found)
        assert await deleted == 0
        # Later snapshots are lost.
        found.snapshot.write = lambda rows, applied: None
        await node.again()
        assert node.shard(0)[0].state_machine.find(node.group(0)) is None
    on_node(scenario)


def test_offsets_of_a_deleted_topic_are_removed_without_replay(on_node):
    async def scenario(node):
        assert await node.commit(0, 1) == 0
        assert (await node.join(0)).error_code == 0
        await node.groups.stop()
        del node.image.topics["t"]
        await node.begin()
        assert node.committed(0) is None
    on_node(scenario)

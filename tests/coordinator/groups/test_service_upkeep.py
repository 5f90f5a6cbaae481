"""Background work of the coordinator: snapshots, waits of a stop, expiry of offsets, and responses
that wait for no flush.
"""

import asyncio
import logging
import threading
from types import SimpleNamespace

import pytest

from pylog.config.settings import Settings
from pylog.coordinator.groups import offsets
from pylog.coordinator.groups.metrics import events as group_events
from pylog.coordinator.groups.service import GroupCoordinator
from pylog.coordinator.runtime import runtime
from pylog.coordinator.runtime.deferred_response import DeferredResponse
from pylog.coordinator.runtime.internal_topic import java_hash, partition_of
from pylog.coordinator.runtime.journal import Journal
from tests.coordinator.groups.test_service import PARTITIONS, TOPIC, Node, on_node
from tests.coordinator.runtime.test_journal import Log, Token

__all__ = ["on_node"]
WRITTEN_EVERY_S = 30
APPLIED_KEY = b"cg/a"


class Seconds:
    """Lets the coordinator's seconds pass when the test requests it."""

    def __init__(self, monkeypatch):
        self.real_sleep = asyncio.sleep
        self.looks = 0
        self._allowed = asyncio.Semaphore(0)
        monkeypatch.setattr(runtime.asyncio, "sleep", self._sleep)

    async def _sleep(self, seconds, *arguments):
        if seconds != 1:
            return await self.real_sleep(seconds, *arguments)
        self.looks += 1
        await self._allowed.acquire()

    def one_more(self) -> None:
        self._allowed.release()

    async def run(self, count: int) -> None:
        for _ in range(count):
            looks = self.looks
            self.one_more()
            async with asyncio.timeout(20):
                while self.looks == looks:
                    await self.real_sleep(0.001)


def applied(node, index: int) -> bytes | None:
    """Return the offset up to which the map has a partition's state."""
    with node.store.transaction() as txn:
        return txn.get(APPLIED_KEY + index.to_bytes(4, "big"))


async def with_seconds(node, monkeypatch) -> Seconds:
    """Return a coordinator restarted over the same disks, and its clock."""
    await node.groups.stop()
    seconds = Seconds(monkeypatch)
    await node.begin()
    await node.until(lambda: seconds.looks == 1)
    return seconds


def test_changes_are_saved_every_thirty_seconds(on_node, monkeypatch):
    async def scenario(node):
        seconds = await with_seconds(node, monkeypatch)
        assert await node.commit(0, 1) == 0
        await seconds.run(WRITTEN_EVERY_S - 1)
        assert applied(node, 0) is None
        await seconds.run(1)
        first = applied(node, 0)
        assert first is not None and applied(node, 1) is None
        assert await node.commit(0, 2) == 0
        await seconds.run(WRITTEN_EVERY_S - 1)
        assert applied(node, 0) == first
        await seconds.run(1)
        assert applied(node, 0) != first
    on_node(scenario)


def test_many_records_of_one_partition_are_saved_within_a_second(on_node, monkeypatch):
    async def scenario(node):
        seconds = await with_seconds(node, monkeypatch)
        assert await node.commit(0, 1) == 0 and await node.commit(1, 1) == 0
        found, _ = node.shard(0)
        found.journal.written = 49_999
        await seconds.run(1)
        assert applied(node, 0) is None
        found.journal.written = 50_000
        await seconds.run(1)
        assert applied(node, 0) is not None and applied(node, 1) is None
        first = applied(node, 0)
        assert await node.commit(0, 2) == 0
        await seconds.run(2)
        assert applied(node, 0) == first, "the count begins anew"
    on_node(scenario)


def test_stop_during_a_periodic_save_completes(on_node, monkeypatch):
    async def scenario(node):
        seconds = await with_seconds(node, monkeypatch)
        assert await node.commit(0, 1) == 0
        found, _ = node.shard(0)
        begun, go_on = threading.Event(), threading.Event()
        flush = found.journal.log.flush

        def slow():
            begun.set()
            assert go_on.wait(20)
            return flush()

        found.journal.log = _Partly(found.journal.log, flush=slow)
        await seconds.run(WRITTEN_EVERY_S - 1)
        seconds.one_more()
        await node.until(begun.is_set)
        stopping = asyncio.ensure_future(node.groups.stop())
        await seconds.real_sleep(0.05)
        go_on.set()
        async with asyncio.timeout(20):
            await stopping
        assert applied(node, 0) is not None
        await node.begin()
        assert node.committed(0) == 1
    on_node(scenario)


class _Partly:
    """An object with some of its methods replaced."""

    def __init__(self, of, **methods):
        self._of = of
        self.__dict__.update(methods)

    def __getattr__(self, name):
        return getattr(self._of, name)


@pytest.mark.parametrize("error", [OSError("planted"), RuntimeError("planted")])
def test_a_map_that_is_behind_is_logged(on_node, caplog, error):
    async def scenario(node):
        found, _ = node.shard(0)
        assert await node.commit(0, 5) == 0

        def refused():
            raise error

        found.journal.log = _Partly(found.journal.log, flush=refused)
        with caplog.at_level(logging.ERROR, "pylog.coordinator"):
            await node.groups.stop()
        row, = [row for row in caplog.records if hasattr(row, "partition")]
        assert (row.partition, row.reason) == (0, "planted")
        assert applied(node, 0) is None
        await node.begin()
        assert node.committed(0) == 5, "the log has it"
    on_node(scenario)


def test_a_lost_partition_without_requests_is_noticed_within_a_second(on_node, monkeypatch):
    async def scenario(node):
        seconds = await with_seconds(node, monkeypatch)
        assert (await node.join(0)).error_code == 0
        waiting = node.join(0)
        node.disks[0].fail(5)
        await seconds.run(1)
        async with asyncio.timeout(20):
            assert (await waiting).error_code == 16
    on_node(scenario)


def test_offsets_of_every_partition_expire_and_stay_away_after_a_start(on_node):
    async def scenario(node):
        for index in range(PARTITIONS):
            assert await node.commit(index, index) == 0
        # Half of the groups are only in the map.
        await node.again()
        assert node.committed(0) == 0 and node.committed(1) == 1
        retention_ms = node.settings["offsets.retention.minutes"] * 60_000
        node.now_ms = lambda: 5_000 + retention_ms - 1
        await node.again()
        await node.groups.runtime.expire()
        assert [node.committed(index) for index in range(PARTITIONS)] == [0, 1, 2, 3]
        node.now_ms = lambda: 5_000 + retention_ms
        await node.again()
        await node.groups.runtime.expire()
        for _ in range(2):
            assert [node.committed(index) for index in range(PARTITIONS)] == [None] * PARTITIONS
            await node.again()
    on_node(scenario)


def test_groups_read_by_expiry_do_not_stay_in_memory(on_node):
    async def scenario(node):
        for index in range(PARTITIONS):
            assert await node.commit(index, index) == 0
        await node.again()
        await node.groups.runtime.expire()
        assert all(not node.shard(index)[0].state_machine.groups for index in range(PARTITIONS))
        assert node.committed(2) == 2
        await node.groups.runtime.expire()
        assert list(node.shard(2)[0].state_machine.groups) == [node.group(2)]
    on_node(scenario)


def test_expiry_removes_only_offsets_of_deleted_topics(on_node):
    async def scenario(node):
        node.image.topics["u"] = SimpleNamespace(id=bytes(15) + b"\x09")
        assert await node.commit(0, 1) == 0
        assert await node.commit_entry(0, ("u", bytes(15) + b"\x09", 0, 7, 0, "")) == 0
        # Without members the group is then only in state.lmdb.
        await node.again()
        del node.image.topics["t"]
        await node.groups.runtime.expire()
        for _ in range(2):
            await node.again()
            found = offsets.fetch(node.shard(0)[0].state_machine, node.group(0), None, False)
            assert [(topic, rows[0][1].offset) for topic, rows in found] == [("u", 7)]
    on_node(scenario)


def test_failed_expiry_of_one_partition_does_not_affect_others(on_node, caplog):
    async def scenario(node):
        for index in range(PARTITIONS):
            assert await node.commit(index, index) == 0

        def raising():
            raise RuntimeError("planted")

        bad = node.shard(0)[0]
        bad.state_machine.elsewhere = raising
        node.groups._limits = node.groups._limits._replace(retention_ms=0)
        for index in range(PARTITIONS):
            node.shard(index)[0].state_machine.limits = node.groups._limits
        await node.groups.runtime.expire()
        assert [node.committed(index) for index in range(1, PARTITIONS)] == [None] * 3
        assert node.committed(0) == 0
    on_node(scenario)


def test_without_group_commit_a_reply_waits_for_the_append_only(tmp_path):
    async def scenario():
        node = Node(tmp_path)
        node.settings = Settings({"offsets.topic.num.partitions": str(PARTITIONS),
                                  "log.flush.acks.all.enable": "false"})
        await node.begin()
        try:
            async with asyncio.timeout(20):
                assert await node.commit(0, 7) == 0
            assert node.parts[0].end_offset == 1
            await node.again()
            assert node.committed(0) == 7
        finally:
            await node.groups.stop()
            node.store.close()
    asyncio.run(scenario())


def test_journal_without_flush_waits_replies_after_the_append():
    async def scenario():
        log = Log()
        journal = Journal(log, lambda: 5, None, 0)
        tokens = [Token(got=None) for _ in range(3)]
        journal.after(tokens[0], "at once")
        assert tokens[0].got == "at once"
        journal.write([(b"key", b"value")])
        journal.after(tokens[1], "appended")
        assert tokens[1].got is None and log.end_offset == 0
        await asyncio.sleep(0)
        assert tokens[1].got == "appended" and log.end_offset == 1
        journal.after(tokens[2], "at once")
        assert tokens[2].got == "at once" and not journal.failed
    asyncio.run(scenario())


def test_topic_deletion_removes_offsets_from_memory_and_from_the_map(on_node):
    async def scenario(node):
        for index in range(PARTITIONS):
            assert await node.commit(index, index) == 0
        await node.again()
        assert node.committed(0) == 0
        del node.image.topics["t"]
        node.groups.topic_deleted("t")
        for _ in range(2):
            assert [node.committed(index) for index in range(PARTITIONS)] == [None] * PARTITIONS
            await node.again()
    on_node(scenario)


def test_offsets_topic_can_be_deleted_and_recreated(on_node):
    async def scenario(node):
        assert await node.commit(0, 4) == 0
        old = node.image.topics.pop(TOPIC)
        node.groups.topic_deleted(TOPIC)
        assert node.groups.shards() == ([], False) and node.shard(0)[1] == 16
        topic = node.image.topics[TOPIC] = SimpleNamespace(
            name=TOPIC, id=bytes(15) + b"\x02", partitions=old.partitions)
        node.groups.topic_changed(topic)
        await node.until(lambda: node.shard(0)[1] == 0)
        assert await node.commit(0, 5) == 0 and node.committed(0) == 5
    on_node(scenario)


def test_loading_coordinator_reports_it_and_is_not_listed_as_loaded(on_node):
    async def scenario(node):
        await node.groups.stop()
        node.groups = GroupCoordinator(node)
        node.groups.start(node.store)
        assert node.shard(0) == (None, 14)
        assert node.groups.shards() == ([], True)
        await node.until(lambda: not node.groups.shards()[1])
        assert len(node.groups.shards()[0]) == PARTITIONS
    on_node(scenario)


def test_pending_response_is_delivered_whenever_it_is_awaited():
    async def scenario():
        pending, got = DeferredResponse(lambda error: error, shape=lambda message: message * 2), []
        pending.then(got.append)
        pending.respond(3)
        pending.respond(4)
        pending.refuse(5)
        assert got == [6] and pending.message == 6 and await pending == 6
        late = DeferredResponse(lambda error: -error)
        late.refuse(16)
        late.then(got.append)
        assert got == [6, -16] and late.is_set
    asyncio.run(scenario())


@pytest.mark.parametrize("text,value", [
    ("", 0), ("a", 97), ("group", 98629247), ("\u00e4\u00f6\u00fc", 226986),
    ("\U0001f600", 1772899), ("polygenelubricants", -2147483648)])
def test_the_hash_of_a_group_is_that_of_java(text, value):
    assert java_hash(text) == value
    assert partition_of(text, 50) == (0 if value == -2**31 else abs(value)) % 50


def test_events_of_all_partitions_are_counted_together(on_node):
    async def scenario(node):
        for index in (0, 1, 1):
            assert await node.commit(index, 5) == 0
        found = await group_events(node.groups)
        assert (found["offset_committed"], found["record_written"]) == (3, 3)
        assert sum(found.values()) == 6
    on_node(scenario)

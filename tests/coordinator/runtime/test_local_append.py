"""Markers with simulated logs and waiters: calls to each partition, and their times."""

import asyncio
import os
from types import SimpleNamespace

import pytest

from pylog._native.log.log import LogError
from pylog.config import internal_topics
from pylog.coordinator.runtime import local_append
from pylog.coordinator.runtime.local_append import Markers
from pylog.coordinator.runtime.transactional_batches import UNKNOWN, Marker
from pylog.protocol.errors import ErrorCode

NOW = 5_000
MARKER = Marker(7, 3, 4, True, 2)
NONE, MOVED = ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER
STORAGE = ErrorCode.KAFKA_STORAGE_ERROR
NO_PARTITION = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def failure():
    return LogError(5, STORAGE, "planted")


class Log:
    """A partition's log. appended: appended markers; refuses: the steps that fail."""

    def __init__(self):
        self.appended, self.refuses, self.failed = [], set(), False
        self.durable, self.known = -1, UNKNOWN

    def append(self, data, now_ms, trusted=False):
        if "append" in self.refuses:
            raise failure()
        self.appended.append((data, now_ms, trusted))
        # Two records each: the marker's offset is the last one's.
        return 2 * len(self.appended) - 2, 2 * len(self.appended) - 1


class Waits:
    """Reports when an offset is durable. asked: (slot, log, offset), in order."""

    def __init__(self, count):
        self.count, self.asked, self.woken = count, [], []
        self.readable, self.writable = os.pipe()

    def fileno(self):
        return self.readable

    def wait_acknowledged(self, slot, log, offset):
        assert 0 <= slot < self.count
        self.asked.append((slot, log, offset))
        if "flush" in log.refuses:
            raise failure()
        return log.durable >= offset

    def take(self):
        found, self.woken = self.woken, []
        os.read(self.readable, 1)
        return found

    def wake(self, *slots):
        self.woken = list(slots)
        os.write(self.writable, b"1")

    def end(self):
        os.close(self.readable)
        os.close(self.writable)


class World:
    """logs: (topic, partition) -> Log. answers: names of writes -> error, in order of completion.
    """

    def __init__(self, monkeypatch, slots=2):
        self.logs, self.waits, self.answers, self.offsets = {}, None, {}, []
        monkeypatch.setattr(local_append, "SLOTS", slots)
        monkeypatch.setattr(local_append, "FlushWaits", self._waits)
        monkeypatch.setattr(local_append, "producer_of", self._producer_of)
        get = SimpleNamespace(get=lambda topic, index: self.logs.get((topic, index)))
        node = SimpleNamespace(logs=get, now_ms=lambda: NOW)
        self.markers = Markers(node, self)

    def _waits(self, count):
        self.waits = Waits(count)
        return self.waits

    def _producer_of(self, log, producer_id, now_ms):
        assert (producer_id, now_ms) == (MARKER.producer_id, NOW)
        return log.known

    def end_transaction(self, index, marker, pending):
        self.offsets.append((index, marker, pending))

    def add(self, *names):
        made = [Log() for _ in names]
        self.logs |= {(name, 0): log for name, log in zip(names, made)}
        return made

    def write(self, name, *topics):
        """Write once, to one partition of each topic."""
        for number, topic in enumerate(topics):
            self.markers._write(MARKER, MARKER.batch(NOW), NOW, topic, 0).then(
                lambda error, key=name + "123"[number]: self.answers.update({key: error}))

    async def wake(self, *slots):
        self.waits.wake(*slots)
        while self.waits.woken:
            await asyncio.sleep(0)


@pytest.fixture
def run(monkeypatch):
    """Run scenario(world) between a start and a close."""
    def run_it(scenario, **options):
        async def whole():
            world = World(monkeypatch, **options)
            world.markers.start()
            try:
                await scenario(world)
            finally:
                world.markers.close()
                world.waits.end()
        asyncio.run(whole())
    return run_it


# Writes and responses.

def test_marker_is_written_once_and_answered_when_durable(run):
    async def scenario(world):
        log, = world.add("t")
        under_way = asyncio.ensure_future(world.markers.write(MARKER, [("t", 0)]))
        await asyncio.sleep(0)
        assert log.appended == [(MARKER.batch(NOW), NOW, True)]
        await world.wake()
        assert not under_way.done()
        log.durable = 1
        await world.wake(1)
        assert await under_way == {("t", 0): NONE} and len(log.appended) == 1
        assert world.waits.asked == [(1, log, 1)] * 2
    run(scenario)


def test_each_partition_has_its_own_result(run):
    async def scenario(world):
        log, broken, ahead = world.add("t", "broken", "ahead")
        log.durable, broken.refuses, ahead.known = 9, {"append"}, (4, 0, -1, -1)
        assert await world.markers.write(MARKER, [
            ("ahead", 0), ("t", 0), ("t", 1), ("broken", 0)]) == {
            ("ahead", 0): ErrorCode.INVALID_PRODUCER_EPOCH, ("t", 0): NONE,
            ("t", 1): NO_PARTITION, ("broken", 0): STORAGE}
        assert ahead.appended == []
    run(scenario)


def test_a_marker_of_an_older_coordinator_is_not_written(run):
    async def scenario(world):
        log, = world.add("t")
        log.known = (MARKER.epoch - 1, MARKER.coordinator_epoch + 1, 0, 0)
        assert await world.markers.write(MARKER, [("t", 0)]) == {
            ("t", 0): ErrorCode.TRANSACTION_COORDINATOR_FENCED}
        assert log.appended == [] and world.waits.asked == []
    run(scenario)


def test_group_coordinator_writes_the_markers_of_its_own_topic(run):
    async def scenario(world):
        log, = world.add(internal_topics.OFFSETS)
        under_way = asyncio.ensure_future(
            world.markers.write(MARKER, [(internal_topics.OFFSETS, 0)]))
        await asyncio.sleep(0)
        (index, marker, pending), = world.offsets
        assert (index, marker) == (0, MARKER) and log.appended == []
        pending.refuse(ErrorCode.NOT_COORDINATOR)
        assert await under_way == {(internal_topics.OFFSETS, 0): ErrorCode.NOT_COORDINATOR}
        assert await world.markers.write(MARKER, [(internal_topics.OFFSETS, 1)]) == {
            (internal_topics.OFFSETS, 1): NO_PARTITION}
    run(scenario)


def test_data_batch_is_validated_and_answered_when_durable(run):
    async def scenario(world):
        log, = world.add("t")
        under_way = asyncio.ensure_future(world.markers.append("t", 0, b"data"))
        await asyncio.sleep(0)
        assert log.appended == [(b"data", NOW, False)] and not under_way.done()
        log.durable = 1
        await world.wake(1)
        assert await under_way == NONE
        assert await world.markers.append("t", 1, b"data") == MOVED
        log.refuses = {"append"}
        assert await world.markers.append("t", 0, b"data") == STORAGE
    run(scenario)


def test_nothing_is_appended_after_close(run):
    async def scenario(world):
        log, = world.add("t")
        world.markers.close()
        assert await world.markers.write(MARKER, [("t", 0), ("t", 1)]) == {
            ("t", 0): MOVED, ("t", 1): MOVED}
        assert await world.markers.append("t", 0, b"data") == MOVED
        assert log.appended == []
    run(scenario)


# Waiting.

def test_markers_of_one_log_share_a_slot_and_are_answered_in_order(run):
    async def scenario(world):
        log, = world.add("t")
        world.write("a", "t", "t")
        world.write("b", "t")
        assert world.waits.asked == [(1, log, 1)]
        log.durable = 3
        await world.wake(1)
        assert world.answers == {"a1": NONE, "a2": NONE}
        assert world.waits.asked[-1] == (1, log, 5)
        log.durable = 5
        await world.wake(1)
        assert world.answers["b1"] == NONE
    run(scenario)


def test_immediately_durable_marker_frees_its_slot(run):
    async def scenario(world):
        for log in world.add("a", "b", "c"):
            log.durable = 9
        world.write("w", "a", "b", "c")
        assert world.answers == {"w1": NONE, "w2": NONE, "w3": NONE}
        assert [slot for slot, _, _ in world.waits.asked] == [1] * 3
    run(scenario)


def test_log_without_a_slot_is_served_when_one_is_released(run):
    async def scenario(world):
        a, b, c, d = world.add("a", "b", "c", "d")
        world.write("w", "a", "b", "c")
        world.write("x", "d")
        assert world.waits.asked == [(1, a, 1), (0, b, 1)]
        c.durable, a.durable = 1, 1
        await world.wake(1)
        # Responses are sent for durable markers, and the slot moves to the next waiting marker.
        assert world.answers == {"w1": NONE, "w3": NONE}
        assert world.waits.asked[2:] == [(1, a, 1), (1, c, 1), (1, d, 1)]
        b.durable, d.durable = 1, 1
        await world.wake(0, 1)
        assert world.answers == dict.fromkeys(("w1", "w2", "w3", "x1"), NONE)
        # Both slots are free again.
        a.durable = b.durable = -1
        world.write("y", "a", "b", "c")
        assert {slot for slot, _, _ in world.waits.asked[-2:]} == {0, 1}
        assert [log for _, log, _ in world.waits.asked[-2:]] == [a, b]
    run(scenario)


def test_failed_log_rejects_all_its_waiters_and_frees_its_slot(run):
    async def scenario(world):
        a, b = world.add("a", "b")
        world.write("w", "a", "a", "b")
        a.failed = True
        b.durable = 1
        await world.wake(0)
        assert world.answers == {"w1": MOVED, "w2": MOVED, "w3": NONE}
        world.write("x", "a")
        assert world.waits.asked[-1][:2] == (0, a)
    run(scenario, slots=1)


def test_disk_failing_during_the_request_rejects_all_waiters(run):
    async def scenario(world):
        a, b = world.add("a", "b")
        world.write("w", "a", "a", "b")
        a.refuses, a.durable = {"flush"}, 9
        await world.wake(0)
        assert world.answers == {"w1": STORAGE, "w2": STORAGE}
        assert world.waits.asked[-1] == (0, b, 1)
        # The log has moved to another disk: its sequence starts again.
        a.refuses = set()
        b.durable = 9
        await world.wake(0)
        world.write("x", "a")
        assert world.answers["x1"] == NONE
    run(scenario, slots=1)


# Close.

def test_pending_requests_are_rejected_at_close_and_checks_end(monkeypatch):
    async def scenario():
        world = World(monkeypatch)
        world.markers.close()
        world.markers.start()
        world.add("a", "b", "c")
        world.write("w", "a", "b", "c")
        world.markers.close()
        assert world.answers == {"w1": MOVED, "w2": MOVED, "w3": MOVED}
        assert not asyncio.get_running_loop().remove_reader(world.waits.readable)
        world.markers.close()
        world.waits.end()
    asyncio.run(scenario())

"""The share partitions of a broker: sessions that end, restart and overlap."""

import asyncio
from types import SimpleNamespace

import pytest

from pylog._native.log.log import Log, LogDir
from pylog._native.records import batch
from pylog.coordinator.share.partition_state import ShareState
from pylog.protocol.errors import ErrorCode
from pylog.share.acknowledgement_types import ACCEPT
from pylog.share.in_flight import Limits, Wanted
from pylog.share.manager import Fetch, SharePartitions
from pylog.share.metrics import ShareMetrics

NOW = 1_700_000_000_000
TOPIC_ID = b"t" * 16
GROUP = "g"
NODE = 1
LOCK_MS = 60_000
WAIT_S = 20


class Persister:
    """Stores nothing. While `gate` is cleared, writes wait. error: result of writes."""

    def __init__(self):
        self.gate = asyncio.Event()
        self.gate.set()
        self.error = ErrorCode.NONE
        self.failure = None
        self.read_error = ErrorCode.NONE
        self.reads = asyncio.Event()
        self.reads.set()

    async def read(self, key, leader_epoch):
        await self.reads.wait()
        if self.failure is not None:
            raise self.failure
        if self.read_error != ErrorCode.NONE:
            return (self.read_error, None), None
        state = ShareState()
        state.start_offset = 0
        return (ErrorCode.NONE, None), state

    async def summary(self, key):
        return (ErrorCode.NONE, None), None

    async def write(self, *arguments):
        await self.gate.wait()
        return self.error, None


class World:
    """A broker that leads all partitions of a topic, and a group's share partitions on it."""

    def __init__(self, path, partitions=1, lock_ms=LOCK_MS):
        limits = Limits(lock_ms, deliveries_max=5, records_max=2000, renews=True)
        topic = self.topic = SimpleNamespace(id=TOPIC_ID, name="t", partitions=[
            SimpleNamespace(leader=NODE, leader_epoch=0)] * partitions)
        directory = LogDir(path, 2)
        self.logs = []
        for index in range(partitions):
            self.logs.append(Log.open(directory, "t", index, TOPIC_ID, now_ms=NOW))
            self.logs[index].become_leader(0)
        node = SimpleNamespace(
            settings={"group.share.max.share.sessions": 10}, node_id=NODE, now_ms=lambda: NOW,
            image=SimpleNamespace(topics_by_id={TOPIC_ID: topic}, topics={"t": topic}),
            logs=SimpleNamespace(get=lambda name, index: self.logs[index]))
        settings = SimpleNamespace(
            limits=lambda group: limits, is_committed=lambda group: False,
            begins=lambda group: "earliest", lock_ms=lambda group: lock_ms)
        self.persister = Persister()
        self.served = SharePartitions(node, None, self.persister, settings, ShareMetrics())

    def append(self, index, count):
        self.logs[index].append(
            batch.build([(None, b"v", NOW, ()) for _ in range(count)]), NOW)

    def begin(self, member="m", connection=1):
        return self.served.begin_session(
            GROUP, member, [(TOPIC_ID, index) for index in range(len(self.logs))], connection)

    def lead(self, node, epoch):
        """Give partition 0 another leader."""
        self.topic.partitions[0] = SimpleNamespace(leader=node, leader_epoch=epoch)
        if node == NODE:
            self.logs[0].become_leader(epoch)
        else:
            self.logs[0].become_follower(epoch)
        self.served.topic_changed(self.topic)

    async def fetch(self, session, wait_ms=0):
        """Return the session's records: {partition: [(first, last, delivery count)]}."""
        rows = await self.served.fetch(Fetch(
            session, Wanted(session.member_id, 500, 500, False), wait_ms, 1, 1 << 20),
            list(session.partitions))
        return {place[1]: [(row.first, row.last, row.deliveries) for row in found.acquired.rows]
                for place, found in rows.items() if found.acquired.rows}

    async def until(self, session, wanted):
        """Fetch until the session has received exactly `wanted`."""
        found = {}
        async with asyncio.timeout(WAIT_S):
            while found != wanted:
                for index, rows in (await self.fetch(session, 50)).items():
                    found.setdefault(index, []).extend(rows)

    async def until_watched(self):
        """Wait until a fetch waits for partition 0's log."""
        while (found := self.served.find(GROUP, (TOPIC_ID, 0))) is None or not found.is_watched:
            await asyncio.sleep(0.01)

    async def accept(self, index, first, last, member="m"):
        return (await self.served.acknowledge(
            GROUP, member, (TOPIC_ID, index), [(first, last, [ACCEPT])]))[0]


@pytest.fixture
def run(tmp_path):
    """Run a test's coroutine in a world with this many partitions."""
    def runs(steps, partitions=1, lock_ms=LOCK_MS):
        async def all_of_it():
            world = World(tmp_path, partitions, lock_ms)
            try:
                async with asyncio.timeout(4 * WAIT_S):
                    await steps(world)
            finally:
                world.persister.gate.set()
                await world.served.stop()
        asyncio.run(all_of_it())
    return runs


def test_member_keeps_its_records_in_a_new_session(run):
    async def steps(world):
        world.append(0, 5)
        await world.until(world.begin(), {0: [(0, 4, 1)]})
        world.append(0, 5)
        await world.until(world.begin(connection=2), {0: [(5, 9, 1)]})
        world.served.closed(1)
        assert await world.accept(0, 0, 4) == await world.accept(0, 5, 9) == ErrorCode.NONE
    run(steps)


@pytest.mark.parametrize("end", ["end_session", "closed"])
def test_a_session_that_ends_releases_nothing_that_a_later_session_acquires(run, end):
    async def steps(world):
        world.append(0, 5)
        await world.until(world.begin(), {0: [(0, 4, 1)]})
        world.persister.gate.clear()
        if end == "closed":
            world.served.closed(1)
        else:
            world.served.end_session(GROUP, "m")
        world.append(1, 5)
        again = world.begin(connection=2)
        await world.until(again, {1: [(0, 4, 1)]})
        world.persister.gate.set()
        await world.until(again, {0: [(0, 4, 2)]})
        assert await world.accept(1, 0, 4) == await world.accept(0, 0, 4) == ErrorCode.NONE
    run(steps, partitions=2)


def test_fetch_of_an_ended_session_acquires_nothing(run):
    async def steps(world):
        gone = world.begin("gone", connection=1)
        other = world.begin("other", connection=2)
        waiting = asyncio.create_task(world.fetch(gone, wait_ms=WAIT_S * 1000))
        await world.until_watched()
        world.served.closed(1)
        world.append(0, 5)
        assert await waiting == {}
        await world.until(other, {0: [(0, 4, 1)]})
    run(steps)


def test_records_of_forgotten_partitions_are_released_with_the_session(run):
    async def steps(world):
        world.append(0, 5)
        session = world.begin()
        await world.until(session, {0: [(0, 4, 1)]})
        world.served.sessions.forget(session, [(TOPIC_ID, 0)])
        world.served.closed(1)
        await world.until(world.begin("n", connection=2), {0: [(0, 4, 2)]})
    run(steps)


def test_group_without_sessions_reloads_its_state(run):
    async def steps(world):
        waiting = asyncio.create_task(world.fetch(world.begin(), wait_ms=WAIT_S * 1000))
        await world.until_watched()
        world.served.closed(1)
        await waiting
        assert world.served.find(GROUP, (TOPIC_ID, 0)) is None
    run(steps)


def test_a_member_without_room_for_its_new_session_releases_its_records(run):
    async def steps(world):
        world.append(0, 5)
        await world.until(world.begin(), {0: [(0, 4, 1)]})
        world.served.sessions.begin("other", "m", [(TOPIC_ID, at) for at in range(199_999)], 3)
        assert world.begin(connection=2) is not None
        assert world.served.begin_session(
            GROUP, "m", [(TOPIC_ID, at) for at in range(2)], 2) is None
        world.served.sessions.end("other", "m")
        await world.until(world.begin("n", connection=4), {0: [(0, 4, 2)]})
    run(steps)


@pytest.mark.parametrize("error", [
    ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_an_acknowledgement_names_the_coordinator_that_is_away_and_may_be_repeated(run, error):
    async def steps(world):
        world.append(0, 5)
        await world.until(world.begin(), {0: [(0, 4, 1)]})
        world.persister.error = error
        assert await world.accept(0, 0, 4) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        world.persister.error = ErrorCode.NONE
        assert await world.accept(0, 0, 4) == ErrorCode.NONE
    run(steps)


def test_records_whose_release_failed_are_delivered_when_their_lock_expires(run):
    async def steps(world):
        world.append(0, 5)
        await world.until(world.begin(), {0: [(0, 4, 1)]})
        world.persister.gate.clear()
        world.served.closed(1)
        partition = world.served.find(GROUP, (TOPIC_ID, 0))
        # The timer that was set on acquisition fires while they are being written, and is not set
        # again.
        world.served._timers.pop(partition.key).cancel()
        partition.expire()
        world.persister.error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        other = world.begin("other", connection=2)
        world.persister.gate.set()
        await world.until(other, {0: [(0, 4, 2)]})
    run(steps, lock_ms=1000)


def test_state_read_is_retried_after_an_unexpected_error(run):
    async def steps(world):
        world.append(0, 5)
        world.persister.failure = RuntimeError("planted")
        session = world.begin()
        rows = await world.served.fetch(Fetch(
            session, Wanted("m", 500, 500, False), WAIT_S * 1000, 1, 1 << 20), [(TOPIC_ID, 0)])
        assert rows[TOPIC_ID, 0].error == ErrorCode.UNKNOWN_SERVER_ERROR
        world.persister.failure = None
        await world.until(session, {0: [(0, 4, 1)]})
    run(steps)


def test_acknowledgement_after_a_leader_change_returns_the_new_leader(run):
    async def steps(world):
        world.append(0, 5)
        await world.until(world.begin(), {0: [(0, 4, 1)]})
        world.lead(NODE + 1, 1)
        assert await world.accept(0, 0, 1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        world.lead(NODE, 2)
        # The records are no longer acquired: this member or another one receives them again.
        assert await world.accept(0, 2, 3) == ErrorCode.INVALID_RECORD_STATE
        await world.until(world.begin(), {0: [(0, 4, 1)]})
        assert await world.accept(0, 0, 4) == ErrorCode.NONE
    run(steps)


def test_an_acknowledgement_waits_while_the_state_is_loaded(run):
    async def steps(world):
        world.append(0, 5)
        world.begin()
        world.persister.reads.clear()
        accepting = asyncio.create_task(world.accept(0, 0, 1))
        await asyncio.sleep(0.1)
        assert not accepting.done()
        world.persister.reads.set()
        assert await accepting == ErrorCode.INVALID_RECORD_STATE
    run(steps)


def test_an_acknowledgement_fails_with_a_retriable_error_while_the_state_cannot_be_loaded(run):
    async def steps(world):
        world.begin()
        world.persister.read_error = ErrorCode.NOT_COORDINATOR
        assert await world.accept(0, 0, 1) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    run(steps)

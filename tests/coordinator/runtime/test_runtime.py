"""The runtime of coordinators: a state machine that counts, on the journals of real logs."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from pylog._native.log.log import DISK_FULL, DISK_SYSTEM, Log, LogDir
from pylog._native.records import batch
from pylog.config.settings import Settings
from pylog.coordinator.runtime import shard
from pylog.coordinator.runtime.deferred_response import DeferredResponse
from pylog.coordinator.runtime.internal_topic import TopicSpec, partition_of
from pylog.coordinator.runtime.journal import Journal
from pylog.coordinator.runtime.runtime import Coordination, CoordinatorRuntime
from pylog.eventloop.end_of_tick import EndOfTick
from tests.coordinator.counter import Counter, Memory

PARTITIONS = 2
NOT_COORDINATOR, UNKNOWN = 16, -1
US, OTHERS = 1, 2


class Node:
    """The broker's interface for a runtime. Every partition is on a separate disk."""

    node_id = US

    def __init__(self, root, topics):
        self.settings = Settings()
        self.now_ms = lambda: 5_000
        self.defer = EndOfTick().defer
        self.image = SimpleNamespace(topics={})
        self.disks, self.parts, self.runtimes = {}, {}, {}
        for number, name in enumerate(topics, 1):
            for index in range(PARTITIONS):
                folder = root / f"{name}-disk-{index}"
                folder.mkdir()
                disk = self.disks[name, index] = LogDir(str(folder), 1)
                log = self.parts[name, index] = Log.open(disk, name, index, bytes(16), now_ms=1)
                log.become_leader(0)
            self.image.topics[name] = SimpleNamespace(
                name=name, id=bytes((number,)) * 16, partitions=[
                    SimpleNamespace(leader=US, leader_epoch=0)] * PARTITIONS)
        self.logs = SimpleNamespace(get=lambda name, index: self.parts[name, index])
        self.lease_ms = self.expiry_ms = 0
        self.snapshots = None          # (topic id, index) -> Memory
        self.made = []
        self.expire = lambda state_machine: iter(())

    def _open(self, topic_id, index, clock):
        def make():
            self.made.append(Counter(clock, self.lease_ms))
            return self.made[-1]
        return make, None if self.snapshots is None else self.snapshots.setdefault(
            (topic_id, index), Memory())

    async def start(self, name="counts"):
        runtime = self.runtimes[name] = CoordinatorRuntime(Coordination(
            TopicSpec(name, PARTITIONS, 1, {}), self._open,
            expire=lambda state_machine: self.expire(state_machine), expiry_ms=self.expiry_ms),
            self)
        runtime.start()
        await self.until(lambda: len(runtime.shards()[0]) == len(
            [index for index in range(PARTITIONS) if self.parts[name, index] is not None]))
        return runtime

    async def again(self, name="counts"):
        await self.runtimes[name].stop()
        return await self.start(name)

    def elect(self, index, leader, epoch, name="counts"):
        """Change a partition's leader, as the publisher does."""
        log = self.parts[name, index]
        if leader == US:
            log.become_leader(epoch)
        else:
            log.become_follower(epoch)
        self.tell(index, leader, epoch, name)

    def tell(self, index, leader, epoch, name="counts"):
        topic = self.image.topics[name]
        partitions = list(topic.partitions)
        partitions[index] = SimpleNamespace(leader=leader, leader_epoch=epoch)
        topic = SimpleNamespace(name=name, id=topic.id, partitions=partitions)
        self.image = SimpleNamespace(topics={**self.image.topics, name: topic})
        self.runtimes[name].topic_changed(topic)

    async def until(self, condition):
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.005)

    async def serves(self, index, name="counts"):
        runtime = self.runtimes[name]
        await self.until(lambda: runtime.query(key_of(index), Counter.read, "")[1] == 0)


def key_of(index: int) -> str:
    return next(key for key in map(str, range(100)) if partition_of(key, PARTITIONS) == index)


KEYS = [key_of(index) for index in range(PARTITIONS)]


def count(runtime, key) -> DeferredResponse:
    return runtime.run(key, DeferredResponse(lambda code: code.name), Counter.count, key)


def read(runtime, key) -> DeferredResponse:
    return runtime.run(key, DeferredResponse(lambda code: code.name), Counter.read, key)


def waiter(runtime, key) -> DeferredResponse:
    pending = DeferredResponse(lambda code: code.name)
    return runtime.run(key, pending, Counter.wait, key, pending)


async def counted_at_last(runtime, key):
    """Send like a client that retries on errors."""
    async with asyncio.timeout(20):
        while isinstance(found := await count(runtime, key), str):
            await asyncio.sleep(0.005)
    return found


@pytest.fixture
def on_node(tmp_path, monkeypatch):
    """Run scenario(node, runtime) on a loop, between a start and a stop."""
    monkeypatch.setattr(shard, "RELOAD_SECONDS_MIN", 0.02)

    def run(scenario, topics=("counts",), **options):
        async def whole():
            node = Node(tmp_path, topics)
            vars(node).update(options)
            runtime = await node.start()
            try:
                await scenario(node, runtime)
            finally:
                for started in node.runtimes.values():
                    await started.stop()
        asyncio.run(whole())
    return run


# ---- write before reply -------------------------------------------------------------------------

async def answers_come_after_their_records(node, runtime):
    log, seen = node.parts["counts", 0], []
    for _ in range(5):
        pending = count(runtime, KEYS[0])
        other = waiter(runtime, KEYS[0])
        for one in (pending, other):
            one.then(lambda got: seen.append((got, log.flushed_offset)))
        if len(seen) % 2:
            await asyncio.sleep(0)
        await count(runtime, KEYS[0])
    await node.until(lambda: len(seen) == 10)
    # The record of the n-th count is at offset n - 1.
    assert all(flushed >= got for got, flushed in seen), seen
    assert sorted(got for got, _ in seen) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]


def test_response_is_sent_after_its_records_are_durable(on_node):
    on_node(answers_come_after_their_records)


@pytest.mark.parametrize("slip", [
    lambda journal, token, message: token.respond(message),
    # After the append, but not after the flush.
    lambda journal, token, message: (journal.append_now(), token.respond(message)),
])
def test_an_answer_before_the_disk_has_its_records_would_be_found(on_node, monkeypatch, slip):
    monkeypatch.setattr(Journal, "after", slip)
    with pytest.raises(AssertionError):
        on_node(answers_come_after_their_records)


def test_step_that_answers_early_is_not_written(on_node):
    async def scenario(node, runtime):
        await count(runtime, KEYS[0])
        pending = DeferredResponse(lambda code: code.name)

        def hasty(state_machine):
            pending.respond(state_machine.count(KEYS[0]))

        runtime.run(KEYS[0], pending, hasty)
        await node.serves(0)
        assert await read(runtime, KEYS[0]) == 1
        assert node.parts["counts", 0].end_offset == 1
    on_node(scenario)


def test_query_that_writes_is_rejected(on_node):
    async def scenario(node, runtime):
        with pytest.raises(AssertionError):
            runtime.query(KEYS[0], Counter.count, KEYS[0])
        await node.serves(0)
        assert await count(runtime, KEYS[0]) == 1
        assert node.parts["counts", 0].end_offset == 1
    on_node(scenario)


def test_read_waits_for_earlier_writes(on_node):
    async def scenario(node, runtime):
        counted, found = count(runtime, KEYS[0]), read(runtime, KEYS[0])
        assert not found.is_set
        assert await found == 1 and counted.is_set
        assert read(runtime, KEYS[0]).is_set
    on_node(scenario)


def test_a_step_that_fails_is_not_written_and_costs_a_reload(on_node):
    async def scenario(node, runtime):
        def failing(state_machine):
            state_machine.count(KEYS[0])
            raise KeyError("planted")

        assert await count(runtime, KEYS[0]) == 1
        assert await runtime.run(KEYS[0], DeferredResponse(lambda code: code), failing) == UNKNOWN
        assert count(runtime, KEYS[0]).message == "COORDINATOR_LOAD_IN_PROGRESS"
        assert await count(runtime, KEYS[1]) == 1
        await node.serves(0)
        assert await read(runtime, KEYS[0]) == 1
    on_node(scenario)


# ---- loading ------------------------------------------------------------------------------------

def test_a_start_reads_the_log(on_node):
    async def scenario(node, runtime):
        for _ in range(3):
            await count(runtime, KEYS[0])
        runtime = await node.again()
        assert await read(runtime, KEYS[0]) == 3 and await read(runtime, KEYS[1]) == 0
    on_node(scenario)


def test_state_served_after_a_load_is_on_disk(on_node):
    async def scenario(node, runtime):
        log = node.parts["counts", 0]
        log.append(batch.build([(KEYS[0].encode(), b"8", 5_000, ())]), 5_000, trusted=True)
        assert log.flushed_offset == 0
        node.elect(0, US, 1)
        await node.serves(0)
        assert log.flushed_offset == 1 and await read(runtime, KEYS[0]) == 8
    on_node(scenario)


def test_start_reads_the_log_after_the_snapshots_offset(on_node):
    async def scenario(node, runtime):
        await count(runtime, KEYS[0])
        await runtime.save(runtime.shards()[0][0])
        topic_id = node.image.topics["counts"].id
        memory = node.snapshots[topic_id, 0]
        assert (memory.stored, memory.last) == ({KEYS[0]: 1}, (0, 0))
        # The snapshot differs from the log's first record: the log is not read again.
        memory.stored[KEYS[0]] = 7
        memory.rows = lambda state_machine, changed: ()
        runtime = await node.again()
        assert await read(runtime, KEYS[0]) == 7 and memory.restored == 1
        assert await count(runtime, KEYS[0]) == 8
    on_node(scenario, snapshots={})


def test_a_snapshot_that_is_ahead_of_the_log_is_not_used(on_node):
    async def scenario(node, runtime):
        await count(runtime, KEYS[0])
        memory = node.snapshots[node.image.topics["counts"].id, 0]
        memory.write([(KEYS[0], 9)], (50, 0))
        memory.rows = lambda state_machine, changed: ()
        memory.write = lambda rows, applied: None
        runtime = await node.again()
        assert await read(runtime, KEYS[0]) == 1
    on_node(scenario, snapshots={})


def followed(log, records, base_offset, epoch):
    """Append a batch from a leader. records: [(key, value)]."""
    copy = bytearray(batch.build([(key, value, 5_000, ()) for key, value in records]))
    copy[:8] = base_offset.to_bytes(8, "big")
    copy[12:16] = epoch.to_bytes(4, "big")
    log.append_as_follower(bytes(copy), 5_000)


@pytest.mark.parametrize("base_offset, is_kept", [(1, True), (2, False)])
def test_a_snapshot_is_not_used_if_records_after_it_were_compacted_away(
        on_node, base_offset, is_kept):
    async def scenario(node, runtime):
        log, other = node.parts["counts", 0], KEYS[0] + " "
        await count(runtime, KEYS[0])
        await runtime.save(runtime.shards()[0][0])
        memory = node.snapshots[node.image.topics["counts"].id, 0]
        node.elect(0, OTHERS, 1)
        # Another leader's tombstone for this key would have had offset 1.
        memory.stored["deleted"] = 7
        followed(log, [(other.encode(), b"3")], base_offset, 1)
        node.elect(0, US, 2)
        await node.serves(0)
        found = runtime.shards()[0][0].state_machine.counts
        assert found == {KEYS[0]: 1, other: 3, **({"deleted": 7} if is_kept else {})}
        assert ("deleted" in memory.stored) == is_kept
        await count(runtime, KEYS[0])
        await runtime.save(runtime.shards()[0][0])
        assert memory.stored == {**found, KEYS[0]: 2}
        assert memory.last == (log.end_offset - 1, 2)
    on_node(scenario, snapshots={})


def test_a_snapshot_is_not_used_if_the_log_starts_after_it(on_node):
    async def scenario(node, runtime):
        log = node.parts["counts", 0]
        for _ in range(3):
            await count(runtime, KEYS[0])
        memory = node.snapshots[node.image.topics["counts"].id, 0]
        memory.write([("deleted", 7)], (0, 0))
        memory.rows = lambda state_machine, changed: ()
        memory.write = lambda rows, applied: None
        log.move_start(2)
        node.elect(0, US, 1)
        await node.serves(0)
        assert runtime.shards()[0][0].state_machine.counts == {KEYS[0]: 3}
    on_node(scenario, snapshots={})


def test_partition_is_served_once_its_log_is_open(on_node):
    async def scenario(node, runtime):
        await runtime.stop()
        log, node.parts["counts", 1] = node.parts["counts", 1], None
        runtime = await node.start()
        assert await count(runtime, KEYS[0]) == 1
        assert count(runtime, KEYS[1]).message == "NOT_COORDINATOR"
        node.parts["counts", 1] = log
        assert await counted_at_last(runtime, KEYS[1]) == 1
    on_node(scenario)


@pytest.mark.parametrize("work", ["_save", "_expire"])
def test_background_work_continues_after_an_unexpected_error(
        on_node, monkeypatch, work):
    real, runs = getattr(CoordinatorRuntime, work), []

    async def failing_once(self):
        runs.append(1)
        if len(runs) == 1:
            raise ValueError("planted")
        await real(self)
    monkeypatch.setattr(CoordinatorRuntime, work, failing_once)

    async def scenario(node, runtime):
        await node.until(lambda: len(runs) == 2)
    on_node(scenario, expiry_ms=10**6)


# ---- leadership ---------------------------------------------------------------------------------

def test_waiting_requests_are_rejected_when_leadership_moves(on_node):
    async def scenario(node, runtime):
        await count(runtime, KEYS[0])
        held, waiting = count(runtime, KEYS[0]), waiter(runtime, KEYS[0])
        elsewhere = waiter(runtime, KEYS[1])
        state_machine = runtime.shards()[0][0].state_machine
        node.elect(0, OTHERS, 1)
        assert (held.message, waiting.message) == ("NOT_COORDINATOR",) * 2
        assert count(runtime, KEYS[0]).message == "NOT_COORDINATOR"
        assert runtime.query(KEYS[0], Counter.read, KEYS[0])[1] == NOT_COORDINATOR
        assert all(one.state_machine is not state_machine for one in runtime.shards()[0])
        assert not elsewhere.is_set and await count(runtime, KEYS[1]) == 1
        assert elsewhere.message == 1
    on_node(scenario)


def test_newer_term_includes_records_of_other_leaders(on_node):
    async def scenario(node, runtime):
        log = node.parts["counts", 0]
        await count(runtime, KEYS[0])
        node.elect(0, OTHERS, 1)
        copy = bytearray(batch.build([(KEYS[0].encode(), b"41", 5_000, ())]))
        copy[:8] = log.end_offset.to_bytes(8, "big")
        copy[12:16] = (1).to_bytes(4, "big")
        log.append_as_follower(bytes(copy), 5_000)
        node.elect(0, US, 2)
        assert count(runtime, KEYS[0]).message == "COORDINATOR_LOAD_IN_PROGRESS"
        await node.serves(0)
        assert await count(runtime, KEYS[0]) == 42
        runtime = await node.again()
        assert await read(runtime, KEYS[0]) == 42
    on_node(scenario)


def test_new_term_of_the_same_leader_is_loaded_again(on_node):
    async def scenario(node, runtime):
        await count(runtime, KEYS[0])
        waiting = waiter(runtime, KEYS[0])
        node.elect(0, US, 3)
        assert waiting.message == "NOT_COORDINATOR"
        assert await counted_at_last(runtime, KEYS[0]) == 2
        assert node.parts["counts", 0].epoch_of(1) == 3
    on_node(scenario)


def test_change_within_a_leader_epoch_keeps_the_state_machine(on_node):
    async def scenario(node, runtime):
        waiting = waiter(runtime, KEYS[0])
        node.elect(0, US, 0)
        await count(runtime, KEYS[0])
        assert waiting.message == 1
    on_node(scenario)


def test_a_change_under_an_older_epoch_changes_nothing(on_node):
    async def scenario(node, runtime):
        node.elect(0, US, 5)
        assert await counted_at_last(runtime, KEYS[0]) == 1
        waiting = waiter(runtime, KEYS[0])
        node.tell(0, OTHERS, 4)
        node.tell(0, US, 3)
        assert not waiting.is_set and await count(runtime, KEYS[0]) == 2
        node.elect(0, OTHERS, 6)
        node.tell(0, US, 5)
        assert count(runtime, KEYS[0]).message == "NOT_COORDINATOR"
    on_node(scenario)


def slow_replay(monkeypatch) -> tuple[threading.Event, threading.Event]:
    """Return two events: set when the next replay of a record has begun; set by the test to
    continue it.
    """
    replay, begun, goes_on = Counter.replay, threading.Event(), threading.Event()

    def slow(state_machine, key, value):
        begun.set()
        assert goes_on.wait(20)
        replay(state_machine, key, value)

    monkeypatch.setattr(Counter, "replay", slow)
    return begun, goes_on


def test_load_that_ends_in_another_term_is_discarded(on_node, monkeypatch):
    async def scenario(node, runtime):
        for _ in range(3):
            await count(runtime, KEYS[0])
        replay = Counter.replay
        begun, goes_on = slow_replay(monkeypatch)
        node.elect(0, US, 1)
        await node.until(begun.is_set)
        late = node.made[-1]
        node.elect(0, OTHERS, 2)
        node.elect(0, US, 3)
        monkeypatch.setattr(Counter, "replay", replay)
        goes_on.set()
        await node.serves(0)
        assert await read(runtime, KEYS[0]) == 3
        # It ended at the next record.
        assert not late.is_loaded and late.counts == {KEYS[0]: 1}
        assert runtime.shards()[0][0].state_machine is not late
        # No other loss of leadership was noted.
        assert await count(runtime, KEYS[1]) == 1
    on_node(scenario)


def test_load_that_ends_after_leadership_moved_is_discarded(on_node, monkeypatch):
    async def scenario(node, runtime):
        await count(runtime, KEYS[0])
        begun, goes_on = slow_replay(monkeypatch)
        node.elect(0, US, 1)
        await node.until(begun.is_set)
        node.elect(0, OTHERS, 2)
        goes_on.set()
        # Loads are sequential: when the next load ends, the first has ended too.
        node.elect(1, US, 1)
        await node.serves(1)
        assert count(runtime, KEYS[0]).message == "NOT_COORDINATOR"
    on_node(scenario)


def test_step_of_an_ended_term_is_not_appended(on_node):
    async def scenario(node, runtime):
        await count(runtime, KEYS[0])
        # The log has its new epoch before the runtime is notified.
        node.parts["counts", 0].become_leader(4)
        assert await count(runtime, KEYS[0]) == "NOT_COORDINATOR"
        assert node.parts["counts", 0].end_offset == 1
        node.elect(0, US, 4)
        assert await counted_at_last(runtime, KEYS[0]) == 2
    on_node(scenario)


def test_term_begins_with_the_first_request_after_its_log_opens(on_node):
    async def scenario(node, runtime):
        await count(runtime, KEYS[0])
        # The image has the new term before the log.
        node.tell(0, US, 1)
        assert count(runtime, KEYS[0]).message == "NOT_COORDINATOR"
        node.parts["counts", 0].become_leader(1)
        assert await counted_at_last(runtime, KEYS[0]) == 2
        assert node.parts["counts", 0].epoch_of(1) == 1
    on_node(scenario)


def test_a_stop_ends_a_load(on_node, monkeypatch):
    async def scenario(node, runtime):
        for _ in range(3):
            await count(runtime, KEYS[0])
        def whole(*arguments, load=runtime._replay):
            load(*arguments)
            ended.set()

        ended, runtime._replay = threading.Event(), whole
        begun, goes_on = slow_replay(monkeypatch)
        node.elect(0, US, 1)
        await node.until(begun.is_set)
        late = node.made[-1]
        await runtime.stop()
        goes_on.set()
        await node.until(ended.is_set)
        assert late.counts == {KEYS[0]: 1} and not late.is_loaded
    on_node(scenario)


def test_requests_waiting_for_a_deleted_topic_are_rejected(on_node):
    async def scenario(node, runtime):
        held, waiting = count(runtime, KEYS[0]), waiter(runtime, KEYS[1])
        node.image = SimpleNamespace(topics={})
        runtime.topic_deleted()
        assert (held.message, waiting.message) == ("NOT_COORDINATOR",) * 2
        assert count(runtime, KEYS[0]).message == "NOT_COORDINATOR"
    on_node(scenario)


# ---- failures, time -----------------------------------------------------------------------------

def test_failed_write_to_one_partition_does_not_affect_others(on_node):
    async def scenario(node, runtime):
        assert await count(runtime, KEYS[0]) == 1
        node.disks["counts", 0].set_disk(DISK_FULL)
        assert await count(runtime, KEYS[0]) == "NOT_COORDINATOR"
        for expected in range(1, 6):
            assert await count(runtime, KEYS[1]) == expected
        node.disks["counts", 0].set_disk(DISK_SYSTEM)
        assert await counted_at_last(runtime, KEYS[0]) == 2
    on_node(scenario)


def test_timers_fire_after_a_reload(on_node):
    async def scenario(node, runtime):
        await count(runtime, KEYS[0])
        # Only the load has set a timer.
        node.lease_ms = 100
        node.elect(0, US, 1)
        await node.serves(0)
        await node.until(lambda: runtime.query(KEYS[0], Counter.read, KEYS[0])[0] == 0)
        await node.until(lambda: node.parts["counts", 0].flushed_offset == 2)
        node.lease_ms = 0
        runtime = await node.again()
        assert await read(runtime, KEYS[0]) == 0
    on_node(scenario)


def test_failed_expiry_of_one_partition_does_not_stop_others(on_node):
    async def scenario(node, runtime):
        def expiry(state_machine):
            if KEYS[0] in state_machine.counts:
                raise KeyError("planted")
            for key in list(state_machine.counts):
                state_machine.forget(key)
                yield

        for key in KEYS:
            await count(runtime, key)
        node.expire = expiry
        await runtime.expire()
        assert await read(runtime, KEYS[1]) == 0
        await node.serves(0)
        assert await read(runtime, KEYS[0]) == 1
    on_node(scenario)


# ---- steps in parts -----------------------------------------------------------------------------

def test_other_requests_are_served_between_chunks_of_a_long_step(on_node):
    async def scenario(node, runtime):
        long = runtime.run_in_slices(KEYS[0], DeferredResponse(lambda code: code.name),
                                     Counter.count_many, KEYS[0], 50)
        assert read(runtime, KEYS[0]) and not long.is_set
        assert runtime.query(KEYS[0], Counter.read, KEYS[0])[0] == 1
        assert await count(runtime, KEYS[0]) < 50
        assert await long == 51
        assert node.parts["counts", 0].flushed_offset == 51
    on_node(scenario)


def test_long_step_stops_with_an_error_when_its_term_ends(on_node):
    async def scenario(node, runtime):
        long = runtime.run_in_slices(KEYS[0], DeferredResponse(lambda code: code.name),
                                     Counter.count_many, KEYS[0], 10**9)
        await asyncio.sleep(0.01)
        node.elect(0, US, 1)
        assert await long == "NOT_COORDINATOR"
        await node.serves(0)
        found = await read(runtime, KEYS[0])
        assert found == node.parts["counts", 0].end_offset
        await asyncio.sleep(0.01)
        assert await read(runtime, KEYS[0]) == found
    on_node(scenario)


# ---- two coordinators ---------------------------------------------------------------------------

def test_two_coordinators_do_not_touch_each_other(on_node):
    async def scenario(node, counts):
        others = await node.start("others")
        for _ in range(3):
            assert await asyncio.gather(wait(count(counts, KEYS[0])), wait(count(others, KEYS[1])))
        waiting = waiter(others, KEYS[0])
        node.elect(0, OTHERS, 1)
        assert count(counts, KEYS[0]).message == "NOT_COORDINATOR"
        assert await count(others, KEYS[0]) == 1 and waiting.message == 1
        await counts.stop()
        assert await count(others, KEYS[1]) == 4
        others = await node.again("others")
        assert await read(others, KEYS[1]) == 4 and await read(others, KEYS[0]) == 1
    on_node(scenario, topics=("counts", "others"))


async def wait(pending):
    return await pending

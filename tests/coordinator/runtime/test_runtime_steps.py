"""Steps of a coordinator's runtime: rejected, failed and timer-driven; and queries about its
partitions.
"""

import asyncio
from types import SimpleNamespace

import pytest

from pylog.coordinator.runtime.deferred_response import DeferredResponse
from pylog.coordinator.runtime.runtime import _is_of_log
from pylog.protocol.errors import ErrorCode
from tests.coordinator.counter import Counter, Memory
from tests.coordinator.runtime.test_runtime import (
    KEYS,
    NOT_COORDINATOR,
    OTHERS,
    US,
    count,
    counted_at_last,
    on_node,
    read,
    slow_replay,
)

__all__ = ["on_node"]
NO_EPOCH, NO_LEADER = -1, -1
UNKNOWN_PRODUCER = -1, -1, -1, -1


def pending() -> DeferredResponse:
    return DeferredResponse(lambda code: code.name)


# ---- queries ------------------------------------------------------------------------------------

def test_runtime_returns_a_keys_leader_and_its_served_term(on_node):
    async def scenario(node, runtime):
        node.elect(0, US, 3)
        await node.serves(0)
        node.elect(1, OTHERS, 2)
        assert [runtime.leader_of(key) for key in KEYS] == [US, OTHERS]
        assert [runtime.epoch_of(key) for key in KEYS] == [3, NO_EPOCH]
        node.image = SimpleNamespace(topics={})
        assert runtime.leader_of(KEYS[0]) == NO_LEADER
        runtime.topic_deleted()
        assert runtime.epoch_of(KEYS[0]) == NO_EPOCH
        assert runtime.shards() == ([], False)
    on_node(scenario)


def test_runtime_returns_loaded_partitions_and_pending_loads(on_node, monkeypatch):
    async def scenario(node, runtime):
        assert [shard.index for shard in runtime.shards()[0]] == [0, 1]
        assert runtime.shards()[1] is False
        await count(runtime, KEYS[1])
        begun, goes_on = slow_replay(monkeypatch)
        node.elect(1, US, 1)
        await node.until(begun.is_set)
        loaded, is_loading = runtime.shards()
        assert ([shard.index for shard in loaded], is_loading) == ([0], True)
        goes_on.set()
        await node.serves(1)
        node.elect(1, OTHERS, 2)
        loaded, is_loading = runtime.shards()
        assert ([shard.index for shard in loaded], is_loading) == ([0], False)
    on_node(scenario)


def test_it_counts_the_records_that_it_wrote(on_node):
    async def scenario(node, runtime):
        assert runtime.records_written == 0
        await count(runtime, KEYS[0])
        await read(runtime, KEYS[0])
        await count(runtime, KEYS[1])
        assert runtime.records_written == 2
        assert [shard.journal.written for shard in runtime.shards()[0]] == [1, 1]
        assert all(shard.state_machine.records == [] for shard in runtime.shards()[0])
    on_node(scenario)


# ---- producers ----------------------------------------------------------------------------------

def test_producer_state_in_the_log_decides_the_step(on_node):
    async def scenario(node, runtime):
        seen = []

        def fault(known):
            seen.append(known)
            return ErrorCode.INVALID_PRODUCER_EPOCH if len(seen) == 1 else ErrorCode.NONE

        async def as_producer(index):
            return await runtime.run_as_producer(
                index, pending(), fault, 7, Counter.count, KEYS[index])

        assert await as_producer(0) == "INVALID_PRODUCER_EPOCH"
        assert node.parts["counts", 0].end_offset == 0
        assert await as_producer(0) == 1 and await as_producer(1) == 1
        assert seen == [UNKNOWN_PRODUCER] * 3
    on_node(scenario)


@pytest.mark.parametrize("index", [2, 3])
def test_partition_beyond_the_topics_count_has_no_producers(on_node, index):
    async def scenario(node, runtime):
        assert runtime.producer_at(index, 7) == (UNKNOWN_PRODUCER, NOT_COORDINATOR)
        assert runtime.producer_at(1, 7) == (UNKNOWN_PRODUCER, ErrorCode.NONE)
        asked = []
        found = runtime.run_as_producer(index, pending(), asked.append, 7, Counter.count, "k")
        assert found.message == "NOT_COORDINATOR" and not asked
    on_node(scenario)


def test_producer_state_is_read_after_gathered_records(on_node):
    async def scenario(node, runtime):
        counted = count(runtime, KEYS[0])
        assert node.parts["counts", 0].end_offset == 0
        runtime.producer_at(0, 7)
        assert node.parts["counts", 0].end_offset == 1 and not counted.is_set
    on_node(scenario)


# ---- read-only steps and partial steps ----------------------------------------------------------

def test_read_step_may_write_cleanup_records(on_node):
    async def scenario(node, runtime):
        await count(runtime, KEYS[0])

        def query(state_machine):
            state_machine.forget(KEYS[0])
            state_machine.cleanups = 1
            return "seen"

        assert runtime.query(KEYS[0], query) == ("seen", ErrorCode.NONE)
        state_machine = runtime.shards()[0][0].state_machine
        assert (state_machine.records, state_machine.cleanups) == ([], 0)
        await node.until(lambda: node.parts["counts", 0].end_offset == 2)
    on_node(scenario)


def test_read_step_with_a_response_for_another_request_is_rejected(on_node):
    async def scenario(node, runtime):
        def query(state_machine):
            state_machine.responses.append((pending(), 1))

        with pytest.raises(AssertionError):
            runtime.query(KEYS[0], query)
        await node.serves(0)
    on_node(scenario)


def test_state_machine_is_busy_during_a_long_step(on_node):
    async def scenario(node, runtime):
        shard = runtime.shards()[0][0]
        long = runtime.run_in_slices(KEYS[0], pending(), Counter.count_many, KEYS[0], 3)
        other = runtime.run_in_slices(KEYS[0], pending(), Counter.count_many, KEYS[0], 9)
        assert shard.halfway == 2
        assert max(await long, await other) == 12
        assert shard.halfway == 0
    on_node(scenario)


def test_failed_long_step_reloads_and_keeps_written_records(on_node):
    async def scenario(node, runtime):
        def failing(state_machine):
            state_machine.count(KEYS[0])
            yield
            state_machine.count(KEYS[0])
            raise KeyError("planted")

        long = runtime.run_in_slices(KEYS[0], pending(), failing)
        assert await long == "UNKNOWN_SERVER_ERROR"
        await node.serves(0)
        assert await read(runtime, KEYS[0]) == node.parts["counts", 0].end_offset <= 1
        assert runtime.shards()[0][0].halfway == 0
    on_node(scenario)


def test_long_step_for_a_foreign_key_is_rejected(on_node):
    async def scenario(node, runtime):
        node.elect(0, OTHERS, 1)
        begun = []
        found = runtime.run_in_slices(KEYS[0], pending(), begun.append)
        assert found.message == "NOT_COORDINATOR" and not begun
    on_node(scenario)


def test_a_stop_refuses_a_long_step_and_closes_it(on_node):
    async def scenario(node, runtime):
        ended = []

        def endless(state_machine):
            try:
                while True:
                    yield
            finally:
                ended.append(True)

        long = runtime.run_in_slices(KEYS[0], pending(), endless)
        await runtime.stop()
        assert await long == "NOT_COORDINATOR" and ended
        assert count(runtime, KEYS[1]).message == "NOT_COORDINATOR"
    on_node(scenario)


# ---- periodic steps -----------------------------------------------------------------------------

def test_failed_periodic_step_affects_only_its_partition(on_node):
    async def scenario(node, runtime):
        def step(state_machine):
            if state_machine is first:
                raise KeyError("planted")
            state_machine.count(KEYS[1])

        first = runtime.shards()[0][0].state_machine
        runtime.step_each(step)
        await node.until(lambda: node.parts["counts", 1].end_offset == 1)
        assert node.parts["counts", 0].end_offset == 0
        await node.serves(0)
        assert runtime.shards()[0][0].state_machine is not first
        assert await read(runtime, KEYS[1]) == 1
    on_node(scenario)


def test_partitions_led_elsewhere_run_no_steps(on_node):
    async def scenario(node, runtime):
        node.elect(0, OTHERS, 1)
        stepped = []
        runtime.step_each(stepped.append)
        assert stepped == [runtime.shards()[0][0].state_machine]
    on_node(scenario)


def test_the_timer_is_set_to_the_earliest_deadline(on_node):
    async def scenario(node, runtime):
        now_ms = int(asyncio.get_running_loop().time() * 1000)
        runtime._arm(None)
        assert runtime._timer is None
        runtime._arm(now_ms + 10**6)
        first = runtime._timer
        assert first.when() == (now_ms + 10**6 + 1) / 1000
        runtime._arm(now_ms + 10**6)
        runtime._arm(now_ms + 10**6 + 1)
        assert runtime._timer is first and not first.cancelled()
        runtime._arm(now_ms + 10**6 - 1)
        assert first.cancelled() and runtime._timer.when() == (now_ms + 10**6) / 1000
        last = runtime._timer
        await runtime.stop()
        assert last.cancelled()
    on_node(scenario)


def test_tick_runs_due_work_of_each_machine_and_schedules_the_next(on_node):
    async def scenario(node, runtime):
        now_ms = int(asyncio.get_running_loop().time() * 1000)
        for key in KEYS:
            await count(runtime, key)
        for shard, key in zip(runtime.shards()[0], KEYS, strict=True):
            shard.state_machine.timers.set((key,), now_ms)
            shard.state_machine.timers.set(("later",), now_ms + 10**6)
        runtime._tick()
        assert [await read(runtime, key) for key in KEYS] == [0, 0]
        assert runtime._timer_ms == now_ms + 10**6
    on_node(scenario)


def test_an_expiry_that_is_overtaken_by_a_reload_ends(on_node):
    async def scenario(node, runtime):
        steps = []

        def expiry(state_machine):
            for number in range(100):
                steps.append(number)
                if number == 1 and KEYS[0] in state_machine.counts:
                    node.elect(0, US, 1)
                    return
                yield

        await count(runtime, KEYS[0])
        node.expire = expiry
        await runtime.expire()
        assert steps[:2] == [0, 1] and len(steps) == 102
        assert await counted_at_last(runtime, KEYS[0]) == 2
    on_node(scenario)


# ---- topics -------------------------------------------------------------------------------------

def test_topic_changes_after_a_stop_start_no_term(on_node):
    async def scenario(node, runtime):
        await runtime.stop()
        node.elect(0, US, 4)
        assert runtime.shards() == ([], False)
        assert count(runtime, KEYS[0]).message == "NOT_COORDINATOR"
    on_node(scenario)


def test_recreated_topic_has_new_machines(on_node):
    async def scenario(node, runtime):
        before = [shard.state_machine for shard in runtime.shards()[0]]
        old = node.image.topics["counts"]
        topic = SimpleNamespace(name="counts", id=bytes(16), partitions=old.partitions)
        node.image = SimpleNamespace(topics={"counts": topic})
        runtime.topic_changed(topic)
        await node.serves(0)
        await node.serves(1)
        assert all(shard.state_machine not in before for shard in runtime.shards()[0])
        assert await count(runtime, KEYS[0]) == 1
    on_node(scenario)


def test_unreadable_log_is_retried_and_logged_once_per_attempt(on_node, caplog, monkeypatch):
    async def scenario(node, runtime):
        await count(runtime, KEYS[0])
        replay, tries = Counter.replay, []

        def failing(state_machine, key, value):
            tries.append(key)
            if len(tries) == 1:
                raise ValueError("planted")
            replay(state_machine, key, value)

        monkeypatch.setattr(Counter, "replay", failing)
        node.elect(0, US, 1)
        assert await counted_at_last(runtime, KEYS[0]) == 2
        row, = [row for row in caplog.records if getattr(row, "reason", "") == "planted"]
        assert (row.partition, row.topic, len(tries)) == (0, "counts", 2)
    on_node(scenario)


@pytest.mark.parametrize("applied, is_of_log", [
    ((-1, -1), False), ((4, 1), True), ((9, 1), True), ((10, 1), False), ((4, 0), False)])
def test_a_snapshot_is_of_a_log_that_has_its_last_record(applied, is_of_log):
    memory = Memory()
    memory.last = applied
    partition_log = SimpleNamespace(end_offset=10, epoch_of=lambda offset: 1)
    assert _is_of_log(memory, partition_log) == is_of_log

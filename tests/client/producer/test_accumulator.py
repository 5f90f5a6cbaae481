"""Pending batches of records: memory, order, linger, and wakeups of the sender; on a virtual clock.
"""

import gc
import sys

import pytest

from pylog._native.records import batch as native_batch
from pylog._native.client.batch_builder import BatchBuilder
from pylog.client.producer import accumulator
from pylog._native.client.record_intake import FIRST_BYTES, RECORD_OVERHEAD_BYTES
from pylog.client.producer.accumulator import SEQUENCE_MASK, Accumulator
from pylog.client.errors import KafkaError


class World:
    def __init__(self, clock, batch_bytes=1000, bytes_max=10_000, linger_s=5.0):
        self.clock, self.wakes = clock, 0
        self.one = Accumulator(batch_bytes=batch_bytes, bytes_max=bytes_max, linger_s=linger_s,
                               codec=0, level=None, wake=self._woken)

    def _woken(self):
        self.wakes += 1

    def put(self, value=b"v", partition=0, callback=None):
        """Append a record. Returns (batch, index), or None without memory."""
        return self.one.append(self.one.queue("t", partition), None, value, 5, None, callback,
                               len(value))

    def closed(self, count=1, partition=0):
        """Return a closed batch of `count` records."""
        found = [self.put(partition=partition) for _ in range(count)][0][0]
        self.clock.now_s += self.one.linger_s
        assert self.one.close_due(self.one.queue("t", partition), self.clock.now_s) is None
        return found

    def asleep(self, seconds=100.0):
        """Let the sender see everything and sleep for this long."""
        self.one.may_sleep(0.0)
        assert self.one.may_sleep(self.clock.now_s + seconds)


@pytest.fixture
def make(virtual_time):
    clock = virtual_time(accumulator)
    return lambda **more: World(clock, **more)


# Memory.

def test_batch_reserves_its_first_record_and_grows_with_later_ones(make):
    world = make(batch_bytes=100_000, bytes_max=1 << 20)
    world.put(b"x" * 10)
    assert world.one.bytes_used == FIRST_BYTES
    world.put(b"x" * (FIRST_BYTES - 2 * RECORD_OVERHEAD_BYTES - 100))
    assert world.one.bytes_used == FIRST_BYTES
    pending, _ = world.put(b"x" * 1000)
    assert world.one.bytes_used == pending.bytes == 2 * FIRST_BYTES
    world.put(b"x" * 60_000)
    assert 60_000 + FIRST_BYTES < world.one.bytes_used == pending.bytes < 80_000
    world.put(b"x" * 10_000)
    assert world.one.bytes_used == 100_000, "no more than a batch may have"


def test_a_record_longer_than_a_batch_has_the_memory_that_it_needs(make):
    world = make()
    world.put(b"x" * 5000)
    assert world.one.bytes_used == 5000 + RECORD_OVERHEAD_BYTES


def test_full_buffer_rejects_records_except_the_first(make):
    world = make(bytes_max=2999)
    assert world.put(b"x" * 9000, 0) is not None
    assert world.put(b"x", 1) is None
    world = make(bytes_max=3000)
    assert all(world.put(b"x", number) for number in range(3))
    assert world.put(b"x", 3) is None and world.one.bytes_used == 3000
    assert world.put(b"x", 1) is not None, "an open batch has room of its own"


def test_an_open_batch_does_not_grow_beyond_the_room(make):
    world = make(batch_bytes=100_000, bytes_max=FIRST_BYTES + 1000)
    pending, _ = world.put(b"x")
    assert world.put(b"x" * FIRST_BYTES) is None
    assert world.one.bytes_used == pending.bytes == FIRST_BYTES
    assert world.put(b"x")[1] == 1


def test_a_full_batch_is_closed_and_the_record_begins_the_next(make):
    world = make()
    first, index = world.put(b"x" * 600)
    second, second_index = world.put(b"x" * 600)
    assert (index, second_index) == (0, 0) and second.number == first.number + 1
    queue = world.one.queue("t", 0)
    assert list(queue.ready) == [first] and queue.open is second and first.count == 1
    assert world.one.load("t", 0) == 1 and world.one.load("t", 1) == 0
    queue.in_flight.append(queue.ready.popleft())
    assert world.one.load("t", 0) == 1


def test_completed_batch_frees_memory_and_wakes_waiters_once(make):
    world = make()
    calls, done = [], []
    first, second = world.closed(), world.closed(partition=1)
    first.when_done(lambda: done.append(first.base_offset))
    world.one.when_room([lambda: calls.append(world.one.bytes_used)])
    world.one.complete(first, 7)
    assert calls == [1000] and done == [7] and world.one.pendings() == [second]
    world.one.complete(second)
    assert calls == [1000] and world.one.bytes_used == 0 and world.one.pendings() == []


def test_callbacks_know_their_records(make):
    world, calls = make(), []
    pending, _ = world.put()
    world.put(callback=lambda *given: calls.append(given[0].offset))
    world.put(callback=lambda *given: calls.append(given[0].offset))
    queue = world.one.queue("t", 0)
    world.one.close_due(queue, world.clock.now_s + 5)
    world.one.complete(pending, 10)
    assert calls == [11, 12]


# Linger.

def test_open_batch_waits_for_its_linger(make):
    world = make()
    queue = world.one.queue("t", 0)
    assert world.one.close_due(queue, 2000.0) is None
    pending, _ = world.put()
    assert world.one.close_due(queue, 1004.9) == 1005.0 and queue.open is pending
    assert world.one.close_due(queue, 1005.0) is None
    assert queue.open is None and list(queue.ready) == [pending]


@pytest.mark.parametrize("hurried", ["a flush", "no room"])
def test_flush_and_full_memory_skip_the_linger(make, hurried):
    world = make()
    pending, _ = world.put()
    if hurried == "a flush":
        world.one.flushing += 1
    else:
        world.one.when_room([lambda: None])
    queue = world.one.queue("t", 0)
    assert world.one.close_due(queue, 1000.0) is None and list(queue.ready) == [pending]


def test_sendable_partitions_are_listed_with_their_waiting_time(make):
    world = make()
    world.closed()
    world.put(partition=1)
    assert world.one.waiting() == [("t", 0, 1000.0)]


def test_a_queue_is_forgotten_only_when_nothing_is_in_it(make):
    world = make()
    pending, _ = world.put()
    queue = world.one.queue("t", 0)
    for leave in (lambda: world.one.close_due(queue, 2000.0),
                  lambda: queue.in_flight.append(queue.ready.popleft()),
                  queue.in_flight.clear):
        world.one.drop_if_idle(queue)
        assert list(world.one.active.values()) == [queue]
        leave()
    world.one.drop_if_idle(queue)
    assert world.one.active == {} and world.one.queue("t", 0) is queue
    assert world.one.queues() == [queue]


# The sender's sleep.

def test_sender_sleeps_only_without_pending_work(make):
    world = make()
    world.put()
    assert not world.one.may_sleep(2000.0)
    assert world.one.may_sleep(2000.0)
    world.one.notify()
    assert world.wakes == 1
    world.one.notify()
    assert world.wakes == 1 and not world.one.may_sleep(2000.0)


def test_batch_closed_by_the_sender_does_not_wake_it(make):
    world = make()
    world.put()
    world.one.may_sleep(2000.0)
    world.one.close_due(world.one.queue("t", 0), 1005.0)
    assert world.one.may_sleep(2000.0) and world.wakes == 0


@pytest.mark.parametrize("sleeps_s, woken", [(4.9, 0), (5.0, 0), (5.1, 1)])
def test_new_batch_wakes_a_sender_that_would_oversleep_its_linger(make, sleeps_s, woken):
    world = make()
    world.asleep(sleeps_s)
    world.put()
    world.put()
    assert world.wakes == woken and not world.one.may_sleep(2000.0)


def test_full_and_external_batches_and_space_waits_wake_the_sender(make):
    world = make()
    world.put(b"x" * 600)
    world.asleep(1.0)
    world.put(b"x" * 600)
    assert world.wakes == 1
    world.asleep()
    world.one.add(world.one.queue("t", 1), built(2))
    assert world.wakes == 2
    world.asleep()
    world.one.when_room([])
    assert world.wakes == 3


def built(count):
    """Return a closed batch that was built elsewhere."""
    builder = BatchBuilder(1000, 0)
    for _ in range(count):
        builder.append(None, b"x", 5, None)
    return builder.close(0, None)


def test_external_batch_is_queued_after_existing_ones(make):
    world = make(bytes_max=1200)
    first, _ = world.put()
    made = built(2)
    second = world.one.add(world.one.queue("t", 0), made)
    queue = world.one.queue("t", 0)
    assert list(queue.ready) == [first, second] and queue.open is None
    assert (second.count, second.bytes, second.batch) == (2, made.nbytes, made)
    assert world.one.bytes_used == 1000 + made.nbytes
    world.one.add(queue, built(2))
    assert world.one.add(queue, built(2)) is None and len(queue.ready) == 3


# Order, failures, split batches.

def test_retry_is_queued_in_sequence_order(make):
    world = make()
    batches = [world.closed() for _ in range(3)]
    queue = world.one.queue("t", 0)
    for taken in (batches[1], batches[0], batches[2]):
        queue.ready.remove(taken)
        queue.put_back(taken)
        assert list(queue.ready) == batches


def test_failure_completes_all_batches_except_those_in_flight(make):
    world, failure = make(), KafkaError("lost")
    under_way, ready = world.closed(2), world.closed(3)
    open_one, _ = world.put()
    other = world.closed(partition=1)
    queue = world.one.queue("t", 0)
    queue.in_flight.append(queue.ready.popleft())
    world.one.fail_unsent(failure)
    assert [one.error for one in (ready, open_one, other)] == [failure] * 3
    assert not under_way.done and world.one.pendings() == [under_way]
    assert not queue.ready and queue.open is None
    assert (world.one.take_lost(), world.one.take_lost()) == (5, 0)


def values(pending):
    return [row[3] for row in native_batch.records(pending.batch)]


@pytest.mark.parametrize("base", [-1, 10, SEQUENCE_MASK])
def test_oversized_batch_is_split_with_the_same_sequences(make, base):
    world = make()
    for value in (b"a", b"b", b"c"):
        whole, _ = world.put(value)
    after, _ = world.put(b"x" * 1000)
    queue = world.one.queue("t", 0)
    queue.producer_id, queue.epoch = 7, 2
    whole.base_sequence = base
    queue.ready.remove(whole)
    world.one.split(whole)
    first, second = queue.ready
    assert whole.number < first.number < second.number < after.number
    assert (values(first), values(second)) == ([b"a"], [b"b", b"c"])
    assert (first.count, second.count, first.attempts, first.bytes) == (1, 2, 1, 0)
    if base >= 0:
        assert (first.base_sequence, second.base_sequence) == (base, (base + 1) & SEQUENCE_MASK)
        header = native_batch.header(second.batch)
        assert (header.producer_id, header.producer_epoch, header.base_sequence,
                header.attributes & native_batch.TRANSACTIONAL) == (7, 2, second.base_sequence, 0)
    else:
        assert first.base_sequence == second.base_sequence == -1
    queue.ready.remove(second)
    world.one.split(second)
    numbers = [one.number for one in queue.ready]
    assert first.number < numbers[1] < numbers[2] < after.number


@pytest.mark.parametrize("failing", [None, 0, 1])
def test_a_batch_that_was_split_is_complete_with_its_last_part(make, failing):
    world, failure = make(), KafkaError("lost")
    whole = world.closed(4)
    queue = world.one.queue("t", 0)
    queue.ready.clear()
    world.one.split(whole)
    parts = list(queue.ready)
    for number, part in enumerate(parts):
        assert not whole.done and world.one.bytes_used == 1000
        world.one.complete(part, 10 * number, error=failure if number == failing else None)
    assert whole.done and whole.error is (None if failing is None else failure)
    assert world.one.bytes_used == 0 and world.one.pendings() == []
    assert world.one.take_lost() == (0 if failing is None else 2)


# The lock.

def test_no_python_code_runs_while_the_lock_is_held(make):
    """Neither bytecode, before which a signal handler may run, nor the garbage collector, whose
    finalizers are Python code.
    """
    world, held, passed = make(batch_bytes=600, linger_s=0.0), [], [0]

    def check(where):
        passed[0] += 1
        if world.one.lock.locked():
            held.append(where)

    def trace(frame, event, arg):
        frame.f_trace_opcodes = True
        check((frame.f_code.co_qualname, frame.f_lineno))
        return trace

    def collecting(phase, info):
        check(phase)

    def work():
        for _ in range(5):
            world.put(b"x" * 200, callback=print)
        queue = world.one.queue("t", 0)
        world.one.add(queue, built(2))
        world.put()
        world.asleep()
        world.one.close_due(queue, world.clock.now_s)
        first, second = queue.ready[0], queue.ready[1]
        queue.put_back(queue.ready.popleft())
        queue.ready.remove(second)
        world.one.split(second)
        first.when_done(len)
        world.one.drop_if_idle(queue)
        world.one.waiting()
        world.one.fail_unsent(KafkaError("planted"))
        world.one.take_lost()

    threshold = gc.get_threshold()
    gc.callbacks.append(collecting)
    gc.set_threshold(1)
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
        gc.set_threshold(*threshold)
        gc.callbacks.remove(collecting)
    assert passed[0] > 500 and held == []

"""The fast path for records: which records it accepts, which use the slow path, which locks it
takes.
"""

import gc
import threading

import pytest

from pylog._native.client.batch_builder import BatchBuilder, murmur2
from pylog._native.client.record_intake import Delivery, PartitionQueue, Mutex, RecordBuffer, Route
from pylog._native.records.batch import records


class World:
    """A topic with two partitions; the first has an open batch."""

    def __init__(self, hashes=True, record_bytes_max=1000):
        self.wakes = []
        self.buffer = RecordBuffer(batch_bytes=2000, bytes_max=10_000, linger_s=5.0, codec=0,
                                   level=None, wake=lambda: self.wake())
        self.queues = [PartitionQueue(BatchBuilder(2000, p)) for p in range(2)]
        self.route = Route(self.buffer, [0, 1], [0, 1], hashes, record_bytes_max)
        for partition, queue in enumerate(self.queues):
            self.route.set_queue(partition, queue)
        self.queues[0].open, self.queues[0].reserved = "pending", 2000

    def wake(self):
        self.wakes.append(1)

    def rows(self, partition=0):
        return [row[2:4] for row in records(self.queues[partition].builder.close())]


def test_simple_record_is_added_to_the_open_batch():
    world = World()
    taken = world.route.append(b"value", "ключ", 0, 77)
    assert (taken.pending, taken.index, taken.timestamp) == ("pending", 0, 77)
    assert world.route.append("grün", None, 0).timestamp > 1_700_000_000_000
    assert world.route.append(None, b"", 0).index == 2
    assert world.rows() == [("ключ".encode(), b"value"), (None, "grün".encode()), (b"", None)]


@pytest.mark.parametrize("given", [
    {"partition": 1}, {"partition": 7}, {"partition": -1}, {"headers": [("a", b"b")]},
    {"on_delivery": print}, {"value": bytearray(b"x")}, {"value": 5}, {"key": memoryview(b"x")},
    {"value": b"x" * 1001}, {},
])
def test_other_records_use_the_slow_path(given):
    world = World()
    given = {"value": b"v", **({"partition": 0} if given else {}), **given}
    assert world.route.append(**given) is None
    assert world.queues[0].builder.count == 0


def test_no_record_is_accepted_beyond_the_reservation_or_batch_size():
    world = World()
    world.queues[0].reserved = 300
    assert world.route.append(b"x" * 100, None, 0) is not None
    assert world.route.append(b"x" * 100, None, 0) is None
    world.queues[0].reserved = 1 << 30
    while world.route.append(b"x" * 100, None, 0) is not None:
        pass
    assert world.queues[0].builder.nbytes <= 2000
    world.queues[0].open = None
    assert world.route.append(b"x", None, 0) is None


def test_keys_hash_as_in_java_if_configured():
    keys = [b"%d" % i for i in range(50)]
    world = World()
    taken = [key for key in keys if world.route.append(b"", key) is not None]
    assert taken == [key for key in keys if murmur2(key) % 2 == 0]
    assert World(hashes=False).route.append(b"", keys[0]) is None


def test_null_keys_stick_to_a_partition_for_the_configured_bytes():
    world = World()
    assert world.route.append(b"x" * 50) is None
    world.route.set_sticky(0, 120)
    assert [world.route.append(b"x" * 50) is not None for _ in range(3)] == [True, True, False]
    assert world.route.take_sticky_bytes() == 100 and world.route.take_sticky_bytes() == 0


def test_a_record_waits_for_the_lock():
    world, found = World(), []
    thread = threading.Thread(target=lambda: found.append(world.route.append(b"x", None, 0)))
    world.buffer.lock.acquire()
    try:
        assert world.buffer.lock.locked()
        thread.start()
        thread.join(0.1)
        assert thread.is_alive() and found == []
    finally:
        world.buffer.lock.release()
    thread.join(30)
    assert found[0].index == 0 and not world.buffer.lock.locked()


def test_records_use_the_slow_path_until_an_interrupted_call_woke_the_sender():
    world = World()

    def interrupted():
        raise KeyboardInterrupt

    assert world.buffer.may_sleep(100.0)
    world.wake = interrupted
    with pytest.raises(KeyboardInterrupt):
        world.buffer.notify()
    assert world.route.append(b"x", None, 0) is None
    world.wake = lambda: world.wakes.append(1)
    world.buffer.notify()
    world.buffer.notify()
    assert world.wakes == [1] and world.route.append(b"x", None, 0) is not None


def test_delivery_reads_its_batch():
    class Pending:
        done = False

        def result_of(self, index, timestamp, timeout, timeout_s):
            return index, timestamp, timeout

        def exception_of(self, index, timeout, timeout_s):
            return index, timeout

        def when_done(self, function):
            function()

        def await_of(self, index, timestamp):
            return iter(())

    delivery, told = Delivery(Pending(), 3, 9), []
    assert not delivery.done() and delivery.result(2) == (3, 9, 2)
    assert delivery.exception(4) == (3, 4)
    delivery.add_done_callback(told.append)
    assert told == [delivery] and list(delivery.__await__()) == []


def test_held_lock_can_be_freed():
    lock = Mutex()
    lock.acquire()  # As if held by a thread that does not exist in a forked child.
    del lock
    gc.collect()

"""A producer's records on their way to batches: open batches, their memory and Deliveries.

Owns: the lock and the memory accounting of a producer's queues; per topic the sticky partition for
  null keys.
Invariants: `Route.append` either appends the record or leaves no change that would affect a retry;
  a queue's builder and open batch change only under the lock; code that holds the lock runs no
  bytecode and allocates no object that the garbage collector tracks, so that no signal handler or
  finalizer of the application runs there.
Source: KIP-480, KIP-794 (sticky partitions); Java's default partitioner, RecordAccumulator.
  CPython: signal handlers run between bytecodes; the collector runs when a tracked object is
  created.
"""

import collections

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MIN, int32_t, int64_t, uint8_t
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

from pylog._native.client cimport csrc
from pylog._native.client.batch_builder cimport (
    Batch, BatchBuilder, encoded_headers, raise_error, record_views, release_views, view_record,
)

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cpdef enum:
    RECORD_OVERHEAD_BYTES = 128  # maximum for batch header and record varints
    FIRST_BYTES = 16_384  # minimum reserved for a new batch

cdef enum:
    NOT_PLAIN = -2
    # Results of RecordBuffer.put(), besides the builder's.
    NO_ROOM = 2
    NEEDS_BATCH = 3


@cython.final
cdef class Mutex:
    """A lock for native code; no thread holds it while running bytecode. Not reentrant.

    Not the interpreter's locks: they read the clock on each acquisition, which takes a tenth of the
    time per record.
    """

    def __cinit__(self):
        csrc.lock_init(&self.lock)

    def __dealloc__(self):
        # In a forked child, a thread that no longer exists may hold the lock.
        if csrc.lock_try_acquire(&self.lock):
            csrc.lock_release(&self.lock)
            csrc.lock_destroy(&self.lock)

    cpdef void acquire(self) noexcept:
        if not csrc.lock_try_acquire(&self.lock):
            # The holder may be waiting for the GIL.
            with nogil:
                csrc.lock_acquire(&self.lock)

    cpdef void release(self) noexcept:
        csrc.lock_release(&self.lock)

    def locked(self) -> bool:
        """Return True if a thread holds the lock."""
        if csrc.lock_try_acquire(&self.lock):
            csrc.lock_release(&self.lock)
            return False
        return True


cdef class PartitionQueue:
    """The batches of one partition.

    open: the batch that the builder fills, or None; reserved: bytes reserved for it so far; ready:
    closed batches; in_flight: sent batches without a response.
    """

    def __cinit__(self, BatchBuilder builder not None, *_):
        self.builder = builder
        self.ready = collections.deque()
        self.in_flight = []


cdef class RecordBuffer:
    """The incomplete batches of one producer and their memory.

    A subclass creates batches: `new_batch(queue)` returns an object with the attributes number,
    bytes, created_s, batch, count and callbacks, all of them slots, which native code sets. Methods
    without a lock are atomic because they hold the GIL and run no bytecode.
    """

    def __cinit__(self, *, int64_t batch_bytes, int64_t bytes_max, double linger_s, int codec,
                  level, wake):
        """wake: called without the lock when the sender must check the batches again."""
        self.lock = Mutex()
        self.incomplete = {}
        self.active = {}
        self.batch_bytes = batch_bytes
        self.bytes_max = bytes_max
        self.linger_s = linger_s
        self.codec = codec
        self.level = level
        self.level_or_default = INT32_MIN if level is None else level
        self.wake = wake

    # Adding records.

    def append(self, PartitionQueue queue not None, key, value, int64_t timestamp, headers,
               callback, int64_t size):
        """Append a record. Return (batch, index in it), or None if memory is exhausted.

        size: bytes of key, value and headers. Raises TypeError, or ValueError of the builder.
        """
        cdef csrc.builder_record record
        cdef record_views views
        cdef bytes encoded = None
        cdef list rows = None
        cdef object appended_to = None
        cdef int32_t index = -1
        cdef int rc
        record.timestamp = timestamp
        record.headers = NULL
        record.headers_len = 0
        if headers:
            encoded = encoded_headers(headers)
            record.headers = <const uint8_t *>PyBytes_AS_STRING(encoded)
            record.headers_len = <size_t>PyBytes_GET_SIZE(encoded)
        if callback is not None:
            rows = [[0, timestamp, callback]]
        view_record(&views, &record, key, value)
        try:
            rc = self.put(queue, &record, size, None, rows)
            if rc == NEEDS_BATCH:
                rc = self.put(queue, &record, size, self.new_batch(queue), rows)
            if rc == 0:
                # put() returned with the GIL, so no other thread has run since.
                appended_to, index = queue.open, queue.builder.state.count - 1
        finally:
            release_views(&views)
        self.wake_sender()
        if rc < 0:
            raise_error(rc)
        return None if appended_to is None else (appended_to, index)

    cdef int put(self, PartitionQueue queue, const csrc.builder_record *record, int64_t size, fresh,
                 list rows) except? -100:
        """Append the record to the open batch, or start `fresh` with it.

        rows: the callback's row, completed here. Returns 0, NO_ROOM, NEEDS_BATCH without `fresh`,
        or an error of the builder. No bytecode runs under the lock.
        """
        cdef int64_t reserved
        cdef list callbacks
        cdef int rc
        self.lock.acquire()
        try:
            rc = csrc.BUILDER_FULL
            if queue.open is not None:
                if not self.may_grow(queue, size):
                    return NO_ROOM
                rc = csrc.builder_append(&queue.builder.state, record)
            if rc == csrc.BUILDER_FULL:
                if fresh is None:
                    return NEEDS_BATCH
                if queue.open is not None:
                    rc = self.close_open(queue)
                    if rc < 0:
                        return rc
                    self.must_wake()
                reserved = max(min(self.batch_bytes, FIRST_BYTES), size + RECORD_OVERHEAD_BYTES)
                if not self.has_room(reserved):
                    return NO_ROOM
                rc = csrc.builder_append(&queue.builder.state, record)
                if rc == 0:
                    self.begin_batch(queue, fresh, reserved)
                    queue.open, queue.reserved = fresh, reserved
                    if fresh.created_s + self.linger_s < self.wakes_s:
                        self.must_wake()
            if rc == 0 and rows is not None:
                (<list>rows[0])[0] = queue.builder.state.count - 1
                callbacks = queue.open.callbacks
                if callbacks is None:
                    queue.open.callbacks = rows
                else:
                    callbacks.append(rows[0])
            return rc
        finally:
            self.lock.release()

    cdef bint has_room(self, int64_t more) noexcept:
        """Return True if incomplete batches may grow by `more` bytes; the first always may."""
        return not self.bytes_used or self.bytes_used + more <= self.bytes_max

    cdef bint may_grow(self, PartitionQueue queue, int64_t size) except -1:
        """Reserve memory for `size` more bytes in the open batch. Return False if memory is
        exhausted.
        """
        cdef int64_t wanted = min(<int64_t>queue.builder.state.len + size + RECORD_OVERHEAD_BYTES,
                                  self.batch_bytes)
        cdef int64_t more = max(wanted, min(2 * queue.reserved, self.batch_bytes)) - queue.reserved
        if wanted <= queue.reserved:
            return True
        if not self.has_room(more):
            return False
        queue.reserved += more
        queue.open.bytes += more
        self.bytes_used += more
        return True

    cdef int begin_batch(self, PartitionQueue queue, fresh, int64_t reserved) except -1:
        self.number += 1
        fresh.number = self.number
        fresh.bytes = reserved
        self.incomplete[self.number] = fresh
        self.active[queue] = queue
        self.bytes_used += reserved
        self.changed = True
        return 0

    def add_closed(self, PartitionQueue queue not None, Batch batch not None, fresh) -> bool:
        """Queue a batch built elsewhere as `fresh`. Return False if memory is exhausted."""
        cdef int rc
        self.lock.acquire()
        try:
            if not self.has_room(batch.nbytes):
                return False
            rc = self.close_open(queue)
            if rc == 0:
                self.begin_batch(queue, fresh, batch.nbytes)
                fresh.batch = batch
                fresh.count = batch.record_count
                queue.ready.append(fresh)
                self.must_wake()
        finally:
            self.lock.release()
        if rc < 0:
            raise_error(rc)
        self.wake_sender()
        return True

    # Closing and releasing batches.

    cdef int close_open(self, PartitionQueue queue) except? -100:
        """Close the open batch, if any. Return 0 or an error of the builder."""
        cdef int rc = 0
        cdef Batch made
        if queue.open is None:
            return 0
        made = queue.builder.closed(self.codec, self.level_or_default, &rc)
        if rc < 0:
            return rc
        queue.open.batch = made
        queue.open.count = made.record_count
        queue.ready.append(queue.open)
        queue.open = None
        return 0

    def close(self, PartitionQueue queue not None):
        """Close the open batch, if any. Raises MemoryError, ValueError."""
        cdef int rc
        self.lock.acquire()
        try:
            rc = self.close_open(queue)
        finally:
            self.lock.release()
        if rc < 0:
            raise_error(rc)

    def close_after_linger(self, PartitionQueue queue not None, double now_s, bint hurried):
        """Close the open batch if its linger time is over or if hurried. Return None, or when the
        linger time ends. Raises MemoryError, ValueError.
        """
        cdef double due_s
        cdef int rc
        self.lock.acquire()
        try:
            if queue.open is None:
                return None
            due_s = queue.open.created_s + self.linger_s
            if now_s < due_s and not hurried:
                return due_s
            rc = self.close_open(queue)
        finally:
            self.lock.release()
        if rc < 0:
            raise_error(rc)
        return None

    def drop_if_idle(self, PartitionQueue queue not None):
        """Remove a queue without work from the active queues."""
        if queue.open is None and not queue.ready and not queue.in_flight and queue in self.active:
            del self.active[queue]

    def add_part(self, part):
        """Count a part of a split batch as incomplete."""
        self.incomplete[part.number] = part

    def release(self, pending):
        """Release the memory of a completed batch."""
        del self.incomplete[pending.number]
        self.bytes_used -= pending.bytes

    # Waking the sender.

    def may_sleep(self, double until_s) -> bool:
        """Return False if something has changed since the last call."""
        if self.changed:
            self.changed = False
            return False
        self.sleep += 1
        self.wakes_s = until_s
        return True

    def notify(self):
        """Make the sender check the batches again."""
        self.must_wake()
        self.wake_sender()

    cdef void must_wake(self) noexcept:
        self.changed = True
        self.wake_wanted = self.sleep

    cdef int wake_sender(self) except -1:
        """Wake the sender, once for the sleep in which must_wake() was called.

        Only set wake_done afterwards: if a signal handler interrupts `wake` and waits for the
        sender, the handler must call it again.
        """
        cdef int64_t wanted = self.wake_wanted
        if self.wake_done != wanted:
            self.wake()
            self.wake_done = wanted
        return 0


def add_waiter(pending, function) -> bool:
    """Make pending.complete() call the function. Return False if the batch is already complete."""
    cdef list waiters, fresh = [function]
    # No bytecode runs from here on, so complete() cannot run in between.
    if pending.done:
        return False
    waiters = pending.waiters
    if waiters is None:
        pending.waiters = fresh
    else:
        waiters.append(function)
    return True


@cython.final
@cython.no_gc
@cython.freelist(1024)
cdef class Delivery:
    """The outcome of one sent record: wait with result(), or await it.

    Not tracked by the garbage collector, so that programs may keep millions of them.
    """

    def __init__(self, pending, int32_t index, int64_t timestamp):
        self.pending = pending
        self.index = index
        self.timestamp = timestamp

    def done(self) -> bool:
        return self.pending.done

    def result(self, timeout=None, *, timeout_s=None):
        """Wait for the acknowledgement and return a RecordMetadata.

        timeout: seconds; None waits until delivery.timeout.ms fails the record. Raises KafkaError;
        KafkaTimeoutError after `timeout`, in which case the record may still arrive; and
        IllegalStateError on the event loop that delivers the record: await the delivery there.
        """
        return self.pending.result_of(self.index, self.timestamp, timeout, timeout_s)

    def exception(self, timeout=None, *, timeout_s=None):
        """Wait as result() does; return the error, or None if the record was acknowledged."""
        return self.pending.exception_of(self.index, timeout, timeout_s)

    def add_done_callback(self, function):
        """Call function(self) on completion, on the client's thread, or now if already complete."""
        self.pending.when_done(lambda: function(self))

    def __await__(self):
        return self.pending.await_of(self.index, self.timestamp)


cdef inline Delivery delivery_of(pending, int32_t index, int64_t timestamp):
    cdef Delivery made = Delivery.__new__(Delivery)
    made.pending, made.index, made.timestamp = pending, index, timestamp
    return made


cdef inline int64_t view_plain(object data, const uint8_t **at) except? -3:
    """Return the length of None (-1), bytes or str; NOT_PLAIN for other objects."""
    cdef Py_ssize_t size = 0
    if data is None:
        at[0] = NULL
        return -1
    if type(data) is bytes:
        at[0] = <const uint8_t *>PyBytes_AS_STRING(data)
        return PyBytes_GET_SIZE(data)
    if type(data) is str:
        at[0] = <const uint8_t *>PyUnicode_AsUTF8AndSize(data, &size)
        return size
    return NOT_PLAIN


cdef int64_t now_ms() noexcept:
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    return <int64_t>now.tv_sec * 1000 + now.tv_nsec // 1_000_000


@cython.final
cdef class Route:
    """A topic's current partitions."""

    def __cinit__(self, RecordBuffer buffer not None, list partitions not None,
                  list available not None, bint hashes, int64_t record_bytes_max):
        """hashes: keys select the partition by murmur2."""
        self.buffer = buffer
        self.partitions = partitions
        self.available = available
        self.queues = [None] * len(partitions)
        self.hashes = hashes
        self.record_bytes_max = record_bytes_max
        self.sticky = -1

    def set_queue(self, Py_ssize_t partition, PartitionQueue queue not None):
        self.queues[partition] = queue

    def set_sticky(self, int32_t partition, int64_t bytes_max):
        """Send records without key to `partition` until they reach bytes_max bytes."""
        self.sticky = partition
        self.sticky_left = bytes_max

    def take_sticky_bytes(self) -> int:
        """Return the bytes sent to the sticky partition since the last call."""
        found = self.sticky_bytes
        self.sticky_bytes = 0
        return found

    def append(self, value, key=None, partition=None, timestamp=None, headers=None,
               on_delivery=None):
        """Append a plain record to a batch that has room. Return its Delivery, or None if the
        general path must handle the record.
        """
        if headers or on_delivery is not None:
            return None
        return self.append_plain(value, key, partition, timestamp)

    cdef object append_plain(self, value, key, partition, timestamp):
        cdef csrc.builder_record record
        cdef BatchBuilder builder
        cdef PartitionQueue queue
        cdef object pending
        cdef int64_t size, bytes_after
        cdef int32_t chosen, index
        cdef int rc
        if not (partition is None or isinstance(partition, int)) or not (
                timestamp is None or isinstance(timestamp, int)):
            return None  # The general path converts other types.
        record.key_len = view_plain(key, &record.key)
        record.value_len = view_plain(value, &record.value)
        if record.key_len == NOT_PLAIN or record.value_len == NOT_PLAIN:
            return None
        size = (0 if record.key_len < 0 else record.key_len) + (
            0 if record.value_len < 0 else record.value_len)
        if size > self.record_bytes_max:
            return None
        if self.buffer.wake_done != self.buffer.wake_wanted:
            return None  # A wake-up was interrupted: the general path wakes the sender.
        record.headers = NULL
        record.headers_len = 0
        record.timestamp = now_ms() if timestamp is None else timestamp
        chosen = self.partition_of(&record, partition)
        if chosen < 0 or self.queues[chosen] is None:
            return None
        queue = <PartitionQueue>self.queues[chosen]
        builder = queue.builder
        self.buffer.lock.acquire()
        pending = queue.open
        bytes_after = <int64_t>builder.state.len + size + RECORD_OVERHEAD_BYTES
        if pending is None or bytes_after > queue.reserved:
            self.buffer.lock.release()
            return None
        rc = csrc.builder_append(&builder.state, &record)
        index = builder.state.count - 1
        self.buffer.lock.release()
        if rc != 0:
            return None
        return delivery_of(pending, index, record.timestamp)

    cdef int32_t partition_of(self, const csrc.builder_record *record, partition) except? -2:
        """Return the record's partition, or -1 if the general path must choose it."""
        cdef int64_t size, wanted
        if partition is not None:
            wanted = partition
            return <int32_t>wanted if 0 <= wanted < len(self.partitions) else -1
        if record.key_len >= 0:
            if not self.hashes:
                return -1
            return <int32_t>(csrc.builder_murmur2(record.key, <size_t>record.key_len)
                             % <size_t>len(self.partitions))
        size = record.value_len if record.value_len > 0 else 0
        if self.sticky < 0 or self.sticky_left <= size:
            return -1
        self.sticky_left -= size
        self.sticky_bytes += size
        return self.sticky


cdef class FastSend:
    """A producer's entry point for records. routes: topics that need no other work."""

    def __init__(self, dict routes not None):
        self.routes = routes

    def send(self, topic, value=None, key=None, *, partition=None, timestamp=None, headers=None,
             on_delivery=None):
        """Send one record; its outcome is in the returned Delivery.

        value, key: bytes, str or a buffer, or any type that the serializers support. timestamp: ms,
        None for now. headers: pairs or a dict. on_delivery(RecordMetadata or None, error or None)
        is called on the client's thread. Raises BufferFullError or KafkaTimeoutError after
        max.block.ms, SerializationError, other KafkaErrors.
        """
        cdef object delivery
        if on_delivery is None and not headers:
            route = self.routes.get(topic)
            if route is not None:
                delivery = (<Route>route).append_plain(value, key, partition, timestamp)
                if delivery is not None:
                    return delivery
        return self._send_slowly(topic, value, key, partition, timestamp, headers, on_delivery)

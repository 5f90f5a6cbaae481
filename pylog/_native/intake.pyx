"""A producer's records on their way into batches: the open batches, their memory, their Deliveries.

Owns: the lock and the memory account of a producer's queues; per topic the partition that null keys
  stick to.
Invariants: (1) `Route.append` either takes the record or changes nothing that a later try would
  notice; (2) a lane's builder and open batch change only under the lock; (3) code between taking
  the lock and releasing it runs no bytecode and allocates no object that the garbage collector
  tracks, so that no signal handler and no finalizer of the application runs there.
Source: KIP-480, KIP-794 (sticky partitions); Java's default partitioner, RecordAccumulator.
  CPython: signal handlers run between bytecodes; the collector runs when a tracked object is made.
"""

import collections

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MIN, int32_t, int64_t, uint8_t
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

from pylog._native cimport csrc
from pylog._native.builder cimport (
    Batch, BatchBuilder, encoded_headers, raise_error, record_views, release_views, view_record,
)

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cpdef enum:
    RECORD_OVERHEAD_BYTES = 128  # header of a batch and varints of a record, at most
    FIRST_BYTES = 16_384  # reserved for a new batch, at least

cdef enum:
    NOT_PLAIN = -2
    # Outcomes of RecordBuffer.put(), beside the builder's.
    NO_ROOM = 2
    NEEDS_BATCH = 3


@cython.final
cdef class Mutex:
    """A lock of native code, which no thread holds while it runs bytecode. Not reentrant.

    None of the interpreter's own: these ask for the time whenever they are taken, which is a tenth
    of what a record costs."""

    def __cinit__(self):
        csrc.lock_init(&self.lock)

    def __dealloc__(self):
        # In a forked child a thread may have it that is not there.
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
        """Return whether a thread holds it."""
        if csrc.lock_try_acquire(&self.lock):
            csrc.lock_release(&self.lock)
            return False
        return True


cdef class Lane:
    """The batches of one partition.

    open: the batch that the builder fills, None without one; reserved: the bytes that it may be
    long for now; ready: closed batches; in_flight: sent batches without an answer."""

    def __cinit__(self, BatchBuilder builder not None, *_):
        self.builder = builder
        self.ready = collections.deque()
        self.in_flight = []


cdef class RecordBuffer:
    """The incomplete batches of one producer, and the memory that they hold.

    A subclass makes batches: `new_batch(lane)` returns one with the attributes number, bytes,
    created_s, batch, count and callbacks, all of them slots, which native code sets. Methods that
    take no lock are atomic because they keep the GIL and run no bytecode.
    """

    def __cinit__(self, *, int64_t batch_bytes, int64_t bytes_max, double linger_s, int codec,
                  level, wake):
        """wake: called without the lock when the sender must look at the batches again."""
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

    # Records in.

    def append(self, Lane lane not None, key, value, int64_t timestamp, headers, callback,
               int64_t size):
        """Return (batch, index in it) of the appended record; None without memory for it.

        size: bytes of key, value and headers. Raises TypeError, ValueError of the builder."""
        cdef csrc.builder_record record
        cdef record_views views
        cdef bytes encoded = None
        cdef list rows = None
        cdef object taken = None
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
            rc = self.put(lane, &record, size, None, rows)
            if rc == NEEDS_BATCH:
                rc = self.put(lane, &record, size, self.new_batch(lane), rows)
            if rc == 0:
                # No other thread has run since: put() returned with the GIL.
                taken, index = lane.open, lane.builder.state.count - 1
        finally:
            release_views(&views)
        self.wake_sender()
        if rc < 0:
            raise_error(rc)
        return None if taken is None else (taken, index)

    cdef int put(self, Lane lane, const csrc.builder_record *record, int64_t size, fresh,
                 list rows) except? -100:
        """Append the record to the open batch, or begin `fresh` with it.

        rows: of its callback, to be filled in. Returns 0, NO_ROOM, NEEDS_BATCH without `fresh`, or
        an error of the builder. Keeps (3)."""
        cdef int64_t reserved
        cdef list callbacks
        cdef int rc
        self.lock.acquire()
        try:
            rc = csrc.BUILDER_FULL
            if lane.open is not None:
                if not self.may_grow(lane, size):
                    return NO_ROOM
                rc = csrc.builder_append(&lane.builder.state, record)
            if rc == csrc.BUILDER_FULL:
                if fresh is None:
                    return NEEDS_BATCH
                if lane.open is not None:
                    rc = self.close_open(lane)
                    if rc < 0:
                        return rc
                    self.must_wake()
                reserved = max(min(self.batch_bytes, FIRST_BYTES), size + RECORD_OVERHEAD_BYTES)
                if not self.has_room(reserved):
                    return NO_ROOM
                rc = csrc.builder_append(&lane.builder.state, record)
                if rc == 0:
                    self.begin_batch(lane, fresh, reserved)
                    lane.open, lane.reserved = fresh, reserved
                    if fresh.created_s + self.linger_s < self.wakes_s:
                        self.must_wake()
            if rc == 0 and rows is not None:
                (<list>rows[0])[0] = lane.builder.state.count - 1
                callbacks = lane.open.callbacks
                if callbacks is None:
                    lane.open.callbacks = rows
                else:
                    callbacks.append(rows[0])
            return rc
        finally:
            self.lock.release()

    cdef bint has_room(self, int64_t more) noexcept:
        """Return whether incomplete batches may hold so many bytes more. One always may."""
        return not self.bytes_used or self.bytes_used + more <= self.bytes_max

    cdef bint may_grow(self, Lane lane, int64_t size) except -1:
        """Reserve memory for `size` more bytes in the open batch; False when there is none."""
        cdef int64_t wanted = min(<int64_t>lane.builder.state.len + size + RECORD_OVERHEAD_BYTES,
                                  self.batch_bytes)
        cdef int64_t more = max(wanted, min(2 * lane.reserved, self.batch_bytes)) - lane.reserved
        if wanted <= lane.reserved:
            return True
        if not self.has_room(more):
            return False
        lane.reserved += more
        lane.open.bytes += more
        self.bytes_used += more
        return True

    cdef int begin_batch(self, Lane lane, fresh, int64_t reserved) except -1:
        self.number += 1
        fresh.number = self.number
        fresh.bytes = reserved
        self.incomplete[self.number] = fresh
        self.active[lane] = lane
        self.bytes_used += reserved
        self.changed = True
        return 0

    def add_closed(self, Lane lane not None, Batch batch not None, fresh) -> bool:
        """Queue a batch that was built elsewhere as `fresh`; False without memory for it."""
        cdef int rc
        self.lock.acquire()
        try:
            if not self.has_room(batch.nbytes):
                return False
            rc = self.close_open(lane)
            if rc == 0:
                self.begin_batch(lane, fresh, batch.nbytes)
                fresh.batch = batch
                fresh.count = batch.record_count
                lane.ready.append(fresh)
                self.must_wake()
        finally:
            self.lock.release()
        if rc < 0:
            raise_error(rc)
        self.wake_sender()
        return True

    # Batches out.

    cdef int close_open(self, Lane lane) except? -100:
        """Close the open batch, if there is one. Returns 0 or an error of the builder."""
        cdef int rc = 0
        cdef Batch made
        if lane.open is None:
            return 0
        made = lane.builder.closed(self.codec, self.level_or_default, &rc)
        if rc < 0:
            return rc
        lane.open.batch = made
        lane.open.count = made.record_count
        lane.ready.append(lane.open)
        lane.open = None
        return 0

    def close(self, Lane lane not None):
        """Close the open batch, if there is one. Raises MemoryError, ValueError."""
        cdef int rc
        self.lock.acquire()
        try:
            rc = self.close_open(lane)
        finally:
            self.lock.release()
        if rc < 0:
            raise_error(rc)

    def close_after_linger(self, Lane lane not None, double now_s, bint hurried):
        """Close the open batch if its linger is over or if hurried. Returns None, or when its
        linger will be over. Raises MemoryError, ValueError."""
        cdef double due_s
        cdef int rc
        self.lock.acquire()
        try:
            if lane.open is None:
                return None
            due_s = lane.open.created_s + self.linger_s
            if now_s < due_s and not hurried:
                return due_s
            rc = self.close_open(lane)
        finally:
            self.lock.release()
        if rc < 0:
            raise_error(rc)
        return None

    def drop_if_idle(self, Lane lane not None):
        """Forget that a queue has work when it has none."""
        if lane.open is None and not lane.ready and not lane.in_flight and lane in self.active:
            del self.active[lane]

    def add_part(self, part):
        """Count a part of a batch that was split as incomplete."""
        self.incomplete[part.number] = part

    def release(self, pending):
        """Give the memory of a batch back, which is complete."""
        del self.incomplete[pending.number]
        self.bytes_used -= pending.bytes

    # The sender's sleep.

    def may_sleep(self, double until_s) -> bool:
        """Return False when something has changed since the last call."""
        if self.changed:
            self.changed = False
            return False
        self.sleep += 1
        self.wakes_s = until_s
        return True

    def notify(self):
        """Have the sender look at the batches again."""
        self.must_wake()
        self.wake_sender()

    cdef void must_wake(self) noexcept:
        self.changed = True
        self.wake_wanted = self.sleep

    cdef int wake_sender(self) except -1:
        """End the sleep that must_wake() was called in, once.

        It counts as done only afterwards: a signal handler that interrupts `wake` and waits for
        the sender must call it again."""
        cdef int64_t wanted = self.wake_wanted
        if self.wake_done != wanted:
            self.wake()
            self.wake_done = wanted
        return 0


def add_waiter(pending, function) -> bool:
    """Have pending.complete() call the function; False when the batch is complete already."""
    cdef list waiters, fresh = [function]
    # From here on no bytecode runs, so that complete() cannot come between.
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

    Not known to the garbage collector, so that programs may keep millions of them.
    """

    def __init__(self, pending, int32_t index, int64_t timestamp):
        self.pending = pending
        self.index = index
        self.timestamp = timestamp

    def done(self) -> bool:
        return self.pending.done

    def result(self, timeout_s=None):
        """Waits for the acknowledgement: a RecordMetadata. Raises KafkaError; KafkaTimeoutError
        after timeout_s, when the record may yet arrive."""
        return self.pending.result_of(self.index, self.timestamp, timeout_s)

    def exception(self, timeout_s=None):
        """Waits too; None when the record was acknowledged."""
        return self.pending.exception_of(self.index, timeout_s)

    def add_done_callback(self, function):
        """Calls function(self) when the outcome stands, on the client's thread, or now."""
        self.pending.when_done(lambda: function(self))

    def __await__(self):
        return self.pending.await_of(self.index, self.timestamp)


cdef inline Delivery delivery_of(pending, int32_t index, int64_t timestamp):
    cdef Delivery made = Delivery.__new__(Delivery)
    made.pending, made.index, made.timestamp = pending, index, timestamp
    return made


cdef inline int64_t plain(object data, const uint8_t **at) except? -3:
    """The length of None (-1), bytes or str; NOT_PLAIN for anything else."""
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
    """A topic's partitions as they are at the moment."""

    def __cinit__(self, RecordBuffer buffer not None, list partitions not None,
                  list available not None, bint hashes, int64_t record_bytes_max):
        """hashes: keys choose the partition by murmur2."""
        self.buffer = buffer
        self.partitions = partitions
        self.available = available
        self.lanes = [None] * len(partitions)
        self.hashes = hashes
        self.record_bytes_max = record_bytes_max
        self.sticky = -1

    def add_lane(self, Py_ssize_t partition, Lane lane not None):
        self.lanes[partition] = lane

    def stick(self, int32_t partition, int64_t bytes_max):
        """Records without key go to `partition` until they are bytes_max bytes."""
        self.sticky = partition
        self.sticky_left = bytes_max

    def stuck_bytes(self) -> int:
        """Bytes that stuck since the last call."""
        found = self.sticky_bytes
        self.sticky_bytes = 0
        return found

    def append(self, value, key=None, partition=None, timestamp=None, headers=None,
               on_delivery=None):
        """The Delivery of a plain record for a batch that has room; None: take the long way."""
        if headers or on_delivery is not None:
            return None
        return self.take(value, key, partition, timestamp)

    cdef object take(self, value, key, partition, timestamp):
        cdef csrc.builder_record record
        cdef BatchBuilder builder
        cdef Lane lane
        cdef object pending
        cdef int64_t size, bytes_after
        cdef int32_t chosen, index
        cdef int rc
        if not (partition is None or isinstance(partition, int)) or not (
                timestamp is None or isinstance(timestamp, int)):
            return None  # The slow way takes what is not an int.
        record.key_len = plain(key, &record.key)
        record.value_len = plain(value, &record.value)
        if record.key_len == NOT_PLAIN or record.value_len == NOT_PLAIN:
            return None
        size = (0 if record.key_len < 0 else record.key_len) + (
            0 if record.value_len < 0 else record.value_len)
        if size > self.record_bytes_max:
            return None
        if self.buffer.wake_done != self.buffer.wake_wanted:
            return None  # The call that should wake the sender was interrupted: the slow way does.
        record.headers = NULL
        record.headers_len = 0
        record.timestamp = now_ms() if timestamp is None else timestamp
        chosen = self.place(&record, partition)
        if chosen < 0 or self.lanes[chosen] is None:
            return None
        lane = <Lane>self.lanes[chosen]
        builder = lane.builder
        self.buffer.lock.acquire()
        pending = lane.open
        bytes_after = <int64_t>builder.state.len + size + RECORD_OVERHEAD_BYTES
        if pending is None or bytes_after > lane.reserved:
            self.buffer.lock.release()
            return None
        rc = csrc.builder_append(&builder.state, &record)
        index = builder.state.count - 1
        self.buffer.lock.release()
        if rc != 0:
            return None
        return delivery_of(pending, index, record.timestamp)

    cdef int32_t place(self, const csrc.builder_record *record, partition) except? -2:
        """The record's partition; -1 when others decide."""
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


cdef class Intake:
    """What a producer's records come in by. routes: by topic, none where more has to be done."""

    def __init__(self, dict routes not None):
        self.routes = routes

    def send(self, topic, value=None, key=None, *, partition=None, timestamp=None, headers=None,
             on_delivery=None):
        """Hands one record over; its outcome is in the Delivery.

        value, key: bytes, str or a buffer, or what the serializers take. timestamp: ms, None for
        now. headers: pairs or a dict. on_delivery(RecordMetadata or None, error or None) is called
        on the client's thread. Raises BufferFullError or KafkaTimeoutError after max.block.ms,
        SerializationError, other KafkaErrors.
        """
        cdef object taken
        if on_delivery is None and not headers:
            route = self.routes.get(topic)
            if route is not None:
                taken = (<Route>route).take(value, key, partition, timestamp)
                if taken is not None:
                    return taken
        return self.send_slowly(topic, value, key, partition, timestamp, headers, on_delivery)

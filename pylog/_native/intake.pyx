"""The short way of a record into its partition's open batch, and the ticket that it gets.

Owns: the lock of a producer's queues; per topic what partition null keys stick to.
Invariants: (1) `Route.append` either takes the record or changes nothing that a later try would
  notice; (2) a lane's builder and open batch change only under the lock.
Source: KIP-480, KIP-794 (sticky partitions); Java's default partitioner.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

from pylog._native cimport csrc
from pylog._native.builder cimport BatchBuilder

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef enum:
    NOT_PLAIN = -2
    RECORD_OVERHEAD_BYTES = 128  # header of a batch and varints of a record, at most


@cython.final
cdef class Mutex:
    """A lock for `with`, native code and the interpreter's threads alike. Not to be nested.

    None of the interpreter's own: these ask for the time whenever they are taken, which is a tenth
    of what a record costs."""

    def __cinit__(self):
        csrc.lock_init(&self.lock)

    def __dealloc__(self):
        # In a forked child a thread may have it that is not there.
        if csrc.lock_try_acquire(&self.lock):
            csrc.lock_release(&self.lock)
            csrc.lock_destroy(&self.lock)

    cdef void acquire(self) noexcept:
        if not csrc.lock_try_acquire(&self.lock):
            # Whoever has it may be waiting for the interpreter.
            with nogil:
                csrc.lock_acquire(&self.lock)

    cdef void release(self) noexcept:
        csrc.lock_release(&self.lock)

    def __enter__(self):
        self.acquire()
        return self

    def __exit__(self, *exception):
        self.release()


cdef class Lane:
    """A partition's open batch. open: what the accumulator keeps of it, None when there is none;
    reserved: the bytes that it may be long for now."""

    def __cinit__(self, Mutex lock not None, BatchBuilder builder not None, *_):
        self.lock = lock
        self.builder = builder


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

    def __cinit__(self, Mutex lock not None, list partitions not None, list available not None,
                  bint hashes, int64_t record_bytes_max):
        """hashes: keys choose the partition by murmur2."""
        self.lock = lock
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
        record.headers = NULL
        record.headers_len = 0
        record.timestamp = now_ms() if timestamp is None else timestamp
        chosen = self.place(&record, partition)
        if chosen < 0 or self.lanes[chosen] is None:
            return None
        lane = <Lane>self.lanes[chosen]
        builder = lane.builder
        self.lock.acquire()
        pending = lane.open
        bytes_after = <int64_t>builder.state.len + size + RECORD_OVERHEAD_BYTES
        if pending is None or bytes_after > lane.reserved:
            self.lock.release()
            return None
        rc = csrc.builder_append(&builder.state, &record)
        index = builder.state.count - 1
        self.lock.release()
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

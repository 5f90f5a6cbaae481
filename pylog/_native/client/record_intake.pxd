from libc.stdint cimport int32_t, int64_t, uint32_t

from pylog._native.client cimport csrc
from pylog._native.client.batch_builder cimport Batch, BatchBuilder


cdef class Mutex:
    cdef csrc.lock lock
    cpdef void acquire(self) noexcept
    cpdef void release(self) noexcept


cdef class PartitionQueue:
    cdef readonly BatchBuilder builder
    cdef public object open
    cdef public int64_t reserved
    cdef readonly object ready
    cdef readonly list in_flight


cdef class RecordBuffer:
    cdef readonly Mutex lock
    cdef readonly dict incomplete, active
    cdef readonly int64_t batch_bytes, bytes_max, bytes_used
    cdef readonly int codec
    cdef readonly object level
    cdef readonly double linger_s
    cdef bint changed
    cdef int level_or_default
    cdef double wakes_s
    cdef int64_t number, sleep, wake_wanted, wake_done
    cdef object wake
    cdef int put(self, PartitionQueue queue, const csrc.builder_record *record, int64_t size, fresh,
                 list rows) except? -100
    cdef bint has_room(self, int64_t more) noexcept
    cdef bint may_grow(self, PartitionQueue queue, int64_t size) except -1
    cdef int begin_batch(self, PartitionQueue queue, fresh, int64_t reserved) except -1
    cdef int close_open(self, PartitionQueue queue) except? -100
    cdef void must_wake(self) noexcept
    cdef int wake_sender(self) except -1


cdef class Route:
    cdef readonly list partitions, available
    cdef list queues
    cdef RecordBuffer buffer
    cdef bint hashes
    cdef int32_t sticky
    cdef int64_t sticky_left, sticky_bytes, record_bytes_max
    cdef object append_plain(self, value, key, partition, timestamp)
    cdef int32_t partition_of(self, const csrc.builder_record *record, partition) except? -2


cdef class Delivery:
    cdef readonly object pending
    cdef readonly int64_t timestamp
    cdef readonly int32_t index


cdef class FastSend:
    cdef dict routes

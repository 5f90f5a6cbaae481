from libc.stdint cimport int32_t, int64_t, uint32_t

from pylog._native cimport csrc
from pylog._native.builder cimport BatchBuilder


cdef class Mutex:
    cdef csrc.lock lock
    cdef void acquire(self) noexcept
    cdef void release(self) noexcept


cdef class Lane:
    cdef readonly BatchBuilder builder
    cdef public object open
    cdef public int64_t reserved
    cdef readonly Mutex lock


cdef class Route:
    cdef readonly list partitions, available
    cdef list lanes
    cdef Mutex lock
    cdef bint hashes
    cdef int32_t sticky
    cdef int64_t sticky_left, sticky_bytes, record_bytes_max
    cdef object take(self, value, key, partition, timestamp)
    cdef int32_t place(self, const csrc.builder_record *record, partition) except? -2


cdef class Delivery:
    cdef readonly object pending
    cdef readonly int64_t timestamp
    cdef readonly int32_t index


cdef class Intake:
    cdef dict routes

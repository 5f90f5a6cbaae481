from libc.stdint cimport int32_t, int64_t, uint64_t

from pylog._native.server cimport csrc as c
from pylog._native.server.rate_limit cimport Throttle


cdef class Notice:
    cdef readonly int kind, code
    cdef readonly uint64_t token
    cdef readonly int32_t epoch, leader_id, leader_epoch
    cdef readonly int64_t end_offset


cdef class Followed:
    cdef c.fetch_partition *ptr


cdef class Fetchers:
    cdef c.fetchers *ptr
    cdef readonly int threads
    # Keeps the memory of the logs alive.
    cdef set directories
    cdef Throttle throttle

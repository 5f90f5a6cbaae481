from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t


cdef class Records:
    cdef uint8_t *bytes
    cdef size_t size, room
    cdef int32_t count
    cdef int64_t base_timestamp, max_timestamp
    cdef int append(self, object record) except -1
    cdef uint8_t *reserve(self, size_t more) except NULL

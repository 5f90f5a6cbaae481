from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from pylog._native.server cimport csrc


cdef class Repeats:
    cdef csrc.repeats *ptr
    cdef uint64_t voids


cdef class Repeat:
    cdef Repeats table
    cdef csrc.repeat *ptr
    cdef int64_t until_ms
    cdef uint64_t voids
    cdef readonly bint is_offered
    cdef int add(self, uint32_t principal, int api_key, int api_version, const uint8_t *address,
                 str client_id, bytes body, bytes frame) except -1

from libc.stdint cimport int32_t, int64_t, uint8_t

from pylog._native.client cimport csrc


cdef struct record_views:
    Py_buffer key
    Py_buffer value
    bint has_key
    bint has_value


cdef int view_record(record_views *views, csrc.builder_record *record, key, value) except -1
cdef void release_views(record_views *views)
cdef bytes encoded_headers(headers)
cdef int raise_error(int rc) except -1


cdef class Pool:
    cdef csrc.builder_pool state
    cdef bint begun


cdef class Batch:
    cdef uint8_t *data
    cdef size_t room
    cdef Pool pool
    cdef bint sealed
    cdef readonly Py_ssize_t nbytes
    cdef readonly int64_t max_timestamp
    cdef readonly int32_t record_count
    cdef public int32_t partition
    cpdef seal(self)


cdef class BatchBuilder:
    cdef csrc.builder state
    cdef Pool pool
    cdef readonly int32_t partition
    cdef Batch closed(self, int codec, int level, int *error)


cdef class Column:
    cdef csrc.builder_column state
    cdef readonly Py_ssize_t length
    cdef Py_buffer[3] views
    cdef int view_count
    cdef const void *borrow(self, object buffer, Py_ssize_t nbytes_min) except? NULL


cdef class BatchWriter:
    cdef csrc.builder_writer state
    cdef Pool pool
    cdef csrc.builder_rows rows

from libc.stdint cimport int32_t, int64_t, uint8_t

from pylog._native cimport csrc


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
    cdef bytearray encoded
    cdef int append_record(
        self, const csrc.builder_record *given, headers) except? -1
    cdef int encode_headers(self, headers) except -1


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

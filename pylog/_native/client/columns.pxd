from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from pylog._native.client cimport csrc
from pylog._native.records.compress cimport Inflater


cdef class ColumnBuffer:
    cdef uint8_t *data
    cdef readonly Py_ssize_t nbytes


cdef int raise_error(int rc, int64_t offset) except -1
cdef ColumnBuffer taken(void *data, size_t nbytes)


cdef class Fetched:
    cdef csrc.columns_source state
    cdef Py_buffer view
    cdef bint viewed
    cdef Py_ssize_t size  # of the data; the view may be larger
    cdef Inflater owner
    cdef readonly int32_t source
    cdef int begin(self, aborted) except -1
    cdef int look(self) except? -1
    cdef int borrow(self) except -1
    cdef int give_back(self) except -1


cdef class ColumnReader:
    cdef csrc.columns state
    cdef readonly bint full


cdef class Columns:
    cdef csrc.columns_run *run_list
    cdef size_t run_count
    cdef int take(self, csrc.columns *c) except -1
    cdef int take_headers(self, csrc.columns *c) except -1
    cdef readonly Py_ssize_t count, header_count
    cdef readonly Py_ssize_t key_null_count, value_null_count, header_value_null_count
    cdef readonly ColumnBuffer offsets, timestamps
    cdef readonly ColumnBuffer key_offsets, key_data, key_validity
    cdef readonly ColumnBuffer value_offsets, value_data, value_validity
    cdef readonly ColumnBuffer header_offsets, header_key_offsets, header_key_data
    cdef readonly ColumnBuffer header_value_offsets, header_value_data, header_value_validity


cdef class Record:
    cdef readonly str topic
    cdef public object key, value
    cdef object raw_headers
    cdef readonly int64_t offset, timestamp
    cdef readonly int32_t partition, leader_epoch
    cdef readonly int16_t timestamp_type

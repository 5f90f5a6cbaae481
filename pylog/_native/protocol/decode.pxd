from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t

from pylog._native.protocol.message cimport Failure, Op, Plan


cdef struct Reader:
    const uint8_t *data
    Py_ssize_t position
    Py_ssize_t end
    int64_t budget
    int64_t elements  # remaining limit for all arrays together
    Failure failure


cdef PyObject *read_struct(Reader *r, const Plan *plan) noexcept
cdef PyObject *read_one(Reader *r, const Op *op) noexcept
cdef PyObject *read_value(Reader *r, const Op *op) noexcept
cdef bint read_tags(Reader *r, const Plan *plan, PyObject *made) noexcept
cdef Py_ssize_t read_length(Reader *r, const Op *op, int width) noexcept nogil
cdef Py_ssize_t read_count(Reader *r, const Op *op) noexcept nogil
cdef bint skip_one(Reader *r, const Op *op) noexcept nogil
cdef bint skip_value(Reader *r, const Op *op) noexcept nogil
cdef PyObject *read_string(Reader *r, const Op *op) noexcept
cdef bint skip_tags(Reader *r) noexcept nogil
cdef raise_read(str title, Reader *r)
cdef str path_of(Failure *failure)

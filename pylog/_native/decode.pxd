from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t

from pylog._native.message cimport Failure, Op, Plan


cdef struct Reader:
    const uint8_t *data
    Py_ssize_t position
    Py_ssize_t end
    int64_t budget
    Failure failure


cdef PyObject *read_struct(Reader *r, const Plan *plan) noexcept
cdef PyObject *read_string(Reader *r, const Op *op) noexcept
cdef bint skip_tags(Reader *r) noexcept
cdef raise_read(str title, Reader *r)
cdef str path_of(Failure *failure)

from cpython.object cimport PyObject
from libc.stdint cimport uint8_t, uint32_t

from pylog._native.message cimport Failure, Op, Plan


cdef struct Writer:
    PyObject *bytes
    uint8_t *data
    Py_ssize_t size
    Py_ssize_t capacity
    Failure failure


cdef class Encoded:
    cdef const Plan *plan
    cdef bytes data
    cdef object program


cdef bint write_struct(Writer *w, const Op *holder, const Plan *plan, PyObject *value) noexcept
cdef void put_u32(uint8_t *at, uint32_t value) noexcept
cdef raise_written(str title, Writer *w)

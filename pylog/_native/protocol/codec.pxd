cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport uint8_t

from pylog._native.protocol.encode cimport Writer
from pylog._native.protocol.message cimport Op, Plan


@cython.final
cdef class Program:
    cdef Plan plan
    cdef list kept
    cdef readonly str title
    cdef Py_ssize_t hint  # size of the last message written

    cdef int set_op(self, Op *op, type cls, tuple row) except -1
    cdef object written(
        self, PyObject *message, const uint8_t *head, Py_ssize_t size, bint sized,
        Py_ssize_t bytes_max)
    cdef int begin(
        self, Writer *w, Py_ssize_t size, Py_ssize_t bytes_max, bint in_pieces) except -1
    cdef int write(
        self, Writer *w, PyObject *message, const uint8_t *head, Py_ssize_t size, bint sized
    ) except -1

from cpython.object cimport PyObject
from libc.stdint cimport uint8_t, uint32_t

from pylog._native.message cimport Failure, Op, Plan


cdef enum:
    PIECES_MAX = 64  # of one message; what comes after is copied
    PIECE_BYTES_MIN = 4096  # shorter ones cost less copied than looked after


cdef struct Piece:
    PyObject *value  # borrowed from the message
    Py_ssize_t position  # it belongs before this byte


cdef struct Writer:
    PyObject *bytes
    uint8_t *data
    Py_ssize_t size
    Py_ssize_t capacity
    Failure failure
    bint in_pieces  # long values of bytes are noted, not copied
    int piece_count
    Py_ssize_t pieces_bytes
    Piece[PIECES_MAX] pieces


cdef class Encoded:
    cdef const Plan *plan
    cdef bytes data
    cdef object program


cdef bint write_struct(Writer *w, const Op *holder, const Plan *plan, PyObject *value) noexcept
cdef void put_u32(uint8_t *at, uint32_t value) noexcept
cdef raise_written(str title, Writer *w)

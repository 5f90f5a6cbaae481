from cpython.object cimport PyObject
from libc.stdint cimport uint8_t, uint32_t

from pylog._native.protocol.message cimport Failure, Op, Plan


cdef enum:
    PIECES_MAX = 64  # per message; further ones are copied
    PIECE_BYTES_MIN = 4096  # copying shorter ones is cheaper
    BYTES_MAX = 0x7FFFFFFF  # of a frame, without its size field


cdef struct Piece:
    PyObject *value  # borrowed from the message
    Py_ssize_t position  # insert before this byte


cdef struct Writer:
    PyObject *bytes
    uint8_t *data
    Py_ssize_t size
    Py_ssize_t capacity
    Py_ssize_t size_max
    Failure failure
    bint in_pieces  # long byte values are recorded, not copied
    int piece_count
    Py_ssize_t pieces_bytes
    Piece[PIECES_MAX] pieces


cdef class Encoded:
    cdef const Plan *plan
    cdef bytes data
    cdef Py_ssize_t count  # of the structs that it represents
    cdef object program


cdef inline Py_ssize_t held(object struct) noexcept:
    """Return how many array elements a value represents."""
    return (<Encoded> struct).count if type(struct) is Encoded else 1


cdef bint write_struct(Writer *w, const Op *holder, const Plan *plan, PyObject *value) noexcept
cdef void put_u32(uint8_t *at, uint32_t value) noexcept
cdef raise_written(str title, Writer *w)

from pylog._native.server cimport csrc as c


cdef class Grants:
    cdef c.grants *ptr
    cdef tuple directories

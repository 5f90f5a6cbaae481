from pylog._native cimport csrc


cdef class IoPool:
    cdef csrc.iopool *pool

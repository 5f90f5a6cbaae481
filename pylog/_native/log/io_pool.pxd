from pylog._native.log cimport csrc


cdef class IoPool:
    cdef csrc.iopool *pool

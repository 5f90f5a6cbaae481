from pylog._native cimport csrc


cdef class Throttle:
    cdef csrc.throttle *ptr

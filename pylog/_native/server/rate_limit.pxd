from pylog._native.server cimport csrc


cdef class Throttle:
    cdef csrc.throttle *ptr

from pylog._native cimport csrc


cdef class Inflater:
    cdef csrc.inflater *inflater

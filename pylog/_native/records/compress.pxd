from pylog._native.records cimport csrc


cdef class Inflater:
    cdef csrc.inflater *inflater


cdef Inflater borrow_inflater()
cdef int return_inflater(Inflater inflater) except -1

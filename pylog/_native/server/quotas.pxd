from pylog._native.server cimport csrc as c


cdef class Quotas:
    cdef c.quotas *ptr

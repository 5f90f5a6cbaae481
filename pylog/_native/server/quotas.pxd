from pylog._native cimport csrc as c


cdef class Quotas:
    cdef c.quotas *ptr

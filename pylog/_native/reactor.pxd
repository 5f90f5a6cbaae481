from pylog._native cimport csrc


cdef class Reactors:
    cdef csrc.reactors *ptr
    cdef csrc.serve_shared *shared
    cdef object grants
    cdef object io_pool
    cdef object quotas
    cdef int _listen(self, int listener, str host, int port, int backlog, int first) except -1

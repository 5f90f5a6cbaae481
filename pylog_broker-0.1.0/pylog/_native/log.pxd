from pylog._native cimport csrc
from pylog._native.log_dir cimport LogDir


cdef class Log:
    cdef csrc.log_t *ptr
    cdef readonly LogDir log_dir
    cdef readonly str topic
    cdef readonly int partition
    cdef bytes name
    cdef int refuse(self, int error) except -1
    cdef int use(self) except -1

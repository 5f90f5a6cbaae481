from pylog._native cimport csrc
from pylog._native.iopool cimport IoPool


cdef class LogDir:
    cdef csrc.log_dir *dir
    cdef readonly IoPool io_pool
    cdef readonly str path


cdef class Log:
    cdef csrc.log_t *ptr
    cdef readonly LogDir log_dir
    cdef readonly str topic
    cdef readonly int partition
    cdef bytes name
    cdef int refuse(self, int error) except -1
    cdef int use(self) except -1

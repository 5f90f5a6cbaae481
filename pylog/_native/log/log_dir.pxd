from pylog._native.log cimport csrc
from pylog._native.log.io_pool cimport IoPool


cdef class LogDir:
    cdef csrc.log_dir *dir
    cdef readonly IoPool io_pool
    cdef readonly str path

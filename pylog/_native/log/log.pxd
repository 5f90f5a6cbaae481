from pylog._native.log cimport csrc
from pylog._native.log.log_dir cimport LogDir


cdef class Log:
    # One reference, from open() until the object is destroyed. A call that runs without the GIL
    # holds the object, so close() in another thread cannot free what the call uses. NULL only if
    # opening failed.
    cdef csrc.log_t *ptr
    cdef bint closed
    cdef readonly LogDir log_dir
    cdef readonly str topic
    cdef readonly int partition
    cdef bytes name
    cdef int refuse(self, int error) except -1
    cdef int use(self) except -1

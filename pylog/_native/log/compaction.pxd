from pylog._native.log cimport csrc
from pylog._native.log.log cimport Log


cdef class OffsetMap:
    cdef csrc.offset_map map


cdef class CleaningPass:
    cdef csrc.log_clean *ptr
    cdef Log log
    cdef OffsetMap map
    cdef bint stepping, closing
    cdef int end(self) except -1

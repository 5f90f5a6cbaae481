from pylog._native cimport csrc


cdef int take_config(dict settings, csrc.log_config *out) except -1

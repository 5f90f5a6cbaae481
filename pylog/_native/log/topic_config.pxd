from pylog._native.log cimport csrc


cdef int take_config(dict settings, csrc.log_config *out) except -1

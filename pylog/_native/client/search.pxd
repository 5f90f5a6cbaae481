from pylog._native.client cimport csrc


cdef class Search:
    cdef csrc.search state
    cdef csrc.search_test *tests
    cdef csrc.json_step *steps
    cdef list texts  # the bytes to which tests and steps point
    cdef int add(self, csrc.search_test *test, given, size_t *step) except -1
    cdef int add_step(self, csrc.json_step *step, part) except -1

from pylog._native cimport csrc


cdef class TlsServer:
    cdef csrc.tls_server *ptr

from pylog._native.server cimport csrc


cdef class TlsServer:
    cdef csrc.tls_server *ptr


cdef class TlsClient:
    cdef csrc.tls *ptr


cdef class TlsSession:
    cdef csrc.transport transport
    cdef int _refuse(self) except -1

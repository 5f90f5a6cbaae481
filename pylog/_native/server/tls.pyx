"""TLS with OpenSSL: contexts for listeners, client connections for native threads, and key stores.

Owns: the newest OpenSSL context of a listener; the context and sessions of a client.
Invariants: an invalid context changes nothing; connections keep their initial context; only this
  module needs OpenSSL, so that a broker without TLS does not load it.
Source: csrc/transport/tls_context.h.
"""

import cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from libc.errno cimport EAGAIN, errno
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from pylog._native.server cimport csrc

cdef extern from "<openssl/ssl.h>" nogil:
    enum: TLS1_VERSION, TLS1_1_VERSION, TLS1_2_VERSION, TLS1_3_VERSION

cdef const char *MAKER = "pylog.transport_maker"
cdef const char *TRANSPORT = "pylog.transport"
# Kafka's names, lowest first.
VERSIONS = {"TLSv1": TLS1_VERSION, "TLSv1.1": TLS1_1_VERSION, "TLSv1.2": TLS1_2_VERSION,
            "TLSv1.3": TLS1_3_VERSION}
CLIENT_AUTH = {"none": csrc.TLS_CLIENT_NONE, "requested": csrc.TLS_CLIENT_REQUESTED,
               "required": csrc.TLS_CLIENT_REQUIRED}


class TlsError(Exception):
    """A problem with certificates, keys or settings. The text contains no secrets."""


cdef const char *_chars(bytes text) except? NULL:
    if text is None:
        return NULL
    return text


cdef void _forget(object capsule) noexcept:
    cdef csrc.transport_maker *maker = \
        <csrc.transport_maker *>PyCapsule_GetPointer(capsule, MAKER)
    maker.release(maker)


cdef csrc.tls *_made(csrc.tls_settings *settings) except NULL:
    """Create a context. Raises TlsError."""
    cdef char why[csrc.TLS_WHY_BYTES]
    cdef csrc.tls *context
    with nogil:
        context = csrc.tls_new(settings, why)
    if context == NULL:
        raise TlsError(why.decode("utf-8", "replace"))
    return context


@cython.final
cdef class TlsServer:
    """The TLS context of one listener. Call use() first."""

    def __cinit__(self):
        self.ptr = csrc.tls_server_new()
        if self.ptr == NULL:
            raise MemoryError("tls")

    def __dealloc__(self):
        if self.ptr != NULL:
            csrc.tls_server_release(self.ptr)

    def use(self, *, bytes chain not None, bytes key not None, bytes key_password=None,
            bytes trusted=None, bytes revoked=None, bytes ciphers=None,
            str version_min="TLSv1.2", str version_max="TLSv1.3", str client_auth="none"):
        """Use these settings for new connections. Raises TlsError and then changes nothing.

        chain, key, trusted, revoked: PEM. ciphers: names of OpenSSL or IANA, separated by colons.
        """
        cdef csrc.tls_settings settings
        cdef csrc.tls *context
        memset(&settings, 0, sizeof(settings))
        settings.chain, settings.key = _chars(chain), _chars(key)
        settings.key_password, settings.trusted = _chars(key_password), _chars(trusted)
        settings.revoked, settings.ciphers = _chars(revoked), _chars(ciphers)
        settings.version_min, settings.version_max = VERSIONS[version_min], VERSIONS[version_max]
        settings.client_auth = <csrc.tls_client_auth><int>CLIENT_AUTH[client_auth]
        context = _made(&settings)
        csrc.tls_server_use(self.ptr, context)
        csrc.tls_release(context)

    def maker(self):
        """Return the maker for Reactors.listen(); it may outlive this object."""
        cdef csrc.transport_maker *maker = csrc.tls_server_maker(self.ptr)
        capsule = PyCapsule_New(maker, MAKER, _forget)
        maker.retain(maker)
        return capsule


@cython.final
cdef class TlsClient:
    """The TLS context of client connections. chain, key: PEM of the client certificate, or None;
    trusted: PEM, None for the system's authorities. Raises TlsError.
    """

    def __cinit__(self, *, bytes chain=None, bytes key=None, bytes key_password=None,
                  bytes trusted=None):
        cdef csrc.tls_settings settings
        memset(&settings, 0, sizeof(settings))
        settings.chain, settings.key = _chars(chain), _chars(key)
        settings.key_password, settings.trusted = _chars(key_password), _chars(trusted)
        settings.version_min, settings.version_max = TLS1_2_VERSION, TLS1_3_VERSION
        settings.connects = True
        self.ptr = _made(&settings)

    def __dealloc__(self):
        if self.ptr != NULL:
            csrc.tls_release(self.ptr)

    def connect(self, int fd, str host not None, bint checked) -> TlsSession:
        """Start a session over a connected non-blocking socket, which the caller owns. host: name
        in the server's certificate, verified if `checked`.
        """
        cdef TlsSession made = TlsSession.__new__(TlsSession)
        made.transport.fd = fd
        if not csrc.transport_tls_connect(self.ptr, &made.transport, host.encode(), checked):
            raise MemoryError("tls")
        return made


@cython.final
cdef class TlsSession:
    """One connection, created by TlsClient.connect(). Until give(), only one thread at a time may
    use it.
    """

    def __dealloc__(self):
        if self.transport.session != NULL:
            self.transport.calls.end(&self.transport)

    def handshake(self) -> bool:
        """Continue the handshake. Return True when done, False if the socket must become ready
        first. Raises TlsError.
        """
        cdef csrc.transport_report report
        cdef csrc.transport_shake shake
        with nogil:
            shake = self.transport.calls.handshake(&self.transport, &report)
        if shake == csrc.TRANSPORT_FAILED:
            raise TlsError(report.text.decode("utf-8", "replace")
                           or "the other side closed the connection")
        return shake == csrc.TRANSPORT_SAFE

    def send(self, bytes data not None) -> int:
        """Send like a socket: return how many bytes were accepted. Raises BlockingIOError,
        TlsError.
        """
        cdef csrc.iovec piece
        cdef ssize_t sent
        assert len(data) > 0
        piece.iov_base, piece.iov_len = PyBytes_AS_STRING(data), <size_t>len(data)
        with nogil:
            sent = self.transport.calls.send(&self.transport, &piece, 1, False)
        if sent < 0:
            self._refuse()
        return sent

    def recv(self, size_t count) -> bytes:
        """Receive like a socket. Raises BlockingIOError, TlsError."""
        cdef bytes found = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>count)
        cdef char *to = PyBytes_AS_STRING(found)
        cdef ssize_t got = -1
        assert count > 0
        with nogil:
            got = self.transport.calls.recv(&self.transport, to, count)
            while got < 0 and errno == EAGAIN and self.transport.left:
                got = self.transport.calls.recv(&self.transport, to, count)
        if got < 0:
            self._refuse()
        return found[:got]

    cdef int _refuse(self) except -1:
        cdef const char *why
        if errno == EAGAIN:
            raise BlockingIOError(errno, "TLS waits for the socket")
        why = self.transport.calls.failure(&self.transport)
        raise TlsError("the connection failed" if why == NULL else why.decode("utf-8", "replace"))

    def give(self):
        """Return the session for Fetchers.attach(). This object must not be used afterwards."""
        cdef csrc.transport *given
        assert self.transport.session != NULL, "given before"
        given = <csrc.transport *>calloc(1, sizeof(csrc.transport))
        if given == NULL:
            raise MemoryError("tls")
        given[0] = self.transport
        self.transport.session = NULL
        return PyCapsule_New(given, TRANSPORT, _end)


cdef void _end(object capsule) noexcept:
    cdef csrc.transport *given = <csrc.transport *>PyCapsule_GetPointer(capsule, TRANSPORT)
    if given.session != NULL:
        given.calls.end(given)
    free(given)


def open_pkcs12(bytes data not None, bytes password not None):
    """Return (private key, its certificates, trusted certificates) of a file, as PEM or None.

    Raises TlsError.
    """
    cdef csrc.tls_store store
    cdef char why[csrc.TLS_WHY_BYTES]
    if not csrc.tls_store_open(<const char *>data, len(data), password, &store, why):
        raise TlsError(why.decode("utf-8", "replace"))
    try:
        return (_text(store.key), _text(store.chain), _text(store.trusted))
    finally:
        csrc.tls_store_close(&store)


cdef bytes _text(const char *text):
    return None if text == NULL else <bytes>text


def library():
    """Return the name and version of the OpenSSL loaded at run time, which may differ from the
    build's.
    """
    return csrc.tls_library().decode()

"""TLS by OpenSSL: what a listener's connections are made safe with, and the files that come in.

Owns: the newest OpenSSL context of a listener.
Called by: security.tls, security.stores, cli.
Invariants: (1) a context that cannot be used changes nothing; (2) connections keep the context that
  they began with; (3) only this module needs OpenSSL, so that a broker without TLS does not load
  it.
Source: csrc/net/tls.h.
"""

import cython
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New

from pylog._native cimport csrc

cdef extern from "<openssl/ssl.h>" nogil:
    enum: TLS1_VERSION, TLS1_1_VERSION, TLS1_2_VERSION, TLS1_3_VERSION

cdef const char *MAKER = "pylog.transport_maker"
# Kafka's names, lowest first.
VERSIONS = {"TLSv1": TLS1_VERSION, "TLSv1.1": TLS1_1_VERSION, "TLSv1.2": TLS1_2_VERSION,
            "TLSv1.3": TLS1_3_VERSION}
CLIENT_AUTH = {"none": csrc.TLS_CLIENT_NONE, "requested": csrc.TLS_CLIENT_REQUESTED,
               "required": csrc.TLS_CLIENT_REQUIRED}


class TlsError(Exception):
    """What is wrong with certificates, keys or settings, without any secret."""


cdef const char *_chars(bytes text) except? NULL:
    if text is None:
        return NULL
    return text


cdef void _forget(object capsule) noexcept:
    cdef csrc.transport_maker *maker = \
        <csrc.transport_maker *>PyCapsule_GetPointer(capsule, MAKER)
    maker.release(maker)


@cython.final
cdef class TlsServer:
    """The TLS of one listener; of no use before use()."""

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
        """New connections get this from now on. Raises TlsError (1).

        chain, key, trusted, revoked: PEM. ciphers: OpenSSL's or the IANA's names, between colons.
        """
        cdef csrc.tls_settings settings
        cdef char why[csrc.TLS_WHY_BYTES]
        cdef csrc.tls *context
        settings.chain, settings.key = _chars(chain), _chars(key)
        settings.key_password, settings.trusted = _chars(key_password), _chars(trusted)
        settings.revoked, settings.ciphers = _chars(revoked), _chars(ciphers)
        settings.version_min, settings.version_max = VERSIONS[version_min], VERSIONS[version_max]
        settings.client_auth = <csrc.tls_client_auth><int>CLIENT_AUTH[client_auth]
        with nogil:
            context = csrc.tls_new(&settings, why)
        if context == NULL:
            raise TlsError(why.decode("utf-8", "replace"))
        csrc.tls_server_use(self.ptr, context)
        csrc.tls_release(context)

    def maker(self):
        """For Reactors.listen(); may outlive this object."""
        cdef csrc.transport_maker *maker = csrc.tls_server_maker(self.ptr)
        capsule = PyCapsule_New(maker, MAKER, _forget)
        maker.retain(maker)
        return capsule


def open_pkcs12(bytes data not None, bytes password not None):
    """(private key, its certificates, trusted certificates) of a file, as PEM; None: it has none.

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
    """OpenSSL and its version: that which runs, not that which was built with."""
    return csrc.tls_library().decode()

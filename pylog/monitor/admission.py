"""Access to the metrics endpoint: its TLS certificate, reloaded when it changes, and its token.

Owns: the TLS context in use.
Invariants: an unusable certificate prevents the start, and later is logged and ignored; comparing a
  token takes constant time.
Source: RFC 6750 (bearer tokens).
"""

from __future__ import annotations

import logging
import os
import threading

from pylog.log.errors import StartError

TYPE_CHECKING = False  # typing.TYPE_CHECKING would cost the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    import socket
    import ssl

KEYSTORE, TOKEN = "metrics.ssl.keystore.location", "metrics.token"
SCHEME = "bearer"

log = logging.getLogger("pylog.monitor")


class Admission:
    """keystore: path of a PEM file, "" for plain HTTP. token: None admits every request."""

    def __init__(self, keystore: str, token: str | None):
        self._keystore, self._token = keystore, token
        self._reading = threading.Lock()
        self._context: ssl.SSLContext | None = None
        self._stamp: tuple | None = None

    @property
    def asks(self) -> bool:
        return self._token is not None

    @property
    def is_encrypted(self) -> bool:
        return bool(self._keystore)

    def check(self) -> None:
        """Load the certificate. Raises StartError if the certificate or the token is unusable."""
        if self._token == "":
            raise StartError(f"{TOKEN} is empty: remove it, or set a token")
        if not self._keystore:
            return
        try:
            self._stamp = self._now()
            self._context = _context(self._keystore)
        except OSError as error:
            raise StartError(f"{KEYSTORE}={self._keystore}: {_reason(error)}") from error

    def entered(self, connection: socket.socket) -> socket.socket:
        """Return the connection for reading requests, with TLS if configured. Blocks for the
        handshake. Raises OSError.
        """
        if not self._keystore:
            return connection
        with self._reading:
            self._refresh()
            context = self._context
        assert context is not None  # check() ran first
        return context.wrap_socket(connection, server_side=True)

    def _refresh(self) -> None:
        try:
            stamp = self._now()
            if stamp == self._stamp:
                return
            self._stamp = stamp
            self._context = _context(self._keystore)
        except OSError as error:
            # The previous certificate stays in use.
            log.error("the new certificate of the metrics endpoint cannot be used",
                      extra={"reason": _reason(error)})

    def _now(self) -> tuple:
        found = os.stat(self._keystore)
        return found.st_ino, found.st_size, found.st_mtime_ns

    def admits(self, headers: dict) -> bool:
        """Return True if the request has the token. headers: by lower-case name."""
        if self._token is None:
            return True
        # Imported here: most endpoints have no token.
        from hmac import compare_digest

        scheme, _, given = headers.get("authorization", "").partition(" ")
        # Compare in constant time.
        return scheme.lower() == SCHEME and compare_digest(
            given.strip().encode(), self._token.encode())


def _context(path: str) -> ssl.SSLContext:
    # Imported here: it loads OpenSSL.
    import ssl

    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    # The empty password rejects an encrypted key instead of prompting for its password.
    made.load_cert_chain(path, password="")
    return made


def _reason(error: OSError) -> str:
    return getattr(error, "reason", None) or error.strerror or "no PEM file of certificate and key"

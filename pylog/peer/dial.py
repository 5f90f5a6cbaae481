"""Connects a socket to another node, in a blocking thread: with TLS and a login if the listener
requires them.

Owns: nothing; the caller owns the result.
Invariants: every failure is one PeerError with the address; everything ends within the timeout,
  except waiting for a KDC or a token issuer.
Source: none.
"""

from __future__ import annotations

import select
import socket
from collections import namedtuple

from pylog.config.errors import ConfigError
from pylog.peer.errors import PeerError
from pylog.protocol import codec, tables
from pylog.protocol.errors import ProtocolError
from pylog.protocol.reasons import reason_of

TYPE_CHECKING = False  # typing.TYPE_CHECKING would cost the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pylog.peer.credentials import Credentials

CONNECT_SECONDS = 5.0
CLIENT_ID = "pylog"
SIZE_BYTES = 4
ANSWER_BYTES_MAX = 1 << 20  # of a login response

Dialled = namedtuple("Dialled", ("socket", "tls", "login_ms"), defaults=(None, 0))
Dialled.__doc__ = """A connection. tls: a native TlsSession over the socket, None in plain text.
login_ms: lifetime of its login, 0 for no limit."""


def dial(host: str, port: int, now_ns: Callable[[], int], credentials: Credentials | None = None,
         timeout_s: float = CONNECT_SECONDS) -> Dialled:
    """Return a non-blocking connection with TCP_NODELAY. now_ns: a monotonic clock. credentials:
    None for plain text. Raises PeerError.
    """
    end_ns = now_ns() + int(timeout_s * 1e9)
    try:
        made = socket.create_connection((host, port), timeout=timeout_s)
    except (OSError, UnicodeError) as error:
        # Every failure becomes a PeerError with the address.
        raise PeerError(f"{host}:{port}: {reason_of(error)}") from error
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setblocking(False)
    if credentials is None:
        return Dialled(made)
    try:
        return _secured(_Line(made, now_ns, end_ns), host, credentials)
    except (PeerError, OSError, ProtocolError, ConfigError) as error:
        # A certificate file may be half written.
        made.close()
        raise PeerError(f"{host}:{port}: {error}") from None
    except BaseException:
        made.close()
        raise


def _secured(line: _Line, host: str, credentials: Credentials) -> Dialled:
    if not credentials.has_tls:
        return Dialled(line.socket, None, line.log_in(host, credentials))
    # Imported here: it loads Python's ssl.
    from pylog._native.server.tls import TlsError
    from pylog.security.tls import outgoing_tls

    try:
        tls = credentials.client().connect(
            line.socket.fileno(), host, credentials.checks_names)
        line.shake(tls)
        # With TLS 1.3, the other node's verdict on our certificate arrives with the login
        # responses.
        return Dialled(
            line.socket, tls, line.log_in(host, credentials) if credentials.has_login else 0)
    except TlsError as error:
        raise PeerError(outgoing_tls.refused_text(str(error), credentials.own_chain)) from None


class _Line:
    """A connection before it is handed over: at most one request at a time."""

    def __init__(self, made: socket.socket, now_ns: Callable[[], int], end_ns: int):
        self.socket = made
        self._now_ns, self._end_ns = now_ns, end_ns
        self._poll = select.poll()
        self._poll.register(made, select.POLLIN)
        self._out = select.poll()
        self._out.register(made, select.POLLOUT)
        self._send: Callable[[bytes], int] = made.send
        self._receive: Callable[[int], bytes] = made.recv

    def shake(self, tls: Any) -> None:
        """Run the TLS handshake. Raises PeerError, TlsError."""
        while not tls.handshake():
            self._wait(self._poll)
        self._send, self._receive = tls.send, tls.recv

    def log_in(self, host: str, credentials: Credentials) -> int:
        """Log in; return the login's lifetime in ms. Raises PeerError, OSError, ProtocolError,
        TlsError.
        """
        steps, response, number = credentials.login(host), None, 0
        try:
            while True:
                message, version = steps.send(response)
                response, number = self._call(message, version, number), number + 1
        except StopIteration as end:
            return end.value

    def _call(self, message: Any, version: int, number: int) -> Any:
        key = tables.message(type(message).__qualname__).id
        assert key is not None, type(message)
        self._send_all(codec.request_frame(key, version, number, CLIENT_ID, message))
        size = int.from_bytes(self._exactly(SIZE_BYTES), "big", signed=True)
        if not SIZE_BYTES <= size <= ANSWER_BYTES_MAX:
            raise PeerError(f"a response declares {size} bytes")
        response = self._exactly(size)
        _, body = codec.decode_response_header(key, version, response)
        return codec.decode_response(key, version, response, body)

    def _send_all(self, data: bytes) -> None:
        while data:
            try:
                data = data[self._send(data):]
            except BlockingIOError:
                self._wait(self._out)

    def _exactly(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            try:
                chunk = self._receive(count - len(found))
            except BlockingIOError:
                self._wait(self._poll)
                continue
            if not chunk:
                raise PeerError("the connection was closed")
            found += chunk
        return found

    def _wait(self, poll: select.poll) -> None:
        """Wait for the socket, at most until the timeout. Raises PeerError."""
        left_ms = (self._end_ns - self._now_ns()) / 1e6
        if left_ms <= 0 or not poll.poll(left_ms):
            raise PeerError("no answer in time")

"""A connection to another node of the cluster: requests and responses in order, with TLS and a
login if the listener requires them.

Owns: the socket's transport, the bytes of the current response, the requests in flight.
Invariants: responses arrive in request order: the next frame belongs to the oldest request in
  flight, and its correlation id is checked; at most IN_FLIGHT_MAX requests are in flight, and
  further ones wait; a failed connection fails every request in flight, once, and accepts no more;
  memory grows with received bytes, not with a claimed length; a response timeout ends the
  connection, because later responses could not be matched; during a login nothing else is sent, and
  a login with a lifetime is renewed before the next request; the event loop never blocks on a KDC
  or a token issuer.
Source: Kafka's protocol guide; KIP-368 (session lifetimes).
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections import deque

from pylog.config.errors import ConfigError
from pylog.peer.dial import SIZE_BYTES
from pylog.peer.errors import PeerError
from pylog.protocol import api, codec, messages, tables
from pylog.protocol.errors import ProtocolError
from pylog.protocol.reasons import reason_of

TYPE_CHECKING = False  # typing.TYPE_CHECKING would cost the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from typing import Any

    from pylog.peer.credentials import Credentials

CONNECT_SECONDS = 5.0
CALL_SECONDS = 30.0
HEAD_START_S = 0.25  # For each address of a name before trying the next, as in RFC 8305.
IN_FLIGHT_MAX = 64
FRAME_BYTES_MAX = 256 << 20
API_VERSIONS_VERSION = 3
LEVEL_0_SINCE = 4  # Older versions of ApiVersions report a lowest feature level of 0 as 1.
# The kernel sends keepalive probes to a watched host, without waking this process.
PROBE_S, PROBES_MAX = 1, 60
ACKNOWLEDGED_AT = 56  # offset in tcp_info: tcpi_last_ack_recv, in ms
RENEW_SHARE = 0.85  # of a login's lifetime


def key_of(message: Any) -> int:
    """Return the API key of a request message."""
    key = tables.message(type(message).__qualname__).id
    assert key is not None, type(message)
    return key


class Peer(asyncio.Protocol):
    """One connection, opened with `await Peer.connect(...)`. `failure`: the reason for its end."""

    def __init__(self, host: str, port: int, client_id: str):
        self.failure: PeerError | None = None
        self._host, self._port, self._name = host, port, f"{host}:{port}"
        self._client_id = client_id
        self._transport: Any = None
        self._under_way: deque[tuple[int, asyncio.Future[bytes]]] = deque()
        self._room = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._received = bytearray()
        self._next_id = 0
        self._versions: dict[int, int] | None = None  # API key -> newest version of the other node
        self._credentials: Credentials | None = None
        self._login_ends_s: float | None = None  # when to renew it, by the loop's clock
        self._renewing = asyncio.Lock()
        self._ended = asyncio.Event()

    @classmethod
    async def connect(cls, host: str, port: int, client_id: str,
                      timeout_s: float = CONNECT_SECONDS,
                      credentials: Credentials | None = None) -> Peer:
        """Return a connection that is ready for requests. credentials: None for plain text. Raises
        PeerError.
        """
        made = cls(host, port, client_id)
        made._credentials = credentials
        try:
            async with asyncio.timeout(timeout_s):
                await made._open(host, port)
                if credentials is not None and credentials.has_login:
                    await made._log_in()
        except TimeoutError:
            made.close()
            raise PeerError(f"{host}:{port}: no connection within {timeout_s} s") from None
        except OSError as error:
            made.close()
            # This may exceed the timeout, because it checks the other node's certificate again.
            raise PeerError(f"{host}:{port}: {await made._unopened(error)}") from error
        except (ConfigError, UnicodeError) as error:
            # A certificate file may be half written, or the host name invalid.
            made.close()
            raise PeerError(f"{host}:{port}: {reason_of(error)}") from error
        except BaseException:
            made.close()
            raise
        return made

    async def _open(self, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        if self._credentials is None or not self._credentials.has_tls:
            await loop.create_connection(
                lambda: self, host, port, happy_eyeballs_delay=HEAD_START_S)
        else:
            context = self._credentials.context()
            await loop.create_connection(
                lambda: self, host, port, ssl=context, server_hostname=host,
                happy_eyeballs_delay=HEAD_START_S)

    async def _unopened(self, error: OSError) -> str:
        if self._credentials is not None and self._credentials.has_tls:
            # Imported here, as below: it loads Python's ssl.
            from pylog.security.tls import outgoing_tls

            if outgoing_tls.is_tls(error):
                return await outgoing_tls.distrusted(
                    error, self._host, self._port, self._credentials.own_chain)
        return reason_of(error)

    def _ended_by(self, error: Exception) -> str:
        if self._credentials is not None and self._credentials.has_tls:
            from pylog.security.tls import outgoing_tls

            if outgoing_tls.is_tls(error):
                return outgoing_tls.refused(error, self._credentials.own_chain)
        return reason_of(error)

    async def call(self, message: Any, version: int, timeout_s: float = CALL_SECONDS) -> Any:
        """Return the decoded response to a request. Raises PeerError, or EncodeError before
        sending.
        """
        key, number = key_of(message), self._take_id()
        frame = codec.request_frame(key, version, number, self._client_id, message)
        return self._decoded(key, version, await self._exchange(frame, number, timeout_s))

    async def newest(self, key: int, version: int) -> int:
        """Return the newest common version of an API, at most `version`. Raises PeerError."""
        if self._versions is None:
            response = await self.call(messages.ApiVersionsRequest(
                client_software_name="pylog", client_software_version="1"), API_VERSIONS_VERSION)
            self._versions = {row.api_key: row.max_version for row in response.api_keys}
        return min(version, self._versions.get(key, version))

    async def features(self) -> dict[str, tuple[int, int]]:
        """Return the lowest and highest level of each feature that the other node supports. Raises
        PeerError.
        """
        response = await self.call(
            messages.ApiVersionsRequest(
                client_software_name="pylog", client_software_version="1"),
            await self.newest(api.API_VERSIONS, LEVEL_0_SINCE))
        return {row.name: (row.min_version, row.max_version)
                for row in response.supported_features}

    async def send_raw(self, frame: bytes, timeout_s: float = CALL_SECONDS) -> bytes:
        """Return the response to `frame`, both with their header but without their size. Raises
        PeerError.
        """
        number = int.from_bytes(frame[4:8], "big", signed=True)
        return await self._exchange(len(frame).to_bytes(4, "big") + frame, number, timeout_s)

    async def ended(self) -> None:
        """Return once the connection has ended."""
        await self._ended.wait()

    def watch_host(self) -> None:
        """Enable keepalive probes, so that silent_s() is accurate to a second on an idle
        connection.
        """
        probed = self._socket()
        if probed is not None:
            for level, option, value in (
                    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
                    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_S),
                    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_S),
                    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES_MAX)):
                probed.setsockopt(level, option, value)

    def silent_s(self) -> float:
        """Return the seconds since the other host last sent anything; its kernel answers even if
        the process hangs. 0 if unknown.
        """
        requested = self._socket()
        if requested is None or self.failure is not None:
            return 0.0
        info = requested.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, ACKNOWLEDGED_AT + 4)
        return int.from_bytes(info[ACKNOWLEDGED_AT:], sys.byteorder) / 1000

    def _socket(self) -> Any:
        return None if self._transport is None else self._transport.get_extra_info("socket")

    def close(self) -> None:
        """Close the connection; waiting requests fail with PeerError."""
        self._fail("closed")

    def _take_id(self) -> int:
        self._next_id = (self._next_id + 1) % (1 << 31)
        return self._next_id

    async def _exchange(self, frame: bytes, number: int, timeout_s: float) -> bytes:
        try:
            async with asyncio.timeout(timeout_s):
                await self._room.acquire()
                while self._is_login_over():
                    self._room.release()
                    await self._renew()
                    await self._room.acquire()
                # A cancelled request stays in the queue until its response arrives.
                return await self._sent(frame, number)
        except TimeoutError:
            # Keeps later responses from being mismatched.
            self._fail(f"no response within {timeout_s} s")
            assert self.failure is not None
            raise self.failure from None

    def _sent(self, frame: bytes, number: int) -> asyncio.Future[bytes]:
        """Send a frame, after acquiring room; return the future response. Raises PeerError."""
        if self.failure is not None:
            # Keeps failed connections from accepting requests. The next waiting request fails the
            # same way.
            self._room.release()
            raise self.failure
        waiter = asyncio.get_running_loop().create_future()
        self._under_way.append((number, waiter))
        assert len(self._under_way) <= IN_FLIGHT_MAX, len(self._under_way)
        self._transport.write(frame)
        return waiter

    def _is_login_over(self) -> bool:
        return self._login_ends_s is not None and self.failure is None \
            and asyncio.get_running_loop().time() >= self._login_ends_s

    async def _renew(self) -> None:
        """Renew the login; the other requests wait here too."""
        async with self._renewing:
            if self._is_login_over():
                try:
                    await self._log_in()
                except PeerError as error:
                    self._fail(str(error))
                    raise

    async def _log_in(self) -> None:
        """Log in. Raises PeerError."""
        assert self._credentials is not None, self._name
        # Imported here: only logins need it.
        from pylog.peer.credentials import advance

        loop = asyncio.get_running_loop()
        steps, response = self._credentials.login(self._host), None
        try:
            while True:
                # Keeps the event loop from blocking.
                requested, lifetime_ms = await asyncio.to_thread(advance, steps, response) \
                    if self._credentials.blocks else advance(steps, response)
                if requested is None:
                    break
                response = await self._call(*requested)
        except PeerError as error:
            if error is self.failure:
                raise
            raise PeerError(f"{self._name}: {error}") from None
        self._login_ends_s = None if lifetime_ms <= 0 else \
            loop.time() + RENEW_SHARE * lifetime_ms / 1000

    async def _call(self, message: Any, version: int) -> Any:
        """Return the response to a login request, which does not wait for the renewal."""
        key, number = key_of(message), self._take_id()
        frame = codec.request_frame(key, version, number, self._client_id, message)
        await self._room.acquire()
        return self._decoded(key, version, await self._sent(frame, number))

    def _decoded(self, key: int, version: int, response: bytes) -> Any:
        try:
            _, body = codec.decode_response_header(key, version, response)
            return codec.decode_response(key, version, response, body)
        except ProtocolError as error:
            self._fail(f"a response cannot be parsed: {error}")
            assert self.failure is not None
            raise self.failure from error

    def _fail(self, reason: str) -> None:
        if self.failure is None:
            self.failure = PeerError(f"{self._name}: {reason}")
            self._ended.set()
        if self._transport is not None:
            self._transport.abort()
        waiting, self._under_way = self._under_way, deque()
        for _, waiter in waiting:
            self._room.release()
            if not waiter.done():
                waiter.set_exception(self.failure)
        self._received.clear()

    # ---- called by asyncio ----------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        if self.failure is not None:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(self._ended_by(exc) if exc is not None else "the connection was closed")

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        position = 0
        while len(received) - position >= SIZE_BYTES and self.failure is None:
            size = int.from_bytes(received[position:position + SIZE_BYTES], "big", signed=True)
            if not SIZE_BYTES <= size <= FRAME_BYTES_MAX:
                self._fail(f"a response declares {size} bytes")
                return
            end = position + SIZE_BYTES + size
            if len(received) < end:
                break
            self._on_response(bytes(received[position + SIZE_BYTES:end]))
            position = end
        del self._received[:position]

    def _on_response(self, response: bytes) -> None:
        """Complete the oldest request. Keeps responses in request order."""
        number = int.from_bytes(response[:4], "big", signed=True)
        if not self._under_way or self._under_way[0][0] != number:
            self._fail(f"a response has correlation id {number}, which is not that of the oldest "
                       f"request")
            return
        _, waiter = self._under_way.popleft()
        self._room.release()
        if not waiter.done():
            waiter.set_result(response)

"""One connection to a broker, with several requests in flight.

Owns: the socket's transport, the receive buffers, unsent data, the requests in flight.
Invariants:
- response order: a broker responds in request order, so the next frame belongs to the oldest
  request in flight, and its correlation id is checked;
- long frames: a frame longer than STAGING_BYTES is received directly into its own buffer;
- failure: a failed connection fails every request in flight exactly once and accepts no more;
- versions: a request's version is supported by both sides;
- re-authentication: while it runs, nothing else is sent.
Source: Kafka's protocol guide; KIP-511 (ApiVersions names the client), KIP-35, KIP-368
  (re-authentication).
"""

from __future__ import annotations

import asyncio
import collections
import random
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any

import pylog
from pylog.client.arguments import with_plain_integers
from pylog.client.config.durations import rounded
from pylog.client.config.settings import Settings
from pylog.client.errors import (
    AuthenticationError, KafkaConnectionError, KafkaError, KafkaTimeoutError,
    UnsupportedByBrokerError, error,
)
from pylog.client.network import connect_errors, dns, login
from pylog.client.network.metrics import Traffic
from pylog.client.network.send_buffer import SendBuffer
from pylog.protocol import api, codec, messages, tables
from pylog.protocol.errors import EncodeError, ErrorCode, ProtocolError
from pylog.protocol.reasons import reason_of
from pylog.security.tls import outgoing_tls

STAGING_BYTES = 65_536
FRAME_BYTES_MAX = 1 << 30  # "HTTP", read as a length, is larger.
POOLED_BYTES_MAX = 64 << 20
# SO_RCVLOWAT: do not wake before this much of a long frame has arrived. Halves the CPU cost of
# receiving (bench.client, 2-core EPYC, loopback, per 112-byte record: 37 ns without, 28 ns at 256
# KiB, 20 ns at 1 MiB).
LOW_WATER_BYTES = 1 << 20
LOW_WATER_BYTES_MIN = 131_072
POOLED_SIZE_MIN = 262_144
API_VERSIONS_FIRST = 4
TLS_ALERT = 0x1503  # First bytes of a TLS server's response to plaintext.
HTTP = int.from_bytes(b"HTTP", "big")
# Few requests take longer, except those that wait for other group members.
SILENCE_S = 2.0
PATIENT_KEYS = (api.JOIN_GROUP, api.SYNC_GROUP)
LOGIN_KEYS = (api.SASL_HANDSHAKE, api.SASL_AUTHENTICATE)
# Shares of the session lifetime after which the client re-authenticates, as in Java.
SESSION_SHARES = 0.85, 0.95

_ranges: dict[type, tuple[int, int, int]] = {}


def api_of(cls: type) -> tuple[int, int, int]:
    """Return (api key, lowest version, highest version) of a request class."""
    found = _ranges.get(cls)
    if found is None:
        table = tables.message(cls.__qualname__)
        assert table.kind == "request" and table.id is not None, cls
        highest = table.versions[1] - table.unstable
        found = _ranges[cls] = (table.id, table.versions[0], highest)
    return found


class BufferPool:
    """Reusable receive buffers: a new buffer costs one page fault per 4 KiB."""

    def __init__(self, bytes_max: int = POOLED_BYTES_MAX):
        self.bytes_max = bytes_max
        self.bytes = 0
        self.free: dict[int, list[bytearray]] = {}

    def take(self, size: int) -> bytearray:
        """Return a buffer of at least `size` bytes with arbitrary content."""
        if size < POOLED_SIZE_MIN:
            return bytearray(size)
        rounded = 1 << (size - 1).bit_length()
        try:
            found = self.free[rounded].pop()
        except (KeyError, IndexError):
            return bytearray(rounded)
        self.bytes -= rounded
        return found

    def give_back(self, buffer: bytearray) -> None:
        """Return a buffer to the pool. Callable from any thread; nothing may read it afterwards."""
        size = len(buffer)
        if size >= POOLED_SIZE_MIN and self.bytes + size <= self.bytes_max:
            self.bytes += size
            self.free.setdefault(size, []).append(buffer)


class Frame:
    """An undecoded response; `view[body:]` is its body. Call `release` after use.

    users: number of parts still being read, counted by the code that shares the frame.
    """

    __slots__ = ("body", "buffer", "pool", "users", "version", "view")

    def __init__(self, buffer: bytearray, size: int, pool: BufferPool):
        self.buffer: bytearray | None = buffer
        self.view = memoryview(buffer)[:size]
        self.pool = pool
        self.version = 0
        self.body = 0
        self.users = 0

    def release(self) -> None:
        """Return the buffer to the pool. A frame that is dropped instead is only garbage-collected.
        """
        buffer, self.buffer = self.buffer, None
        if buffer is not None:
            self.pool.give_back(buffer)


class _Request:
    """A request in flight."""

    __slots__ = ("api_key", "correlation_id", "future", "raw", "sent_s", "timer", "version")

    def __init__(self, api_key: int, version: int, correlation_id: int, raw: bool, future: Any):
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.raw = raw
        self.future = future
        self.sent_s = 0.0
        self.timer: asyncio.TimerHandle | None = None


class Connection(asyncio.BufferedProtocol):
    """One connection; `await Connection.open(...)` returns one that is ready for requests."""

    def __init__(self, host: str, port: int, settings: Settings, pool: BufferPool,
                 traffic: Traffic | None = None):
        self.host, self.port = host, port
        self.traffic = traffic or Traffic()
        self.settings = settings
        self.pool = pool
        self.loop = asyncio.get_running_loop()
        self.client_id = settings["client.id"]
        self.timeout_s = settings.seconds("request.timeout.ms")
        self.transport: Any = None
        self.versions: dict[int, tuple[int, int]] = {api.API_VERSIONS: (0, API_VERSIONS_FIRST)}
        self.features: dict[str, int] = {}
        self.secure = settings["security.protocol"].endswith("SSL")
        self.connected = False  # TCP is connected; TLS may still fail.
        self.answered = False
        self.served = False  # Responded to more than unauthenticated requests.
        self.is_silent = False  # A response is overdue by more than SILENCE_S.
        self.on_silence: Callable[[], object] = lambda: None
        # Until this loop time, quotas may delay the broker's responses (KIP-219).
        self.throttled_until_s = 0.0
        self.throttle_ms = 0  # Of the last response that had a throttle time.
        self.on_throttle: Callable[[], object] = lambda: None
        self.failure: KafkaError | None = None
        self.used_s = time.monotonic()
        self._under_way: collections.deque[_Request] = collections.deque()
        # Held during re-authentication: (request or None if it has no response, its bytes).
        self._held: collections.deque[tuple[_Request | None, list]] | None = None
        self._login: asyncio.TimerHandle | asyncio.Task[None] | None = None
        self._next_id = 0
        self._staging = bytearray(STAGING_BYTES)
        self._staging_view = memoryview(self._staging)
        self._staged = 0
        self._frame: Frame | None = None
        self._filled = 0
        self._low_water = 1
        self._socket: Any = None
        self._writable: asyncio.Event | None = None
        self._send_buffer: SendBuffer | None = None

    @classmethod
    async def open(cls, host: str, port: int, settings: Settings, pool: BufferPool,
                   traffic: Traffic | None = None) -> Connection:
        """Connect, negotiate versions and authenticate. Raises KafkaConnectionError or another
        KafkaError.
        """
        wait_s = settings.seconds("socket.connection.setup.timeout.ms")
        made = cls(host, port, settings, pool, traffic)
        made.traffic.opening = made  # On a timeout, the caller reports how far this one got.
        try:
            async with asyncio.timeout(wait_s):
                await made._connect(wait_s)
                await made._agree()
                await login.log_in(made)
        except TimeoutError:
            made.fail(KafkaConnectionError(
                f"{made.connect_progress()} within {rounded(wait_s)}"))
        except ssl.SSLError as failure:
            made.fail(await connect_errors.distrusted(host, port, settings, failure))
        except OSError as failure:
            if isinstance(failure, KafkaError):
                made.fail(failure)
            elif made.secure and isinstance(failure, ConnectionError) and made.connected:
                made.fail(KafkaConnectionError(f"{host}:{port}: {outgoing_tls.explained(failure)}"))
            else:
                made.fail(KafkaConnectionError(f"{host}:{port}: {reason_of(failure)}"))
        except UnicodeError as failure:
            made.fail(KafkaConnectionError(f"{host}:{port}: {reason_of(failure)}"))
        except KafkaError as failure:
            made.fail(failure)
        except (RuntimeError, MemoryError) as failure:
            # For example no thread for the DNS lookup: retried after a backoff, like an unreachable
            # broker.
            made.fail(KafkaConnectionError(
                f"{host}:{port}: {type(failure).__name__}: {failure}"))
        except BaseException:
            made.close()
            raise
        if made.failure is not None:
            made.traffic.refused_logins += isinstance(made.failure, AuthenticationError)
            raise made.failure
        made.traffic.opening = None
        return made

    async def _connect(self, wait_s: float) -> None:
        context, server_name = login.tls(self.settings, self.host)

        async def use(sock: socket.socket) -> None:
            self.connected = True
            await self.loop.create_connection(
                lambda: self, sock=sock, ssl=context, server_hostname=server_name)

        await dns.reached(self.host, self.port, self.settings, wait_s, use)

    async def _agree(self) -> None:
        request = messages.ApiVersionsRequest(
            client_software_name="pylog", client_software_version=pylog.__version__)
        response = await self.send(request)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            response = await self.send(messages.ApiVersionsRequest(), version=0)
        if response.error_code:
            raise error(response.error_code, context=f"{self.host}:{self.port}")
        self.versions = {row.api_key: (row.min_version, row.max_version)
                         for row in response.api_keys}
        self.features = {row.name: row.max_version_level for row in response.finalized_features}

    def version(self, cls: type, highest: int | None = None) -> int:
        """Return the version to use for a request class. Raises UnsupportedByBrokerError."""
        key, low, high = api_of(cls)
        served = self.versions.get(key)
        if served is None:
            raise UnsupportedByBrokerError(f"{self.host}:{self.port} does not serve {cls.__name__}")
        version = min(high, served[1]) if highest is None else min(high, served[1], highest)
        if version < max(low, served[0]):  # Both sides must support it.
            raise UnsupportedByBrokerError(
                f"{self.host}:{self.port} serves {cls.__name__} v{served[0]} to v{served[1]} only")
        return version

    def serves(self, cls: type) -> bool:
        """Return True if both sides support a common version of the request."""
        key, low, high = api_of(cls)
        served = self.versions.get(key)
        return served is not None and max(low, served[0]) <= min(high, served[1])

    def send(self, message: Any, *, version: int | None = None, raw: bool = False,
             timeout_s: float | None = None) -> asyncio.Future[Any]:
        """Send immediately; the future resolves to the decoded response, or with raw to the Frame.

        version: None for the highest common version. timeout_s: None for request.timeout.ms. The
        message's memoryviews are sent without a copy: their content must not change before the
        response arrives. Raises UnsupportedByBrokerError, EncodeError, or the connection's failure.
        The future raises KafkaTimeoutError or KafkaConnectionError. Cancelling it drops the
        response.
        """
        if self.failure is not None:
            raise self.failure
        if version is None:
            version = self.version(type(message))
        key = api_of(type(message))[0]
        self._next_id = correlation_id = (self._next_id + 1) & 0x7FFFFFFF
        pieces = self._encoded(key, version, correlation_id, message)
        request = _Request(key, version, correlation_id, raw, self.loop.create_future())
        wait_s = self.timeout_s if timeout_s is None else timeout_s
        request.timer = self.loop.call_later(
            min(wait_s, SILENCE_S), self._silent, request, wait_s, wait_s)
        if self._held is not None and key not in LOGIN_KEYS:
            self._held.append((request, pieces))
            return request.future
        self._under_way.append(request)
        self._write(pieces)
        request.sent_s = self.used_s
        return request.future

    def send_only(self, message: Any, *, version: int | None = None) -> None:
        """Send a request that has no response (Produce with acks=0)."""
        if self.failure is not None:
            raise self.failure
        if version is None:
            version = self.version(type(message))
        key = api_of(type(message))[0]
        self._next_id = correlation_id = (self._next_id + 1) & 0x7FFFFFFF
        pieces = self._encoded(key, version, correlation_id, message)
        if self._held is not None:
            self._held.append((None, pieces))
        else:
            self._write(pieces)

    def _encoded(self, key: int, version: int, correlation_id: int, message: Any
                 ) -> list[bytes | memoryview]:
        """Encode a request. Raises EncodeError, or UnsupportedByBrokerError if only a newer version
        could encode it.
        """
        try:
            return codec.request_slices(key, version, correlation_id, self.client_id, message)
        except EncodeError as failure:
            if with_plain_integers(message):
                return self._encoded(key, version, correlation_id, message)
            newest = api_of(type(message))[2]
            if version == newest:
                raise
            # Raises the same error if the version is not the cause.
            codec.request_slices(key, newest, correlation_id, self.client_id, message)
            raise UnsupportedByBrokerError(f"{self.host}:{self.port}: {failure}") from None

    def _write(self, pieces: list[bytes | memoryview]) -> None:
        self.used_s = time.monotonic()
        self.traffic.requests += 1
        self.traffic.bytes_out += sum(map(len, pieces))
        if self._send_buffer is None:
            self.transport.writelines(pieces)
        else:
            self._send_buffer.write(pieces)

    async def drain(self) -> None:
        """Wait until the send buffer has room."""
        if self._writable is not None:
            await self._writable.wait()
        if self.failure is not None:
            raise self.failure

    @property
    def usable(self) -> bool:
        return self.failure is None and self.transport is not None

    @property
    def request_count(self) -> int:
        """Return the number of requests in flight."""
        return len(self._under_way) + len(self._held or ())

    def close(self) -> None:
        self.fail(KafkaConnectionError(f"{self.host}:{self.port}: the connection was closed"))

    def fail(self, failure: KafkaError) -> None:
        """End the connection and fail every request in flight."""
        if self.failure is not None:
            return
        self.failure = failure
        if self._send_buffer is not None:
            self._send_buffer.close()
        if self.transport is not None:
            self.traffic.closed += 1
            self.transport.abort()
        if self._writable is not None:
            self._writable.set()
        if self._login is not None:
            self._login.cancel()
        left = [*self._under_way, *(request for request, _ in self._held or () if request)]
        self._under_way.clear()
        self._held = None
        for request in left:
            if request.timer is not None:
                request.timer.cancel()
            if not request.future.done():
                request.future.set_exception(failure)
                request.future.exception()  # All waiters may be gone: log nothing then.

    # ---- re-authentication ----------------------------------------------------------------------

    def hold(self) -> None:
        """Hold back other requests while an authentication runs."""
        self._held = collections.deque()

    def logged_in(self, lifetime_ms: int) -> None:
        """Send held requests and schedule re-authentication before the session of `lifetime_ms`
        ends (0: never).
        """
        self._login = None
        held, self._held = self._held, None
        for request, pieces in held or ():
            if request is not None:
                self._under_way.append(request)
                request.sent_s = time.monotonic()
            self._write(pieces)
        if lifetime_ms > 0 and self.failure is None:
            wait_s = lifetime_ms / 1000 * random.uniform(*SESSION_SHARES)
            self._login = self.loop.call_later(wait_s, self._begin_login)

    def _begin_login(self) -> None:
        self._login = self.loop.create_task(self._log_in_again())

    async def _log_in_again(self) -> None:
        try:
            async with asyncio.timeout(self.timeout_s):
                await login.log_in(self)
        except Exception as failure:
            # Any failure: held requests would wait forever for this authentication.
            self._login = None
            self.fail(failure if isinstance(failure, KafkaError) else KafkaConnectionError(
                f"{self.host}:{self.port}: " + (
                    "the broker does not support SASL" if isinstance(failure, TimeoutError)
                    else f"no login: {type(failure).__name__}: {failure}")))

    def _silent(self, request: _Request, left_s: float, wait_s: float) -> None:
        """Handle a response that is overdue by SILENCE_S."""
        left_s -= SILENCE_S
        if left_s <= 0:
            self._time_out(request, wait_s)
            return
        request.timer = self.loop.call_later(
            min(left_s, SILENCE_S), self._silent, request, left_s, wait_s)
        if self.loop.time() < self.throttled_until_s + SILENCE_S:
            self.on_throttle()
        elif request.api_key not in PATIENT_KEYS:
            self.is_silent = True
            self.on_silence()

    def _time_out(self, request: _Request, wait_s: float) -> None:
        if request.future.done() and not request.future.cancelled():
            return
        if not request.future.done():
            request.future.set_exception(KafkaTimeoutError(
                f"{self.host}:{self.port}: no response to {_named(request.api_key)} within "
                f"{wait_s:g} s"))
        # Later responses on this connection would wait behind this one.
        self.fail(KafkaConnectionError(
            f"{self.host}:{self.port}: the broker does not respond" if self.answered
            else self.connect_progress()))

    def connect_progress(self) -> str:
        """Describe how far the connection got before a timeout."""
        return connect_errors.connect_progress(
            self.host, self.port, self.connected, self.secure, self.transport is not None)

    # Called by asyncio.

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.traffic.opened += 1
        # With TLS, the socket's bytes are not the frame's.
        if transport.get_extra_info("ssl_object") is None:
            self._socket = transport.get_extra_info("socket")
            self._send_buffer = SendBuffer(
                self.loop, self._socket.fileno(), pause=self.pause_writing,
                resume=self.resume_writing, failed=self.connection_lost)

    def connection_lost(self, reason: Exception | None) -> None:
        if isinstance(reason, ssl.SSLError):
            # With TLS 1.3, the broker verifies our certificate after the handshake.
            self.fail(connect_errors.refused(self.host, self.port, self.settings, reason))
        text = f": {reason}" if reason else " by the broker"
        if not self.answered:
            text += "" if self.secure else \
                " before it sent a response; check whether this port uses TLS"
        elif not self.served and not self.settings["security.protocol"].startswith("SASL"):
            login_too = "SASL_SSL" if self.secure else "SASL_PLAINTEXT"
            text += f" at the first request; it may require security.protocol={login_too}"
        self.fail(KafkaConnectionError(f"{self.host}:{self.port}: disconnected{text}"))

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._writable = asyncio.Event()

    def resume_writing(self) -> None:
        if self._writable is not None:
            self._writable.set()
            self._writable = None

    def get_buffer(self, size_hint: int) -> memoryview:
        if self._frame is not None:
            return self._frame.view[self._filled:]
        return self._staging_view[self._staged:]

    def buffer_updated(self, count: int) -> None:
        frame = self._frame
        if frame is not None:
            self._filled += count
            left = len(frame.view) - self._filled
            if left < self._low_water:
                self._expect(left)
            if not left:
                self._frame = None
                self._on_response(frame.view, frame)
            return
        self._staged += count
        self._split()

    def _expect(self, left: int) -> None:
        """Let the kernel wake the client only when enough of a frame has arrived (SO_RCVLOWAT)."""
        wanted = min(left, LOW_WATER_BYTES) if left >= LOW_WATER_BYTES_MIN else 1
        if wanted != self._low_water and self._socket is not None:
            self._low_water = wanted
            try:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
            except OSError:
                self._socket = None  # Unsupported here: each arrival wakes the client.

    def _split(self) -> None:
        """Process the frames in the staging buffer. An incomplete one stays, or moves to its own
        buffer.
        """
        view, staged, at = self._staging_view, self._staged, 0
        while staged - at >= 4:
            size = int.from_bytes(view[at:at + 4], "big", signed=True)
            if size >> 16 == TLS_ALERT and not self.secure:
                self.fail(KafkaConnectionError(
                    f"{self.host}:{self.port} speaks TLS", remedy="set security.protocol=SSL"))
                return
            if size == HTTP:
                self.fail(KafkaConnectionError(
                    f"{self.host}:{self.port} speaks HTTP: it is not a broker's port"))
                return
            if not 4 <= size <= FRAME_BYTES_MAX:
                self.fail(KafkaConnectionError(
                    f"{self.host}:{self.port}: a frame of {size} bytes: no Kafka broker?"))
                return
            if at + 4 + size <= staged:
                self._on_response(view[at + 4:at + 4 + size], None)
                if self.failure is not None:
                    return
                at += 4 + size
                continue
            if 4 + size > STAGING_BYTES:
                # Receive long frames directly into their own buffer.
                frame = Frame(self.pool.take(size), size, self.pool)
                self._filled = staged - at - 4
                frame.view[:self._filled] = view[at + 4:staged]
                self._frame = frame
                self._expect(size - self._filled)
                at = staged
            break
        left = staged - at
        if left and at:
            self._staging[:left] = bytes(view[at:staged])
        self._staged = left

    def _on_response(self, view: memoryview, frame: Frame | None) -> None:
        """Handle a complete response. view: its bytes; frame: their owner if not the staging
        buffer.
        """
        if not self._under_way:
            self.fail(KafkaConnectionError(
                f"{self.host}:{self.port}: a response without a request"))
            return
        self.answered = True
        self.is_silent = False
        request = self._under_way.popleft()
        self.served = self.served or request.api_key != api.API_VERSIONS
        self.traffic.answered(time.monotonic() - request.sent_s, len(view))
        if request.timer is not None:
            request.timer.cancel()
        try:
            found, body = codec.decode_response_header(request.api_key, request.version, view)
            if found != request.correlation_id:  # Responses arrive in request order.
                raise ProtocolError(f"response {found} came instead of {request.correlation_id}")
            result = None
            if request.future.cancelled():
                pass
            elif request.raw:
                if frame is None:
                    frame = Frame(self.pool.take(len(view)), len(view), self.pool)
                    frame.view[:] = view
                frame.version, frame.body = request.version, body
                if request.api_key == api.FETCH:  # Its first field is the throttle time.
                    self._throttled(int.from_bytes(frame.view[body:body + 4], "big"))
                result, frame = frame, None
            else:
                result = self._decode(request, view, body)
                self._throttled(getattr(result, "throttle_time_ms", 0))
        except ProtocolError as broken:
            failure = KafkaConnectionError(f"{self.host}:{self.port}: {broken}")
            if not request.future.done():
                request.future.set_exception(failure)
            self.fail(failure)
            return
        finally:
            if frame is not None:
                frame.release()
        if not request.future.done():
            request.future.set_result(result)

    def _throttled(self, throttle_ms: int) -> None:
        """Record for how long the broker's quota mutes this connection."""
        if throttle_ms > 0:
            self.throttle_ms = throttle_ms
            self.throttled_until_s = self.loop.time() + throttle_ms / 1000

    def _decode(self, request: _Request, view: memoryview, body: int) -> Any:
        version = request.version
        if request.api_key == api.API_VERSIONS and version:
            # A broker that does not support the version responds with version 0.
            code = int.from_bytes(view[body:body + 2], "big", signed=True)
            if code == ErrorCode.UNSUPPORTED_VERSION:
                version = 0
        return codec.decode_response(request.api_key, version, view, body)


def _named(api_key: int) -> str:
    """Return the request's name."""
    return next((name for name, key in vars(api).items() if key == api_key and name.isupper()),
                f"api key {api_key}")

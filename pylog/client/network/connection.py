"""One connection to a broker: frames out, frames in, in order, several under way.

Owns: the socket's transport, the receive buffers, what is still to be sent, the requests under way.
Invariants: (1) a broker answers in the order of the requests, so the oldest one under way owns the
  next frame, and its correlation id is checked; (2) a frame longer than STAGING_BYTES is received
  straight into a buffer of its own and not moved again; (3) a connection that failed fails every
  request under way, exactly once, and takes no more; (4) a version is in the range that both sides
  know; (5) while it logs in again, nothing else is sent.
Source: Kafka's protocol guide; KIP-511 (ApiVersions names the client), KIP-35, KIP-368 (logging in
  again).
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
from pylog.security import outgoing

STAGING_BYTES = 65_536
FRAME_BYTES_MAX = 1 << 30  # "HTTP" as a length is more.
POOLED_BYTES_MAX = 64 << 20
# While a long frame comes in, sleep until this much is there: receiving costs half the CPU then
# (bench.client, 2-core EPYC, loopback: 37 ns a 112-byte record without, 28 ns at 256 KiB, 20 ns).
LOW_WATER_BYTES = 1 << 20
LOW_WATER_BYTES_MIN = 131_072
POOLED_SIZE_MIN = 262_144
API_VERSIONS_FIRST = 4
TLS_ALERT = 0x1503    # The first bytes of what a TLS server says to plain text.
HTTP = int.from_bytes(b"HTTP", "big")
# Few requests take longer, but for those that wait for the other members of a group.
SILENCE_S = 2.0
PATIENT_KEYS = (api.JOIN_GROUP, api.SYNC_GROUP)
LOGIN_KEYS = (api.SASL_HANDSHAKE, api.SASL_AUTHENTICATE)
# Shares of a session after which the client logs in again, as in Java.
SESSION_SHARES = 0.85, 0.95

_ranges: dict[type, tuple[int, int, int]] = {}


def api_of(cls: type) -> tuple[int, int, int]:
    """(api key, lowest, highest version) that the tables have for a request class."""
    found = _ranges.get(cls)
    if found is None:
        table = tables.message(cls.__qualname__)
        assert table.kind == "request" and table.id is not None, cls
        highest = table.versions[1] - table.unstable
        found = _ranges[cls] = (table.id, table.versions[0], highest)
    return found


class BufferPool:
    """Receive buffers that are used again: a new one costs a page fault for every 4 KiB."""

    def __init__(self, bytes_max: int = POOLED_BYTES_MAX):
        self.bytes_max = bytes_max
        self.bytes = 0
        self.free: dict[int, list[bytearray]] = {}

    def take(self, size: int) -> bytearray:
        """A buffer of at least `size` bytes, with any content."""
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
        """From any thread; nothing may read the buffer afterwards."""
        size = len(buffer)
        if size >= POOLED_SIZE_MIN and self.bytes + size <= self.bytes_max:
            self.bytes += size
            self.free.setdefault(size, []).append(buffer)


class Frame:
    """An answer that was not decoded: `view[body:]` is its body. `release` ends its use.

    users: how many parts of it are still read; counted by whoever shares it out.
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
        """Gives the buffer back; a frame that is just dropped costs its memory, nothing more."""
        buffer, self.buffer = self.buffer, None
        if buffer is not None:
            self.pool.give_back(buffer)


class _Request:
    """A request under way."""

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
    """One connection; `await Connection.open(...)` makes one that is ready for requests."""

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
        self.connected = False       # The socket is, whatever comes of TLS.
        self.answered = False
        self.served = False          # It answered to more than what anybody may ask.
        self.is_silent = False       # For longer than SILENCE_S nothing came that is waited for.
        self.on_silence: Callable[[], object] = lambda: None
        # Until then, by the loop's clock, the broker's quotas may hold back its answers (KIP-219).
        self.throttled_until_s = 0.0
        self.throttle_ms = 0         # By the last answer that had any.
        self.on_throttle: Callable[[], object] = lambda: None
        self.failure: KafkaError | None = None
        self.used_s = time.monotonic()
        self._under_way: collections.deque[_Request] = collections.deque()
        # What waits for a login (5): requests, None without an answer, and their bytes.
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
        """Connects, agrees on versions and logs in. Raises KafkaConnectionError and the like."""
        wait_s = settings.seconds("socket.connection.setup.timeout.ms")
        made = cls(host, port, settings, pool, traffic)
        made.traffic.opening = made      # Whose time runs out says how far it got.
        try:
            async with asyncio.timeout(wait_s):
                await made._connect(wait_s)
                await made._agree()
                await login.log_in(made)
        except TimeoutError:
            made.fail(KafkaConnectionError(
                f"{connect_errors.how_far(made)} within {rounded(wait_s)}"))
        except ssl.SSLError as failure:
            made.fail(await connect_errors.distrusted(made, failure))
        except OSError as failure:
            if isinstance(failure, KafkaError):
                made.fail(failure)
            elif made.secure and isinstance(failure, ConnectionError) and made.connected:
                made.fail(KafkaConnectionError(f"{host}:{port}: {outgoing.explained(failure)}"))
            else:
                made.fail(KafkaConnectionError(f"{host}:{port}: {reason_of(failure)}"))
        except UnicodeError as failure:
            made.fail(KafkaConnectionError(f"{host}:{port}: {reason_of(failure)}"))
        except KafkaError as failure:
            made.fail(failure)
        except (RuntimeError, MemoryError) as failure:
            # No thread for the name's lookup, say: tried again after a pause like a dead broker.
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
        answer = await self.send(request)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            answer = await self.send(messages.ApiVersionsRequest(), version=0)
        if answer.error_code:
            raise error(answer.error_code, context=f"{self.host}:{self.port}")
        self.versions = {row.api_key: (row.min_version, row.max_version)
                         for row in answer.api_keys}
        self.features = {row.name: row.max_version_level for row in answer.finalized_features}

    def version(self, cls: type, highest: int | None = None) -> int:
        """The version to use for a request class. Raises UnsupportedByBrokerError."""
        key, low, high = api_of(cls)
        served = self.versions.get(key)
        if served is None:
            raise UnsupportedByBrokerError(f"{self.host}:{self.port} does not serve {cls.__name__}")
        version = min(high, served[1]) if highest is None else min(high, served[1], highest)
        if version < max(low, served[0]):  # Keeps (4).
            raise UnsupportedByBrokerError(
                f"{self.host}:{self.port} serves {cls.__name__} v{served[0]} to v{served[1]} only")
        return version

    def serves(self, cls: type) -> bool:
        """Whether there is a version of the request that both sides know."""
        key, low, high = api_of(cls)
        served = self.versions.get(key)
        return served is not None and max(low, served[0]) <= min(high, served[1])

    def send(self, message: Any, *, version: int | None = None, raw: bool = False,
             timeout_s: float | None = None) -> asyncio.Future[Any]:
        """Sends at once; the future gets the decoded answer, with raw the Frame.

        version: None for the highest that both sides know. timeout_s: None for request.timeout.ms.
        The message's memoryviews are sent from where they lie: what they show must not change
        until the answer is there. Raises UnsupportedByBrokerError, EncodeError, or what the
        connection failed with; the future KafkaTimeoutError or KafkaConnectionError. Cancelling it
        drops the answer.
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
        """Sends a request that gets no answer (Produce with acks=0)."""
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
        """Raises UnsupportedByBrokerError for what only a later version can say, EncodeError."""
        try:
            return codec.request_pieces(key, version, correlation_id, self.client_id, message)
        except EncodeError as failure:
            if with_plain_integers(message):
                return self._encoded(key, version, correlation_id, message)
            newest = api_of(type(message))[2]
            if version == newest:
                raise
            # Raises the same where it is not for the version.
            codec.request_pieces(key, newest, correlation_id, self.client_id, message)
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
        """Waits until the send buffer has room again."""
        if self._writable is not None:
            await self._writable.wait()
        if self.failure is not None:
            raise self.failure

    @property
    def usable(self) -> bool:
        return self.failure is None and self.transport is not None

    @property
    def request_count(self) -> int:
        """Requests under way."""
        return len(self._under_way) + len(self._held or ())

    def close(self) -> None:
        self.fail(KafkaConnectionError(f"{self.host}:{self.port}: the connection was closed"))

    def fail(self, failure: KafkaError) -> None:
        """Ends the connection. Keeps (3)."""
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
                request.future.exception()  # Nobody may wait for it any more: no complaint then.

    # ---- logging in again -----------------------------------------------------------------------

    def hold(self) -> None:
        """A login begins. Keeps (5)."""
        self._held = collections.deque()

    def logged_in(self, lifetime_ms: int) -> None:
        """The login is over. The broker ends the session after so long, 0 is never: there is
        another login before."""
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
            # Whatever it was: what is held would wait for this login.
            self._login = None
            self.fail(failure if isinstance(failure, KafkaError) else KafkaConnectionError(
                f"{self.host}:{self.port}: " + (
                    "the broker answers no login" if isinstance(failure, TimeoutError)
                    else f"no login: {type(failure).__name__}: {failure}")))

    def _silent(self, request: _Request, left_s: float, wait_s: float) -> None:
        """Nothing came since a request was sent, for as long as few take."""
        left_s -= SILENCE_S
        if left_s <= 0:
            self._too_late(request, wait_s)
            return
        request.timer = self.loop.call_later(
            min(left_s, SILENCE_S), self._silent, request, left_s, wait_s)
        if self.loop.time() < self.throttled_until_s + SILENCE_S:
            self.on_throttle()
        elif request.api_key not in PATIENT_KEYS:
            self.is_silent = True
            self.on_silence()

    def _too_late(self, request: _Request, wait_s: float) -> None:
        if request.future.done() and not request.future.cancelled():
            return
        if not request.future.done():
            request.future.set_exception(KafkaTimeoutError(
                f"{self.host}:{self.port}: no answer to {_named(request.api_key)} in "
                f"{wait_s:g} s"))
        # What comes later on this connection is worth nothing: all of it waits behind this one.
        self.fail(KafkaConnectionError(
            f"{self.host}:{self.port}: the broker does not answer" if self.answered
            else connect_errors.how_far(self)))

    # What asyncio calls.

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.traffic.opened += 1
        # Under TLS the socket's bytes are not the frame's.
        if transport.get_extra_info("ssl_object") is None:
            self._socket = transport.get_extra_info("socket")
            self._send_buffer = SendBuffer(
                self.loop, self._socket.fileno(), pause=self.pause_writing,
                resume=self.resume_writing, failed=self.connection_lost)

    def connection_lost(self, reason: Exception | None) -> None:
        if isinstance(reason, ssl.SSLError):
            # With TLS 1.3 the broker judges our certificate after the handshake.
            self.fail(connect_errors.refused(self, reason))
        text = f": {reason}" if reason else " by the broker"
        if not self.answered:
            text += "" if self.secure else \
                " before it said anything: does it speak TLS on this port?"
        elif not self.served and not self.settings["security.protocol"].startswith("SASL"):
            login_too = "SASL_SSL" if self.secure else "SASL_PLAINTEXT"
            text += f" at the first request: does it want security.protocol={login_too}?"
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
                self._answered(frame.view, frame)
            return
        self._staged += count
        self._split()

    def _expect(self, left: int) -> None:
        """Has the kernel wake this side when so much of a frame is there, or all that is left."""
        wanted = min(left, LOW_WATER_BYTES) if left >= LOW_WATER_BYTES_MIN else 1
        if wanted != self._low_water and self._socket is not None:
            self._low_water = wanted
            try:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
            except OSError:
                self._socket = None  # Not on this system: every arrival wakes, then.

    def _split(self) -> None:
        """The frames in the staging buffer; the beginning of one stays there, or moves out."""
        view, staged, at = self._staging_view, self._staged, 0
        while staged - at >= 4:
            size = int.from_bytes(view[at:at + 4], "big", signed=True)
            if size >> 16 == TLS_ALERT and not self.secure:
                self.fail(KafkaConnectionError(
                    f"{self.host}:{self.port} speaks TLS: set security.protocol=SSL"))
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
                self._answered(view[at + 4:at + 4 + size], None)
                if self.failure is not None:
                    return
                at += 4 + size
                continue
            if 4 + size > STAGING_BYTES:
                # Keeps (2).
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

    def _answered(self, view: memoryview, frame: Frame | None) -> None:
        """A whole answer. view: its bytes; frame: their owner when they are not in staging."""
        if not self._under_way:
            self.fail(KafkaConnectionError(f"{self.host}:{self.port}: an answer to nothing"))
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
            if found != request.correlation_id:  # Keeps (1).
                raise ProtocolError(f"answer {found} came instead of {request.correlation_id}")
            result = None
            if request.future.cancelled():
                pass
            elif request.raw:
                if frame is None:
                    frame = Frame(self.pool.take(len(view)), len(view), self.pool)
                    frame.view[:] = view
                frame.version, frame.body = request.version, body
                if request.api_key == api.FETCH:     # It begins with it.
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
        """A quota's answer says for how long the broker takes no more of this connection."""
        if throttle_ms > 0:
            self.throttle_ms = throttle_ms
            self.throttled_until_s = self.loop.time() + throttle_ms / 1000

    def _decode(self, request: _Request, view: memoryview, body: int) -> Any:
        version = request.version
        if request.api_key == api.API_VERSIONS and version:
            # A broker that does not know the version answers in version 0.
            code = int.from_bytes(view[body:body + 2], "big", signed=True)
            if code == ErrorCode.UNSUPPORTED_VERSION:
                version = 0
        return codec.decode_response(request.api_key, version, view, body)


def _named(api_key: int) -> str:
    """What a request is called."""
    return next((name for name, key in vars(api).items() if key == api_key and name.isupper()),
                f"api key {api_key}")

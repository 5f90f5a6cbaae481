"""An HTTP/1.1 server for small JSON answers.

Owns: the connections.
Invariants: answers keep the order of requests; a request that is incomplete after REQUEST_S, or
  larger than the limits, ends its connection; a client that does not read its answers is neither
  read from nor answered, and its connection ends after STALLED_S.
Source: RFC 9112. A framework would take four times the CPU of one answer.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import httptools

from pylog import supervisor

CONNECTIONS_MAX = 1000
PIPELINE_MAX = 32
IN_PROGRESS_MAX = 1000
HEAD_BYTES_MAX = 32 * 1024
REQUEST_S, STALLED_S, IDLE_S = 10.0, 30.0, 75.0
SWEEP_S = 1.0
REASONS = {
    200: "OK", 204: "No Content", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden",
    404: "Not Found", 405: "Method Not Allowed", 406: "Not Acceptable", 409: "Conflict",
    413: "Content Too Large", 415: "Unsupported Media Type", 422: "Unprocessable Content",
    429: "Too Many Requests", 431: "Request Header Fields Too Large",
    500: "Internal Server Error", 501: "Not Implemented", 503: "Service Unavailable"}


class Head:
    """The header of a request. Requests with the same header share it. memo: for the application.
    """

    __slots__ = ("address", "fields", "memo")

    def __init__(self, fields: dict[str, str], address: str):
        self.fields = fields
        self.address = address
        self.memo: Any = None


class Request:
    """target: path and query, as sent."""

    __slots__ = ("body", "head", "method", "target")

    def __init__(self, method: str, target: str, head: Head, body: bytes):
        self.method = method
        self.target = target
        self.head = head
        self.body = body


Answer = bytes | Awaitable[bytes]
Application = Callable[[Request], Answer]


def response(status: int, body: bytes, content_type: str = "",
             headers: tuple[tuple[str, str], ...] = ()) -> bytes:
    """Return the bytes of an answer."""
    lines = [f"HTTP/1.1 {status} {REASONS.get(status, '')}"]
    if content_type:
        lines.append(f"Content-Type: {content_type}")
    lines += [f"{name}: {value}" for name, value in headers]
    if status != 204:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


class HttpServer:
    """application: answers one request, with bytes from response(). body_bytes: of one request."""

    def __init__(self, application: Application, body_bytes: int):
        self.application = application
        self.body_bytes = body_bytes
        self.connections: set[_Connection] = set()
        self.in_progress = 0
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self, sock: Any, context: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self, loop), sock=sock,
                                                ssl=context)
        self._sweeper = loop.create_task(
            supervisor.restarting("slow connections", self._sweep))

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.close()

    async def _sweep(self) -> None:
        """Close connections that are slow or idle."""
        while True:
            await asyncio.sleep(SWEEP_S)
            now_s = asyncio.get_running_loop().time()
            for connection in list(self.connections):
                connection.close_if_late(now_s)


class _Connection(asyncio.Protocol):
    def __init__(self, server: HttpServer, loop: asyncio.AbstractEventLoop):
        self._server = server
        self._loop = loop
        self._transport: Any = None
        self._parser = httptools.HttpRequestParser(self)
        self._address = ""
        self._since_s = loop.time()  # When the request, or the wait for one, began.
        self._is_inside = False      # A request has begun and is incomplete.
        self._has_head = False       # The header of the request is complete.
        self._head_bytes = 0
        self._target = b""
        self._fields: dict[str, str] = {}
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._queue: deque[tuple[Request, bool]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._stalled_s = 0.0  # When the client began not to read.
        self._is_refused = False
        # Header lines of the last GET, with which the next one probably ends, and their meaning.
        self._suffix: bytes | None = None
        self._head: Head | None = None
        self._data = b""

    # The connection

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self._address = str(peer[0]) if peer else ""
        if len(self._server.connections) >= CONNECTIONS_MAX:
            self._refuse(503)
            return
        self._server.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._server.connections.discard(self)
        self._queue.clear()
        self._can_write.set()

    def close(self) -> None:
        self._transport.close()

    def close_if_late(self, now_s: float) -> None:
        if not self._can_write.is_set():
            if now_s - self._stalled_s > STALLED_S:
                self._transport.abort()
            return
        busy = self._task is not None or self._queue
        limit_s = REQUEST_S if self._is_inside else IDLE_S
        if not busy and now_s - self._since_s > limit_s:
            self._transport.abort()

    def pause_writing(self) -> None:
        self._can_write.clear()
        self._stalled_s = self._loop.time()
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._can_write.set()
        self._since_s = self._loop.time()
        self._answer_queued()

    # Requests

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        suffix = self._suffix
        if (suffix is not None and not self._is_inside and self._task is None
                and data.endswith(suffix) and data.startswith(b"GET ")):
            target = data[4:-len(suffix)]
            if b" " not in target and b"\r" not in target and b"\n" not in target:
                assert self._head is not None
                self._since_s = self._loop.time()
                self._accept(Request("GET", target.decode("latin-1"), self._head, b""), True)
                return
        self._data = data
        if not self._is_inside:
            self._since_s = self._loop.time()
        self._is_inside = True
        if not self._has_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
            if self._is_inside and not self._has_head and self._head_bytes > HEAD_BYTES_MAX:
                self._refuse(431)
        except httptools.HttpParserUpgrade:
            self._refuse(400)
        except httptools.HttpParserError:
            self._refuse(400)

    def on_message_begin(self) -> None:
        self._is_inside, self._has_head = True, False
        self._target, self._fields, self._body, self._body_bytes = b"", {}, [], 0

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        key = name.decode("latin-1").lower()
        if key in self._fields and key in ("content-length", "authorization", "host"):
            self._refuse(400)
        self._fields[key] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._has_head = True
        self._head_bytes = 0
        if self._fields.get("expect", "").lower() == "100-continue" and not self._is_refused:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > self._server.body_bytes:
            self._refuse(413)
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        self._is_inside = self._has_head = False
        if self._is_refused:
            return
        method = self._parser.get_method().decode("latin-1")
        head = Head(self._fields, self._address)
        keeps = self._parser.should_keep_alive()
        self._remember(method, head, keeps)
        self._accept(Request(method, self._target.decode("latin-1"), head, b"".join(self._body)),
                     keeps)

    def _remember(self, method: str, head: Head, keeps: bool) -> None:
        """Remember the header of a GET request that arrived alone, in one piece, without a body."""
        self._suffix = None
        if method != "GET" or not keeps or self._body:
            return
        start, space, rest = self._data.partition(b" ")
        target, _, version = rest.partition(b" ")
        if start == b"GET" and space and target == self._target and self._data.endswith(
                b"\r\n\r\n") and self._data.count(b"\r\n\r\n") == 1:
            self._suffix, self._head = b" " + version, head

    def _accept(self, request: Request, keeps: bool) -> None:
        # One read can hold thousands of requests: their answers are not made before the client
        # reads the first ones.
        if self._task is not None or not self._can_write.is_set():
            self._queue.append((request, keeps))
            if len(self._queue) >= PIPELINE_MAX:
                self._transport.pause_reading()
            return
        self._answer(request, keeps)

    def _answer_queued(self) -> None:
        """Answer the queued requests until one needs time or the client does not read."""
        while (self._queue and self._task is None and self._can_write.is_set()
               and not self._transport.is_closing()):
            self._answer(*self._queue.popleft())
        if (self._can_write.is_set() and len(self._queue) < PIPELINE_MAX
                and not self._transport.is_closing()):
            self._transport.resume_reading()

    def _answer(self, request: Request, keeps: bool) -> None:
        if self._server.in_progress >= IN_PROGRESS_MAX:
            self._transport.write(response(503, b"", headers=(("Retry-After", "1"),)))
            if not keeps:
                self._transport.close()
            return
        answer = self._server.application(request)
        if isinstance(answer, bytes):
            self._transport.write(answer)
            if not keeps:
                self._transport.close()
            return
        self._server.in_progress += 1
        self._task = self._loop.create_task(
            supervisor.reporting("schema registry", self._finish(answer, keeps)))

    async def _finish(self, answer: Awaitable[bytes], keeps: bool) -> None:
        """Write an awaited answer, then answer the requests that came after it."""
        try:
            found = await answer
            await self._can_write.wait()
            if not self._transport.is_closing():
                self._transport.write(found)
                if not keeps:
                    self._transport.close()
        finally:
            self._server.in_progress -= 1
            self._since_s = self._loop.time()
            self._task = None
        self._answer_queued()

    def _refuse(self, status: int) -> None:
        """Answer a request that is not accepted, and close the connection."""
        if self._is_refused:
            return
        self._is_refused = True
        if self._task is not None or self._queue:
            # The client would take this answer for that of an earlier request.
            self._transport.close()
            return
        body = f'{{"error_code":{status},"message":"{REASONS[status]}"}}'.encode()
        self._transport.write(response(status, body, "application/json", (
            ("Connection", "close"),)))
        self._transport.close()

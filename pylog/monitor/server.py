"""The HTTP endpoint: /metrics for Prometheus, /explain for pylog's tool, /cluster for both the tool
and browsers. HTTP/1.1, GET and HEAD.

Owns: its listening socket and threads.
Invariants: at most CONNECTIONS_MAX connections, each with one request and at most SECONDS_MAX each
  for the handshake, the request and the response; one scrape at a time; no request can stop the
  broker; a client without the token learns nothing, not even which pages exist.
Source: RFC 9112; Prometheus' scrape protocol. Considered: http.server costs a start 30 ms of
  imports and limits neither connections nor time. aiohttp is an additional dependency and runs on
  an event loop, which a scrape of many partitions would block.
"""

from __future__ import annotations

import errno
import functools
import json
import logging
import os
import socket
import threading
from urllib.parse import unquote

from pylog import port_owner, supervisor
from pylog._native import compress
from pylog.log.errors import StartError
from pylog.monitor import overview
from pylog.monitor.admission import Admission
from pylog.monitor.collect import Collector
from pylog.monitor.lag import SAMPLE_SECONDS, GroupLags

TYPE_CHECKING = False  # typing.TYPE_CHECKING would cost the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from pylog._native.iopool import IoPool
    from pylog._native.reactor import Reactors
    from pylog.config.client_quotas import ClientQuotas
    from pylog.coordinator.groups.service import GroupCoordinator
    from pylog.log.manager import LogManager
    from pylog.metadata.image.state_store import Store
    from pylog.monitor.cluster import ClusterView

CONNECTIONS_MAX = 8
SECONDS_MAX = 10.0
HEAD_BYTES_MAX = 16 << 10
GZIP_BYTES_MIN = 4 << 10
GZIP_LEVEL = 1
JSON = "application/json"
PLAIN = "text/plain; charset=utf-8"
HTML = "text/html; charset=utf-8"
LOOPBACK = ("localhost", "::1")
REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found",
           405: "Method Not Allowed", 500: "Internal Server Error"}

log = logging.getLogger("pylog.monitor")


def parse_address(text: str) -> tuple[str, int]:
    """Return (host, port) of `host:port`, `[::1]:port` or `:port`. Raises ValueError."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"metrics.listener={text}: expected host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_loopback(host: str) -> bool:
    return host in LOOPBACK or host.startswith("127.")


class Monitor:
    """Listens on `listener`, the setting metrics.listener. `address` is (host, port) as bound.
    admission: checks access.

    coordinator, logs, quotas, reactors, io_pool, store, replicas, shares, audit_dropped: the
    sources of the pages; see Collector. now_ms: the wall clock. seconds: a monotonic clock.
    """

    def __init__(self, listener: str, admission: Admission, *,
                 coordinator: GroupCoordinator, logs: LogManager,
                 quotas: ClientQuotas, reactors: Reactors, io_pool: IoPool, store: Store,
                 replicas: Callable[[], dict[str, int]], shares: Callable[[], list],
                 audit_dropped: Callable[[], int], cluster_view: ClusterView, node_id: int,
                 cluster_id: str, now_ms: Callable[[], int], seconds: Callable[[], float]):
        self._listener = listener
        self._admission = admission
        self._lags_of = functools.partial(GroupLags, coordinator, logs, quotas, now_ms, seconds)
        self._collector_of = functools.partial(
            Collector, logs=logs, reactors=reactors, io_pool=io_pool, store=store,
            replicas=replicas, shares=shares, audit_dropped=audit_dropped,
            cluster=cluster_view.samples, node_id=node_id,
            cluster_id=cluster_id, seconds=seconds)
        self._cluster_view = cluster_view
        self._now_ms = now_ms
        self._seconds = seconds
        self.address: tuple[str, int] | None = None
        self._socket: socket.socket | None = None
        self._stopping = threading.Event()
        self._room = threading.Semaphore(CONNECTIONS_MAX)
        self._scraping = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.groups: GroupLags | None = None
        self.collector: Collector | None = None

    def open(self) -> None:
        """Bind the listening socket. Raises StartError."""
        self._admission.check()
        try:
            host, port = parse_address(self._listener)
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.create_server((host, port), family=family, backlog=16)
        except ValueError as error:
            raise StartError(str(error)) from error
        except OSError as error:
            reason = error.strerror
            if error.errno == errno.EADDRINUSE:
                shown = f"[{host}]" if ":" in host else host
                remedy = port_owner.remedy(port, f"metrics.listener={shown}:{port + 1}")
                reason = f"{os.strerror(error.errno)}. {remedy}"
            raise StartError(
                f"cannot listen on metrics.listener {self._listener}: {reason}") from error
        self.address = host or "0.0.0.0", self._socket.getsockname()[1]
        if not self._admission.asks and not is_loopback(host):
            log.warning("the metrics endpoint is reachable from other machines without "
                        "authentication; set metrics.token", extra={"address": self._listener})

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the threads. loop: the event loop that owns the broker's state."""
        assert self.address is not None  # open() ran first
        self.groups = self._lags_of(loop)
        self.collector = self._collector_of(self.groups)
        for work in (self._accept, self._sample):
            thread = supervisor.thread("metrics", work, self._stopping)
            thread.start()
            self._threads.append(thread)
        host, port = self.address
        log.info("metrics endpoint", extra={
            "address": f"[{host}]:{port}" if ":" in host else f"{host}:{port}"})

    def stop(self) -> None:
        """Stop the threads. Do not call this on the event loop: a thread may still need a result
        from it.
        """
        self._stopping.set()
        if self._socket is not None:
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # Some systems do not support shutdown() of a listening socket.
            self._socket.close()
        for thread in self._threads:
            thread.join(SECONDS_MAX)
        for _ in range(CONNECTIONS_MAX):
            self._room.acquire(timeout=SECONDS_MAX)

    def _sample(self) -> None:
        assert self.groups is not None
        while not self._stopping.is_set():
            wait_s = SAMPLE_SECONDS
            try:
                wait_s = self.groups.sample()
            except Exception:
                supervisor.report("metrics", "groups could not be sampled")
            self._stopping.wait(wait_s)

    def _accept(self) -> None:
        assert self._socket is not None
        while not self._stopping.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                # Out of descriptors, or closed: the loop's condition distinguishes them.
                self._stopping.wait(0.05)
                continue
            if not self._room.acquire(blocking=False):
                connection.close()
                continue
            try:
                supervisor.thread_once("scrape", self._serve, connection).start()
            except RuntimeError:
                # Out of threads, which is temporary.
                connection.close()
                self._room.release()

    # ---- one connection -------------------------------------------------------------------------

    def _serve(self, connection) -> None:
        try:
            with connection:
                connection.settimeout(SECONDS_MAX)
                with self._admission.entered(connection) as entered:
                    head = _read_head(entered, self._seconds)
                    if head is not None:
                        _send(entered, self._answer(*head), self._seconds)
        except OSError:
            pass  # The client has disconnected.
        except Exception:
            supervisor.report("scrape")
        finally:
            self._room.release()

    def _answer(self, method: str, path: str, headers: dict) -> bytes:
        if method not in ("GET", "HEAD"):
            return _response(405, PLAIN, b"only GET and HEAD\n", headers, method)
        if not self._admission.admits(headers):
            # A client without the token must not learn which pages exist.
            return _response(401, PLAIN, b"a bearer token is asked for\n", headers, method)
        try:
            status, content_type, body = self._page(path, headers)
        except Exception:
            log.exception("a scrape failed", extra={"path": path})
            status, content_type, body = 500, PLAIN, b"internal error; see the broker's log\n"
        return _response(status, content_type, body, headers, method)

    def _page(self, path: str, headers: dict) -> tuple[int, str, bytes]:
        assert self.collector is not None and self.groups is not None
        path = path.partition("?")[0]
        if path == "/metrics":
            open_metrics = "application/openmetrics-text" in headers.get("accept", "")
            # One scrape at a time: a second one waits instead of doubling the load.
            with self._scraping:
                content_type, text = self.collector.scrape(open_metrics)
            return 200, content_type, text
        if path == "/explain/groups":
            return 200, JSON, _json(self.groups.summary())
        if path.startswith("/explain/group/"):
            name = unquote(path.removeprefix("/explain/group/"))
            view = self.groups.explain(name)
            if view is None:
                return 404, JSON, _json({
                    "error": f"this broker does not coordinate group {name}, or the group is one "
                             "of those that pylog_groups_left_out counts"})
            return 200, JSON, _json(view)
        if path == "/cluster":
            with self._scraping:
                view = {**self._cluster_view.view(), "time_ms": self._now_ms()}
            return (200, HTML, overview.html(view).encode()) \
                if "text/html" in headers.get("accept", "") else (200, JSON, _json(view))
        if path == "/":
            return 200, PLAIN, b"/metrics\n/cluster\n/explain/groups\n/explain/group/<id>\n"
        return 404, PLAIN, b"no such page\n"


def _json(value) -> bytes:
    return json.dumps(value, indent=1).encode() + b"\n"


def _read_head(connection, seconds: Callable[[], float]):
    """Return (method, path, headers by lower-case name), None for an invalid request. Raises
    OSError.
    """
    data, end_s = b"", seconds() + SECONDS_MAX
    while b"\r\n\r\n" not in data:
        _wait_until(end_s, connection, seconds)
        part = connection.recv(4096)
        if not part or len(data) > HEAD_BYTES_MAX:
            return None
        data += part
    first, *lines = data.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return None
    pairs = (line.partition(":") for line in lines)
    return words[0], words[1], {name.strip().lower(): value.strip() for name, _, value in pairs}


def _send(connection, data: bytes, seconds: Callable[[], float]) -> None:
    """Send all data in time. Raises OSError."""
    left, end_s = memoryview(data), seconds() + SECONDS_MAX
    while left:
        _wait_until(end_s, connection, seconds)
        left = left[connection.send(left):]


def _wait_until(end_s: float, connection, seconds: Callable[[], float]) -> None:
    """Set the timeout of the next call to the remaining time. Raises TimeoutError if none is left.
    """
    left_s = end_s - seconds()
    if left_s <= 0:
        raise TimeoutError
    connection.settimeout(left_s)


def _response(status: int, content_type: str, body: bytes, headers: dict, method: str) -> bytes:
    lines = [f"HTTP/1.1 {status} {REASONS[status]}", f"Content-Type: {content_type}"]
    if len(body) >= GZIP_BYTES_MIN and "gzip" in headers.get("accept-encoding", ""):
        # Native, without the GIL: it shrinks a large scrape twentyfold.
        body = compress.compress(compress.GZIP, body, GZIP_LEVEL)
        lines.append("Content-Encoding: gzip")
    if status == 401:
        lines.append('WWW-Authenticate: Bearer realm="pylog"')
    lines += [f"Content-Length: {len(body)}", "Connection: close", "", ""]
    return "\r\n".join(lines).encode() + (b"" if method == "HEAD" else body)

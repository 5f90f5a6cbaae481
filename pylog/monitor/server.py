"""The HTTP endpoint: /metrics for Prometheus, /livez and /readyz for supervisors, /explain for
pylog's tool, /cluster for both the tool and browsers. HTTP/1.1, GET and HEAD.

Owns: its listening socket and threads.
Invariants: at most CONNECTIONS_MAX connections, each with one request and at most SECONDS_MAX each
  for the handshake, the request and the response; one scrape at a time; no request can stop the
  broker; a client without the token learns nothing, not even which pages exist; the broker's state
  is read only between attach() and detach(), and /livez and /readyz work before and after.
Source: RFC 9112; Prometheus' scrape protocol. Considered: http.server costs a start 30 ms of
  imports and limits neither connections nor time. aiohttp is an additional dependency and runs on
  an event loop, which a scrape of many partitions would block.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import threading
from urllib.parse import unquote

from pylog import port_owner, supervisor
from pylog._native.records import compress
from pylog.config.listeners import is_loopback
from pylog.log.errors import StartError
from pylog.monitor import overview, threads
from pylog.monitor.admission import Admission
from pylog.monitor.lag import SAMPLE_SECONDS

TYPE_CHECKING = False  # typing.TYPE_CHECKING would cost the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from pylog.monitor.cluster import ClusterView
    from pylog.monitor.collect import Collector
    from pylog.monitor.health import Health
    from pylog.monitor.lag import GroupLags

CONNECTIONS_MAX = 8
SECONDS_MAX = 10.0
HEAD_BYTES_MAX = 16 << 10
GZIP_BYTES_MIN = 4 << 10
GZIP_LEVEL = 1
JSON = "application/json"
PLAIN = "text/plain; charset=utf-8"
HTML = "text/html; charset=utf-8"
REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found",
           405: "Method Not Allowed", 500: "Internal Server Error", 503: "Service Unavailable"}
PAGES = ("/metrics", "/livez", "/readyz", "/cluster", "/explain/groups", "/explain/group/<id>",
         "/threads")

log = logging.getLogger("pylog.monitor")


def parse_address(text: str) -> tuple[str, int]:
    """Return (host, port) of `host:port`, `[::1]:port` or `:port`. Raises ValueError."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"metrics.listener={text}: expected host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


class Monitor:
    """Listens on `listener`, the setting metrics.listener. `address` is (host, port) as bound.
    admission: checks access. health: of /livez and /readyz. now_ms: the wall clock. seconds: a
    monotonic clock.
    """

    def __init__(self, listener: str, admission: Admission, health: Health, *,
                 now_ms: Callable[[], int], seconds: Callable[[], float]):
        self._listener = listener
        self._admission = admission
        self._health = health
        self._now_ms = now_ms
        self._seconds = seconds
        self.address: tuple[str, int] | None = None
        self._socket: socket.socket | None = None
        self._stopping = threading.Event()
        self._room = threading.Semaphore(CONNECTIONS_MAX)
        self._scraping = threading.Lock()
        self._accepting: threading.Thread | None = None
        self._pages: Pages | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reading = threading.Semaphore(CONNECTIONS_MAX)  # requests that use _pages

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
        """Answer /livez and /readyz. loop: the broker's event loop."""
        assert self.address is not None  # open() ran first
        self._loop = loop
        self._health.start(loop)
        self._accepting = supervisor.thread("metrics", self._accept, self._stopping)
        self._accepting.start()
        host, port = self.address
        log.info("metrics endpoint", extra={
            "address": f"[{host}]:{port}" if ":" in host else f"{host}:{port}"})

    def attach(self, pages: Pages) -> None:
        """Answer all pages, from the state of a running broker."""
        pages.start()
        self._pages = pages

    def detach(self) -> None:
        """Stop reading the broker's state. Do not call this on the event loop: a thread may still
        need a result from it.
        """
        pages, self._pages = self._pages, None
        if pages is None:
            return
        pages.stop()
        # Wait for the requests that read the state.
        for _ in range(CONNECTIONS_MAX):
            self._reading.acquire(timeout=SECONDS_MAX)
        self._reading.release(CONNECTIONS_MAX)

    def stop(self) -> None:
        """Stop the threads, after detach(). Do not call this on the event loop: as for detach()."""
        self._stopping.set()
        if self._socket is not None:
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # Some systems do not support shutdown() of a listening socket.
            self._socket.close()
        if self._accepting is not None:
            self._accepting.join(SECONDS_MAX)
        for _ in range(CONNECTIONS_MAX):
            self._room.acquire(timeout=SECONDS_MAX)

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
                        _send(entered, self._respond(*head), self._seconds)
        except OSError:
            pass  # The client has disconnected.
        except Exception:
            supervisor.report("scrape")
        finally:
            self._room.release()

    def _respond(self, method: str, path: str, headers: dict) -> bytes:
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
        path = path.partition("?")[0]
        if path in ("/livez", "/readyz"):
            is_good, view = self._health.live() if path == "/livez" else self._health.ready()
            return (200 if is_good else 503), JSON, _json(view)
        if path == "/threads":
            return 200, JSON, _json(threads.state(self._loop))
        if path == "/":
            return 200, PLAIN, "".join(f"{page}\n" for page in PAGES).encode()
        with self._reading:
            pages = self._pages
            if pages is None:
                return 503, PLAIN, b"the broker is starting or shutting down; see /readyz\n"
            return self._of_state(pages, path, headers)

    def _of_state(self, pages: Pages, path: str, headers: dict) -> tuple[int, str, bytes]:
        if path == "/metrics":
            open_metrics = "application/openmetrics-text" in headers.get("accept", "")
            # One scrape at a time: a second one waits instead of doubling the load.
            with self._scraping:
                content_type, text = pages.collector.scrape(open_metrics)
            return 200, content_type, text
        if path == "/explain/groups":
            return 200, JSON, _json(pages.groups.summary())
        if path.startswith("/explain/group/"):
            name = unquote(path.removeprefix("/explain/group/"))
            view = pages.groups.explain(name)
            if view is None:
                return 404, JSON, _json({
                    "error": f"this broker does not coordinate group {name}, or the group is one "
                             "of those that pylog_groups_omitted counts"})
            return 200, JSON, _json(view)
        if path == "/cluster":
            with self._scraping:
                view = {**pages.cluster_view.view(), "time_ms": self._now_ms()}
            return (200, HTML, overview.html(view).encode()) \
                if "text/html" in headers.get("accept", "") else (200, JSON, _json(view))
        return 404, PLAIN, b"no such page\n"


class Pages:
    """The sources of the pages that show the broker's state, and the thread that samples groups.

    groups: their lag. collector: of /metrics. cluster_view: of /cluster.
    """

    def __init__(self, groups: GroupLags, collector: Collector, cluster_view: ClusterView):
        self.groups = groups
        self.collector = collector
        self.cluster_view = cluster_view
        self._stopping = threading.Event()
        self._sampling = supervisor.thread("metrics", self._sample, self._stopping)

    def start(self) -> None:
        """Start to sample the groups."""
        self._sampling.start()

    def stop(self) -> None:
        """Stop to sample the groups. Blocks for at most SECONDS_MAX."""
        self._stopping.set()
        self._sampling.join(SECONDS_MAX)

    def _sample(self) -> None:
        while not self._stopping.is_set():
            wait_s = SAMPLE_SECONDS
            try:
                wait_s = self.groups.sample()
            except Exception:
                supervisor.report("metrics", "groups could not be sampled")
            self._stopping.wait(wait_s)


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

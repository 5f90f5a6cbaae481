"""Runs the console as a server: address, TLS, limits.

Owns: the listening socket.
Invariants: a connection that does not send the headers of a request within HEADER_S, or its body
  within BODY_S, or that takes nothing of a response for WRITE_S, is closed; its work ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pylog import port_owner
from pylog.config import console_access
from pylog.config.errors import ConfigError
from pylog.console.app import Console, create_app
from pylog.console.views import all_pages

CONNECTIONS_MAX = 256
HEADER_S = 8.0
BODY_S = 60.0
WRITE_S = 60.0
KEEP_ALIVE_S = 30
CLOSE_S = 3


class _Protocol(HttpToolsProtocol):
    """Closes connections that are too slow: a search, for example, waits for its reader."""

    _reading: asyncio.TimerHandle | None = None
    _writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect(HEADER_S)

    def _expect(self, seconds: float | None) -> None:
        """Close the connection unless the next part of the request arrives in time."""
        if self._reading is not None:
            self._reading.cancel()
        self._reading = None if seconds is None else self.loop.call_later(
            seconds, self.transport.abort)

    def on_message_begin(self) -> None:
        self._expect(HEADER_S)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._expect(BODY_S)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._expect(None)
        super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        # Abort: closing would wait until the client has read the buffered bytes.
        self._writing = self.loop.call_later(WRITE_S, self.transport.abort)

    def resume_writing(self) -> None:
        self._cancel_writing()
        super().resume_writing()

    def _cancel_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect(None)
        self._cancel_writing()
        super().connection_lost(exc)


def bind(listener: str) -> socket.socket:
    """Return a listening socket. Raises ConfigError."""
    host, port = console_access.address(listener)
    try:
        family, *_, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, socket.SOCK_STREAM)
        with contextlib.ExitStack() as stack:
            stack.callback(made.close)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(target)
            made.listen(CONNECTIONS_MAX)
            stack.pop_all()
        return made
    except OSError as error:
        remedy = port_owner.remedy(port, "console.listener=HOST:PORT")
        raise ConfigError(f"Cannot listen on {listener}: {error.strerror or error}. {remedy}"
                          ) from None


def serve(console: Console, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT. ready: called with the URL. Raises ConfigError, OSError."""
    server, sock = server_of(console, ready)
    with sock:
        server.run(sockets=[sock])


def server_of(console: Console, ready: Callable[[str], None]
              ) -> tuple[uvicorn.Server, socket.socket]:
    """Return a server and its listening socket. Raises ConfigError."""
    # Its INFO lines say nothing that an operator needs.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    sock = bind(console.settings["console.listener"])
    keystore = console.settings["console.ssl.keystore.location"] or None
    config = uvicorn.Config(
        create_app(console, all_pages()), loop="asyncio", http=_Protocol, ws="none", lifespan="on",
        interface="asgi3", log_config=None, access_log=False, proxy_headers=False,
        server_header=False, limit_concurrency=CONNECTIONS_MAX, timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=CLOSE_S, ssl_certfile=keystore, ssl_keyfile=keystore)
    return _Server(config, lambda: ready(url(sock, console.has_tls))), sock


def url(sock: socket.socket, is_secure: bool) -> str:
    """Return the console's URL."""
    host, port = sock.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if is_secure else 'http'}://{shown}:{port}/"


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]):
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

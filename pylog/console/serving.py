"""Runs the console as a server: address, TLS, limits.

Owns: the listening socket.
Invariants: a connection that does not send its request within HEADER_S is closed.
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
KEEP_ALIVE_S = 30
CLOSE_S = 3


class _Protocol(HttpToolsProtocol):
    """Closes connections whose first request headers take too long."""

    _header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._header_timer = self.loop.call_later(HEADER_S, transport.close)

    def on_headers_complete(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
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

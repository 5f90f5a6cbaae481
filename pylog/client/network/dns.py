"""Resolve a broker's name and try each address.

Owns: a socket until it is handed over.
Invariants: each address gets a share of the time, so an address that drops packets cannot block the
  others.
Source: Kafka's client, which tries the addresses of a name in turn.
"""

from __future__ import annotations

import asyncio
import functools
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from pylog.client import blocking
from pylog.client.config.settings import Settings

# Probe a connection after 10 s without traffic, then every 3 s, three times. Not every system has
# these options.
KEEPALIVE = tuple((getattr(socket, name), value) for name, value in (
    ("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 3), ("TCP_KEEPCNT", 3)) if hasattr(socket, name))


async def reached(host: str, port: int, settings: Settings, wait_s: float,
                  use: Callable[[socket.socket], Awaitable[object]]) -> None:
    """Await use(connected socket) with each address until one succeeds. Closes the socket on
    failure. Raises the OSError of the last address.
    """
    loop = asyncio.get_running_loop()
    end_s = loop.time() + wait_s
    infos = await _resolved(host, port)
    last: OSError | None = None
    for number, info in enumerate(infos):
        share_s = (end_s - loop.time()) / (len(infos) - number)
        try:
            await _reached(info, settings, share_s, use)
            return
        except OSError as failure:
            last = failure
    raise last or OSError("the name has no address")


async def _resolved(host: str, port: int) -> list[Any]:
    """Return getaddrinfo's result. The loop's own getaddrinfo fails after main() has returned."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        pass  # A name: looking it up may take seconds.
    found: list[Any] = await blocking.run(
        functools.partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM))
    return found


async def _reached(info: Any, settings: Settings, share_s: float,
                   use: Callable[[socket.socket], Awaitable[object]]) -> None:
    family, kind, protocol, _, address = info
    sock = socket.socket(family, kind, protocol)
    try:
        _set_options(sock, settings)
        async with asyncio.timeout(share_s):
            await asyncio.get_running_loop().sock_connect(sock, address)
        await use(sock)
    except BaseException:
        sock.close()
        raise


def _set_options(sock: socket.socket, settings: Settings) -> None:
    sock.setblocking(False)
    # A host that lost power and restarted responds to the first probe with a reset. Nothing else
    # would reveal it while all sent data is acknowledged and the client only waits for responses.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    for name, option in (("send.buffer.bytes", socket.SO_SNDBUF),
                         ("receive.buffer.bytes", socket.SO_RCVBUF)):
        if settings[name] > 0:
            sock.setsockopt(socket.SOL_SOCKET, option, settings[name])

"""Identifies the process at the address where an etcd member serves the other members.

Owns: the listener on this host's peer port while etcd does not run.
Invariants:
one answer per listener: each listener has a random nonce, so a node recognises itself.
silence is not absence: a process that accepts a connection and sends nothing counts as running.
Source: etcd's /members on the peer port, which a member serves without a quorum.
"""

from __future__ import annotations

import asyncio
import errno
import http.client
import json
import secrets
import socket
import ssl
from collections import namedtuple

from pylog.config.clusters import is_address

PROBE_S = 1.0
REQUEST_BYTES_MAX = 4096
PATH = "/members"
ABSENT, WAITING, RETURNING, MEMBERS, OTHER = (
    "absent", "waiting", "returning", "members", "other")

Seen = namedtuple("Seen", ("kind", "members", "nonce"), defaults=((), ""))
Seen.__doc__ = """The process at a peer address.

kind: ABSENT: no process accepts connections; WAITING: a brokerd whose etcd has no data and has not
started; RETURNING: a brokerd whose etcd has data and has not started; MEMBERS: an etcd; OTHER: any
other process, or one that does not answer. members: rows of etcd's member list. nonce: of a WAITING
or RETURNING node.
"""


class PortInUse(Exception):
    """Another process listens on a port that etcd needs."""

    def __init__(self, host: str, port: int):
        super().__init__(f"{host}:{port}")
        self.host, self.port = host, port


def bind_address(host: str) -> str:
    """Return the listen address for this advertised host: a name may resolve to any interface."""
    return host if is_address(host) else "0.0.0.0"


def probe(host: str, port: int, context: ssl.SSLContext | None = None) -> Seen:
    """Return the kind of process that answers there within PROBE_S. Blocks. Never raises."""
    try:
        stream = socket.create_connection((host, port), PROBE_S)
    except OSError:
        return Seen(ABSENT)
    try:
        with stream:
            if context is not None:
                stream = context.wrap_socket(stream, server_hostname=host)
            connection = http.client.HTTPConnection(host, port, timeout=PROBE_S)
            connection.sock = stream
            connection.request("GET", PATH, headers={"Connection": "close"})
            response = json.loads(connection.getresponse().read())
            stream.close()
    except (OSError, http.client.HTTPException, ValueError):
        # Silence is not absence: the connection was accepted.
        return Seen(OTHER)
    if isinstance(response, list):
        return Seen(MEMBERS, tuple(row for row in response if isinstance(row, dict)))
    if isinstance(response, dict) and response.get("nonce"):
        kind = RETURNING if response.get("has_data") else WAITING
        return Seen(kind, nonce=str(response["nonce"]))
    return Seen(OTHER)


class Listener:
    """Answers probes on the peer port in place of this host's etcd. files: etcd_tls.Files, None for
    plain text. has_data: True if this host's etcd has data, so that other nodes do not count it for
    a new cluster.
    """

    def __init__(self, bind: str, port: int, files=None, has_data: bool = False):
        self._bind, self._port, self._files = bind, port, files
        self._has_data = has_data
        self._server: asyncio.Server | None = None
        self.nonce = secrets.token_hex(16)

    async def __aenter__(self) -> Listener:
        """Start listening. Raises PortInUse, OSError."""
        context = None
        if self._files is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self._files.own, self._files.key)
            context.load_verify_locations(self._files.trusted)
            context.verify_mode = ssl.CERT_REQUIRED
        try:
            self._server = await asyncio.start_server(
                self._respond, self._bind, self._port, ssl=context)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUse(self._bind, self._port) from None
            raise
        return self

    async def __aexit__(self, *exception) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = json.dumps({"nonce": self.nonce, "has_data": self._has_data}).encode()
        try:
            async with asyncio.timeout(PROBE_S):
                await reader.read(REQUEST_BYTES_MAX)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                             b"Content-Length: %d\r\nConnection: close\r\n\r\n%s"
                             % (len(body), body))
                await writer.drain()
        except (OSError, TimeoutError):
            pass
        finally:
            writer.close()


def check_free(bind: str, port: int) -> None:
    """Raise PortInUse if another process listens there, OSError if this host lacks the address."""
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probing:
        probing.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probing.bind((bind, port))
            probing.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUse(bind, port) from None
            raise

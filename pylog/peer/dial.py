"""A connected socket to another node, for a thread that may block.

Owns: nothing; the caller owns the socket.
Called by: tests.
Invariants: (1) a failure of any kind is one PeerError that names the address.
Source: none.
"""

import socket

from pylog.peer.errors import PeerError

CONNECT_SECONDS = 5.0


def dial(host: str, port: int, timeout_s: float = CONNECT_SECONDS) -> socket.socket:
    """A blocking socket, connected, without delay of small frames. Raises PeerError."""
    try:
        made = socket.create_connection((host, port), timeout=timeout_s)
    except OSError as error:
        # Keeps (1).
        raise PeerError(f"{host}:{port}: {error.strerror or error}") from error
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.settimeout(None)
    return made

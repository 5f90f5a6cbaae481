"""TCP ports for servers that need a fixed port before they listen, or keep it across restarts.

Owns: the claimed blocks of ports, for the lifetime of this process.
Invariants: ports are below the kernel's ephemeral range, so nothing takes one by chance while its
  server is down, not even a client that connects to it; no other process that uses this module gets
  a port of a claimed block; a port is reused only when no unused ones are left.
Source: ip(7), ip_local_port_range; unix(7), abstract names.
"""

import os
import socket
import threading
from collections import deque

FIRST, LIMIT, BLOCK = 10_000, 32_768, 64
_lock = threading.Lock()
_claims: list[socket.socket] = []
_left: deque[int] = deque()
_given: deque[int] = deque()  # Oldest first.


def free_port() -> int:
    """Return a port that is free on all local addresses. Raises OSError if none is left."""
    with _lock:
        while _left or _claim_block():
            port = _left.popleft()
            if _is_free(port):
                _given.append(port)
                return port
        for _ in range(len(_given)):
            _given.rotate(-1)
            if _is_free(_given[-1]):
                return _given[-1]
    raise OSError(f"no port from {FIRST} to {LIMIT - 1} is left")


def _claim_block() -> bool:
    """Claim a block and add its ports to `_left`; return False if all blocks are taken.

    The claim is an abstract socket name: it has one owner per network namespace, like the ports,
    and is released when the process ends.
    """
    for first in range(FIRST, LIMIT, BLOCK):
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0pylog-ports-{first}")
        except OSError:
            claim.close()
        else:
            _claims.append(claim)
            _left.extend(range(first, min(first + BLOCK, LIMIT)))
            return True
    return False


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _forget() -> None:
    """Drop the claims in a forked child: the blocks belong to its parent."""
    global _lock
    _lock = threading.Lock()
    for claimed in (_claims, _left, _given):
        claimed.clear()


os.register_at_fork(after_in_child=_forget)

"""TCP ports for servers that are told their port before they listen, or that keep it.

Owns: the claims on blocks of ports, for as long as this process lives.
Invariants: (1) a port lies below the range from which the kernel takes ports for connections and
  for port 0: while its server does not listen, nobody gets it by chance, not even a client that
  tries to reach it; (2) no other process that asks here gets a port of a block of ours; (3) a port
  is given once, and again only when no other is left.
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
_given: deque[int] = deque()      # The oldest first.


def free_port() -> int:
    """A port that is free at every address of this machine. Raises OSError when none is left."""
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
    """Puts ports into `_left` that are ours from now on; False: there are no more. Keeps (2): an
    abstract name has one owner in the network that the ports are of, too, and ends with it."""
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
    """Keeps (2) in a process that was forked: the blocks are its parent's."""
    global _lock
    _lock = threading.Lock()
    for claimed in (_claims, _left, _given):
        claimed.clear()


os.register_at_fork(after_in_child=_forget)

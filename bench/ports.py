"""TCP ports for servers that are told their port before they listen, or that keep it.

Owns: the claims on blocks of ports, for as long as this process lives.
Called by: bench, tests: whatever starts a server in another process.
Invariants: (1) a port lies below the range from which the kernel takes ports for connections and
  for port 0: while its server does not listen, nobody gets it by chance, not even a client that
  tries to reach it; (2) no other process that asks here gets a port of a block of ours; (3) a port
  is given once.
Source: ip(7), ip_local_port_range; unix(7), abstract names.
"""

import socket
from collections import deque

FIRST, LIMIT, BLOCK = 10_000, 32_768, 64
_claims: list[socket.socket] = []
_left: deque[int] = deque()


def free_port() -> int:
    """A port that is free at every address of this machine. Raises OSError when none is left."""
    while True:
        if not _left:
            _left.extend(_claimed_block())
        port = _left.popleft()
        if _is_free(port):
            return port


def _claimed_block() -> range:
    """Ports that are ours from now on. Keeps (2): an abstract name has one owner in the network
    that the ports are of, too, and ends with it."""
    for first in range(FIRST, LIMIT, BLOCK):
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0pylog-ports-{first}")
        except OSError:
            claim.close()
        else:
            _claims.append(claim)
            return range(first, min(first + BLOCK, LIMIT))
    raise OSError(f"no port from {FIRST} to {LIMIT - 1} is left")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True

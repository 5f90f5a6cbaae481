"""What can go wrong between this node and another.

Owns: nothing.
Called by: peer.connection, peer.dial, whoever calls another node.
Invariants: (1) whoever catches PeerError has caught every failure of a connection.
Source: none.
"""


import os


class PeerError(Exception):
    """No connection, or no answer on it: whether the request was carried out is unknown."""


def reason_of(error: Exception) -> str:
    """Why there is no connection, in the system's words: asyncio's have an address in them, in
    Python's spelling."""
    if isinstance(error, UnicodeError):
        return "that is no host's name"
    code = getattr(error, "errno", None) or 0
    return os.strerror(code) if code > 0 else str(getattr(error, "strerror", None) or error)

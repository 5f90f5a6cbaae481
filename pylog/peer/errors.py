"""The error of connections to other nodes.

Owns: nothing.
Invariants: PeerError covers every failure of a connection.
Source: none.
"""


class PeerError(Exception):
    """No connection, or no response: the request may or may not have been executed."""

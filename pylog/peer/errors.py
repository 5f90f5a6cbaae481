"""What can go wrong between this node and another.

Owns: nothing.
Invariants: (1) whoever catches PeerError has caught every failure of a connection.
Source: none.
"""


class PeerError(Exception):
    """No connection, or no answer on it: whether the request was carried out is unknown."""

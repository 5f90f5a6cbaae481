"""What ends a start.

Owns: nothing.
Called by: log, metadata, broker. What ends an operation of a log is in _native.log.
Invariants: (1) a message is one line that a user can act on.
"""


class StartError(Exception):
    """A broker cannot start here; the message says in one line what to do about it."""

"""What ends a start.

Owns: nothing.
Called by: log, metadata, broker, cli. What ends an operation of a log is in _native.log.
"""


class StartError(Exception):
    """A broker cannot start here; the message says in one line what to do about it."""

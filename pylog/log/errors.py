"""What ends a start, and what takes a log directory offline.

Owns: nothing.
Called by: log, metadata, broker, cli.
"""


class StartError(Exception):
    """A broker cannot start here; the message says in one line what to do about it."""


class StorageError(OSError):
    """A log directory failed: what it holds is served no more."""

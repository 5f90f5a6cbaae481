"""Errors that prevent startup.

Owns: nothing.
Invariants: a message is one line that tells the user what to do.
"""


class StartError(Exception):
    """The broker cannot start. The message is one line that tells the user what to do."""

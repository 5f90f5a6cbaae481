"""What ends a start.

Owns: nothing.
Invariants: (1) a message is one line that a user can act on.
"""


class StartError(Exception):
    """A broker cannot start here; the message says in one line what to do about it."""

"""Why there is no connection, in the system's words.

Owns: nothing.
Invariants: (1) no address in Python's spelling, which asyncio's words have, is in it.
Source: strerror(3), gai_strerror(3).
"""

import os


def reason_of(error: Exception) -> str:
    """What a failure of a connection, or of its name, says to people."""
    if isinstance(error, UnicodeError):
        return "that is no host's name"
    code = getattr(error, "errno", None) or 0
    # Keeps (1). Below 0: of a name's resolution.
    return os.strerror(code) if code > 0 else str(getattr(error, "strerror", None) or error)

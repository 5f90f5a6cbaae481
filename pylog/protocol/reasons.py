"""Explains connection failures with the system's error texts.

Owns: nothing.
Invariants: no text contains an address in Python syntax, as asyncio's texts do.
Source: strerror(3), gai_strerror(3).
"""

import os


def reason_of(error: Exception) -> str:
    """Return the reason why a connection or a name resolution failed."""
    if isinstance(error, UnicodeError):
        return "that is no host's name"
    code = getattr(error, "errno", None) or 0
    # asyncio's text contains the address, so use the system's. A code below 0 is from name
    # resolution.
    return os.strerror(code) if code > 0 else str(getattr(error, "strerror", None) or error)

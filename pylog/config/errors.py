"""The exception of configuration: one line that tells the user what to change.

Owns: nothing.
Invariants: the message names the setting and is complete without context.
"""


class ConfigError(Exception):
    """A setting is unknown, malformed, outside its limits, or contradicts another setting."""


def nearest(name: str, known) -> str:
    """Return the known name most similar to `name`, or ""."""
    from difflib import get_close_matches  # imported here: it adds 5 ms to startup

    return next(iter(get_close_matches(name, known, n=1, cutoff=0.6)), "")

"""The one exception of configuration: what is wrong, in one line that a user can act on.

Owns: nothing.
Invariants: (1) the message names the setting and stands alone.
"""


class ConfigError(Exception):
    """A setting that is unknown, malformed, out of its limits, or in conflict with another."""


def nearest(name: str, known) -> str:
    """The known name most like `name`, or "" when none is near."""
    from difflib import get_close_matches  # only here: it costs a start 5 ms

    return next(iter(get_close_matches(name, known, n=1, cutoff=0.6)), "")

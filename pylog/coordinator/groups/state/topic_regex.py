"""Regular expressions of group members: RE2 syntax, with linear matching time.

Owns: nothing; recent expressions are cached.
Invariants: matching takes time linear in the topic name, and an expression uses at most MEMORY_MAX;
  the library is loaded with the first expression, not before.
Source: KIP-848 (SubscribedTopicRegex is RE2/J's syntax); google-re2 is RE2 itself.
"""

from __future__ import annotations

from functools import lru_cache

TYPE_CHECKING = False  # Importing typing would cost 6 ms at startup.
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

CHARACTERS_MAX = 4096
MEMORY_MAX = 1 << 20
CACHED_MAX = 1024


def fault(text: str) -> str | None:
    """Return why the expression is invalid, or None."""
    if len(text) > CHARACTERS_MAX:
        return f"it is longer than {CHARACTERS_MAX} characters"
    return _compiled(text)[1]


def matches(text: str, names: Iterable[str]) -> frozenset[str]:
    """Return the `names` that the expression matches completely; none for an invalid expression."""
    pattern, _ = _compiled(text)
    if pattern is None:
        return frozenset()
    match = pattern.fullmatch
    return frozenset(name for name in names if match(name))


@lru_cache(CACHED_MAX)
def _compiled(text: str) -> tuple[Any, str | None]:
    import re2  # Load the library only when it is needed.

    options = re2.Options()
    options.max_mem = MEMORY_MAX
    options.log_errors = False
    try:
        return re2.compile(text, options), None
    except (re2.error, UnicodeError) as error:
        reason = error.args[0] if error.args else "it is not valid"
        return None, reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)

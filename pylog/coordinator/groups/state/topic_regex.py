"""Regular expressions of group members: RE2's syntax, and time that no expression can stretch.

Owns: nothing; the expressions in use are cached.
Invariants: (1) a match takes time linear in the topic's name, and an expression memory up to
  MEMORY_MAX; (2) the library is loaded when the first expression comes, not before.
Source: KIP-848 (SubscribedTopicRegex is RE2/J's syntax); google-re2 is RE2 itself.
"""

from __future__ import annotations

from functools import lru_cache

TYPE_CHECKING = False  # The real one costs the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

CHARACTERS_MAX = 4096
MEMORY_MAX = 1 << 20
CACHED_MAX = 1024


def fault(text: str) -> str | None:
    """Why there is no such expression, or None."""
    if len(text) > CHARACTERS_MAX:
        return f"it is longer than {CHARACTERS_MAX} characters"
    return _compiled(text)[1]


def matches(text: str, names: Iterable[str]) -> frozenset[str]:
    """Those of `names` that the expression matches as a whole; none of an expression with a
    fault()."""
    pattern, _ = _compiled(text)
    if pattern is None:
        return frozenset()
    match = pattern.fullmatch
    return frozenset(name for name in names if match(name))


@lru_cache(CACHED_MAX)
def _compiled(text: str) -> tuple[Any, str | None]:
    import re2  # Keeps (2).

    options = re2.Options()
    options.max_mem = MEMORY_MAX
    options.log_errors = False
    try:
        return re2.compile(text, options), None
    except (re2.error, UnicodeError) as error:
        reason = error.args[0] if error.args else "it is not valid"
        return None, reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)

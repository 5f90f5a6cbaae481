"""One small change of a source text, and code shared by both languages' finders.

Owns: nothing.
Invariants: line numbers: a change keeps the number of lines, so that reported lines are those of
  the source; the position of a site depends only on the text.
"""

import difflib
import re
from typing import NamedTuple

COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
# Calls that wake another thread or task, by the words of their names.
WAKES = re.compile(r"(^|_)(wake|post|signal|broadcast|ring|notify|tell|ask|poke|resume)($|_)"
                   r"|^set$|^set_result$|notify")


class Site(NamedTuple):
    """A site: text[start:end] becomes `new`."""

    path: str
    kind: str
    start: int
    end: int
    new: str

    def applied(self, text: str) -> str:
        """Return the mutant. Keeps line numbers."""
        old = text[self.start:self.end]
        lost = old.count("\n") - self.new.count("\n")
        assert lost >= 0, self
        return text[:self.start] + self.new + "\n" * lost + text[self.end:]

    def line(self, text: str) -> int:
        return text.count("\n", 0, self.start) + 1

    def diff(self, text: str) -> str:
        """Return only the lines that differ."""
        lines = difflib.unified_diff(text.splitlines(), self.applied(text).splitlines(),
                                     lineterm="", n=0)
        return "\n".join(line for line in lines
                         if line[:1] in "+-" and not line.startswith(("+++", "---")))


def call_kind(name: str) -> str:
    return "removed wake-up" if WAKES.search(name) else "removed call"

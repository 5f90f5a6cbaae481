"""Maps the subject of a client certificate to a principal name: ssl.principal.mapping.rules.

Owns: nothing.
Invariants: the first matching rule decides; a name that matches no rule is rejected.
Source: KIP-371, KIP-427; Kafka's SslPrincipalMapper, including how it splits the rules.
"""

import re

from pylog.config import ConfigError

DEFAULT = "DEFAULT"
NAME = "ssl.principal.mapping.rules"

# A rule and the separator after it.
_RULE = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)",
                   re.DOTALL)
_GROUP = re.compile(r"\\(.)|\$(\d)", re.DOTALL)


class Unmapped(ValueError):
    """No rule matches the name."""


class Rules:
    """The rules of one listener. Raises ConfigError."""

    def __init__(self, text: str):
        self._rules: list[tuple | None] = []  # None: DEFAULT
        at = 0
        while at < len(text):
            found = _RULE.match(text, at)
            if found is None or found.end() == at:
                raise ConfigError(f"{NAME}: invalid rule: {text[at:].strip()}")
            self._rules.append(None if found[1] else _rule(found[2], found[3], found[4]))
            at = found.end()
        if not self._rules:
            self._rules.append(None)

    def name(self, distinguished: str) -> str:
        """Return the principal name. Raises Unmapped if no rule matches."""
        for rule in self._rules:
            if rule is None:
                return distinguished
            pattern, replacement, case = rule
            found = pattern.fullmatch(distinguished)
            if found is None:
                continue
            name = _filled(replacement, found)
            return name.lower() if case == "L" else name.upper() if case == "U" else name
        raise Unmapped(distinguished)


def _rule(pattern: str, replacement: str, case: str) -> tuple:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{NAME}: {pattern}: {error}") from None
    return compiled, replacement.strip(), case


def _filled(replacement: str, found: re.Match) -> str:
    """Expand the replacement as Java does: $1 without such a group stays unchanged."""

    def put(mark: re.Match) -> str:
        if mark[1]:
            return mark[1]
        number = int(mark[2])
        return (found[number] or "") if number <= found.re.groups else mark[0]

    return _GROUP.sub(put, replacement)

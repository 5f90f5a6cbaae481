"""From the name in a client's certificate to its principal's: ssl.principal.mapping.rules.

Owns: nothing.
Invariants: (1) the first rule that fits decides; (2) a name that no rule fits is refused.
Source: KIP-371, KIP-427; Kafka's SslPrincipalMapper, its splitting of rules included.
"""

import re

from pylog.config import ConfigError

DEFAULT = "DEFAULT"
NAME = "ssl.principal.mapping.rules"

# A rule, and what stands between it and the next one.
_RULE = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)",
                   re.DOTALL)
_GROUP = re.compile(r"\\(.)|\$(\d)", re.DOTALL)


class Unmapped(ValueError):
    """No rule fits the name."""


class Rules:
    """The rules of one listener. Raises ConfigError."""

    def __init__(self, text: str):
        self._rules: list[tuple | None] = []     # None: DEFAULT
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
        """The principal's name. Raises Unmapped (2)."""
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
    """The replacement as Java fills it: $1 is a group where there is one, else itself."""

    def put(mark: re.Match) -> str:
        if mark[1]:
            return mark[1]
        number = int(mark[2])
        return (found[number] or "") if number <= found.re.groups else mark[0]

    return _GROUP.sub(put, replacement)

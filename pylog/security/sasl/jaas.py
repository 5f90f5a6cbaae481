"""Parses login settings in Kafka's syntax: `module flag key="value" …;`.

Owns: nothing.
Invariants: no error text contains a value.
Source: the syntax of Java's JAAS configurations, as far as Kafka's sasl.jaas.config accepts it.
"""

import re

from pylog.config.errors import ConfigError

FLAGS = ("required", "requisite", "sufficient", "optional")
_TOKEN = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;="]+)|([;=]))', re.DOTALL)


def options(text: str) -> dict[str, str]:
    """Return the options of the single login module in `text`. Raises ConfigError."""
    tokens = _tokens(text)
    if len(tokens) < 3 or tokens[1].lower() not in FLAGS or tokens[-1] != ";":
        raise ConfigError('sasl.jaas.config: expected `module required key="value" …;`')
    found: dict[str, str] = {}
    rest, last = tokens[2:-1], tokens[1]
    while rest:
        if len(rest) < 3 or rest[1] != "=":
            # The error omits rest[0]: it may be the part of an unquoted password after a space.
            raise ConfigError(f'sasl.jaas.config: expected key="value" or ; after {last}, and '
                              "exactly one login module")
        last = rest[0]
        found[last] = rest[2]
        del rest[:3]
    return found


def _tokens(text: str) -> list[str]:
    found, at = [], 0
    text = text.strip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ConfigError("sasl.jaas.config: a quotation mark is not closed")
        quoted = match[1]
        found.append(re.sub(r"\\(.)", r"\1", quoted) if quoted is not None
                     else match[2] or match[3])
        at = match.end()
    return found

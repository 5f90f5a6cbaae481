"""Names of subjects with their contexts.

Owns: nothing.
Invariants: a subject has one spelling: those of the default context have no prefix.
Source: Confluent's QualifiedSubject: `:.context:subject`.
"""

from __future__ import annotations

from typing import NamedTuple

from pylog.registry import errors

DEFAULT = "."
GLOBAL = ".__GLOBAL"
WILDCARD = ":*:"
RESERVED = ("__GLOBAL", "__EMPTY")


class Subject(NamedTuple):
    """context: begins with a dot. name: "" addresses the context itself."""

    context: str
    name: str

    @property
    def text(self) -> str:
        """Return the spelling in records and answers."""
        return self.name if self.context == DEFAULT else f":{self.context}:{self.name}"


def parse(text: str) -> Subject:
    """Split a name. Never fails: a name without a context belongs to the default one."""
    if text.startswith(":."):
        context, colon, name = text[1:].partition(":")
        if colon:
            return Subject(context, name)
        return Subject(context, "")
    return Subject(DEFAULT, text)


def checked(text: str) -> Subject:
    """Return the subject of a request. Raises RegistryError for an invalid name."""
    found = parse(text)
    if not found.name or found.context == GLOBAL or not _is_valid(found):
        raise errors.invalid_subject(text)
    return found


def checked_scope(text: str) -> Subject:
    """Return the subject or context of a request about config or mode. Raises RegistryError."""
    found = parse(text)
    if not _is_valid(found) or not (found.name or text.startswith(":.")):
        raise errors.invalid_subject(text)
    return found


def within(context: str, text: str) -> str:
    """Return a subject of a path below /contexts/{context}: it gets the context unless it has
    one.
    """
    if context == DEFAULT or text.startswith((":.", WILDCARD)):
        return text
    return f":{context}:{text}"


def context_of_path(text: str) -> str:
    """Return a context's name with its dot."""
    name = text.strip(":")
    return name if name.startswith(".") else f".{name}"


def _is_valid(subject: Subject) -> bool:
    return subject.name not in RESERVED and all(
        letter >= " " and letter != "\x7f" for letter in subject.context + subject.name)


def scopes(subject: Subject) -> list[str]:
    """Return where settings of a subject are stored, nearest first; "" is the top level."""
    found = [subject.text] if subject.name else []
    found.append("" if subject.context == DEFAULT else f":{subject.context}:")
    return [*found, f":{GLOBAL}:"]

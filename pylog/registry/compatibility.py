"""Compatibility levels: which versions a new schema is compared with, and in which direction.

Owns: nothing.
Invariants: NONE compares nothing; a schema of another type is incompatible.
Source: Confluent's CompatibilityLevel and CompatibilityChecker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pylog.registry.formats import kinds
from pylog.registry.formats.kinds import Parsed
from pylog.registry.store import Version

LEVELS = ("NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL",
          "FULL_TRANSITIVE")


def reasons(level: str, kind: str, new: Parsed, previous: Sequence[Version],
            parsed: Callable[[Version], Parsed]) -> list[str]:
    """Return why a schema is incompatible with the first version that refuses it; [] if with none.

    previous: live versions, newest first. parsed: returns the schema of a version.
    """
    if level == "NONE":
        return []
    compared = previous if level.endswith("_TRANSITIVE") else previous[:1]
    for old in compared:
        if old.content.kind != kind:
            return [f"schema type {kind} not compatible with schema type {old.content.kind}"]
        found = []
        if level.startswith(("BACKWARD", "FULL")):
            found += kinds.differences(new, parsed(old))
        if level.startswith(("FORWARD", "FULL")):
            found += kinds.differences(parsed(old), new)
        if found:
            return list(dict.fromkeys(found))
    return []


def of_group(group: str | None, metadata: dict[str, Any] | None, previous: Sequence[Version]
             ) -> list[Version]:
    """Return the versions whose metadata property `group` equals the new schema's."""
    if not group:
        return list(previous)
    own = _property(metadata, group)
    return [one for one in previous if _property(one.content.metadata, group) == own]


def _property(metadata: dict[str, Any] | None, name: str) -> str | None:
    found: str | None = ((metadata or {}).get("properties") or {}).get(name)
    return found

"""Bodies and query parameters of requests.

Owns: nothing.
Invariants: a body of another form is refused with its reason.
"""

from __future__ import annotations

import json
from typing import Any

from pylog.registry import compatibility, contracts, errors, records
from pylog.registry.parsed_schemas import LATEST
from pylog.registry.records import Reference
from pylog.registry.registry import ID_MAX, MODES, VERSION_MAX, Request

FLAGS = ("normalize", "validateFields", "validateNewSchemas", "validateRules")


def document(body: bytes) -> dict[str, Any]:
    """Return a body as an object. Raises RegistryError."""
    try:
        found = json.loads(body) if body else {}
    except (ValueError, RecursionError):
        raise errors.RegistryError(400, "HTTP 400 Bad Request: the body is not JSON") from None
    if not isinstance(found, dict):
        raise errors.invalid_body("Expected a JSON object")
    return found


def schema(row: dict[str, Any]) -> Request:
    """Return the schema of a body. Raises RegistryError."""
    text, kind = row.get("schema") or "", row.get("schemaType") or records.AVRO
    if not isinstance(text, str) or not isinstance(kind, str):
        raise errors.invalid_body("Expected texts for schema and schemaType")
    return Request(kind, text, _references(row.get("references")),
                   contracts.checked_metadata(row.get("metadata")),
                   contracts.checked_rules(row.get("ruleSet")),
                   _number(row, "version", VERSION_MAX), _number(row, "id", ID_MAX))


def _references(value: Any) -> tuple[Reference, ...]:
    if value is None:
        return ()
    try:
        found = tuple(Reference(row["name"], row["subject"], int(row["version"])) for row in value)
    except (TypeError, KeyError, ValueError):
        found = (Reference("", "", 0),)
    for one in found:
        if not (isinstance(one.name, str) and isinstance(one.subject, str) and one.subject
                and (one.version == LATEST or 1 <= one.version <= VERSION_MAX)):
            raise errors.invalid_body("Expected references with name, subject and version")
    return found


def _number(row: dict[str, Any], name: str, limit: int) -> int:
    """Return a positive number, 0 if it is absent or -1."""
    value = row.get(name)
    if value is None or value == -1:
        return 0
    if type(value) is not int or not 0 <= value <= limit:
        raise errors.invalid_body(f"{name}: expected a number up to {limit}")
    return value


def config(row: dict[str, Any]) -> dict[str, Any]:
    """Return the changed fields of a config by their names in records. Raises RegistryError."""
    found = {name: row[name] for name in records.CONFIG_FIELDS
             if name in row and name != "compatibilityLevel"}
    level = row.get("compatibility")
    if level is not None:
        if not isinstance(level, str) or level.upper() not in compatibility.LEVELS:
            raise errors.invalid_level()
        found["compatibilityLevel"] = level.upper()
    elif not found:
        raise errors.invalid_level()
    for name in FLAGS:
        if not isinstance(found.get(name, False), bool | None):
            raise errors.invalid_body(f"{name}: expected true or false")
    for name in ("alias", "aliasForDeks", "compatibilityGroup", "compatibilityPolicy"):
        if not isinstance(found.get(name, ""), str | None):
            raise errors.invalid_body(f"{name}: expected a text")
    for name in ("defaultMetadata", "overrideMetadata"):
        contracts.checked_metadata(found.get(name))
    for name in ("defaultRuleSet", "overrideRuleSet"):
        contracts.checked_rules(found.get(name))
    return found


def mode(row: dict[str, Any]) -> str:
    """Return the mode of a body. Raises RegistryError."""
    found = row.get("mode")
    if not isinstance(found, str) or found.upper() not in MODES:
        raise errors.invalid_mode(found)
    return found.upper()


def version(text: str) -> int:
    """Return the number of a version in a path; LATEST for the newest. Raises RegistryError."""
    if text.lower() == "latest" or text == str(LATEST):
        return LATEST
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= VERSION_MAX):
        raise errors.invalid_version(text)
    return int(text)

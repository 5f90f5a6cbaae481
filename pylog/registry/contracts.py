"""Metadata and rule sets of schemas: validation, and defaults and overrides of configs.

Owns: nothing.
Invariants: the registry stores and returns them exactly and executes no rule.
Source: Confluent's Metadata, RuleSet and Rule.
"""

from __future__ import annotations

from typing import Any

from pylog.registry import errors

KINDS = ("TRANSFORM", "CONDITION")
MIGRATION_MODES = ("UPGRADE", "DOWNGRADE", "UPDOWN")
DOMAIN_MODES = ("WRITE", "READ", "WRITEREAD")
RULE_LISTS = {"migrationRules": MIGRATION_MODES, "domainRules": DOMAIN_MODES,
              "encodingRules": DOMAIN_MODES}
VERSION_PROPERTY = "confluent:version"


def _invalid(reason: str) -> errors.RegistryError:
    return errors.RegistryError(errors.INVALID_RULES, reason)


def checked_metadata(value: Any) -> dict[str, Any] | None:
    """Return the metadata of a request without empty parts. Raises RegistryError."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise _invalid("metadata: expected an object")
    found: dict[str, Any] = {}
    if value.get("tags"):
        if not isinstance(value["tags"], dict) or not all(
                _are_texts(one) for one in value["tags"].values()):
            raise _invalid("metadata.tags: expected lists of texts by field path")
        found["tags"] = value["tags"]
    if value.get("properties"):
        if not isinstance(value["properties"], dict) or not all(
                isinstance(one, str) for one in value["properties"].values()):
            raise _invalid("metadata.properties: expected texts by name")
        found["properties"] = value["properties"]
    if value.get("sensitive"):
        if not _are_texts(value["sensitive"]):
            raise _invalid("metadata.sensitive: expected a list of names of properties")
        found["sensitive"] = value["sensitive"]
    return found or None


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def checked_rules(value: Any) -> dict[str, Any] | None:
    """Return the rule set of a request. Raises RegistryError."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise _invalid("ruleSet: expected an object")
    found: dict[str, Any] = {}
    for name, modes in RULE_LISTS.items():
        rules = value.get(name)
        if not rules:
            continue
        if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
            raise _invalid(f"ruleSet.{name}: expected a list of rules")
        names = [_checked_rule(rule, modes) for rule in rules]
        if len(set(names)) < len(names):
            raise _invalid(f"ruleSet.{name}: two rules have the same name")
        found[name] = rules
    if value.get("enableAt") is not None:
        found["enableAt"] = value["enableAt"]
    return found or None


def _checked_rule(rule: dict[str, Any], modes: tuple[str, ...]) -> str:
    name = rule.get("name")
    if not isinstance(name, str) or not name:
        raise _invalid("a rule has no name")
    if not rule.get("type"):
        raise _invalid(f"rule {name}: the type is missing")
    if rule.get("kind") is not None and rule["kind"] not in KINDS:
        raise _invalid(f"rule {name}: kind {rule['kind']}: expected one of {', '.join(KINDS)}")
    if rule.get("mode") is not None and rule["mode"] not in modes:
        raise _invalid(f"rule {name}: mode {rule['mode']}: expected one of {', '.join(modes)}")
    return name


def merged_metadata(*parts: dict[str, Any] | None) -> dict[str, Any] | None:
    """Merge metadata; later parts take precedence."""
    found: dict[str, Any] = {}
    for part in filter(None, parts):
        for name in ("tags", "properties"):
            if part.get(name):
                found[name] = {**found.get(name, {}), **part[name]}
        if part.get("sensitive"):
            found["sensitive"] = sorted({*found.get("sensitive", ()), *part["sensitive"]})
    return found or None


def merged_rules(*parts: dict[str, Any] | None) -> dict[str, Any] | None:
    """Merge rule sets; a later rule replaces an earlier one of the same name."""
    found: dict[str, Any] = {}
    for part in filter(None, parts):
        for name in RULE_LISTS:
            if part.get(name):
                new = {rule["name"] for rule in part[name]}
                found[name] = [rule for rule in found.get(name, ()) if rule["name"] not in new]
                found[name] += part[name]
        if part.get("enableAt") is not None:
            found["enableAt"] = part["enableAt"]
    return found or None


def with_version(metadata: dict[str, Any] | None, version: int) -> dict[str, Any]:
    """Return metadata whose version property has this value."""
    return merged_metadata(metadata, {"properties": {VERSION_PROPERTY: str(version)}}) or {}


def has_version(metadata: dict[str, Any] | None) -> bool:
    return VERSION_PROPERTY in ((metadata or {}).get("properties") or {})


def without_version(metadata: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return metadata without the version property, None if nothing is left."""
    if not has_version(metadata):
        return metadata
    assert metadata is not None
    properties = {key: value for key, value in metadata["properties"].items()
                  if key != VERSION_PROPERTY}
    found = {key: value for key, value in metadata.items() if key != "properties"}
    return {**found, "properties": properties} if properties else found or None

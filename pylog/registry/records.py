"""The bytes of records in `_schemas`.

Owns: nothing.
Invariants: written keys and values have the bytes that Confluent's registry writes: compact JSON,
  fields in a fixed order.
Source: Confluent's record classes; Karapace reads and writes the same.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

SCHEMA, CONFIG, MODE, NOOP = "SCHEMA", "CONFIG", "MODE", "NOOP"
DELETE_SUBJECT, CONTEXT = "DELETE_SUBJECT", "CONTEXT"
AVRO = "AVRO"
TENANT = "default"
CONFIG_FIELDS = (
    "alias", "aliasForDeks", "normalize", "validateFields", "validateNewSchemas", "validateRules",
    "compatibilityLevel", "compatibilityPolicy", "compatibilityGroup", "defaultMetadata",
    "overrideMetadata", "defaultRuleSet", "overrideRuleSet")


class Reference(NamedTuple):
    """A schema that another one uses. version: -1 is the latest."""

    name: str
    subject: str
    version: int

    def row(self) -> dict[str, Any]:
        return {"name": self.name, "subject": self.subject, "version": self.version}


@dataclass(frozen=True)
class Content:
    """A schema independent of subject, version and id."""

    kind: str
    text: str
    references: tuple[Reference, ...] = ()
    metadata: dict[str, Any] | None = field(default=None, compare=False)
    rule_set: dict[str, Any] | None = field(default=None, compare=False)
    guid: uuid.UUID = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "guid", guid_of(self.text, self.references, self.metadata,
                                                 self.rule_set))


def guid_of(text: str, references: Sequence[Reference], metadata: dict[str, Any] | None,
            rule_set: dict[str, Any] | None) -> uuid.UUID:
    """Return the hash that identifies a schema in all registries."""
    found = hashlib.md5(text.encode(), usedforsecurity=False)
    for reference in references:
        found.update(reference.name.encode() + reference.subject.encode()
                     + reference.version.to_bytes(4, "big", signed=True))
    if metadata:
        found.update(b"\1")
        for key, values in sorted((metadata.get("tags") or {}).items()):
            found.update(key.encode() + "".join(sorted(values)).encode())
        for key, value in sorted((metadata.get("properties") or {}).items()):
            found.update(key.encode() + str(value).encode())
        for name in sorted(metadata.get("sensitive") or ()):
            found.update(name.encode())
    if rule_set:
        found.update(b"\1" + _compact(rule_set))
    return uuid.UUID(bytes=found.digest())


def _compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def schema_key(subject: str, version: int) -> bytes:
    return _compact({"keytype": SCHEMA, "subject": subject, "version": version, "magic": 1})


def schema_value(subject: str, version: int, id_: int, content: Content, is_deleted: bool) -> bytes:
    value: dict[str, Any] = {"subject": subject, "version": version, "id": id_,
                             "schemaType": content.kind}
    if content.references:
        value["references"] = [one.row() for one in content.references]
    if content.metadata:
        value["metadata"] = content.metadata
    if content.rule_set:
        value["ruleSet"] = content.rule_set
    return _compact({**value, "schema": content.text, "deleted": is_deleted})


def scope_key(kind: str, scope: str) -> bytes:
    """Return the key of CONFIG or MODE. scope: a subject, or "" for the top level."""
    if not scope:
        return _compact({"keytype": kind, "magic": 0})
    return _compact({"keytype": kind, "subject": scope, "magic": 0})


def config_value(scope: str, config: dict[str, Any]) -> bytes:
    fields = {name: config[name] for name in CONFIG_FIELDS if config.get(name) is not None}
    return _compact({"subject": scope, **fields} if scope else fields)


def mode_value(scope: str, mode: str) -> bytes:
    return _compact({"subject": scope, "mode": mode} if scope else {"mode": mode})


def delete_subject_key(subject: str) -> bytes:
    """Return the key of DELETE_SUBJECT."""
    return _compact({"keytype": DELETE_SUBJECT, "subject": subject, "magic": 0})


def delete_subject_value(subject: str, version: int) -> bytes:
    """Return the value of DELETE_SUBJECT. version: the newest deleted version."""
    return _compact({"subject": subject, "version": version})


def context_key(context: str) -> bytes:
    return _compact({"keytype": CONTEXT, "tenant": TENANT, "context": context, "magic": 0})


def context_value(context: str) -> bytes:
    return _compact({"tenant": TENANT, "context": context})


def noop_key() -> bytes:
    return _compact({"keytype": NOOP, "magic": 0})


def content_of(value: dict[str, Any]) -> Content:
    """Return the schema of a record's value. Raises KeyError, TypeError, ValueError."""
    references = tuple(Reference(row["name"], row["subject"], int(row["version"]))
                       for row in value.get("references") or ())
    metadata, rule_set = value.get("metadata"), value.get("ruleSet")
    return Content(value.get("schemaType") or AVRO, str(value["schema"]), references,
                   metadata if isinstance(metadata, dict) else None,
                   rule_set if isinstance(rule_set, dict) else None)

"""The registry's state, rebuilt from the records of `_schemas`.

Owns: subjects, versions, ids, configs, modes and contexts, and the exact key of each live record.
Invariants: depends on the records only, so that all registries of a topic agree; an id has one
  meaning in its context and a version one schema: a later record that gives them another one is
  ignored; a record that cannot be read is skipped and counted.
Source: Confluent's KafkaStoreMessageHandler; Karapace's schema_reader.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterator
from typing import Any
from weakref import WeakValueDictionary

from pylog.registry import records, subjects
from pylog.registry.records import Content, Reference

log = logging.getLogger("pylog.registry")


class Version:
    """One version of a subject."""

    __slots__ = ("content", "id", "is_deleted", "key", "subject", "timestamp_ms", "version")

    def __init__(self, subject: str, version: int, id_: int, content: Content, is_deleted: bool,
                 key: bytes, timestamp_ms: int):
        self.subject = subject
        self.version = version
        self.id = id_
        self.content = content
        self.is_deleted = is_deleted
        self.key = key
        self.timestamp_ms = timestamp_ms

    def __repr__(self) -> str:
        return f"Version({self.subject!r}, {self.version}, id={self.id})"


class Context:
    """Ids of one context. uses: (subject, version) of each id."""

    def __init__(self) -> None:
        self.contents: dict[int, Content] = {}
        self.ids: dict[uuid.UUID, int] = {}
        self.uses: dict[int, set[tuple[str, int]]] = {}
        self.id_max = 0


class Store:
    """position: offset of the next record. changes: grows with each record that changed state."""

    def __init__(self) -> None:
        self.position = 0
        self.changes = 0
        self.skipped = 0
        self.subjects: dict[str, dict[int, Version]] = {}
        self.contexts: dict[str, Context] = {subjects.DEFAULT: Context()}
        self.configs: dict[str, dict[str, Any]] = {}
        self.modes: dict[str, str] = {}
        self.referenced_by: dict[tuple[str, int], set[tuple[str, int]]] = {}
        # Weak, so that a schema goes with its last version.
        self._contents: WeakValueDictionary[tuple[str, uuid.UUID], Content] = WeakValueDictionary()
        self._keys: dict[tuple, bytes] = {}

    # Reading

    def context(self, name: str) -> Context:
        """Return a context's ids; an empty one if it does not exist."""
        return self.contexts.get(name) or Context()

    def versions(self, subject: str, with_deleted: bool = False) -> list[Version]:
        """Return the versions of a subject, oldest first."""
        rows = self.subjects.get(subject, {})
        return [rows[number] for number in sorted(rows)
                if with_deleted or not rows[number].is_deleted]

    def latest(self, subject: str, with_deleted: bool = False) -> Version | None:
        """Return the newest version of a subject, None if it has none."""
        found = self.versions(subject, with_deleted)
        return found[-1] if found else None

    def version(self, subject: str, number: int) -> Version | None:
        return self.subjects.get(subject, {}).get(number)

    def uses(self, context: str, id_: int) -> Iterator[Version]:
        """Yield the versions with an id, deleted ones included, in order."""
        for subject, number in sorted(self.context(context).uses.get(id_, ())):
            yield self.subjects[subject][number]

    def key_of(self, *identity: Any) -> bytes | None:
        """Return the exact key of a live record, such as key_of("CONFIG", subject)."""
        return self._keys.get(identity)

    def references_to(self, subject: str, number: int, with_deleted: bool = False
                      ) -> list[Version]:
        """Return the versions that reference a version."""
        found = [self.subjects[name][version] for name, version
                 in sorted(self.referenced_by.get((subject, number), ()))]
        return [one for one in found if with_deleted or not one.is_deleted]

    # Applying records

    def apply(self, offset: int, key: bytes | None, value: bytes | None, timestamp_ms: int) -> None:
        """Apply the record at an offset. Never fails: a bad record is skipped."""
        self.position = offset + 1
        try:
            key = key or b""
            row = json.loads(key)
            kind = row["keytype"]
            body = json.loads(value) if value else None
            apply = _APPLY.get(kind)
            if apply is not None:
                apply(self, key, row, body, timestamp_ms)
                self.changes += 1
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self.skipped += 1
            log.warning("a record of _schemas cannot be read and is skipped",
                        extra={"offset": offset, "error": f"{type(error).__name__}: {error}"})

    def _schema(self, key: bytes, row: dict, body: dict | None, timestamp_ms: int) -> None:
        subject, number = str(row["subject"]), int(row["version"])
        identity = (records.SCHEMA, subject, number)
        if body is None:
            self._remove(subject, number)
            self._keys.pop(identity, None)
            return
        content, id_ = self._shared(records.content_of(body)), int(body["id"])
        context = self.contexts.setdefault(subjects.parse(subject).context, Context())
        old, meaning = self.version(subject, number), context.contents.get(id_)
        if (meaning is not None and meaning.guid != content.guid) or (
                old is not None and (old.id, old.content.guid) != (id_, content.guid)):
            log.warning("a record of _schemas gives an id or a version another schema and is "
                        "ignored", extra={"id": id_, "subject": subject, "schema_version": number})
            return
        self._remove(subject, number)
        self._keys[identity] = key
        self.subjects.setdefault(subject, {})[number] = Version(
            subject, number, id_, content, bool(body.get("deleted")), key, timestamp_ms)
        context.contents[id_] = content
        context.ids.setdefault(content.guid, id_)
        context.uses.setdefault(id_, set()).add((subject, number))
        context.id_max = max(context.id_max, id_)
        for reference in content.references:
            self.referenced_by.setdefault(target(subject, reference), set()).add((subject, number))

    def _shared(self, content: Content) -> Content:
        """Return the shared copy of a schema, because many subjects may have the same one."""
        return self._contents.setdefault((content.kind, content.guid), content)

    def _remove(self, subject: str, number: int) -> None:
        rows = self.subjects.get(subject, {})
        old = rows.pop(number, None)
        if old is None:
            return
        if not rows:
            del self.subjects[subject]
        for reference in old.content.references:
            place = target(subject, reference)
            users = self.referenced_by.get(place, set())
            users.discard((subject, number))
            if not users:
                self.referenced_by.pop(place, None)
        context = self.contexts[subjects.parse(subject).context]
        uses = context.uses[old.id]
        uses.discard((subject, number))
        if not uses:
            del context.uses[old.id]
            del context.contents[old.id]
            if context.ids.get(old.content.guid) == old.id:
                del context.ids[old.content.guid]

    def _config(self, key: bytes, row: dict, body: dict | None, _: int) -> None:
        self._setting(self.configs, records.CONFIG, key, row,
                      None if body is None else {name: body[name] for name in records.CONFIG_FIELDS
                                                 if body.get(name) is not None})

    def _mode(self, key: bytes, row: dict, body: dict | None, _: int) -> None:
        self._setting(self.modes, records.MODE, key, row,
                      None if body is None else str(body["mode"]))

    def _setting(self, table: dict[str, Any], kind: str, key: bytes, row: dict, value: Any) -> None:
        scope = row.get("subject") or ""
        if value is None:
            table.pop(scope, None)
            self._keys.pop((kind, scope), None)
        else:
            table[scope] = value
            self._keys[kind, scope] = key

    def _delete_subject(self, key: bytes, row: dict, body: dict | None, _: int) -> None:
        subject = str(row["subject"])
        if body is None:
            self._keys.pop((records.DELETE_SUBJECT, subject), None)
            return
        self._keys[records.DELETE_SUBJECT, subject] = key
        for number, version in self.subjects.get(subject, {}).items():
            if number <= int(body["version"]):
                version.is_deleted = True

    def _context(self, key: bytes, row: dict, body: dict | None, _: int) -> None:
        name = str(row["context"])
        if body is not None:
            self.contexts.setdefault(name, Context())
            self._keys[records.CONTEXT, name] = key
        elif not self.context(name).uses and name != subjects.DEFAULT:
            self.contexts.pop(name, None)
            self._keys.pop((records.CONTEXT, name), None)


def target(subject: str, reference: Reference) -> tuple[str, int]:
    """Return (subject, version) of a reference, whose context is its parent's by default."""
    own = subjects.parse(subject).context
    return subjects.parse(subjects.within(own, reference.subject)).text, reference.version


_APPLY = {
    records.SCHEMA: Store._schema, records.CONFIG: Store._config, records.MODE: Store._mode,
    records.DELETE_SUBJECT: Store._delete_subject, records.CONTEXT: Store._context}

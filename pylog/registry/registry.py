"""What the registry does: registration, look-up, deletion, compatibility, configs and modes.

Owns: the ids that were allocated but are not in the store yet.
Invariants: an answer to a change comes after the change was read back; an id is allocated once; a
  record that another registry overtook is either in effect or repaired and decided again; nothing
  that is referenced is deleted.
Source: Confluent's KafkaSchemaRegistry.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from pylog.registry import compatibility, contracts, errors, records, subjects
from pylog.registry.formats.kinds import Parsed
from pylog.registry.parsed_schemas import LATEST, ParsedSchemas
from pylog.registry.records import Content, Reference
from pylog.registry.store import Context, Store, Version
from pylog.registry.write_gate import WriteGate

VERSION_MAX = ID_MAX = 2 ** 31 - 1
ATTEMPTS_MAX = 50
READWRITE, READONLY, READONLY_OVERRIDE, IMPORT, FORWARD = (
    "READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT", "FORWARD")
MODES = (READWRITE, READONLY, READONLY_OVERRIDE, IMPORT, FORWARD)


class Topic(Protocol):
    """Where records are written; topic.SchemaTopic."""

    async def append(self, key: bytes, value: bytes | None) -> int: ...


@dataclass(frozen=True)
class Request:
    """A schema of a request. version, id: 0 if not given."""

    kind: str
    text: str
    references: tuple[Reference, ...] = ()
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None
    version: int = 0
    id: int = 0


class Prepared(NamedTuple):
    """A request's schema, parsed."""

    content: Content
    parsed: Parsed


class Limits(NamedTuple):
    """schema_bytes: of one schema. mode_mutability: whether modes may be changed."""

    schema_bytes: int
    default_level: str
    mode_mutability: bool


class Registry:
    """The operations on a store and its topic."""

    def __init__(self, store: Store, topic: Topic, limits: Limits):
        self.store = store
        self.schemas = ParsedSchemas(store)
        self._topic = topic
        self._limits = limits
        self._gate = WriteGate()
        self._id_max: dict[str, int] = {}
        self._pending: dict[tuple[str, uuid.UUID], asyncio.Future[None]] = {}
        self._is_current = False
        self._becoming_current = asyncio.Lock()

    # Config and mode

    def config_of(self, subject: str) -> dict[str, Any]:
        """Return the config that applies to a subject. A level that is not set is inherited."""
        found: dict[str, Any] = {}
        for scope in subjects.scopes(subjects.parse(subject)):
            own = self.store.configs.get(scope)
            if own is None:
                continue
            found = found or dict(own)
            if "compatibilityLevel" in own:
                found.setdefault("compatibilityLevel", own["compatibilityLevel"])
                break
        found.setdefault("compatibilityLevel", self._limits.default_level)
        return found

    def mode_of(self, subject: str) -> str:
        """Return the mode that applies to a subject."""
        for scope in subjects.scopes(subjects.parse(subject)):
            if scope in self.store.modes:
                return self.store.modes[scope]
        return READWRITE

    def alias_of(self, subject: str) -> str:
        """Return the subject that a subject's alias means, or itself."""
        alias = self.store.configs.get(subject, {}).get("alias")
        if not alias:
            return subject
        return subjects.parse(subjects.within(subjects.parse(subject).context, alias)).text

    async def set_config(self, scope: str, changes: dict[str, Any]) -> None:
        """Change fields of a config; None removes one. scope: a subject, a context, or ""."""
        async with self._gate.exclusive():
            merged = {**self.store.configs.get(scope, {}), **changes}
            config = {name: value for name, value in merged.items() if value is not None}
            await self._write(self._key(records.CONFIG, scope),
                              records.config_value(scope, config))

    async def delete_config(self, scope: str) -> dict[str, Any]:
        """Remove a config and return it. Raises RegistryError if there is none."""
        async with self._gate.exclusive():
            old = self.store.configs.get(scope)
            if old is None:
                if scope:
                    raise errors.subject_not_found(scope)
                return {"compatibilityLevel": self._limits.default_level}
            await self._tombstone(records.CONFIG, scope)
            return {**old, "compatibilityLevel": old.get("compatibilityLevel",
                                                         self._limits.default_level)}

    async def set_mode(self, scope: str, mode: str, force: bool) -> None:
        """Change the mode of a subject, a context or everything. Raises RegistryError."""
        self._check_mutable()
        if mode == FORWARD and scope:
            raise errors.not_permitted("Mode FORWARD can be set for all subjects only")
        async with self._gate.exclusive():
            affected = self._subjects_of(scope)
            if mode == IMPORT and self.mode_of(scope) != IMPORT and not force:
                live = [name for name in affected if self.store.versions(name)]
                if live:
                    raise errors.not_permitted(
                        f"Cannot import since found existing subjects: {', '.join(live[:10])}")
                deleted = {name: self.store.versions(name, with_deleted=True) for name in affected}
                for versions in deleted.values():  # Before any is removed.
                    self._check_all_unreferenced(versions)
                for name, versions in deleted.items():
                    await self._purge(name, versions)
            await self._write(self._key(records.MODE, scope), records.mode_value(scope, mode))

    async def delete_mode(self, scope: str, recursive: bool) -> str:
        """Remove a mode and return it. recursive: also those of its subjects."""
        self._check_mutable()
        async with self._gate.exclusive():
            old = self.store.modes.get(scope)
            if old is None:
                if scope:
                    raise errors.subject_not_found(scope)
                return READWRITE
            await self._tombstone(records.MODE, scope)
            if recursive:
                for name in self._subjects_of(scope):
                    if name in self.store.modes:
                        await self._tombstone(records.MODE, name)
            return old

    def _check_mutable(self) -> None:
        if not self._limits.mode_mutability:
            raise errors.not_permitted("Mode changes are not allowed: "
                                       "schema.registry.mode.mutability=false")

    def _subjects_of(self, scope: str) -> list[str]:
        """Return the subjects of a scope, deleted ones included."""
        found = subjects.parse(scope)
        if found.name:
            return [scope] if scope in self.store.subjects else []
        return [name for name in self.store.subjects
                if subjects.parse(name).context == found.context]

    async def delete_context(self, name: str) -> None:
        """Remove a context. Raises RegistryError if it has subjects."""
        async with self._gate.exclusive():
            if any(subjects.parse(one).context == name for one in self.store.subjects):
                raise errors.RegistryError(errors.CONTEXT_NOT_EMPTY,
                                           f"The specified context '{name}' is not empty.")
            if self.store.key_of(records.CONTEXT, name) is not None:
                await self._tombstone(records.CONTEXT, name)

    # Look-ups

    def live_versions(self, subject: str, with_deleted: bool = False) -> list[Version]:
        """Return the versions of a subject, oldest first. Raises RegistryError if it has none."""
        found = self.store.versions(subject, with_deleted)
        if not found:
            raise errors.subject_not_found(subject)
        return found

    def version_of(self, subject: str, number: int, with_deleted: bool = False) -> Version:
        """Return a version; LATEST is the newest. Raises RegistryError.

        A subject of the default context that does not exist is found in other contexts.
        """
        found = self._version_of(subject, number, with_deleted)
        if found is None and subjects.parse(subject).context == subjects.DEFAULT:
            for other in self._in_other_contexts(subject):
                found = found or self._version_of(other, number, with_deleted)
        if found is not None:
            return found
        if not self.store.versions(subject, with_deleted):
            raise errors.subject_not_found(subject)
        raise errors.version_not_found(number)

    def _version_of(self, subject: str, number: int, with_deleted: bool) -> Version | None:
        if number == LATEST:
            return self.store.latest(subject, with_deleted)
        found = self.store.version(subject, number)
        return None if found is None or (found.is_deleted and not with_deleted) else found

    def _in_other_contexts(self, subject: str) -> list[str]:
        return [name for context in sorted(self.store.contexts) if context != subjects.DEFAULT
                if (name := f":{context}:{subject}") in self.store.subjects]

    def content_of(self, id_: int, subject: str) -> tuple[str, Content]:
        """Return (context, schema) of an id. subject: names the context; "" is the default one.
        Raises RegistryError.
        """
        given = subjects.parse(subject)
        found = self.store.context(given.context).contents.get(id_)
        if found is not None:
            return given.context, found
        if given.context == subjects.DEFAULT and given.name:
            for name in self._in_other_contexts(subject):
                context = subjects.parse(name).context
                other = self.store.context(context).contents.get(id_)
                if other is not None:
                    return context, other
        raise errors.schema_not_found()

    def subjects_named(self, subject: str, with_deleted: bool) -> list[str]:
        """Return the subject in each context where it is looked up, its own first. Raises
        RegistryError if it exists in none.
        """
        names = [subject]
        if subjects.parse(subject).context == subjects.DEFAULT:
            names += self._in_other_contexts(subject)
        if not any(self.store.versions(name, with_deleted) for name in names):
            raise errors.subject_not_found(subject)
        return names

    def look_up(self, subject: str, request: Request, normalize: bool, with_deleted: bool
                ) -> Version:
        """Return the version of a subject that has a schema. Raises RegistryError."""
        for name in self.subjects_named(subject, with_deleted):
            try:
                prepared = self._prepared(name, request, normalize, is_new=False)
                found = self._same_in(name, prepared, with_deleted)
                if found is None and not normalize:
                    found = self._same_in(name, self._prepared(name, request, True, is_new=False),
                                          with_deleted)
            except errors.RegistryError as error:
                if error.code != errors.INVALID_SCHEMA:
                    raise
                raise errors.look_up_failed(subject) from error
            if found is not None:
                return found
        raise errors.schema_not_found()

    def _same_in(self, subject: str, prepared: Prepared, with_deleted: bool) -> Version | None:
        """Return the newest version with the same schema."""
        for version in reversed(self.store.versions(subject, with_deleted)):
            if self._is_same(subject, version.content, prepared.content):
                return version
        return None

    def _is_same(self, subject: str, stored: Content, new: Content) -> bool:
        """Return True if a schema is the stored one. Metadata and rules count if the new one has
        them.
        """
        if stored.guid == new.guid and stored.kind == new.kind:
            return True
        if stored.kind != new.kind or stored.text != new.text:
            return False
        if new.metadata is not None and (contracts.without_version(stored.metadata)
                                         != contracts.without_version(new.metadata)):
            return False
        if new.rule_set is not None and stored.rule_set != new.rule_set:
            return False
        return (self.schemas.resolved(subject, stored.references)
                == self.schemas.resolved(subject, new.references))

    # Registration

    def _prepared(self, subject: str, request: Request, normalize: bool, is_new: bool = True
                  ) -> Prepared:
        """Parse the schema of a request and return its canonical form. Raises RegistryError."""
        references = self.schemas.resolved(subject, request.references)
        if normalize:
            references = tuple(sorted(references))
        content = Content(request.kind, request.text, references, request.metadata,
                          request.rule_set)
        parsed = self.schemas.parse(subject, content, is_new)
        text = parsed.normalized() if normalize else parsed.canonical()
        return Prepared(replace(content, text=text), parsed)

    def _filled(self, subject: str, request: Request, config: dict[str, Any]) -> Request:
        """Return the request with the inherited schema, metadata and rules."""
        latest = self.store.latest(subject)
        text, kind, references = request.text, request.kind, request.references
        metadata, rule_set = request.metadata, request.rule_set
        if not text:
            if latest is None:
                raise errors.empty_schema()
            text, kind = latest.content.text, latest.content.kind
            references = latest.content.references
        if latest is not None:
            metadata = metadata if metadata is not None else latest.content.metadata
            rule_set = rule_set if rule_set is not None else latest.content.rule_set
        return replace(
            request, kind=kind, text=text, references=references,
            metadata=contracts.merged_metadata(config.get("defaultMetadata"), metadata,
                                               config.get("overrideMetadata")),
            rule_set=contracts.merged_rules(config.get("defaultRuleSet"), rule_set,
                                            config.get("overrideRuleSet")))

    async def register(self, subject: str, request: Request, normalize: bool, force: bool = False
                       ) -> Version:
        """Register a schema and return its version. Raises RegistryError."""
        if len(request.text.encode()) > self._limits.schema_bytes:
            raise errors.RegistryError(
                errors.SCHEMA_TOO_LARGE, f"The schema has {len(request.text.encode())} bytes; "
                f"schema.registry.schema.bytes.max={self._limits.schema_bytes}")
        await self._ensure_current()
        if request.references:
            async with self._gate.exclusive():
                return await self._register(subject, request, normalize, force)
        async with self._gate.shared(subject):
            return await self._register(subject, request, normalize, force)

    async def _register(self, subject: str, request: Request, normalize: bool, force: bool
                        ) -> Version:
        for _ in range(ATTEMPTS_MAX):
            config = self.config_of(subject)
            mode = self._checked_mode(subject, request.id)
            filled = self._filled(subject, request, config)
            prepared = self._prepared(subject, filled, normalize or bool(config.get("normalize")))
            known = self._known(subject, prepared, request)
            if known is not None:
                return known
            if mode not in (IMPORT, FORWARD) and not force:
                self._check_compatible(subject, prepared, config)
            done = await self._add(subject, prepared, request)
            if done is not None:
                return done
        raise errors.RegistryError(
            errors.STORE_FAILED, "Another registry writes to the topic at the same time; "
            "repeat the request")

    def _checked_mode(self, subject: str, id_: int) -> str:
        mode = self.mode_of(subject)
        if mode in (READONLY, READONLY_OVERRIDE):
            raise errors.not_permitted(f"Subject {subject} is in read-only mode")
        if id_ and mode not in (IMPORT, FORWARD):
            raise errors.not_permitted(f"Subject {subject} is not in import mode")
        if not id_ and mode != READWRITE:
            raise errors.not_permitted(f"Subject {subject} is not in read-write mode")
        return mode

    def _known(self, subject: str, prepared: Prepared, request: Request) -> Version | None:
        """Return the live version that answers a registration without a write."""
        found = self._same_in(subject, prepared, with_deleted=False)
        if found is None or request.id not in (0, found.id):
            return None
        return found if request.version in (0, found.version) or not request.id else None

    def _check_compatible(self, subject: str, prepared: Prepared, config: dict[str, Any]) -> None:
        level = config["compatibilityLevel"]
        reasons = self._reasons(subject, prepared, config, self.store.versions(subject))
        if reasons:
            raise errors.incompatible(level, reasons)

    def _reasons(self, subject: str, prepared: Prepared, config: dict[str, Any],
                 versions: Sequence[Version]) -> list[str]:
        previous = compatibility.of_group(config.get("compatibilityGroup"),
                                          prepared.content.metadata, versions[::-1])
        return compatibility.reasons(config["compatibilityLevel"], prepared.content.kind,
                                     prepared.parsed, previous, self.schemas.stored)

    def check(self, subject: str, request: Request, number: int | None, normalize: bool
              ) -> list[str]:
        """Return why a schema is incompatible with a version; None: with those of the level."""
        versions = self.store.versions(subject)
        if number == LATEST:
            versions = versions[-1:]
        elif number is not None:
            found = self._version_of(subject, number, with_deleted=False)
            if found is None:
                raise errors.version_not_found(number)
            versions = [found]
        config = self.config_of(subject)
        prepared = self._prepared(subject, self._filled(subject, request, config),
                                  normalize or bool(config.get("normalize")))
        return self._reasons(subject, prepared, config, versions)

    async def _add(self, subject: str, prepared: Prepared, request: Request) -> Version | None:
        """Write a new version. Return None if another registry's record took effect instead."""
        context_name = subjects.parse(subject).context
        versions = self.store.versions(subject, with_deleted=True)
        number = versions[-1].version + 1 if versions else 1
        content = prepared.content
        if request.id:
            self._check_import(context_name, subject, content, request)
            number = request.version or number
        elif request.version and request.version != number:
            raise errors.RegistryError(
                errors.INVALID_SCHEMA, f"Version is not one more than previous version: expected "
                f"{number}, got {request.version}")
        if request.version or contracts.has_version(content.metadata):
            content = replace(content, metadata=contracts.with_version(content.metadata, number))
        pending_key = context_name, content.guid
        while (other := self._pending.get(pending_key)) is not None:
            await asyncio.wait([other])
        context = self.store.context(context_name)
        id_ = request.id or context.ids.get(content.guid) or self._new_id(context_name, context)
        future = self._pending[pending_key] = asyncio.get_running_loop().create_future()
        try:
            if context_name not in self.store.contexts:
                await self._write(records.context_key(context_name),
                                  records.context_value(context_name))
            await self._remove_deleted_duplicates(subject, id_, versions)
            await self._write(records.schema_key(subject, number),
                              records.schema_value(subject, number, id_, content, False))
        finally:
            del self._pending[pending_key]
            future.set_result(None)
        found = self.store.version(subject, number)
        if found is not None and found.id == id_ and found.content.guid == content.guid:
            return found
        if found is not None:
            # The overtaken record is the last one of its key: compaction would keep that one.
            await self._topic.append(found.key, records.schema_value(
                subject, number, found.id, found.content, found.is_deleted))
        return None

    def _check_import(self, context_name: str, subject: str, content: Content, request: Request
                      ) -> None:
        context = self.store.context(context_name)
        stored = context.contents.get(request.id)
        if stored is not None and stored.guid != content.guid:
            raise errors.not_permitted(f"Overwrite new schema with id {request.id} is not "
                                       "permitted.")
        taken = self.store.version(subject, request.version) if request.version else None
        if taken is not None and taken.id != request.id:
            raise errors.not_permitted(f"Subject {subject} has version {request.version} with id "
                                       f"{taken.id} already")

    def _new_id(self, name: str, context: Context) -> int:
        """Allocate an id. It is never given out again, even if the write fails."""
        found = max(self._id_max.get(name, 0), context.id_max) + 1
        self._id_max[name] = found
        return found

    async def _remove_deleted_duplicates(self, subject: str, id_: int, versions: list[Version]
                                         ) -> None:
        """Purge soft-deleted versions with the same id that nothing references."""
        for version in versions:
            if version.is_deleted and version.id == id_ and not self.store.references_to(
                    subject, version.version, with_deleted=True):
                await self._remove_version(version)

    # Deletion

    async def delete_subject(self, subject: str, permanent: bool) -> list[int]:
        """Delete all versions and return their numbers. Raises RegistryError."""
        await self._ensure_current()
        async with self._gate.exclusive():
            self._check_deletable(subject)
            every = self.store.versions(subject, with_deleted=True)
            live = [one for one in every if not one.is_deleted]
            if not every:
                raise errors.subject_not_found(subject)
            if permanent:
                if live:
                    raise errors.subject_not_soft_deleted(subject)
                await self._purge(subject, every)
                return [one.version for one in every]
            if not live:
                raise errors.subject_soft_deleted(subject)
            for one in live:
                self._check_unreferenced(one, with_deleted=False)
            await self._write(self._key(records.DELETE_SUBJECT, subject),
                              records.delete_subject_value(subject, live[-1].version))
            for kind in (records.MODE, records.CONFIG):
                if self.store.key_of(kind, subject) is not None:
                    await self._tombstone(kind, subject)
            return [one.version for one in live]

    async def delete_version(self, subject: str, number: int, permanent: bool) -> int:
        """Delete a version and return its number. Raises RegistryError."""
        await self._ensure_current()
        async with self._gate.exclusive():
            self._check_deletable(subject)
            every = self.store.versions(subject, with_deleted=True)
            live = [one for one in every if not one.is_deleted]
            if not every or (not permanent and not live):
                raise errors.subject_not_found(subject)
            found = (self.store.latest(subject, permanent) if number == LATEST
                     else self.store.version(subject, number))
            if found is None:
                raise errors.version_not_found(number)
            if permanent:
                if not found.is_deleted:
                    raise errors.version_not_soft_deleted(subject, found.version)
                await self._purge(subject, [found])
                return found.version
            if found.is_deleted:
                raise errors.version_soft_deleted(subject, found.version)
            self._check_unreferenced(found, with_deleted=False)
            await self._write(found.key, records.schema_value(
                subject, found.version, found.id, found.content, True))
            return found.version

    def _check_deletable(self, subject: str) -> None:
        if self.mode_of(subject) in (READONLY, READONLY_OVERRIDE):
            raise errors.not_permitted(f"Subject {subject} is in read-only mode")

    def _check_unreferenced(self, version: Version, with_deleted: bool) -> None:
        if self.store.references_to(version.subject, version.version, with_deleted):
            raise errors.reference_exists(version.subject, version.version)

    def _check_all_unreferenced(self, versions: list[Version]) -> None:
        for version in versions:
            self._check_unreferenced(version, with_deleted=True)

    async def _purge(self, subject: str, versions: list[Version]) -> None:
        """Write tombstones for versions; with the last one, also for the subject's settings."""
        self._check_all_unreferenced(versions)
        for version in reversed(versions):
            await self._remove_version(version)
        if subject not in self.store.subjects:
            for kind in (records.MODE, records.CONFIG, records.DELETE_SUBJECT):
                if self.store.key_of(kind, subject) is not None:
                    await self._tombstone(kind, subject)

    async def _remove_version(self, version: Version) -> None:
        await self._remove_key(records.schema_key(version.subject, version.version), version.key)

    # Writing

    async def _ensure_current(self) -> None:
        """Before the first write, wait until the view has reached the end of the topic."""
        if not self._is_current:
            async with self._becoming_current:
                if not self._is_current:
                    await self._topic.append(records.noop_key(), None)
                    self._is_current = True

    def _key(self, kind: str, scope: str) -> bytes:
        """Return the exact key of a live record, or the key of a new one."""
        found = self.store.key_of(kind, scope)
        if found is not None:
            return found
        return _CANONICAL[kind](scope)

    async def _tombstone(self, kind: str, scope: str) -> None:
        await self._remove_key(_CANONICAL[kind](scope), self._key(kind, scope))

    async def _remove_key(self, canonical: bytes, exact: bytes) -> None:
        """Write tombstones for the stored key, and for the canonical one if it differs."""
        for key in dict.fromkeys((exact, canonical)):
            await self._write(key, None)

    async def _write(self, key: bytes, value: bytes | None) -> None:
        await self._ensure_current()
        await self._topic.append(key, value)


_CANONICAL: dict[str, Callable[[str], bytes]] = {
    records.CONFIG: lambda scope: records.scope_key(records.CONFIG, scope),
    records.MODE: lambda scope: records.scope_key(records.MODE, scope),
    records.DELETE_SUBJECT: records.delete_subject_key,
    records.CONTEXT: records.context_key}

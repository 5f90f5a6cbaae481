"""Parsed schemas of the store, with their references resolved.

Owns: a cache of parsed schemas, which never change.
Invariants: a cycle of references and a missing reference are errors of the new schema; the cache
  is bounded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from pylog.registry import errors, subjects
from pylog.registry.formats import kinds
from pylog.registry.formats.kinds import Parsed
from pylog.registry.formats.schema_error import SchemaError
from pylog.registry.records import Content, Reference
from pylog.registry.store import Store, Version, target

PARSED_MAX = 2000
LATEST = -1


class ParsedSchemas:
    """Parses stored and new schemas of one store."""

    def __init__(self, store: Store):
        self._store = store
        self._parsed: OrderedDict[tuple[str, str, object], Parsed] = OrderedDict()

    def parse(self, subject: str, content: Content, is_new: bool) -> Parsed:
        """Parse the schema of a request. is_new: it may be stored, so it must be valid; others
        are only searched for. Raises RegistryError.
        """
        try:
            return kinds.parse(content.kind, content.text,
                               self._references(subject, content.references, ()), is_new)
        except SchemaError as error:
            raise errors.invalid_schema(content.kind, str(error)) from None

    def stored(self, version: Version) -> Parsed:
        """Return the parsed schema of a version. Raises RegistryError."""
        return self._stored(version, ())

    def resolved(self, subject: str, references: Sequence[Reference]) -> tuple[Reference, ...]:
        """Return the references with their versions instead of LATEST. Raises RegistryError."""
        return tuple(one if one.version != LATEST else one._replace(
            version=self.referenced(subject, one).version) for one in references)

    def referenced(self, subject: str, reference: Reference) -> Version:
        """Return the version that a reference means. Raises RegistryError."""
        name, number = target(subject, reference)
        found = (self._store.latest(name) if number == LATEST
                 else self._store.version(name, number))
        if found is None:
            raise errors.RegistryError(
                errors.INVALID_SCHEMA, "Invalid schema: no schema reference found for subject "
                f"\"{name}\" and version {number}")
        return found

    def _stored(self, version: Version, path: tuple[tuple[str, int], ...]) -> Parsed:
        content = version.content
        # References without a context depend on that of the subject.
        key = content.kind, subjects.parse(version.subject).context, content.guid
        found = self._parsed.get(key)
        if found is None:
            place = version.subject, version.version
            if place in path:
                raise errors.RegistryError(
                    errors.INVALID_SCHEMA, "Invalid schema: the references form a cycle through "
                    f"subject {version.subject}, version {version.version}")
            try:
                found = kinds.parse(content.kind, content.text, self._references(
                    version.subject, content.references, (*path, place)), False)
            except SchemaError as error:
                raise errors.invalid_schema(content.kind, str(error)) from None
            self._parsed[key] = found
            if len(self._parsed) > PARSED_MAX:
                self._parsed.popitem(last=False)
        return found

    def _references(self, subject: str, references: Sequence[Reference],
                    path: tuple[tuple[str, int], ...]) -> list[Parsed]:
        return [self._stored(self.referenced(subject, one), path) for one in references]

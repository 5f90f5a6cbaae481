"""Schemas of the registry for decoding, with the schemas that they refer to.

Owns: the cache of bundles, and of failed requests for a short time.
Invariants: an id of a record causes at most one request to the registry in FAILURE_S; the size of
  a schema, the number of its references and the cache are bounded.
Source: the registry's REST interface; Confluent's wire format.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from pylog.client.errors import KafkaError
from pylog.client.serialization.registry import (
    RegistryUnavailableError, Schema, SchemaRegistry,
)
from pylog.console.values.schema_formats import Bundle

BUNDLES_MAX = 500
FAILURES_MAX = 10_000
FAILURE_S = 30.0
OUTAGE_S = 5.0  # Without requests for new schemas, after the registry did not answer.
REFERENCES_MAX = 100
TEXT_CHARACTERS_MAX = 1 << 20
NOT_FOUND = 404

Key = int | str  # An id, or a GUID.


class SchemaError(KafkaError):
    """A schema cannot be used. is_missing: the registry does not have it."""

    def __init__(self, text: str, is_missing: bool = False):
        super().__init__(text)
        self.is_missing = is_missing


class Schemas:
    """seconds: a monotonic clock. Methods block: call them on a thread."""

    def __init__(self, registry: SchemaRegistry, seconds: Callable[[], float]):
        self.registry = registry
        self._seconds = seconds
        self._lock = threading.Lock()
        self._bundles: OrderedDict[Key, Bundle] = OrderedDict()
        self._failures: OrderedDict[Key, tuple[float, SchemaError]] = OrderedDict()
        self._outage: SchemaError | None = None
        self._outage_s = 0.0

    def bundle(self, key: Key) -> Bundle:
        """Return a schema with its references. Raises SchemaError."""
        with self._lock:
            found = self._bundles.get(key)
            if found is not None:
                self._bundles.move_to_end(key)
                return found
            failed_s, failure = self._failures.get(key, (0.0, None))
            if failure is not None and self._seconds() - failed_s < FAILURE_S:
                raise failure
            if self._outage is not None and self._seconds() - self._outage_s < OUTAGE_S:
                raise self._outage
        try:
            made = self._read(key)
        except (KafkaError, LookupError, TypeError, ValueError) as error:
            failure = error if isinstance(error, SchemaError) else SchemaError(
                str(error), getattr(error, "status", 0) == NOT_FOUND)
            with self._lock:
                if isinstance(error, RegistryUnavailableError):
                    self._outage, self._outage_s = failure, self._seconds()
                self._failures[key] = self._seconds(), failure
                while len(self._failures) > FAILURES_MAX:
                    self._failures.popitem(last=False)
            raise failure from None
        with self._lock:
            self._failures.pop(key, None)
            self._bundles[key] = made
            while len(self._bundles) > BUNDLES_MAX:
                self._bundles.popitem(last=False)
        return made

    def _read(self, key: Key) -> Bundle:
        schema = _checked(self.registry.schema(key) if isinstance(key, int)
                          else self.registry.schema_by_guid(key))
        return self.with_references(schema)

    def with_references(self, schema: Schema) -> Bundle:
        """Return a schema with all schemas that it needs. Raises SchemaError, RegistryError."""
        others: dict[tuple[str, int], Schema] = {}
        waiting = list(schema.references)
        while waiting:
            _, subject, version = waiting.pop()
            if (subject, version) in others:
                continue
            if len(others) >= REFERENCES_MAX:
                raise SchemaError(f"the schema needs more than {REFERENCES_MAX} other schemas")
            other = _checked(self.registry.version(subject, version)[1])
            others[subject, version] = other
            waiting += other.references
        return Bundle(schema, others)


def _checked(schema: Schema) -> Schema:
    if len(schema.text) > TEXT_CHARACTERS_MAX:
        raise SchemaError(f"the schema has {len(schema.text)} characters, more than "
                          f"{TEXT_CHARACTERS_MAX}")
    return schema

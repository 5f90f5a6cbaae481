"""A client of Confluent-compatible schema registries.

Owns: what it has learnt: schemas by id and ids by subject, which never change.
Called by: client.serialization.avro, applications; from any thread.
Invariants: (1) a schema is asked for once; (2) a server that does not answer is passed over for the
  next one.
Source: the registry's REST interface (/subjects, /schemas/ids).
"""

from __future__ import annotations

import base64
import json
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any, NamedTuple

from pylog.client.errors import KafkaError, RetriableError

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
SCHEMAS_MAX = 10_000


class RegistryError(KafkaError):
    """The registry refuses. status: of HTTP; error_code: the registry's own, 0 without one."""

    def __init__(self, message: str, status: int = 0, error_code: int = 0):
        super().__init__(message)
        self.status = status
        self.error_code = error_code


class RegistryUnavailableError(RegistryError, RetriableError):
    """No server of the registry could be reached, or it failed."""


class Schema(NamedTuple):
    """A schema as the registry keeps it. references: (name, subject, version) of each."""

    text: str
    kind: str = "AVRO"
    references: tuple[tuple[str, str, int], ...] = ()


class SchemaRegistry:
    """`SchemaRegistry("http://localhost:8081")`; several servers in a list."""

    def __init__(self, url: str | list[str], *, auth: tuple[str, str] | None = None,
                 headers: Mapping[str, str] | None = None, timeout_s: float = 10.0,
                 ssl_context: Any = None):
        urls = url.split(",") if isinstance(url, str) else list(url)
        self.urls = [url.strip().rstrip("/") for url in urls if url.strip()]
        self.timeout_s = timeout_s
        self._context = ssl_context
        self._headers = {"Content-Type": CONTENT_TYPE, "Accept": CONTENT_TYPE, **(headers or {})}
        if auth is not None:
            token = base64.b64encode(f"{auth[0]}:{auth[1]}".encode()).decode()
            self._headers["Authorization"] = f"Basic {token}"
        self._lock = threading.Lock()
        self._schemas: dict[int, Schema] = {}
        self._ids: dict[tuple[str, Schema], int] = {}

    def schema(self, schema_id: int) -> Schema:
        """The schema of an id. Raises RegistryError."""
        found = self._schemas.get(schema_id)
        if found is None:
            found = _schema(self._ask("GET", f"/schemas/ids/{schema_id}"))
            self._keep(self._schemas, schema_id, found)
        return found

    def register(self, subject: str, schema: Schema) -> int:
        """The schema's id, registered below `subject` if it was not. Raises RegistryError."""
        return self._id(subject, schema, f"/subjects/{_quoted(subject)}/versions")

    def lookup(self, subject: str, schema: Schema) -> int:
        """The schema's id; RegistryError when the subject does not have it."""
        return self._id(subject, schema, f"/subjects/{_quoted(subject)}")

    def _id(self, subject: str, schema: Schema, path: str) -> int:
        found = self._ids.get((subject, schema))
        if found is None:
            found = int(self._ask("POST", path, _document(schema))["id"])
            self._keep(self._ids, (subject, schema), found)
            self._keep(self._schemas, found, schema)
        return found

    def version(self, subject: str, version: int | str = "latest") -> tuple[int, Schema]:
        """(id, schema) of one version of a subject. Never cached: `latest` moves."""
        row = self._ask("GET", f"/subjects/{_quoted(subject)}/versions/{version}")
        return int(row["id"]), _schema(row)

    def subjects(self) -> list[str]:
        return list(self._ask("GET", "/subjects"))

    def is_compatible(self, subject: str, schema: Schema, version: int | str = "latest") -> bool:
        """Whether the subject would take the schema."""
        path = f"/compatibility/subjects/{_quoted(subject)}/versions/{version}"
        return bool(self._ask("POST", path, _document(schema))["is_compatible"])

    def _keep(self, cache: dict[Any, Any], key: Any, value: Any) -> None:
        with self._lock:
            if len(cache) >= SCHEMAS_MAX:
                cache.clear()
            cache[key] = value

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        last: RegistryError | None = None
        for url in self.urls:
            request = urllib.request.Request(
                url + path, data=data, method=method, headers=self._headers)
            try:
                with urllib.request.urlopen(
                        request, timeout=self.timeout_s, context=self._context) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as failure:
                last = _refusal(method, url + path, failure)
                if not last.retriable:
                    raise last from failure
            except (OSError, ValueError) as failure:
                last = RegistryUnavailableError(f"{method} {url}{path}: {failure}")
        raise last or RegistryError("the registry has no address")


def _quoted(subject: str) -> str:
    return urllib.parse.quote(subject, safe="")


def _document(schema: Schema) -> dict[str, Any]:
    document: dict[str, Any] = {"schema": schema.text}
    if schema.kind != "AVRO":
        document["schemaType"] = schema.kind
    if schema.references:
        document["references"] = [
            {"name": name, "subject": subject, "version": version}
            for name, subject, version in schema.references]
    return document


def _schema(row: Any) -> Schema:
    return Schema(row["schema"], row.get("schemaType", "AVRO"), tuple(
        (other["name"], other["subject"], int(other["version"]))
        for other in row.get("references", ())))


def _refusal(method: str, url: str, failure: urllib.error.HTTPError) -> RegistryError:
    try:
        row = json.load(failure)
        text, code = str(row.get("message", "")), int(row.get("error_code", 0))
    except (ValueError, AttributeError, OSError):
        text, code = failure.reason, 0
    kind = RegistryUnavailableError if failure.code >= 500 else RegistryError
    return kind(f"{method} {url}: {failure.code} {text}", failure.code, code)

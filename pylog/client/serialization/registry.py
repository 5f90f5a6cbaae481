"""A client for Confluent-compatible schema registries.

Owns: the cache of schemas by id and ids by subject, which never change.
Invariants: a schema is requested once; if a server does not respond, the next one is tried; errors
  never show a password from a URL.
Source: the registry's REST interface (/subjects, /schemas/ids, /compatibility, /config).
"""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any, NamedTuple

from pylog.client.arguments import seconds
from pylog.client.errors import KafkaError, RetriableError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
SCHEMAS_MAX = 10_000
NO_LEVEL_OF_ITS_OWN = 40408
LEVELS = ("BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL",
          "FULL_TRANSITIVE", "NONE")


class RegistryError(KafkaError):
    """The registry returned an error. status: HTTP status; error_code: the registry's own, or 0."""

    def __init__(self, message: str, status: int = 0, error_code: int = 0):
        super().__init__(message)
        self.status = status
        self.error_code = error_code


class RegistryUnavailableError(RegistryError, RetriableError):
    """No registry server could be reached, or it failed."""


class Schema(NamedTuple):
    """A registered schema. references: (name, subject, version) of each."""

    text: str
    kind: str = "AVRO"
    references: tuple[tuple[str, str, int], ...] = ()


class SchemaRegistry:
    """Connect to `SchemaRegistry("http://localhost:8081")`; several servers as a list or
    comma-separated.

    auth: (user, password); default: those in the URL, `http://user:password@host`. timeout: of one
    request, in seconds.
    """

    def __init__(self, url: str | list[str], *, auth: tuple[str, str] | None = None,
                 headers: Mapping[str, str] | None = None, timeout: float = 10.0,
                 ssl_context: ssl.SSLContext | None = None, timeout_s: float | None = None):
        urls = url.split(",") if isinstance(url, str) else list(url)
        found = [_parted(url.strip().rstrip("/")) for url in urls if url.strip()]
        self.urls = [url for url, _ in found]
        auth = auth or next((own for _, own in found if own), None)
        self.timeout = seconds(timeout, timeout_s)
        self._context = ssl_context
        self._headers = {"Content-Type": CONTENT_TYPE, "Accept": CONTENT_TYPE, **(headers or {})}
        if auth is not None:
            token = base64.b64encode(f"{auth[0]}:{auth[1]}".encode()).decode()
            self._headers["Authorization"] = f"Basic {token}"
        self._schemas: dict[int, Schema] = {}
        self._ids: dict[tuple[str, Schema], int] = {}

    def schema(self, schema_id: int) -> Schema:
        """Return the schema of an id. Raises RegistryError."""
        found = self._schemas.get(schema_id)
        if found is None:
            found = _schema(self._request("GET", f"/schemas/ids/{schema_id}"))
            self._keep(self._schemas, schema_id, found)
        return found

    def schema_by_guid(self, guid: str) -> Schema:
        """Return the schema of a GUID, which the header of a record contains. Raises
        RegistryError.
        """
        return _schema(self._request("GET", f"/schemas/guids/{_quoted(guid)}"))

    def register(self, subject: str, schema: Schema) -> int:
        """Register the schema under `subject` if necessary and return its id. Raises RegistryError.
        """
        return self._id(subject, schema, f"/subjects/{_quoted(subject)}/versions")

    def lookup(self, subject: str, schema: Schema) -> int:
        """Return the schema's id. Raises RegistryError if the subject does not have it."""
        return self._id(subject, schema, f"/subjects/{_quoted(subject)}")

    def version_of(self, subject: str, schema: Schema) -> int:
        """Return the schema's version. Raises RegistryError if the subject does not have it."""
        found = self._request("POST", f"/subjects/{_quoted(subject)}", _document(schema))
        return int(found["version"])

    def versions(self, subject: str) -> list[int]:
        """Return the existing version numbers, oldest first. Raises RegistryError."""
        return [int(version) for version in
                self._request("GET", f"/subjects/{_quoted(subject)}/versions")]

    def _id(self, subject: str, schema: Schema, path: str) -> int:
        found = self._ids.get((subject, schema))
        if found is None:
            found = int(self._request("POST", path, _document(schema))["id"])
            self._keep(self._ids, (subject, schema), found)
            self._keep(self._schemas, found, schema)
        return found

    def version(self, subject: str, version: int | str = "latest") -> tuple[int, Schema]:
        """Return (id, schema) of a version of a subject. Not cached, because `latest` changes."""
        row = self._request("GET", f"/subjects/{_quoted(subject)}/versions/{version}")
        return int(row["id"]), _schema(row)

    def subjects(self, with_deleted: bool = False) -> list[str]:
        return list(self._request("GET", "/subjects" + ("?deleted=true" if with_deleted else "")))

    def is_compatible(self, subject: str, schema: Schema, version: int | str = "latest") -> bool:
        """Return True if the schema is compatible with the subject."""
        return self.compatibility(subject, schema, version)[0]

    def compatibility(self, subject: str, schema: Schema, version: int | str = "latest"
                      ) -> tuple[bool, list[str]]:
        """Return (True if the schema is compatible with the subject, reasons from the registry)."""
        path = f"/compatibility/subjects/{_quoted(subject)}/versions/{version}?verbose=true"
        found = self._request("POST", path, _document(schema))
        reasons = found.get("messages") or filter(None, [found.get("reason")])  # Apicurio's field
        return bool(found["is_compatible"]), [str(text) for text in reasons]

    def level(self, subject: str | None = None) -> str:
        """Return the compatibility level of a subject (default: the registry's), or of the
        registry.
        """
        if subject is None:
            return str(self._request("GET", "/config")["compatibilityLevel"])
        try:
            found = self._request("GET", f"/config/{_quoted(subject)}")
        except RegistryError as refusal:
            if refusal.error_code != NO_LEVEL_OF_ITS_OWN:
                raise
            return self.level()
        return str(found["compatibilityLevel"])

    def set_level(self, level: str, subject: str | None = None) -> None:
        """Set the compatibility level, one of LEVELS. Raises RegistryError."""
        path = "/config" if subject is None else f"/config/{_quoted(subject)}"
        self._request("PUT", path, {"compatibility": level})

    def delete(self, subject: str, version: int | str | None = None, *, permanent: bool = False
               ) -> list[int]:
        """Delete a version, or all versions; returns their numbers.

        Ids in existing records still resolve, unless the deletion is permanent, which requires a
        previous normal deletion.
        """
        path = f"/subjects/{_quoted(subject)}" + ("" if version is None else f"/versions/{version}")
        gone = self._request("DELETE", path + ("?permanent=true" if permanent else ""))
        for key in list(self._ids):
            if key[0] == subject:  # The same schema may be registered again with another id.
                self._ids.pop(key, None)
        return [int(one) for one in gone] if isinstance(gone, list) else [int(gone)]

    def _keep(self, cache: dict[Any, Any], key: Any, value: Any) -> None:
        if len(cache) >= SCHEMAS_MAX:
            cache.clear()
        cache[key] = value

    def _request(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        last: RegistryError | None = None
        for url in self.urls:
            request = urllib.request.Request(
                url + path, data=data, method=method, headers=self._headers)
            try:
                with urllib.request.urlopen(
                        request, timeout=self.timeout, context=self._context) as response:
                    return json.load(response)
            except urllib.error.HTTPError as failure:
                last = _refusal(method, url + path, failure)
                if not last.retriable:
                    raise last from failure
            except (OSError, ValueError) as failure:
                last = RegistryUnavailableError(f"{method} {url}{path}: {failure}")
        raise last or RegistryError("the registry has no address")


def _parted(url: str) -> tuple[str, tuple[str, str] | None]:
    """Split a URL into the URL without credentials, and (user, password)."""
    parts = urllib.parse.urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, None
    name, _, password = map(urllib.parse.unquote, user.partition(":"))
    return parts._replace(netloc=host).geturl(), (name, password)


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

"""The endpoints: from a path and a body to an answer.

Owns: nothing.
Invariants: each endpoint checks the user's rights before it reads anything that depends on them.
Source: Confluent's REST interface.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from pylog.registry import access, bodies, errors, records, subjects
from pylog.registry.access import Access, User
from pylog.registry.formats import kinds
from pylog.registry.records import Content
from pylog.registry.registry import Registry
from pylog.registry.registry import Request as SchemaRequest
from pylog.registry.store import Version

SCHEMAS_MAX = 1000
RESOLVED = "resolved"


class Raw(str):
    """A text that is the whole body of an answer."""


class Call:
    """One request. context: of a path below /contexts. extended: the client accepts new fields."""

    def __init__(self, server: Endpoints, user: User, query: dict[str, list[str]], body: bytes,
                 context: str, extended: bool):
        self.registry = server.registry
        self.store = server.registry.store
        self.access = server.access
        self.about = server.about
        self.user = user
        self.query = query
        self.body = body
        self.context = context
        self.extended = extended

    def flag(self, name: str) -> bool:
        return self.text(name).lower() == "true"

    def text(self, name: str, default: str = "") -> str:
        found = self.query.get(name)
        return found[0] if found else default

    def subject(self, text: str) -> str:
        """Return the subject of a path, aliases resolved. Raises RegistryError."""
        found = subjects.checked(subjects.within(self.context, text)).text
        return self.registry.alias_of(found)

    def scope(self, text: str | None) -> str:
        """Return the scope of config or mode; None: the context of the path."""
        if text is None:
            return "" if self.context == subjects.DEFAULT else f":{self.context}:"
        found = subjects.checked_scope(subjects.within(self.context, text))
        if not found.name and found.context == subjects.DEFAULT:
            return ""
        return found.text

    def check_scope(self, operation: str, scope: str) -> None:
        """Check a right on a subject, or on the cluster for a context and the top level."""
        if subjects.parse(scope).name:
            self.access.check(self.user, operation, scope)
        else:
            self.access.check_cluster(self.user, operation)

    def paged(self, rows: list[Any], limit_max: int | None = None) -> list[Any]:
        """Return the page of `offset` and `limit`."""
        offset, limit = self._number("offset", 0), self._number("limit", -1)
        if limit <= 0 or (limit_max is not None and limit > limit_max):
            limit = limit_max if limit_max is not None else len(rows)
        return rows[max(offset, 0):max(offset, 0) + limit]

    def _number(self, name: str, default: int) -> int:
        try:
            return int(self.text(name, str(default)))
        except ValueError:
            raise errors.not_found() from None

    # Rows of answers

    def content_row(self, content: Content, context: str) -> dict[str, Any]:
        row: dict[str, Any] = {"schema": content.text}
        if content.kind != records.AVRO or self.extended:
            row["schemaType"] = content.kind
        if content.references:
            qualified = (self.text("referenceFormat") == "qualified"
                         and context != subjects.DEFAULT)
            row["references"] = [
                {**one.row(), "subject": subjects.within(context, one.subject)} if qualified
                else one.row() for one in content.references]
        if content.metadata:
            row["metadata"] = content.metadata
        if content.rule_set:
            row["ruleSet"] = content.rule_set
        if self.extended:
            row["guid"] = str(content.guid)
        return row

    def version_row(self, version: Version, formatted: bool = True) -> dict[str, Any]:
        context = subjects.parse(version.subject).context
        row = {"subject": version.subject, "version": version.version, "id": version.id,
               **self.content_row(version.content, context)}
        if formatted:
            row["schema"] = self.formatted(version.content, version)
        if self.extended:
            row["ts"] = version.timestamp_ms
            row["deleted"] = version.is_deleted
        return row

    def formatted(self, content: Content, version: Version | None) -> str:
        """Return the text in the format of the request; unknown formats are ignored."""
        if self.text("format") == RESOLVED and content.kind == records.AVRO and version is not None:
            return self.registry.schemas.stored(version).resolved()
        return content.text

    def filtered(self, default_prefix: str) -> Iterable[str]:
        """Yield the visible subjects that match `subjectPrefix`, in order."""
        if self.context != subjects.DEFAULT:
            default_prefix = f":{self.context}:"
        prefix = subjects.within(self.context, self.text("subjectPrefix", default_prefix))
        everywhere = prefix.startswith(subjects.WILDCARD)
        wanted = subjects.parse(prefix)
        start = prefix.removeprefix(subjects.WILDCARD) if everywhere else wanted.name
        for text in sorted(self.store.subjects):
            own = subjects.parse(text)
            if ((everywhere or own.context == wanted.context) and own.name.startswith(start)
                    and self.access.sees(self.user, text)):
                yield text


class Endpoints(NamedTuple):
    """about: answers of /v1/metadata, /master_available and /_health."""

    registry: Registry
    access: Access
    about: Any


Handler = Callable[..., Any]


def root(call: Call) -> Any:
    return {}


def types(call: Call) -> Any:
    return list(kinds.KINDS)


def list_subjects(call: Call) -> Any:
    only, also = call.flag("deletedOnly"), call.flag("deleted")
    found = []
    for name in call.filtered(subjects.WILDCARD):
        is_live = bool(call.store.versions(name))
        if (not is_live) if only else (is_live or also):
            found.append(name)
    return call.paged(found)


def look_up(call: Call, text: str) -> Any:
    subject = call.subject(text)
    call.access.check(call.user, access.DESCRIBE, subject)
    request = bodies.schema(bodies.document(call.body))
    if not request.text:
        raise errors.empty_schema()
    call.registry.subjects_named(subject, call.flag("deleted"))
    try:
        _check_references(call, subject, request)
    except errors.RegistryError:
        raise errors.look_up_failed(subject) from None
    return call.version_row(call.registry.look_up(
        subject, request, call.flag("normalize"), call.flag("deleted")))


def by_metadata(call: Call, text: str) -> Any:
    subject = call.subject(text)
    call.access.check(call.user, access.DESCRIBE, subject)
    wanted = dict(zip(call.query.get("key", []), call.query.get("value", [])))
    for version in reversed(call.registry.live_versions(subject, call.flag("deleted"))):
        properties = (version.content.metadata or {}).get("properties") or {}
        if wanted.items() <= properties.items():
            return call.version_row(version)
    raise errors.schema_not_found()


async def delete_subject(call: Call, text: str) -> Any:
    subject = call.subject(text)
    call.access.check(call.user, access.DELETE, subject)
    return await call.registry.delete_subject(subject, call.flag("permanent"))


def list_versions(call: Call, text: str) -> Any:
    subject = call.subject(text)
    call.access.check(call.user, access.DESCRIBE, subject)
    only, negative = call.flag("deletedOnly"), call.flag("deletedAsNegative")
    found = call.registry.live_versions(subject, only or negative or call.flag("deleted"))
    return call.paged([-one.version if one.is_deleted and negative else one.version
                       for one in found if one.is_deleted or not only])


def _check_references(call: Call, subject: str, request: SchemaRequest) -> None:
    """Raise RegistryError for a reference that the user may not read, the same as for one that does
    not exist.
    """
    for reference in request.references:
        name = subjects.within(subjects.parse(subject).context, reference.subject)
        if not call.access.may(call.user, access.READ, name):
            raise errors.RegistryError(
                errors.INVALID_SCHEMA, "Invalid schema: no schema reference found for subject "
                f"\"{name}\" and version {reference.version}")


async def register(call: Call, text: str) -> Any:
    subject = call.subject(text)
    call.access.check(call.user, access.WRITE, subject)
    request = bodies.schema(bodies.document(call.body))
    _check_references(call, subject, request)
    done = await call.registry.register(subject, request, call.flag("normalize"),
                                        call.flag("force"))
    return call.version_row(done) if call.extended else {"id": done.id}


def _version(call: Call, text: str, number: str) -> Version:
    subject = call.subject(text)
    wanted = bodies.version(number)
    call.access.check(call.user, access.DESCRIBE, subject)
    return call.registry.version_of(subject, wanted, call.flag("deleted"))


def version(call: Call, text: str, number: str) -> Any:
    return call.version_row(_version(call, text, number))


def version_schema(call: Call, text: str, number: str) -> Any:
    found = _version(call, text, number)
    return Raw(call.formatted(found.content, found))


def referenced_by(call: Call, text: str, number: str) -> Any:
    found = _version(call, text, number)
    users = call.store.references_to(found.subject, found.version, call.flag("deleted"))
    return call.paged(list(dict.fromkeys(one.id for one in users
                                         if call.access.sees(call.user, one.subject))))


async def delete_version(call: Call, text: str, number: str) -> Any:
    subject = call.subject(text)
    wanted = bodies.version(number)
    call.access.check(call.user, access.DELETE, subject)
    return await call.registry.delete_version(subject, wanted, call.flag("permanent"))


def tags(call: Call, text: str, number: str) -> Any:
    raise errors.RegistryError(501, "Tags are not supported. Set them in the metadata of a new "
                               "version")


def list_schemas(call: Call) -> Any:
    latest, rule_type = call.flag("latestOnly"), call.text("ruleType")
    names = [(name, name) for name in call.filtered("")]
    if call.flag("aliases"):
        names += [(alias, target) for alias in sorted(call.store.configs)
                  if (target := call.registry.alias_of(alias)) != alias
                  and call.access.sees(call.user, target)]
    found = []
    for shown, name in names:
        rows = call.store.versions(name, call.flag("deleted"))
        for one in rows[-1:] if latest else rows:
            if not rule_type or _has_rule(one.content, rule_type):
                found.append((shown, one))
    return [{**call.version_row(one), "subject": shown}
            for shown, one in call.paged(found, SCHEMAS_MAX)]


def _has_rule(content: Content, rule_type: str) -> bool:
    return any(rule.get("type") == rule_type for rules in (content.rule_set or {}).values()
               if isinstance(rules, list) for rule in rules)


def _by_id(call: Call, number: str) -> tuple[str, int, list[Version], Content]:
    """Return (context, id, visible versions, schema). Raises RegistryError."""
    if not (number.isascii() and number.isdecimal()):
        raise errors.not_found()
    subject = subjects.within(call.context, call.text("subject"))
    id_ = int(number)
    context, content = call.registry.content_of(id_, subject)
    versions = [one for one in call.store.uses(context, id_)
                if call.access.sees(call.user, one.subject)]
    if not versions:
        raise errors.schema_not_found()
    return context, id_, versions, content


def by_id(call: Call, number: str) -> Any:
    context, _, versions, content = _by_id(call, number)
    row = call.content_row(content, context)
    row["schema"] = call.formatted(content, versions[0])
    name = subjects.parse(call.text("subject")).name
    for one in reversed(versions):
        if name and subjects.parse(one.subject).name == name:
            row.update(subject=one.subject, version=one.version)
            break
    if call.flag("includeSubjects"):  # Karapace's.
        row["subjects"] = list(dict.fromkeys(one.subject for one in versions
                                             if not one.is_deleted))
    if call.flag("fetchMaxId"):
        row["maxId"] = call.store.context(context).id_max
    return row


def schema_by_id(call: Call, number: str) -> Any:
    _, _, versions, content = _by_id(call, number)
    return Raw(call.formatted(content, versions[0]))


def _chosen(call: Call, versions: list[Version]) -> list[Version]:
    """Return the versions for `deleted` and `subject`."""
    name = subjects.parse(call.text("subject")).name
    return [one for one in versions if (call.flag("deleted") or not one.is_deleted)
            and (not name or subjects.parse(one.subject).name == name)]


def subjects_by_id(call: Call, number: str) -> Any:
    found = _chosen(call, _by_id(call, number)[2])
    return call.paged(list(dict.fromkeys(one.subject for one in found)))


def versions_by_id(call: Call, number: str) -> Any:
    return call.paged([{"subject": one.subject, "version": one.version}
                       for one in _chosen(call, _by_id(call, number)[2])])


def _by_guid(call: Call, text: str) -> list[tuple[str, int, Version]]:
    """Return (context, id, version) of a GUID in each context where the user sees it."""
    try:
        guid = uuid.UUID(text)
    except ValueError:
        raise errors.schema_not_found() from None
    found = []
    for name in sorted(call.store.contexts):
        id_ = call.store.contexts[name].ids.get(guid)
        for one in call.store.uses(name, id_) if id_ is not None else ():
            if call.access.sees(call.user, one.subject):
                found.append((name, one.id, one))
                break
    if not found:
        raise errors.schema_not_found()
    return found


def by_guid(call: Call, text: str) -> Any:
    context, _, found = _by_guid(call, text)[0]
    return {**call.content_row(found.content, context), "guid": str(found.content.guid),
            "schema": call.formatted(found.content, found)}


def ids_by_guid(call: Call, text: str) -> Any:
    return [{"context": context, "id": id_} for context, id_, _ in _by_guid(call, text)]


def check(call: Call, text: str, number: str | None = None) -> Any:
    subject = call.subject(text)
    wanted = None if number is None else bodies.version(number)
    call.access.check(call.user, access.READ, subject)
    request = bodies.schema(bodies.document(call.body))
    verbose = call.flag("verbose")
    try:
        _check_references(call, subject, request)
        found = call.registry.check(subject, request, wanted, call.flag("normalize"))
    except errors.RegistryError as error:
        if not verbose or error.code != errors.INVALID_SCHEMA:
            raise
        found = [str(error.message)]
    row: dict[str, Any] = {"is_compatible": not found}
    if found or verbose:
        # Without `verbose`, clients compare the reasons with those of other registries.
        row["messages"] = found if verbose else list(map(kinds.without_place, found))
    return row


def get_config(call: Call, text: str | None = None) -> Any:
    scope = call.scope(text)
    call.check_scope(access.DESCRIBE_CONFIGS, scope)
    own = call.store.configs.get(scope)
    if own is not None and not call.flag("defaultToGlobal") and scope:
        return own
    if own is None and scope and not call.flag("defaultToGlobal"):
        raise errors.no_config(scope)
    return call.registry.config_of(scope)


async def set_config(call: Call, text: str | None = None) -> Any:
    scope = call.scope(text)
    call.check_scope(access.ALTER_CONFIGS, scope)
    changes = bodies.config(bodies.document(call.body))
    await call.registry.set_config(scope, changes)
    row = {name: value for name, value in changes.items() if value is not None}
    level = row.pop("compatibilityLevel", None)
    return {"compatibility": level, **row} if level else row


async def delete_config(call: Call, text: str | None = None) -> Any:
    scope = call.scope(text)
    call.check_scope(access.ALTER_CONFIGS, scope)
    return await call.registry.delete_config(scope)


def get_mode(call: Call, text: str | None = None) -> Any:
    scope = call.scope(text)
    call.check_scope(access.DESCRIBE_CONFIGS, scope)
    if scope and scope not in call.store.modes and not call.flag("defaultToGlobal"):
        raise errors.no_mode(scope)
    return {"mode": call.registry.mode_of(scope)}


async def set_mode(call: Call, text: str | None = None) -> Any:
    scope = call.scope(text)
    call.check_scope(access.ALTER_CONFIGS, scope)
    mode = bodies.mode(bodies.document(call.body))
    await call.registry.set_mode(scope, mode, call.flag("force"))
    return {"mode": mode}


async def delete_mode(call: Call, text: str | None = None) -> Any:
    scope = call.scope(text)
    call.check_scope(access.ALTER_CONFIGS, scope)
    return {"mode": await call.registry.delete_mode(scope, call.flag("recursive"))}


def list_contexts(call: Call) -> Any:
    prefix = call.text("contextPrefix")
    return call.paged([name for name in sorted(call.store.contexts) if name.startswith(prefix)
                       and (name == subjects.DEFAULT or call.access.sees_context(
                           call.user, name, call.store.subjects))])


async def delete_context(call: Call, text: str) -> Any:
    call.access.check_cluster(call.user, access.ALTER_CONFIGS)
    await call.registry.delete_context(subjects.context_of_path(text))
    return None


def cluster(call: Call) -> Any:
    return call.about.cluster()


def release(call: Call) -> Any:
    return call.about.release()


def availability(call: Call) -> Any:
    return call.about.availability()


def health(call: Call) -> Any:
    return call.about.health()


# (method, path, endpoint, whether the action is recorded). `*` is a parameter.
TABLE: tuple[tuple[str, str, Handler, bool], ...] = (
    ("GET", "/", root, False),
    ("GET", "/subjects", list_subjects, False),
    ("POST", "/subjects/*", look_up, False),
    ("DELETE", "/subjects/*", delete_subject, True),
    ("GET", "/subjects/*/metadata", by_metadata, False),
    ("GET", "/subjects/*/versions", list_versions, False),
    ("POST", "/subjects/*/versions", register, True),
    ("GET", "/subjects/*/versions/*", version, False),
    ("DELETE", "/subjects/*/versions/*", delete_version, True),
    ("GET", "/subjects/*/versions/*/schema", version_schema, False),
    ("GET", "/subjects/*/versions/*/referencedby", referenced_by, False),
    ("POST", "/subjects/*/versions/*/tags", tags, False),
    ("GET", "/schemas", list_schemas, False),
    ("GET", "/schemas/types", types, False),
    ("GET", "/schemas/ids/*", by_id, False),
    ("GET", "/schemas/ids/*/schema", schema_by_id, False),
    ("GET", "/schemas/ids/*/subjects", subjects_by_id, False),
    ("GET", "/schemas/ids/*/versions", versions_by_id, False),
    ("GET", "/schemas/guids/*", by_guid, False),
    ("GET", "/schemas/guids/*/ids", ids_by_guid, False),
    ("POST", "/compatibility/subjects/*/versions", check, False),
    ("POST", "/compatibility/subjects/*/versions/*", check, False),
    ("GET", "/config", get_config, False),
    ("PUT", "/config", set_config, True),
    ("DELETE", "/config", delete_config, True),
    ("GET", "/config/*", get_config, False),
    ("PUT", "/config/*", set_config, True),
    ("DELETE", "/config/*", delete_config, True),
    ("GET", "/mode", get_mode, False),
    ("PUT", "/mode", set_mode, True),
    ("DELETE", "/mode", delete_mode, True),
    ("GET", "/mode/*", get_mode, False),
    ("PUT", "/mode/*", set_mode, True),
    ("DELETE", "/mode/*", delete_mode, True),
    ("GET", "/contexts", list_contexts, False),
    ("DELETE", "/contexts/*", delete_context, True),
    ("GET", "/v1/metadata/id", cluster, False),
    ("GET", "/v1/metadata/version", release, False),
    ("GET", "/master_available", availability, False),
    ("GET", "/_health", health, False),
)


class Route(NamedTuple):
    """handler: called with a Call and the parameters."""

    handler: Handler
    parameters: tuple[str, ...]
    is_recorded: bool


def find(method: str, segments: list[str]) -> Route:
    """Return the endpoint of a path. Raises RegistryError for an unknown path or method."""
    is_known = False
    for pattern, rows in _BY_LENGTH.get(len(segments), ()):
        if all(wanted in ("*", given) for wanted, given in zip(pattern, segments, strict=True)):
            is_known = True
            if method in rows:
                handler, is_recorded = rows[method]
                return Route(handler, tuple(given for wanted, given in zip(
                    pattern, segments, strict=True) if wanted == "*"), is_recorded)
    if is_known:
        raise errors.RegistryError(405, "HTTP 405 Method Not Allowed")
    raise errors.not_found()


def _table() -> dict[int, list[tuple[list[str], dict[str, tuple[Handler, bool]]]]]:
    found: dict[str, dict[str, tuple[Handler, bool]]] = {}
    for method, path, handler, is_recorded in TABLE:
        found.setdefault(path, {})[method] = (handler, is_recorded)
    table: dict[int, list[tuple[list[str], dict[str, tuple[Handler, bool]]]]] = {}
    # Paths with words in them come before those with parameters.
    for path in sorted(found, key=lambda one: one.count("*")):
        segments = [one for one in path.split("/") if one]
        table.setdefault(len(segments), []).append((segments, found[path]))
    return table


_BY_LENGTH = _table()

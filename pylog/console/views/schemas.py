"""Schemas: subjects, versions, the difference of two versions, check and register.

Owns: nothing.
Invariants: the registry's address comes from the console's settings only; subjects are listed with
  one request, and their details are read for the visible rows only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from pylog.client.errors import KafkaError
from pylog.client.serialization.registry import Schema, SchemaRegistry
from pylog.console import schema_text
from pylog.console.listings import Column, listed
from pylog.console.pages import (
    Page, PageError, audit_details, form_of, integer, redirect, required,
)
from pylog.console.rendering import render

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from pylog.console.clusters import ClusterSession

SETTING = "console.schema.registry.url"
TYPES = ("AVRO", "JSON", "PROTOBUF")
VERSION_MAX = 2**31 - 1
AT_ONCE = 4  # Requests to the registry, for one page.
COLUMNS = [Column("subject", "Subject"),
           Column("version", "Latest version", sorts=False, is_lazy=True, is_number=True),
           Column("id", "Id", sorts=False, is_lazy=True, is_number=True),
           Column("type", "Type", sorts=False, is_lazy=True),
           Column("level", "Compatibility", sorts=False, is_lazy=True),
           Column("error", "Not read", sorts=False, is_lazy=True)]

T = TypeVar("T")


async def _ask(call: Callable[[], T]) -> T:
    """Run a call of the registry on a thread. Raises PageError."""
    try:
        return await asyncio.to_thread(call)
    except KafkaError as error:
        status = getattr(error, "status", 0)
        if status == 404:
            raise PageError(404, "The registry has no such subject or version", str(error),
                            "Choose one in the list of subjects.") from None
        if status in (409, 422):
            raise PageError(409, "The registry rejected the schema", str(error),
                            "Check the schema for compatibility first.") from None
        raise PageError(502, "The schema registry could not answer", str(error),
                        f"Check the registry, and {SETTING}.") from None


def _registry(request: Request) -> SchemaRegistry | None:
    """Return the configured registry, or None."""
    found: SchemaRegistry | None = request.app.state.console.registry
    return found


def _required_registry(request: Request) -> SchemaRegistry:
    found = _registry(request)
    if found is None:
        raise PageError(404, "This console has no schema registry", SETTING,
                        f"Set {SETTING} to the registry's URL.")
    return found


async def subjects(request: Request, cluster: ClusterSession) -> Response:
    """List the subjects."""
    registry = _registry(request)
    if registry is None:
        return render(request, "schemas.html", listing=None, setting=SETTING)
    room = asyncio.Semaphore(AT_ONCE)

    def details(subject: str) -> dict[str, Any]:
        number, schema = registry.version(subject)
        return {"version": registry.versions(subject)[-1], "id": number, "type": schema.kind,
                "level": registry.level(subject), "error": ""}

    async def one(row: dict[str, Any]) -> None:
        async with room:
            try:
                row.update(await asyncio.to_thread(details, row["subject"]))
            except (KafkaError, LookupError) as error:
                row["error"] = str(error)

    async def fill(visible: list[dict[str, Any]]) -> None:
        await asyncio.gather(*map(one, visible))

    names = await _ask(registry.subjects)
    listing = await listed(request, COLUMNS, [{"subject": name} for name in names],
                           search=("subject",), sort="subject", fill=fill)
    return listing.response("schemas") or render(
        request, "schemas.html", listing=listing, setting=SETTING)


async def subject(request: Request, cluster: ClusterSession) -> Response:
    """Show the latest version of a subject."""
    return await _version(request, None)


async def version(request: Request, cluster: ClusterSession) -> Response:
    """Show one version of a subject."""
    return await _version(request, integer(
        request.path_params["version"], "Version", 1, VERSION_MAX))


async def _version(request: Request, number: int | None) -> Response:
    registry = _required_registry(request)
    name = request.path_params["subject"]
    versions = await _ask(lambda: registry.versions(name))
    number = versions[-1] if number is None and versions else number
    schema_id, schema = await _ask(lambda: registry.version(name, number or "latest"))
    level = await _ask(lambda: registry.level(name))
    return render(request, "schema.html", subject=name, versions=versions, number=number,
                  schema_id=schema_id, schema=schema, level=level,
                  text=schema_text.readable(schema.text))


async def diff(request: Request, cluster: ClusterSession) -> Response:
    """Show the difference of two versions."""
    registry = _required_registry(request)
    name = request.path_params["subject"]
    query = request.query_params
    old = integer(query.get("from", ""), "The first version", 1, VERSION_MAX)
    new = integer(query.get("to", ""), "The second version", 1, VERSION_MAX)
    (_, before), (_, after) = await asyncio.gather(
        _ask(lambda: registry.version(name, old)), _ask(lambda: registry.version(name, new)))
    versions = await _ask(lambda: registry.versions(name))
    return render(request, "schema_diff.html", subject=name, old=old, new=new, versions=versions,
                  lines=schema_text.difference(before.text, after.text))


async def check(request: Request, cluster: ClusterSession) -> Response:
    """Show the form of a schema, or check its compatibility. Writes nothing."""
    registry = _required_registry(request)
    answer: tuple[bool, list[str]] | None = None
    is_new = False
    form = dict(request.query_params)
    if request.method == "POST":
        form = await form_of(request)
        name, schema = _schema_of(form)
        is_new = name not in await _ask(registry.subjects)
        answer = (True, []) if is_new else await _ask(
            lambda: registry.compatibility(name, schema))
    elif form.get("subject") and "schema" not in form:
        name = form["subject"]
        _, latest = await _ask(lambda: registry.version(name))
        form.update(type=latest.kind, schema=schema_text.readable(latest.text))
    return render(request, "schema_check.html", form=form, types=TYPES, answer=answer,
                  is_new=is_new)


async def register(request: Request, cluster: ClusterSession) -> Response:
    """Register a schema."""
    registry = _required_registry(request)
    name, schema = _schema_of(await form_of(request))
    number = await _ask(lambda: registry.register(name, schema))
    audit_details(request, subject=name, schema_id=number)
    return redirect(cluster.url("schemas", name),
                    f"The schema is registered with the id {number}.")


def _schema_of(form: dict[str, str]) -> tuple[str, Schema]:
    """Return (subject, schema) of a form. Raises PageError."""
    kind = form.get("type", "")
    if kind not in TYPES:
        raise PageError(400, "The type is not valid", kind, f"Choose one of {', '.join(TYPES)}.")
    return required(form, "subject", "Subject"), Schema(required(form, "schema", "Schema"), kind)


_READS, _WRITES = ("READ of the schema registry",), ("WRITE of the schema registry",)
PAGES = [
    Page("/schemas", subjects, operations=_READS, changes=False, audit=""),
    Page("/schemas/check", check, methods=("GET", "POST"), operations=_READS, changes=False,
         audit=""),
    Page("/schemas/register", register, methods=("POST",), operations=_WRITES, changes=True,
         audit="schemas.register"),
    Page("/schemas/{subject}", subject, operations=_READS, changes=False, audit=""),
    Page("/schemas/{subject}/diff", diff, operations=_READS, changes=False, audit=""),
    Page("/schemas/{subject}/{version}", version, operations=_READS, changes=False, audit=""),
]

"""Settings of topics and brokers: value, default, source and meaning, and changes with a preview.

Owns: nothing.
Invariants: a change is applied only after its preview, and only if the values are still those of
  the preview.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from starlette.responses import Response

from pylog.client.admin.types import ConfigResource, ResourceType
from pylog.client.errors import AuthorizationError, KafkaError
from pylog.console import config_entries
from pylog.console.listings import Column, listed
from pylog.console.pages import (
    Page, PageError, audit_details, form_of, integer, not_audited, redirect,
)
from pylog.console.rendering import render

if TYPE_CHECKING:
    from starlette.requests import Request

    from pylog.console.clusters import ClusterSession

COLUMNS = [Column("name", "Setting"), Column("value", "Value"), Column("default", "Default"),
           Column("source", "Source"), Column("documentation", "Meaning", sorts=False)]


async def topic_settings(request: Request, cluster: ClusterSession) -> Response:
    name = request.path_params["topic"]
    return await _settings(request, cluster, ConfigResource(ResourceType.TOPIC, name),
                           ("topics", name), f"topic {name}")


async def broker_settings(request: Request, cluster: ClusterSession) -> Response:
    broker = request.path_params["broker"]
    integer(broker, "Broker", 0, 2**31 - 1)
    return await _settings(request, cluster, ConfigResource(ResourceType.BROKER, broker),
                           ("brokers", broker), f"broker {broker}")


async def change_topic_settings(request: Request, cluster: ClusterSession) -> Response:
    name = request.path_params["topic"]
    return await _change(request, cluster, ConfigResource(ResourceType.TOPIC, name),
                         ("topics", name), f"topic {name}")


async def change_broker_settings(request: Request, cluster: ClusterSession) -> Response:
    broker = request.path_params["broker"]
    integer(broker, "Broker", 0, 2**31 - 1)
    return await _change(request, cluster, ConfigResource(ResourceType.BROKER, broker),
                         ("brokers", broker), f"broker {broker}")


async def _settings(request: Request, cluster: ClusterSession, resource: ConfigResource,
                    path: tuple[str, str], title: str) -> Response:
    """Show settings; ?edit=NAME shows the form of one, ?edit= that of all own settings."""
    entries = await config_entries.read(cluster.admin, resource)
    edited = request.query_params.get("edit")
    if edited is not None and not request.app.state.console.is_read_only:
        if edited and (edited not in entries or entries[edited].is_read_only):
            raise PageError(404, "There is no such setting that can be changed", edited)
        return render(request, "config_edit.html", title=title, path=path,
                      entry=entries.get(edited), lines=config_entries.own_lines(entries))
    only_own = request.query_params.get("own") == "1"
    rows = [entry._asdict() for entry in entries.values() if entry.is_own or not only_own]
    listing = await listed(request, COLUMNS, rows, search=("name", "value", "documentation"),
                           sort="name", keep=("own",))
    return listing.response("settings") or render(
        request, "configs.html", title=title, path=path, listing=listing, only_own=only_own)


async def _change(request: Request, cluster: ClusterSession, resource: ConfigResource,
                  path: tuple[str, str], title: str) -> Response:
    """Show the preview of a change, or apply it."""
    form = await form_of(request)
    entries = await config_entries.read(cluster.admin, resource)
    changes = config_entries.changes_of(form, entries)
    found = config_entries.differences(changes, entries)
    now = config_entries.expected(found)
    failure = ""
    if form.get("step") == "apply" and form.get("expected") == now:
        audit_details(request, resource=title, settings=[
            {"name": row.name, "old": row.old, "new": row.new} for row in found])
        await config_entries.apply(cluster.admin, resource, changes)
        return redirect(cluster.url(*path, "settings"), f"The settings of {title} were changed.")
    if form.get("step") == "apply":
        failure = "Another user changed these settings since the preview. This is the new preview."
    not_audited(request)
    if found:
        try:
            await config_entries.apply(cluster.admin, resource, changes, validate_only=True)
        except AuthorizationError:
            raise
        except KafkaError as error:
            failure = str(error)
    return render(request, "config_preview.html", title=title, path=path, differences=found,
                  changes=json.dumps(changes), expected=now, failure=failure)


_READ = ("DESCRIBE_CONFIGS TOPIC",), ("DESCRIBE_CONFIGS CLUSTER",)
PAGES = [
    Page("/topics/{topic}/settings", topic_settings, operations=_READ[0], changes=False, audit=""),
    Page("/topics/{topic}/settings", change_topic_settings, methods=("POST",),
         operations=(*_READ[0], "ALTER_CONFIGS TOPIC"), changes=True, audit="topics.settings"),
    Page("/brokers/{broker}/settings", broker_settings, operations=_READ[1], changes=False,
         audit=""),
    Page("/brokers/{broker}/settings", change_broker_settings, methods=("POST",),
         operations=(*_READ[1], "ALTER_CONFIGS CLUSTER"), changes=True, audit="brokers.settings"),
]

"""Quotas of users, client ids and IP addresses: list, set, remove.

Owns: nothing.
Invariants: a quota is removed only by an explicit choice, never by an empty field.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pylog.client.admin.types import QuotaAlteration
from pylog.console.listings import Column, listed
from pylog.console.pages import Page, PageError, audit_details, form_of, redirect
from pylog.console.rendering import render

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from pylog.console.clusters import ClusterSession

DEFAULT = "<default>"
KINDS = ("user", "client-id", "ip")
QUOTAS = {"producer_byte_rate": "bytes/s that a client may send",
          "consumer_byte_rate": "bytes/s that a client may fetch",
          "request_percentage": "share of the time of a broker's threads, in percent",
          "controller_mutation_rate": "partitions that may be created or deleted in a second",
          "connection_creation_rate": "connections that an IP address may open in a second"}
IP_QUOTA = "connection_creation_rate"
COLUMNS = [Column("user", "User"), Column("client-id", "Client id"), Column("ip", "IP address"),
           Column("quota", "Quota"), Column("value", "Value", is_number=True)]


async def quotas(request: Request, cluster: ClusterSession) -> Response:
    """List all quotas."""
    rows = []
    for entity, values in await cluster.admin.describe_client_quotas():
        named = {kind: DEFAULT if entity[kind] is None else entity[kind]
                 for kind in KINDS if kind in entity}
        rows += [{**dict.fromkeys(KINDS, ""), **named, "quota": key, "value": value}
                 for key, value in values.items()]
    listing = await listed(request, COLUMNS, rows, search=(*KINDS, "quota"), sort="user")
    return listing.response("quotas") or render(
        request, "quotas.html", listing=listing, kinds=KINDS)


async def change(request: Request, cluster: ClusterSession) -> Response:
    """Show the form, or set or remove one quota."""
    if request.method == "GET":
        return render(request, "quota_change.html", form=dict(request.query_params),
                      kinds=KINDS, quotas=QUOTAS, default=DEFAULT)
    form = await form_of(request)
    entity = _entity(form)
    key = form.get("quota", "")
    if key not in QUOTAS or (key == IP_QUOTA) != ("ip" in entity):
        raise PageError(400, "The quota does not apply", key, f"Choose {IP_QUOTA} for an IP "
                        "address, and one of the others for users and client ids.")
    value = None if form.get("step") == "remove" else _value(form)
    named = ", ".join(f"{kind} {name or DEFAULT}" for kind, name in entity.items())
    audit_details(request, entity=named, quota=key, value=value)
    await cluster.admin.alter_client_quotas([QuotaAlteration(entity, {key: value})])
    return redirect(cluster.url("quotas"), f"The {key} of {named} was "
                    + ("removed." if value is None else f"set to {value:g}."))


def _entity(form: Mapping[str, str]) -> dict[str, str | None]:
    """Return the form's entity: {kind: name, None for the default}. Raises PageError."""
    given = {kind: form.get(kind, "").strip() for kind in KINDS}
    entity = {kind: None if name == DEFAULT else name for kind, name in given.items() if name}
    if not entity or "ip" in entity and len(entity) > 1:
        raise PageError(400, "The form does not name what the quota is for", "",
                        "Enter a user, a client id or both; or only an IP address.")
    return entity


def _value(form: Mapping[str, str]) -> float:
    text = form.get("value", "").strip()
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise PageError(400, "The value is not valid", text, "Enter a number above 0.")
    return value


PAGES = [
    Page("/quotas", quotas, operations=("DESCRIBE_CONFIGS CLUSTER",), changes=False, audit=""),
    Page("/quotas/new", change, methods=("GET", "POST"), operations=("ALTER_CONFIGS CLUSTER",),
         changes=True, audit="quotas.change"),
]

"""ACLs: list, create, delete, and who may do something.

Owns: nothing.
Invariants: a deletion names one ACL exactly, and its principal must be typed.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any

from pylog.client.admin import acl_decisions
from pylog.client.admin.acl_decisions import CLUSTER_NAME, POSSIBLE
from pylog.client.admin.types import AclBinding, AclFilter
from pylog.client.errors import SecurityDisabledError
from pylog.console.listings import Column, listed
from pylog.console.pages import (
    Page, PageError, audit_details, form_of, not_audited, redirect, required,
)
from pylog.console.rendering import render

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from pylog.console.clusters import ClusterSession

COLUMNS = [Column("principal", "Principal"), Column("permission", "Permission"),
           Column("operation", "Operation"), Column("resource_type", "Resource"),
           Column("resource_name", "Name"), Column("pattern_type", "Pattern"),
           Column("host", "Host")]
ALL = "ALL"
PATTERNS, PERMISSIONS = ("LITERAL", "PREFIXED"), ("ALLOW", "DENY")
OPERATIONS = (ALL, *dict.fromkeys(one for row in POSSIBLE.values() for one in row))
PRODUCE, CONSUME = "produce", "consume"
# What a producer or a consumer needs on each type of resource.
NEEDS = {PRODUCE: {"TOPIC": ("CREATE", "DESCRIBE", "WRITE"),
                   "TRANSACTIONAL_ID": ("DESCRIBE", "WRITE")},
         CONSUME: {"TOPIC": ("DESCRIBE", "READ"), "GROUP": ("READ",)}}


async def acls(request: Request, cluster: ClusterSession) -> Response:
    """List the ACLs."""
    query = request.query_params
    kind, permission = query.get("resource_type", ""), query.get("permission", "")
    if kind and kind not in POSSIBLE or permission and permission not in PERMISSIONS:
        raise PageError(400, "The filter is not valid", kind or permission,
                        "Choose a resource type and a permission from the lists.")
    try:
        found = await cluster.admin.describe_acls(
            AclFilter(kind or "ANY", permission=permission or "ANY"))
        is_enabled = True
    except SecurityDisabledError:
        found, is_enabled = [], False
    listing = await listed(
        request, COLUMNS, [one._asdict() for one in found], sort="principal",
        search=("principal", "operation", "resource_name", "host"),
        keep=("resource_type", "permission"))
    return listing.response("acls") or render(
        request, "acls.html", listing=listing, kinds=list(POSSIBLE), kind=kind,
        permissions=PERMISSIONS, permission=permission, is_enabled=is_enabled)


async def create(request: Request, cluster: ClusterSession) -> Response:
    """Show the form, or create ACLs."""
    failure, form = "", dict(request.query_params)
    if request.method == "POST":
        form = await form_of(request)
        rules = _rules(form)
        existing = set(await cluster.admin.describe_acls())
        new = [rule for rule in rules if rule not in existing]
        if new:
            audit_details(request, acls=[" ".join(rule) for rule in new])
            await cluster.admin.create_acls(new)
            return redirect(cluster.url("acls", q=rules[0].principal),
                            f"{len(new)} ACLs were created.")
        not_audited(request)
        failure = "These ACLs exist already."
    return render(request, "acl_new.html", kinds=list(POSSIBLE), operations=OPERATIONS,
                  patterns=PATTERNS, permissions=PERMISSIONS, form=form, failure=failure)


def _rules(form: Mapping[str, str]) -> list[AclBinding]:
    """Return the ACLs of the form. Raises PageError."""
    kind = _one_of(form, "resource_type", "Resource type", tuple(POSSIBLE))
    name = CLUSTER_NAME if kind == "CLUSTER" else required(dict(form), "resource_name", "Name")
    pattern = "LITERAL" if kind == "CLUSTER" else _one_of(form, "pattern_type", "Pattern", PATTERNS)
    permission = _one_of(form, "permission", "Permission", PERMISSIONS)
    operation = form.get("operation", "")
    if operation in NEEDS:
        operations = NEEDS[operation].get(kind, ())
        if not operations:
            raise PageError(400, f"To {operation} needs no rights on this resource", kind,
                            f"Choose one of {', '.join(NEEDS[operation])}.")
    elif operation in (ALL, *POSSIBLE[kind]):
        operations = (operation,)
    else:
        raise PageError(400, f"The operation does not apply to a {kind}", operation,
                        f"Choose one of {', '.join((ALL, *POSSIBLE[kind]))}.")
    return [AclBinding(kind, name, pattern, _principal(form), _host(form) or "*", one, permission)
            for one in operations]


def _one_of(form: Mapping[str, str], name: str, label: str, words: tuple[str, ...]) -> str:
    if form.get(name, "") not in words:
        raise PageError(400, f"{label} is not valid", form.get(name, ""),
                        f"Choose one of {', '.join(words)}.")
    return form[name]


def _principal(form: Mapping[str, str]) -> str:
    text = required(dict(form), "principal", "Principal")
    kind, colon, name = text.partition(":")
    if not (kind and colon and name):
        raise PageError(400, "The principal is not valid", text, "Enter User:name.")
    return text


def _host(form: Mapping[str, str]) -> str:
    """Return the form's host: an address, a subnet, `*`, or "" if it is empty."""
    text = form.get("host", "").strip()
    if text not in ("", "*"):
        try:
            ipaddress.ip_network(text, strict=False)
        except ValueError:
            raise PageError(400, "The host is not valid", text,
                            "Enter an IP address, a subnet such as 10.0.0.0/8, or *.") from None
    return text


async def delete(request: Request, cluster: ClusterSession) -> Response:
    """Show one ACL with the form that deletes it, or delete it."""
    form = await form_of(request) if request.method == "POST" else dict(request.query_params)
    rule = AclBinding(*[required(form, name, name) for name in AclBinding._fields])
    failure = ""
    if request.method == "POST":
        if required(form, "confirm", "The principal") == rule.principal:
            audit_details(request, acl=" ".join(rule))
            wanted = AclFilter(*rule)
            gone = (await cluster.admin.delete_acls([wanted]))[wanted]
            return redirect(cluster.url("acls"), "The ACL was deleted." if gone
                            else "The ACL did not exist.")
        not_audited(request)
        failure = "The text is not the principal of this ACL."
    return render(request, "acl_delete.html", rule=rule, failure=failure)


async def check(request: Request, cluster: ClusterSession) -> Response:
    """Show whether a principal may do something, and which ACL decides."""
    query = dict(request.query_params)
    context: dict[str, Any] = {"answer": None, "applying": []}
    if query.get("principal"):
        kind = _one_of(query, "resource_type", "Resource type", tuple(POSSIBLE))
        operation = _one_of(query, "operation", "Operation", OPERATIONS[1:])
        if operation not in POSSIBLE[kind]:
            raise PageError(400, f"The operation does not apply to a {kind}", operation,
                            f"Choose one of {', '.join(POSSIBLE[kind])}.")
        name = CLUSTER_NAME if kind == "CLUSTER" else required(query, "resource_name", "Name")
        principal, host = _principal(query), _host(query)
        rules = await cluster.admin.describe_acls(AclFilter(kind, name, "MATCH"))
        context["answer"] = acl_decisions.decide(
            acl_decisions.Unreported(), rules, principal,
            host if host not in ("", "*") else "127.0.0.1", operation, kind, name)
        kind_of = principal.partition(":")[0]
        context["applying"] = sorted(
            rule for rule in rules if rule.principal in (principal, f"{kind_of}:*"))
    return render(request, "acl_check.html", kinds=list(POSSIBLE), operations=OPERATIONS[1:],
                  form=query, **context)


PAGES = [
    Page("/acls", acls, operations=("DESCRIBE CLUSTER",), changes=False, audit=""),
    Page("/acls/new", create, methods=("GET", "POST"),
         operations=("DESCRIBE CLUSTER", "ALTER CLUSTER"), changes=True, audit="acls.create"),
    Page("/acls/delete", delete, methods=("GET", "POST"), operations=("ALTER CLUSTER",),
         changes=True, audit="acls.delete"),
    Page("/acls/check", check, operations=("DESCRIBE CLUSTER",), changes=False, audit=""),
]

"""SCRAM users: list, set a password, delete a credential.

Owns: nothing.
Invariants: a password is neither shown again nor part of an audit line; a credential is deleted
  only if its user was typed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pylog.client.admin.types import ScramDeletion, ScramUpsertion
from pylog.console.listings import Column, listed
from pylog.console.pages import (
    Page, PageError, audit_details, form_of, integer, not_audited, redirect, required,
)
from pylog.console.rendering import render

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from pylog.console.clusters import ClusterSession

MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256")
ITERATIONS, ITERATIONS_MIN, ITERATIONS_MAX = 8192, 4096, 16384
COLUMNS = [Column("user", "User"), Column("mechanism", "Mechanism"),
           Column("iterations", "Iterations", is_number=True)]


async def users(request: Request, cluster: ClusterSession) -> Response:
    """List the users that have a SCRAM credential."""
    found = await cluster.admin.describe_user_scram_credentials()
    rows = [{"user": user, "mechanism": one.mechanism, "iterations": one.iterations}
            for user, credentials in found.items() for one in credentials]
    listing = await listed(request, COLUMNS, rows, search=("user",), sort="user")
    return listing.response("users") or render(request, "users.html", listing=listing)


async def create(request: Request, cluster: ClusterSession) -> Response:
    """Show the form, or set the password of a new or an existing user."""
    form = dict(request.query_params)
    if request.method == "POST":
        form = await form_of(request)
        user = required(form, "user", "User")
        mechanism = _mechanism(form)
        iterations = integer(form.get("iterations", ""), "Iterations", ITERATIONS_MIN,
                             ITERATIONS_MAX)
        password = form.get("password", "")
        if not password:
            raise PageError(400, "The form is incomplete", "Password is empty",
                            "Go back and fill it in.")
        audit_details(request, user=user, mechanism=mechanism)
        await cluster.admin.alter_user_scram_credentials(
            [ScramUpsertion(user, password, mechanism, iterations)])
        return redirect(cluster.url("users"), f"The password of {user} was set for {mechanism}.")
    return render(request, "user_new.html", mechanisms=MECHANISMS, form=form,
                  iterations=ITERATIONS, least=ITERATIONS_MIN, most=ITERATIONS_MAX)


def _mechanism(form: dict[str, str]) -> str:
    mechanism = form.get("mechanism", "")
    if mechanism not in MECHANISMS:
        raise PageError(400, "The mechanism is not valid", mechanism,
                        f"Choose one of {', '.join(MECHANISMS)}.")
    return mechanism


async def delete(request: Request, cluster: ClusterSession) -> Response:
    """Show the form, or delete one credential of a user."""
    user = request.path_params["user"]
    form = await form_of(request) if request.method == "POST" else dict(request.query_params)
    mechanism = _mechanism(form)
    failure = ""
    if request.method == "POST":
        if required(form, "name", "The user's name") == user.strip():
            audit_details(request, mechanism=mechanism)
            await cluster.admin.alter_user_scram_credentials([ScramDeletion(user, mechanism)])
            return redirect(cluster.url("users"),
                            f"The credential of {user} for {mechanism} was deleted.")
        not_audited(request)
        failure = "The name is not that of the user."
    return render(request, "user_delete.html", user=user, mechanism=mechanism, failure=failure)


PAGES = [
    Page("/users", users, operations=("DESCRIBE CLUSTER",), changes=False, audit=""),
    Page("/users/new", create, methods=("GET", "POST"), operations=("ALTER CLUSTER",),
         changes=True, audit="users.change"),
    Page("/users/{user}/delete", delete, methods=("GET", "POST"), operations=("ALTER CLUSTER",),
         changes=True, audit="users.delete"),
]

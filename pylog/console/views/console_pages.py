"""Pages about the console itself: static files, health, versions, preferences, audit lines.

Owns: nothing.
Invariants: /healthz reveals nothing but that the console responds.
"""

from __future__ import annotations

import platform
from importlib import metadata
from typing import TYPE_CHECKING

from starlette.responses import PlainTextResponse, Response

from pylog.console.listings import Column, listed
from pylog.console.pages import (
    ADMINISTER, PUBLIC, SESSION, Page, form_of, principals_of, redirect,
)
from pylog.console.rendering import KEYS_COOKIE, THEME_COOKIE, THEMES, render, static_files
from pylog.version import version

if TYPE_CHECKING:
    from starlette.requests import Request

PREFERENCE_S = 365 * 24 * 3600
PACKAGES = ("starlette", "uvicorn", "jinja2", "httptools")
AUDIT = [Column("time_ms", "Time", is_number=True), Column("principal", "User"),
         Column("host", "Address"), Column("cluster", "Cluster"), Column("operation", "Action"),
         Column("outcome", "Outcome"), Column("details", "Details", sorts=False)]
AUDIT_SHOWN = {"time_ms", "principal", "host", "cluster", "operation", "outcome", "request",
               "session", "allowed"}


async def static(request: Request, cluster: None) -> Response:
    return static_files().response(request.url.path)


async def health(request: Request, cluster: None) -> Response:
    return PlainTextResponse("ok\n")


async def about(request: Request, cluster: None) -> Response:
    """Show versions, and the Kafka operations that each page uses."""
    versions = {"pylog": version(), "Python": platform.python_version(),
                **{name: metadata.version(name) for name in PACKAGES}}
    return render(request, "about.html", versions=versions, pages=request.app.state.console.pages)


async def preferences(request: Request, cluster: None) -> Response:
    """Show or set the theme and the keyboard shortcuts of this browser."""
    if request.method == "GET":
        return render(request, "preferences.html", themes=THEMES)
    form = await form_of(request)
    response = redirect("/preferences", "The preferences of this browser are saved.")
    theme = form.get("theme", "auto")
    is_secure = request.app.state.console.is_secure
    for name, value in ((THEME_COOKIE, theme if theme in THEMES else "auto"),
                        (KEYS_COOKIE, "on" if form.get("keys") else "off")):
        response.set_cookie(name, value, max_age=PREFERENCE_S, path="/", httponly=True,
                            secure=is_secure, samesite="strict")
    return response


async def audit(request: Request, cluster: None) -> Response:
    """List the newest audit lines: of this user, or of all if the user is an administrator of the
    console or no login is needed.
    """
    console = request.app.state.console
    user = request.state.session.principal
    sees_all = console.sees_all_lines(user)
    names = {("", user), *principals_of(request).items()}
    rows = [{**line, "details": ", ".join(
        f"{key}={value}" for key, value in line.items() if key not in AUDIT_SHOWN)}
        for line in console.audit.lines
        if sees_all or (line["cluster"], line["principal"].removeprefix("User:")) in names]
    listing = await listed(request, AUDIT, rows, sort="-time_ms",
                           search=("principal", "operation", "cluster", "details"))
    return listing.response("audit") or render(request, "audit.html", listing=listing)


PAGES = [
    Page("/static/{hash}/{name}", static, changes=False, audit="", scope=PUBLIC),
    Page("/healthz", health, changes=False, audit="", scope=PUBLIC),
    Page("/about", about, changes=False, audit="", scope=SESSION),
    Page("/preferences", preferences, methods=("GET", "POST"), changes=False, audit="",
         scope=SESSION),
    Page("/audit", audit, changes=False, audit="", scope=SESSION, permission=ADMINISTER),
]

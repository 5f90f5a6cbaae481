"""Login and logout.

Owns: nothing.
Invariants: a failed login does not reveal whether the user exists; a login gets a new session id;
  a login leads only to pages of this console.
Source: OWASP Authentication Cheat Sheet.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from starlette.responses import RedirectResponse, Response

from pylog.client.errors import AuthenticationError, KafkaError
from pylog.config.console_access import CALLBACK, NONE, PROXY
from pylog.console import session
from pylog.console.app import address_of
from pylog.console.clusters import log_in
from pylog.console.pages import (
    PUBLIC, SESSION, Page, PageError, audit_details, form_of, not_audited, principals_of, redirect,
    required,
)
from pylog.console.records.jobs import RUNNING
from pylog.console.rendering import render

if TYPE_CHECKING:
    from starlette.requests import Request

    from pylog.console.app import Console
    from pylog.console.clusters import ClusterConfig

log = logging.getLogger("pylog.console")

USER_CHARACTERS_MAX = 1000


async def login(request: Request, cluster: None) -> Response:
    """Show the form, or log in."""
    console: Console = request.app.state.console
    if console.auth in (NONE, PROXY):
        return RedirectResponse("/", 303)
    config = _cluster(console, request.query_params.get("cluster", ""))
    if request.method == "GET" or console.oidc is not None:
        not_audited(request)
        return _form(request, config)
    form = await form_of(request)
    token = request.cookies.get(session.LOGIN_COOKIE, "")
    if not session.same(token, form.get("csrf", "")):
        not_audited(request)
        return _form(request, config, "The form had expired. Log in again.", 403)
    user = required(form, "user", "User")[:USER_CHARACTERS_MAX]
    audit_details(request, principal=user, target=config.name)
    names = f"address {address_of(request)}", f"user {user}"
    wait_s = console.throttle.wait_s(*names)
    if wait_s > 0:
        return _form(request, config, f"Too many failed logins. Try again in {wait_s:.0f} s.", 429,
                     user)
    console.throttle.begin(*names)
    try:
        opened = await log_in(config, user, form.get("password", ""),
                              console.prefix(config.name), console.now_ms,
                              console.mechanisms(config.name))
        console.mechanism[config.name] = opened.client_settings["sasl.mechanism"]
        console.throttle.forgive(*names)
    except AuthenticationError:
        return _form(request, config, "The user or the password is wrong.", 401, user)
    except KafkaError as error:
        console.throttle.forgive(*names)
        log.warning("a login could not reach the cluster",
                    extra={"cluster": config.name, "reason": str(error)})
        return _form(request, config, f"The cluster {config.name} cannot be reached. Check that "
                     "its brokers are running, then try again.", 502, user)
    old = console.sessions.find(request)
    new_session = await console.sessions.create(user, address_of(request))
    if old is not None:
        # The user adds a cluster: its connections move to the new session id.
        new_session.clusters, old.clusters = old.clusters, {}
        await console.sessions.end(old)
    replaced = new_session.clusters.pop(config.name, None)
    if replaced is not None:
        await replaced.close()
    new_session.clusters[config.name] = opened
    response = RedirectResponse(_next(request, console, config), 303)
    console.sessions.set_cookie(response, new_session)
    return response


async def oidc_login(request: Request, cluster: None) -> Response:
    """Lead to the issuer's login."""
    console: Console = request.app.state.console
    if console.oidc is None:
        return RedirectResponse("/login", 303)
    config = _cluster(console, request.query_params.get("cluster", ""))
    try:
        url, state = await asyncio.to_thread(
            console.oidc.begin, config.name, _next(request, console, config))
    except AuthenticationError as error:
        raise PageError(502, "The login at the issuer cannot begin", str(error),
                        "Check console.oidc.issuer, and that the issuer can be reached.") from None
    response = RedirectResponse(url, 303)
    console.sessions.begin_oidc(response, state)
    return response


async def oidc_callback(request: Request, cluster: None) -> Response:
    """End the login with the code of the issuer."""
    console: Console = request.app.state.console
    query = request.query_params
    state = query.get("state", "")
    if console.oidc is None or not session.same(request.cookies.get(session.OIDC_COOKIE, ""),
                                                state):
        raise PageError(400, "The login was not begun in this browser", "",
                        "Open the console and log in.")
    address = f"address {address_of(request)}"
    wait_s = console.throttle.wait_s(address)
    if wait_s > 0:
        raise PageError(429, "Too many failed logins", address, f"Try again in {wait_s:.0f} s.")
    if not query.get("code"):
        raise PageError(401, "The issuer did not log you in", query.get("error", "")[:200],
                        "Open the console and log in again.")
    console.throttle.begin(address)
    try:
        done = await asyncio.to_thread(console.oidc.finish, state, query["code"])
    except AuthenticationError as error:
        raise PageError(401, "The login failed", str(error), "Log in again.") from None
    console.throttle.forgive(address)
    audit_details(request, principal=done.principal, target=done.cluster)
    created = await console.sessions.create(done.principal, address_of(request))
    created.tokens = done.tokens
    # A page, because browsers do not send a strict cookie after a redirect from another site.
    response = render(request, "logged_in.html", next=done.next, principal=done.principal)
    console.sessions.set_cookie(response, created)
    console.sessions.end_oidc(response)
    return response


def _cluster(console: Console, name: str) -> ClusterConfig:
    if not name:
        return next(iter(console.clusters.values()))
    if name not in console.clusters:
        raise PageError(404, "There is no such cluster", name)
    return console.clusters[name]


def _form(request: Request, config: ClusterConfig, failure: str = "", status: int = 200,
          user: str = "") -> Response:
    console: Console = request.app.state.console
    request.state.login_token = request.cookies.get(session.LOGIN_COOKIE) or session.new_token()
    response = render(request, "login.html", status, config=config, failure=failure, user=user,
                      token=request.state.login_token, query=request.url.query,
                      by_issuer=console.oidc is not None)
    console.sessions.login_token(request, response)
    return response


def _next(request: Request, console: Console, config: ClusterConfig) -> str:
    """Return the page that the user wanted. Only paths of this console."""
    path = request.query_params.get("next", "")
    if path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable():
        return path
    return console.prefix(config.name) or "/"


async def logout(request: Request, cluster: None) -> Response:
    """End the session and close its connections. Jobs have their own, and continue."""
    console: Console = request.app.state.console
    session = request.state.session
    audit_details(request, principal=session.principal)
    running = [job for job in console.jobs.visible(principals_of(request))
               if job.state == RUNNING]
    await console.sessions.end(session)
    response = redirect("/login", f"{len(running)} of your jobs continue with your rights: "
                        f"{', '.join(job.title for job in running)}. Log in again to stop them."
                        if running else "")
    console.sessions.delete_cookie(response)
    return response


PAGES = [
    Page("/login", login, methods=("GET", "POST"), changes=False, audit="login", scope=PUBLIC),
    Page("/oidc/login", oidc_login, changes=False, audit="", scope=PUBLIC),
    Page(CALLBACK, oidc_callback, changes=False, audit="login", scope=PUBLIC),
    Page("/logout", logout, methods=("POST",), changes=False, audit="logout", scope=SESSION),
]

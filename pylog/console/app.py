"""The console's application: routes, and the checks that every request passes.

Owns: the Console object: settings, clusters, sessions, audit.
Invariants: each request runs the checks of its Page before the view; no response lacks the security
  headers; a failed view shows what failed and never a traceback.
Source: OWASP CSRF Prevention Cheat Sheet; CSP Level 3.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from pylog import supervisor
from pylog.client.errors import (
    AuthenticationError, AuthorizationError, KafkaError, KafkaTimeoutError,
)
from pylog.client.serialization.registry import SchemaRegistry
from pylog.config import listeners
from pylog.config.console_access import NONE, OIDC, PROXY, auth, is_loopback
from pylog.console import permissions
from pylog.console.audit import Audit
from pylog.console.clusters import (
    ANONYMOUS, SASL_MECHANISMS, ClusterConfig, ClusterSession, log_in_by_token, open_session,
)
from pylog.console.groups.history import DUTY, LagHistory
from pylog.console.groups.samples import LagSamples
from pylog.console.records import masking
from pylog.console.records.jobs import Jobs
from pylog.console.oidc import Provider
from pylog.console.trusted_proxy import TrustedProxy
from pylog.console.pages import ADMINISTER, CLUSTER, PUBLIC, Page, PageError, form_of
from pylog.console.rendering import error_page
from pylog.console.records.search import Searches
from pylog.console.values.decoder_process import DecoderProcess
from pylog.console.values.schemas import Schemas
from pylog.console.session import Session, Sessions, Throttle, same

log = logging.getLogger("pylog.console")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

EXPIRY_S = 30.0
WHOLE_LISTS_MAX = 2
REGISTRY_S_MAX = 10.0
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
HEADERS = (
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
NO_STORE = (b"cache-control", b"no-store")
HSTS = (b"strict-transport-security", b"max-age=31536000")
NAVIGATION = (  # Title, first segment of the path, second key of its shortcut.
    ("Overview", "", ""), ("Brokers", "brokers", "b"), ("Topics", "topics", "t"),
    ("Groups", "groups", "g"), ("Transactions", "transactions", ""), ("Schemas", "schemas", ""),
    ("ACLs", "acls", ""), ("Users", "users", ""), ("Quotas", "quotas", ""), ("Jobs", "jobs", ""))


class Console:
    """What the pages share. settings: the broker's settings whose names begin with `console.`.
    clusters: the first is the default one. seconds: a monotonic clock. Raises OSError, and
    ConfigError if the console would be open to everyone.
    """

    def __init__(self, settings: Any, clusters: Sequence[ClusterConfig],
                 now_ms: Callable[[], int], seconds: Callable[[], float]):
        self.settings = settings
        self.clusters = {cluster.name: cluster for cluster in clusters}
        self.now_ms = now_ms
        self.seconds = seconds
        self.is_read_only = bool(settings["console.read.only"])
        self.has_tls = bool(settings["console.ssl.keystore.location"])
        outer = urlsplit(settings["console.url"])
        # With console.url, browsers reach the console under another name than its listener's.
        self.outer_host, self.outer_netloc = outer.hostname or "", outer.netloc
        self.is_secure = self.has_tls or outer.scheme == "https"
        self.auth = auth(settings, any(one.needs_login for one in clusters))
        self.is_loopback = is_loopback(settings["console.listener"])
        self.sessions = Sessions(settings["console.session.idle.ms"] / 1000,
                                 settings["console.session.max.ms"] / 1000, self.is_secure, seconds)
        self.throttle = Throttle(seconds)
        self.proxy = TrustedProxy(settings) if self.auth == PROXY else None
        self.oidc = Provider(settings, lambda: now_ms() / 1000) if self.auth == OIDC else None
        self.streams: Counter[str] = Counter()  # Open live pages by user.
        self.lag_samples = LagSamples()
        interval_ms = settings["console.lag.interval.ms"]
        # By cluster: those that the console can read with its own account.
        self.lag_histories = {
            cluster.name: LagHistory(now_ms, interval_ms) for cluster in clusters
            if interval_ms and not cluster.needs_login}
        self.decoder = DecoderProcess(seconds)
        url = settings["console.schema.registry.url"]
        self.registry = SchemaRegistry(str(url), timeout=REGISTRY_S_MAX) if url else None
        self.schemas = Schemas(self.registry, seconds) if self.registry is not None else None
        # Each list that is ordered by a value of all its rows needs memory for all of them.
        self.whole_lists = asyncio.Semaphore(WHOLE_LISTS_MAX)
        self.searches = Searches(settings["console.search.concurrent.max"])
        self.jobs = Jobs(now_ms, seconds)
        self.audit = Audit(settings["console.audit.file"], now_ms)
        self.masks = masking.load(settings[masking.SETTING])
        self._permissions = permissions.load(settings[permissions.SETTING])
        self.mechanism: dict[str, str] = {}  # Cluster -> SASL mechanism of the last login.
        self.pages: Sequence[Page] = ()  # Set by create_app().

    def navigation(self) -> list[tuple[str, str, str]]:
        """Return the rows of NAVIGATION whose pages exist."""
        return [row for row in NAVIGATION if self.has_page(f"/{row[1]}")]

    def has_page(self, path: str) -> bool:
        """Return True if a page has this path, so that others may link to it."""
        return any(page.path == path for page in self.pages)

    def prefix(self, name: str) -> str:
        """Return the path below which a cluster's pages are."""
        return "" if len(self.clusters) == 1 else f"/c/{quote(name, safe='')}"

    def mechanisms(self, name: str) -> list[str]:
        """Return the SASL mechanisms to try, starting with that of the last login."""
        return sorted(SASL_MECHANISMS, key=lambda one: one != self.mechanism.get(name))

    def permits(self, principal: str, permission: str) -> bool:
        """Return True if the console's own permissions allow this. They only restrict further what
        the cluster's ACLs allow.
        """
        return self._permissions.permits(principal, permission)

    def sees_all_lines(self, principal: str) -> bool:
        """Return True if the audit lines of all users are shown to this one: others could name
        topics that a user may not see.
        """
        return self.auth == NONE or self._permissions.grants(principal, ADMINISTER)

    async def session_without_login(self, address: str) -> Session:
        """Return a new session of a console that needs no login."""
        return await self.sessions.create_without_login(ANONYMOUS, address)

    async def cluster_session(self, session: Session, name: str) -> ClusterSession | None:
        """Return the session's connections to a cluster. None: the user must log in to it first.
        Raises KafkaError.
        """
        async with session.opening:
            found = session.clusters.get(name)
            if found is None and self.auth in (NONE, PROXY):
                found = await open_session(
                    self.clusters[name], self.prefix(name), self.now_ms,
                    session.principal if self.auth == PROXY else "")
                session.clusters[name] = found
            if found is None and session.tokens is not None:
                found = session.clusters[name] = await log_in_by_token(
                    self.clusters[name], session.principal, session.tokens, self.prefix(name),
                    self.now_ms)
            return found

    async def run(self) -> None:
        """End expired sessions, until cancelled."""
        while True:
            await asyncio.sleep(EXPIRY_S)
            await self.sessions.end_expired()
            await asyncio.to_thread(self.decoder.end_idle)

    async def sample_lags(self, name: str) -> None:
        """Read the lag of all groups of a cluster again and again, until cancelled."""
        history = self.lag_histories[name]
        interval_s = self.settings["console.lag.interval.ms"] / 1000
        opened: ClusterSession | None = None
        try:
            while True:
                begun_s = self.seconds()
                try:
                    if opened is None:
                        opened = await open_session(self.clusters[name], "", self.now_ms)
                    await history.read(opened.admin)
                except KafkaError as failure:
                    history.fail(str(failure) or type(failure).__name__)
                taken_s = self.seconds() - begun_s
                pause_s = max(interval_s, taken_s * (1 / DUTY - 1))
                history.period_ms = int((pause_s + taken_s) * 1000)
                await asyncio.sleep(pause_s)
        finally:
            if opened is not None:
                await opened.close()

    async def close(self) -> None:
        await self.jobs.close()
        await self.sessions.close()
        await asyncio.to_thread(self.decoder.close)
        self.audit.close()


def create_app(console: Console, pages: Sequence[Page]) -> Any:
    """Return the ASGI application with these pages: views.all_pages()."""
    routes = []
    console.pages = pages
    for page in pages:
        endpoint = _endpoint(page)
        paths = [page.path]
        if page.scope == CLUSTER:
            paths = [f"/c/{{cluster}}{page.path if page.path != '/' else ''}"]
            if len(console.clusters) == 1:
                paths.append(page.path)
        routes += [Route(path, endpoint, methods=list(page.methods)) for path in paths]
    # /topics/new before /topics/{topic}. Names that equal such a word are quoted; see path_of().
    routes.sort(key=lambda route: [segment.startswith("{") for segment in route.path.split("/")])

    async def not_found(request: Request, error: Exception) -> Response:
        status = getattr(error, "status_code", 404)
        if status == 405:
            return error_page(request, PageError(405, "The page does not accept this method",
                                                 request.method))
        return error_page(request, PageError(
            404, "There is no such page", unquote(request.url.path)[:200],
            "Choose a page in the navigation."))

    app = Starlette(routes=routes, exception_handlers={404: not_found, 405: not_found},
                    lifespan=_lifespan)
    app.state.console = console
    return _Guard(app, console)


class _lifespan:
    """Runs the console's background tasks, and closes sessions at the end."""

    def __init__(self, app: Starlette):
        self._console: Console = app.state.console

    async def __aenter__(self) -> None:
        console = self._console
        works: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            ("console sessions", console.run)]
        works += [("console lag samples", functools.partial(console.sample_lags, name))
                  for name in console.lag_histories]
        self._tasks = [asyncio.create_task(supervisor.restarting(name, work))
                       for name, work in works]

    async def __aexit__(self, *exception: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._console.close()


class _Guard:
    """Checks the Host header, and adds the security headers to each response."""

    def __init__(self, app: Starlette, console: Console):
        self._app = app
        self.console = console

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Routes match the quoted path, so that %2F stays inside a segment; see _endpoint().
        scope["path"] = scope["raw_path"].decode("ascii", "replace").partition("?")[0]
        is_static = scope["path"].startswith("/static/")

        async def secured(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *HEADERS]
                names = {name.lower() for name, _ in message["headers"]}
                if b"cache-control" not in names:
                    message["headers"].append(NO_STORE)
                if self.console.is_secure:
                    message["headers"].append(HSTS)
            await send(message)

        host = urlsplit("//" + dict(scope["headers"]).get(b"host", b"").decode("latin-1"))
        # Without this check, a web page could reach a console on this machine by DNS rebinding.
        if not is_static and self.console.is_loopback and not (
                host.hostname and (listeners.is_loopback(host.hostname)
                                   or host.hostname == self.console.outer_host)):
            await Response("The Host header does not name this machine. Use localhost.",
                           421)(scope, receive, secured)
            return
        await self._app(scope, receive, secured)


def _endpoint(page: Page) -> Callable[[Request], Awaitable[Response]]:
    """Return the function that runs the checks of a page, then its view."""

    async def endpoint(request: Request) -> Response:
        request.scope["path_params"] = {
            name: unquote(value) for name, value in request.path_params.items()}
        request.state.page = page
        console: Console = request.app.state.console
        try:
            await _limit_body(request, page)
            return await _checked(console, page, request)
        except PageError as error:
            return error_page(request, error)
        except ClientDisconnect:
            raise
        except KafkaError as error:
            return error_page(request, kafka_error(error, page))
        except Exception:
            supervisor.report("console", "a page failed", path=page.path)
            return error_page(request, PageError(
                500, "This page failed because of a bug in the console", page.path,
                "The console's log has the details."))

    endpoint.__name__ = page.path
    return endpoint


async def _limit_body(request: Request, page: Page) -> None:
    """Reject a body that is too long, or of unknown length. Raises PageError."""
    if request.method in ("GET", "HEAD"):
        return
    length = request.headers.get("content-length", "")
    if not length.isdecimal():
        raise PageError(411, "The request has no Content-Length", request.method)
    if int(length) > page.body_bytes_max:
        raise PageError(413, "The request is too long", f"{length} bytes",
                        f"Send at most {page.body_bytes_max} bytes.")


async def _checked(console: Console, page: Page, request: Request) -> Response:
    session = console.sessions.find(request)
    is_new = False
    if console.proxy is not None and page.scope != PUBLIC:
        principal = console.proxy.principal_of(request)
        if session is None or session.principal != principal:
            _check_origin(request)
            session, is_new = await console.sessions.create(principal, address_of(request)), True
    if session is None and page.scope != PUBLIC:
        if console.auth != NONE:
            return _to_login(request)
        _check_origin(request)
        session, is_new = await console.session_without_login(address_of(request)), True
    request.state.session = session
    if request.method not in ("GET", "HEAD"):
        _check_origin(request)
        if page.scope != PUBLIC:
            assert session is not None
            await _check_token(request, session)
    if page.changes and console.is_read_only:
        raise PageError(403, "This console is read-only", page.path,
                        "Set console.read.only=false to allow changes.")
    if session is not None and not console.permits(session.principal, page.permission):
        raise PageError(403, "You may not use this page", f"permission {page.permission}",
                        "An administrator of this console grants it.")
    cluster = None
    if page.scope == CLUSTER:
        assert session is not None
        name = request.path_params.get("cluster") or next(iter(console.clusters))
        if name not in console.clusters:
            raise PageError(404, "There is no such cluster", name)
        cluster = await console.cluster_session(session, name)
        if cluster is None:
            return _to_login(request, name)
        request.state.cluster = cluster
    response = await _audited(console, page, request, session, cluster)
    if is_new and session is not None:
        console.sessions.set_cookie(response, session)
    return response


async def _audited(console: Console, page: Page, request: Request, session: Session | None,
                   cluster: ClusterSession | None) -> Response:
    """Run the view, and write the audit line with its outcome. A view that streams writes another
    line at the end of the stream: request.state.audit_end().
    """
    outcome = "failed"
    is_allowed = True

    def write(outcome: str) -> None:
        details = {**request.path_params, **getattr(request.state, "audit", {})}
        details.pop("cluster", None)
        principal = cluster.principal if cluster else session.principal if session else ""
        console.audit.write(
            page.audit or "", principal=details.pop("principal", principal),
            address=address_of(request), session=session.hash if session else "",
            cluster=cluster.name if cluster else "", allowed=is_allowed, outcome=outcome,
            **details)

    request.state.audit_end = functools.partial(write, "ended")
    try:
        response = await page.view(request, cluster)
        outcome = "done" if response.status_code < 400 else f"status {response.status_code}"
        return response
    except AuthorizationError:
        is_allowed = False
        raise
    finally:
        wanted = request.method not in ("GET", "HEAD") or not page.changes
        if page.audit and wanted and getattr(request.state, "is_audited", True):
            write(outcome)


def _to_login(request: Request, cluster: str = "") -> Response:
    """Redirect to the login page, which leads back here."""
    query = f"?cluster={quote(cluster, safe='')}" if cluster else ""
    if request.method == "GET" and request.url.path != "/":
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        query += ("&" if query else "?") + f"next={quote(path, safe='')}"
    return RedirectResponse(f"/login{query}", 303)


def _check_origin(request: Request) -> None:
    """Raise PageError if a browser says that another site caused the request."""
    site = request.headers.get("sec-fetch-site", "same-origin")
    origin = request.headers.get("origin")
    is_foreign = site not in ("same-origin", "none") if request.method not in ("GET", "HEAD") \
        else site == "cross-site" and request.headers.get("sec-fetch-mode") != "navigate"
    if origin is not None and request.method not in ("GET", "HEAD"):
        is_foreign |= urlsplit(origin).netloc not in (
            request.headers.get("host", ""), request.app.state.console.outer_netloc or None)
    if is_foreign:
        raise PageError(403, "Another site caused this request", origin or site,
                        "Open the console in this browser and repeat the action there.")


async def _check_token(request: Request, session: Session) -> None:
    """Raise PageError unless the request has the session's CSRF token."""
    token = request.headers.get("x-csrf-token", "")
    if not token:
        token = (await form_of(request)).get("csrf", "")
    if not same(token, session.csrf):
        raise PageError(403, "The form has expired", request.url.path,
                        "Go back, reload the page, and send the form again.")


def address_of(request: Request) -> str:
    """Return the client's address."""
    proxy = request.app.state.console.proxy
    if proxy is not None:
        return str(proxy.address_of(request))
    return request.client.host if request.client is not None else ""


def kafka_error(error: KafkaError, page: Page) -> PageError:
    """Return the error page for a request that the cluster rejected or did not answer."""
    text = str(error) or type(error).__name__
    if isinstance(error, AuthorizationError):
        return PageError(403, "The cluster denied this operation", text,
                         f"This page needs: {', '.join(page.operations)}. An administrator of the "
                         "cluster grants them as ACLs.")
    if isinstance(error, AuthenticationError):
        return PageError(401, "The cluster did not accept the login", text,
                         "Log out and log in again.")
    name = type(error).__name__
    if name in ("UnknownTopicOrPartitionError", "GroupIdNotFoundError", "UnknownTopicIdError",
                "TransactionalIdNotFoundError"):
        return PageError(404, "It does not exist, or you may not see it", text,
                         "Check the name, and your rights to DESCRIBE it.")
    if isinstance(error, KafkaTimeoutError):
        return PageError(504, "The cluster did not answer in time", text,
                         "Check that the brokers are running, then reload the page.")
    if error.retriable:
        return PageError(502, "The cluster could not answer", text,
                         "Check that the brokers are running, then reload the page.")
    return PageError(400, "The cluster rejected the request", text,
                     "Correct the value and try again.")


__all__ = ["Console", "address_of", "create_app", "kafka_error"]

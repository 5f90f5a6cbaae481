"""Pages: a path with its view, and the declarations that the application enforces.

Owns: nothing.
Invariants: a page that changes something has an audit name; a page of a cluster lists the Kafka
  operations that it uses.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pylog.config.console_access import NONE, PROXY

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    View = Callable[[Request, Any], Awaitable[Response]]

CLUSTER, SESSION, PUBLIC = "cluster", "session", "public"
BROWSE, EXPORT, PRODUCE, ADMINISTER = PERMISSIONS = ("browse", "export", "produce", "administer")
BODY_BYTES_MAX = 1 << 20
MESSAGE_COOKIE = "pylog-message"
MESSAGE_CHARACTERS_MAX = 500


@dataclass(frozen=True)
class Page:
    """One route.

    operations: Kafka operations that the page uses, "DESCRIBE TOPIC"; shown to users whose rights
    do not suffice. changes: True if a POST changes the cluster; all its requests answer 403 in
    read-only mode. audit: name of its audit lines, "" for none. scope: CLUSTER pages get a
    ClusterSession; SESSION pages need a login only; PUBLIC pages need none, and their view gets
    None instead of a ClusterSession. permission: of the console; by default ADMINISTER for changes
    and otherwise BROWSE. body_bytes_max: largest request body.
    """

    path: str
    view: View
    methods: tuple[str, ...] = ("GET",)
    operations: tuple[str, ...] = ()
    changes: bool | None = None
    audit: str | None = None
    scope: str = CLUSTER
    permission: str = ""
    body_bytes_max: int = BODY_BYTES_MAX

    def __post_init__(self) -> None:
        if self.changes is None or self.audit is None:
            raise ValueError(f"the page {self.path} must declare `changes` and `audit`")
        if self.changes and not self.audit:
            raise ValueError(f"the page {self.path} changes something, so it needs an audit name")
        if self.scope == CLUSTER and not self.operations:
            raise ValueError(f"the page {self.path} must list its Kafka operations")
        if self.changes and "POST" not in self.methods:
            raise ValueError(f"the page {self.path} changes something, so it needs POST")
        if not self.permission:
            permission = ADMINISTER if self.changes else BROWSE
            object.__setattr__(self, "permission", permission)


class PageError(Exception):
    """An error page in three parts: what failed, with which value, and what to do."""

    def __init__(self, status: int, failed: str, value: str = "", remedy: str = "",
                 headers: dict[str, str] | None = None):
        super().__init__(f"{failed}: {value}" if value else failed)
        self.status = status
        self.failed = failed
        self.value = value
        self.remedy = remedy
        self.headers = headers or {}


def audit_details(request: Request, **details: Any) -> None:
    """Add details to this request's audit line: the resource, its range or filter, a count."""
    request.state.audit = {**getattr(request.state, "audit", {}), **details}


def not_audited(request: Request) -> None:
    """Write no audit line: this request changed and revealed nothing, for example a preview."""
    request.state.is_audited = False


def principals_of(request: Request) -> dict[str, str]:
    """Return the user's name in each cluster that the session may use."""
    session, console = request.state.session, request.app.state.console
    if console.auth in (NONE, PROXY):
        return dict.fromkeys(console.clusters, session.principal)
    return {name: one.principal for name, one in session.clusters.items()}


def redirect(url: str, message: str = "") -> Response:
    """Return a 303 redirect to a path of this console. message: shown on the next page."""
    from urllib.parse import quote

    from starlette.responses import RedirectResponse

    assert url.startswith("/") and not url.startswith("//"), url
    response = RedirectResponse(url, 303)
    if message:
        response.set_cookie(MESSAGE_COOKIE, quote(message[:MESSAGE_CHARACTERS_MAX]), max_age=60,
                            path="/", httponly=True, samesite="strict")
    return response


async def form_of(request: Request) -> dict[str, str]:
    """Return the text fields of a form, the last value of each. Browsers end lines with CR LF."""
    return {name: value.replace("\r\n", "\n") for name, value in (await request.form()).items()
            if isinstance(value, str)}


def required(form: dict[str, str], name: str, label: str) -> str:
    """Return a field of a form. Raises PageError if it is empty."""
    value = form.get(name, "").strip()
    if not value:
        raise PageError(400, "The form is incomplete", f"{label} is empty",
                        "Go back and fill it in.")
    return value


def integer(text: str, label: str, low: int, high: int) -> int:
    """Return a number of a form or query. Raises PageError unless low <= number <= high."""
    try:
        number = int(text)
    except ValueError:
        number = low - 1
    if not low <= number <= high:
        raise PageError(400, f"{label} is not valid", text[:100],
                        f"Enter a whole number from {low} to {high}.")
    return number

"""Templates, their filters, static files, and error pages.

Owns: the template environment, the bytes of the static files.
Invariants: every text is escaped; a static file's path contains a hash of its content, so that
  browsers may keep it for a year; control and bidirectional characters are shown as escapes.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import mimetypes
import unicodedata
from collections.abc import Callable
from importlib import resources
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import jinja2
from starlette.responses import HTMLResponse, Response

from pylog.client.columns.rows import Row
from pylog.console.clusters import path_of
from pylog.console.pages import ADMINISTER, MESSAGE_COOKIE, PRODUCE, PageError

if TYPE_CHECKING:
    from starlette.requests import Request

PACKAGE = "pylog.console"
THEME_COOKIE, KEYS_COOKIE = "pylog-theme", "pylog-keys"
THEMES = ("auto", "light", "dark")
STATIC_SECONDS = 365 * 24 * 3600
HASH_CHARACTERS = 16
UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def visible(value: object) -> str:
    """Return text in which invisible and reordering characters are escapes: \\u202e. Raises
    TypeError for bytes.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        raise TypeError("bytes of records become text only by `preview` and `decodings`")
    text = str(value)
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if _is_shown(c) else _escape(c) for c in text)


def _is_shown(character: str) -> bool:
    if character in "\n\t":
        return True
    # Cc: control, Cf: format (bidirectional, zero width), Cs: surrogates, Co, Cn: unassigned.
    return not unicodedata.category(character).startswith("C")


def _escape(character: str) -> str:
    number = ord(character)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def bytes_size(value: Any, missing: str = "–") -> str:
    """Return a size with a binary unit, such as 1.5 MiB; `missing` for None or a negative number.
    """
    if value is None or value < 0:
        return missing
    size = float(value)
    for unit in UNITS:
        if size < 1024 or unit == UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError(value)


def number(value: Any, missing: str = "–") -> str:
    """Return a number with thin spaces between thousands; `missing` for None."""
    if value is None:
        return missing
    return f"{value:,}".replace(",", "\u202f") if isinstance(value, int) else str(value)


def duration(seconds: Any) -> str:
    """Return a time span with its two largest units, such as 2 h 5 min; a dash for None."""
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds else "0 s"
    whole = int(seconds)
    for size, unit, below, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"),
                                       (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // below} {smaller}"
    raise AssertionError(seconds)


def local_time(value_ms: Any) -> str:
    """Return a time in ms since 1970 as the server's local time; a dash for None or -1."""
    if value_ms is None or value_ms < 0:
        return "–"
    try:
        at = datetime.datetime.fromtimestamp(value_ms / 1000).astimezone()
    except (OverflowError, ValueError, OSError):
        return f"{value_ms} ms"
    return at.strftime("%Y-%m-%d %H:%M:%S %Z")


def utc_time(value_ms: Any) -> str:
    """Return a time in ms since 1970 as UTC with milliseconds, in ISO 8601."""
    if value_ms is None or value_ms < 0:
        return "–"
    try:
        at = datetime.datetime.fromtimestamp(value_ms / 1000, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return f"{value_ms} ms"
    return f"{at:%Y-%m-%dT%H:%M:%S}.{value_ms % 1000:03d}Z"


class StaticFiles:
    """The files of static/, by their path with a hash."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[bytes, str]] = {}
        self.paths: dict[str, str] = {}  # Name -> path.
        for file in resources.files(PACKAGE).joinpath("static").iterdir():
            content = file.read_bytes()
            digest = hashlib.sha256(content).hexdigest()[:HASH_CHARACTERS]
            kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
            self.paths[file.name] = f"/static/{digest}/{file.name}"
            self._files[self.paths[file.name]] = content, kind

    def response(self, path: str) -> Response:
        """Return a file. Raises PageError if there is none with this path."""
        if path not in self._files:
            raise PageError(404, "There is no such file", path)
        content, kind = self._files[path]
        return Response(content, media_type=kind, headers={
            "Cache-Control": f"public, max-age={STATIC_SECONDS}, immutable"})


@functools.cache
def static_files() -> StaticFiles:
    return StaticFiles()


@functools.cache
def environment() -> jinja2.Environment:
    """Return the template environment: escapes everything, rejects unknown names."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader(PACKAGE), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True)
    made.filters.update(visible=visible, bytes_size=bytes_size, number=number,
                        duration=duration, local_time=local_time, utc_time=utc_time)
    # Applies to every value of every template, so that no template can forget it.
    made.finalize = _finalized
    made.globals["static"] = static_files().paths
    return made


def _finalized(value: object) -> object:
    """Return what a template writes for a value. Raises TypeError for bytes and for rows of
    records: their content passes console.masks, then `preview` or `decodings`.
    """
    if isinstance(value, bytes | bytearray | memoryview | Row):
        raise TypeError(f"{type(value).__name__}: a template shows only what console.masks made "
                        "visible")
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return visible(value)
    return value


def render(request: Request, template: str, /, status: int = 200, **context: Any) -> HTMLResponse:
    """Return a page. Adds what base.html and forms need: url, csrf, cluster, can_change and so on.
    """
    state = request.state
    console = request.app.state.console
    cluster = getattr(state, "cluster", None)
    session = getattr(state, "session", None)
    page = getattr(state, "page", None)
    message = unquote(request.cookies.get(MESSAGE_COOKIE, ""))
    theme = request.cookies.get(THEME_COOKIE, "auto")
    text = environment().get_template(template).render({
        "request": request, "console": console, "cluster": cluster, "session": session,
        "page": page, "url": _url(console, cluster),
        "csrf": session.csrf if session is not None else "",
        "can_change": _may(console, session, ADMINISTER),
        "can_produce": _may(console, session, PRODUCE),
        "may": functools.partial(console.permits, session.principal) if session else None,
        "theme": theme if theme in THEMES else "auto",
        "keys": request.cookies.get(KEYS_COOKIE) != "off", "message": message, "now_ms":
        console.now_ms(), **context})
    response = HTMLResponse(text, status)
    if message:
        response.delete_cookie(MESSAGE_COOKIE, path="/")
    return response


def _may(console: Any, session: Any, permission: str) -> bool:
    """Return True if pages show forms that need this permission to change something."""
    return not console.is_read_only and session is not None and bool(
        console.permits(session.principal, permission))


def _url(console: Any, cluster: Any) -> Callable[..., str] | None:
    """Return the function that makes paths of the page's cluster, or of the console's only one."""
    if cluster is not None:
        found: Callable[..., str] = cluster.url
        return found
    if len(console.clusters) == 1:
        return functools.partial(path_of, "")
    return None


def error_page(request: Request, error: PageError) -> Response:
    """Return the page of an error, or JSON if the request asked for that."""
    if request.query_params.get("format") == "json":
        import json

        return Response(json.dumps({"failed": error.failed, "value": error.value,
                                    "remedy": error.remedy}), error.status,
                        media_type="application/json", headers=error.headers)
    response = render(request, "error.html", error.status, error=error)
    response.headers.update(error.headers)
    return response

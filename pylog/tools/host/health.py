"""`pylog health`: check whether a brokerd is ready, or alive, for containers and supervisors.

Owns: nothing.
Invariants: the exit code is 0 only after the broker itself has reported that it is ready; a
  certificate goes unchecked only for an address of this machine.
Source: /livez and /readyz of monitor.server.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

import click

from pylog.config.listeners import is_loopback
from pylog.tools.cli.command import Local
from pylog.tools.cli.output import BAD, GOOD
from pylog.tools.cli.session import Session, ToolError

URL = "http://localhost:9644"
TIMEOUT_S = 5.0  # Longer than the broker needs to report that a component does not respond.
BODY_BYTES_MAX = 1 << 20


@click.command(cls=Local, short_help="Check whether a brokerd is ready.")
@click.option("--url", default=URL, show_default=True, envvar="PYLOG_HEALTH_URL", show_envvar=True,
              help="The broker's metrics.listener.")
@click.option("--live", "is_live", is_flag=True,
              help="Check only that the process responds (/livez instead of /readyz).")
@click.option("--token", envvar="PYLOG_METRICS_TOKEN", show_envvar=True,
              help="The broker's metrics.token.")
@click.option("--ca", metavar="FILE", type=click.Path(exists=True, dir_okay=False),
              help="Trusted certificates (PEM) for https.  [default: the system's]")
@click.option("--insecure", "is_insecure", is_flag=True,
              help="Do not check the certificate; only for this machine's loopback addresses.")
@click.option("--timeout", "timeout_s", default=TIMEOUT_S, show_default=True, metavar="SECONDS",
              type=click.FloatRange(min=0.001), help="Time limit of the check.")
@click.pass_obj
def health(session: Session, url: str, is_live: bool, token: str | None, ca: str | None,
           is_insecure: bool, timeout_s: float) -> None:
    """Check whether a brokerd is ready for clients. Exits with 0 if it is, and with 1 if it is not
    or does not respond.

    Use it as the health check of a container. Kubernetes can request /readyz and /livez itself.
    """
    page = "/livez" if is_live else "/readyz"
    status, view = _get(url, page, token, ca, is_insecure, timeout_s)
    if session.out.as_json:
        session.out.document(view)
    else:
        width = max(len(name) for name in view["components"])
        for name, one in view["components"].items():
            session.out.styled(f"{one['state']:<7}  {name:<{width}}  {one['detail']}",
                               GOOD if one["state"] == "ok" else BAD)
    if status != 200:
        failed = [name for name, one in view["components"].items() if one["state"] != "ok"]
        raise ToolError(f"{view['status']}: {', '.join(failed)}")


def _get(url: str, page: str, token: str | None, ca: str | None, is_insecure: bool,
         timeout_s: float) -> tuple[int, dict[str, Any]]:
    """Return (status, content of the page). Raises ToolError."""
    import http.client

    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise click.UsageError(f"--url {url}: {error}") from None
    if not host or parts.scheme not in ("http", "https"):
        raise click.UsageError(f"--url {url}: expected http://HOST:PORT or https://HOST:PORT")
    connection: http.client.HTTPConnection = http.client.HTTPConnection(
        host, port, timeout=timeout_s) if parts.scheme == "http" else _encrypted(
        host, port, ca, is_insecure, timeout_s)
    try:
        connection.request("GET", page,
                           headers={"Authorization": f"Bearer {token}"} if token else {})
        response = connection.getresponse()
        body = response.read(BODY_BYTES_MAX)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ToolError(f"{host}:{connection.port} does not respond: {reason}. Start brokerd with "
                        "metrics.listener, and name it with --url") from None
    finally:
        connection.close()
    if response.status == 401:
        raise ToolError(f"{host}:{connection.port} requires a token: set --token to the broker's "
                        "metrics.token")
    try:
        view = json.loads(body)
        assert isinstance(view["components"], dict) and view["status"]
    except (ValueError, KeyError, TypeError, AssertionError):
        raise ToolError(f"{host}:{connection.port} is not the metrics endpoint of a brokerd: "
                        f"{page} returned status {response.status}") from None
    return response.status, view


def _encrypted(host: str, port: int | None, ca: str | None, is_insecure: bool,
               timeout_s: float) -> Any:
    import http.client
    import ssl

    context = ssl.create_default_context(cafile=ca)
    if is_insecure:
        if not is_loopback(host):
            raise click.UsageError("--insecure is only for this machine's loopback addresses; use "
                                   "--ca FILE")
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)


COMMANDS = {"health": health}

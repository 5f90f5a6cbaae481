"""`pylog console`: serve the web console for one or more clusters.

Owns: nothing.
Invariants: with --supervised, all settings come from standard input, so that no secret is on the
  command line.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

import click

from pylog.tools.cli.command import Tool
from pylog.tools.cli.session import Session, ToolError

LISTENER = "127.0.0.1:8080"
CONSOLE_ONLY = "console."


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@click.command(cls=Tool, short_help="Serve the web console.")
@click.option("-l", "--listener", metavar="HOST:PORT", help="Address of the console. "
              f"[default: {LISTENER}]")
@click.option("--cluster", "profiles", metavar="NAME", multiple=True, help="Profile of a cluster, "
              "~/.config/pylog/NAME.properties. Repeat it for several clusters.")
@click.option("-s", "--set", "texts", metavar="KEY=VALUE", multiple=True,
              help="A setting of the console, such as console.read.only=true.")
@click.option("--supervised", is_flag=True, hidden=True)
@click.pass_obj
def console(session: Session, listener: str | None, profiles: tuple[str, ...],
            texts: tuple[str, ...], supervised: bool) -> None:
    """Serve the web console until Ctrl-C.

    It shows the cluster of --bootstrap-server, or those of --cluster. Users log in with their user
    of the cluster if it uses SASL, and their own rights apply. Without SASL, the console listens on
    this machine only.

    Settings: `brokerd config list` shows those that begin with `console.`.
    """
    from pylog.config import ConfigError, Settings

    if supervised:
        _serve_supervised()
        return
    given = [f"console.listener={listener or LISTENER}"] if listener or not any(
        text.startswith("console.listener=") for text in texts) else []
    try:
        settings = Settings.load(None, [*given, *texts])
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    clusters = [(name, _profile(session, name)) for name in dict.fromkeys(profiles)]
    if not clusters:
        client = _client_settings(session)
        clusters = [(settings["console.cluster.name"] or str(client["bootstrap.servers"]), client)]

    def ready(url: str) -> None:
        session.out.result({"url": url}, f"The console is at {url}")
        session.out.flush()  # A program that reads a pipe needs the address now.

    _serve(settings, clusters, ready)


def _profile(session: Session, name: str) -> dict[str, Any]:
    """Return the client settings of a profile. Raises ToolError."""
    one = Session()
    one.given = {**session.given, "profile": name}
    one.given.pop("bootstrap", None)
    return _client_settings(one)


def _client_settings(session: Session) -> dict[str, Any]:
    settings = session.settings_of("admin")
    for name in ("client.id", "default.api.timeout.ms", "socket.connection.setup.timeout.ms"):
        settings.pop(name, None)
    return settings


def _serve_supervised() -> None:
    """Run as brokerd's child: read the settings from standard input. Raises ToolError."""
    from pylog.config import ConfigError, Settings
    from pylog.monitor import logfmt

    logfmt.set_up()
    given = json.loads(sys.stdin.read())
    log = logging.getLogger("pylog.console")
    try:
        settings = Settings(given["settings"])
    except ConfigError as error:
        raise ToolError(str(error)) from None
    _serve(settings, [(one["name"], one["settings"]) for one in given["clusters"]],
           lambda url: log.info("the console is ready", extra={"url": url}))


def _serve(settings: Any, clusters: list[tuple[str, dict[str, Any]]], ready: Any) -> None:
    from pylog.config import ConfigError

    try:
        from pylog.console import serving
        from pylog.console.app import Console
        from pylog.console.clusters import ClusterConfig
    except ModuleNotFoundError as error:
        if str(error.name).startswith("pylog"):
            raise
        raise ToolError(f"the console needs {error.name}: pip install 'pylog-broker[console]'"
                        ) from None
    try:
        serving.serve(Console(settings, [ClusterConfig(*one) for one in clusters], _now_ms,
                              time.monotonic), ready)
    except ConfigError as error:
        raise ToolError(str(error)) from None


COMMANDS = {"console": console}

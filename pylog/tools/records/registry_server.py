"""`pylog registry serve`: serve a schema registry for a cluster.

Owns: nothing.
Invariants: with --supervised, all settings come from standard input, so that no secret is on the
  command line.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import Callable
from typing import Any

import click

from pylog.tools.cli.command import Tool
from pylog.tools.cli.session import Session, ToolError

ADDRESS = "127.0.0.1:8081"
LISTENER = "schema.registry.listener"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@click.command("serve", cls=Tool, short_help="Serve a schema registry.")
@click.option("-l", "--listener", metavar="HOST:PORT", help="Address of the registry. "
              f"[default: {ADDRESS}]")
@click.option("-s", "--set", "texts", metavar="KEY=VALUE", multiple=True,
              help="A setting of the registry, such as schema.registry.topic=_schemas.")
@click.option("--supervised", is_flag=True, hidden=True)
@click.pass_obj
def serve(session: Session, listener: str | None, texts: tuple[str, ...], supervised: bool) -> None:
    """Serve a schema registry until Ctrl-C.

    It stores schemas in the topic `_schemas` of the cluster of --bootstrap-server, in the format of
    Confluent's registry. Stop other registries that write to this topic first.

    Settings: `brokerd config list` shows those that begin with `schema.registry.`.
    """
    from pylog.config import ConfigError, Settings

    if supervised:
        _serve_supervised()
        return
    given = [f"{LISTENER}={listener or ADDRESS}"] if listener or not any(
        text.startswith(f"{LISTENER}=") for text in texts) else []
    try:
        settings = Settings.load(None, [*given, *texts])
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    client = session.settings_of("admin")
    for name in ("client.id", "default.api.timeout.ms", "socket.connection.setup.timeout.ms"):
        client.pop(name, None)

    def ready(url: str) -> None:
        session.out.result({"url": url}, f"The schema registry is at {url}")
        session.out.flush()  # A program that reads a pipe needs the address now.

    _serve(settings, client, ready)


def _serve_supervised() -> None:
    """Run as brokerd's child: read the settings from standard input. Raises ToolError."""
    from pylog.config import ConfigError, Settings
    from pylog.monitor import logfmt

    logfmt.set_up()
    given = json.loads(sys.stdin.read())
    log = logging.getLogger("pylog.registry")
    try:
        settings = Settings(given["settings"])
    except ConfigError as error:
        raise ToolError(str(error)) from None
    _serve(settings, given["client"],
           lambda url: log.info("the schema registry is ready", extra={"url": url}))


def _serve(settings: Any, client: dict[str, Any], ready: Callable[[str], None]) -> None:
    from pylog.client.errors import KafkaError
    from pylog.config import ConfigError

    try:
        from pylog.registry import serving
        from pylog.registry.topic import TopicError
    except ModuleNotFoundError as error:
        if str(error.name).startswith("pylog"):
            raise
        raise ToolError(f"the schema registry needs {error.name}: "
                        "pip install 'pylog-broker[registry]'") from None
    server = serving.RegistryServer(settings, client, _now_ms, time.monotonic)
    try:
        asyncio.run(serving.serve(server, ready))
    except (ConfigError, TopicError, KafkaError) as error:
        raise ToolError(str(error)) from None

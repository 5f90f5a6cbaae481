"""Read pages from the brokers' metrics endpoints.

Owns: nothing.
Invariants: a request takes ENDPOINT_S or PAGE_S at most; an endpoint that is missing, silent or
  refuses is None or status 0, never an error.
Source: the pages of monitor.server.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import click

from pylog.client.config.settings import Settings
from pylog.client.errors import KafkaError
from pylog.client.network.cluster import Cluster
from pylog.monitor.admission import KEYSTORE
from pylog.tools.cli import config_resources
from pylog.tools.cli.session import ToolError

ENDPOINT_S = 2.0
PAGE_S = 10.0  # For pages that take longer, such as all metrics.
HTTPS = "https://"


def endpoint_options(command: Any) -> Any:
    """Add the options that select an endpoint and its token."""
    command = click.option("--token", envvar="PYLOG_METRICS_TOKEN", show_envvar=True,
                           help="The endpoint's metrics.token.")(command)
    return click.option("-m", "--metrics", metavar="[https://]HOST:PORT", help="The broker's "
                        "metrics endpoint.  [default: its metrics.listener]")(command)


async def page(cluster: Cluster, broker: int, path: str, metrics: str | None,
               token: str | None) -> Any:
    """Return the JSON of a page of a broker's endpoint, or of the endpoint from the options.
    Returns None if it does not respond within ENDPOINT_S.
    """
    address = metrics or await _address(cluster, broker)
    if address is None:
        return None
    try:
        async with asyncio.timeout(ENDPOINT_S):
            status, body = await asyncio.to_thread(_get, address, path, token, cluster.settings)
        return json.loads(body) if status == 200 else None
    except (OSError, ValueError):
        return None


async def raw_pages(cluster: Cluster, broker: int, paths: Iterable[str], metrics: str | None,
                    token: str | None) -> dict[str, tuple[int, bytes]]:
    """Return {path: (status, body)} of a broker's endpoint. Status 0: it does not respond, and the
    body is the reason.
    """
    address = metrics or await _address(cluster, broker)
    if address is None:
        return dict.fromkeys(paths, (0, b"no metrics.listener"))
    found: dict[str, tuple[int, bytes]] = {}
    for path in paths:
        try:
            async with asyncio.timeout(PAGE_S):
                found[path] = await asyncio.to_thread(
                    _get, address, path, token, cluster.settings, PAGE_S)
        except (OSError, ValueError) as error:
            found[path] = 0, (str(error) or type(error).__name__).encode()
    return found


async def quorum(cluster: Cluster, metrics: str | None = None,
                 token: str | None = None) -> list[dict[str, Any]] | None:
    """Return the state of the quorum members as the first responding controller reports it; None if
    no controller reports it.
    """
    for node in sorted(cluster.metadata.nodes.values()):
        found = await page(cluster, node.id, "/cluster", metrics, token)
        if isinstance(found, dict) and isinstance(found.get("quorum"), list):
            return list(found["quorum"])
        if metrics:
            return None
    return None


async def _address(cluster: Cluster, broker: int) -> str | None:
    try:
        rows = await config_resources.described(cluster, config_resources.BROKER, str(broker),
                                                ["metrics.listener", KEYSTORE])
    except (ToolError, KafkaError):
        return None
    values = {row["name"]: row["value"] for row in rows}
    value = values.get("metrics.listener")
    if not value:
        return None
    host, _, port = value.rpartition(":")
    if host.strip("[]") in ("", "0.0.0.0", "::"):
        host = cluster.metadata.nodes[broker].host
    return f"{HTTPS if values.get(KEYSTORE) else ''}{host}:{port}"


def _get(address: str, path: str, token: str | None, settings: Settings,
         timeout_s: float = ENDPOINT_S) -> tuple[int, bytes]:
    import http.client

    if address.startswith(HTTPS):
        from pylog.security.tls import outgoing_tls

        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            address.removeprefix(HTTPS), timeout=timeout_s,
            context=outgoing_tls.context(lambda name: settings[name]))
    else:
        connection = http.client.HTTPConnection(address, timeout=timeout_s)
    try:
        connection.request("GET", path,
                           headers={"Authorization": f"Bearer {token}"} if token else {})
        response = connection.getresponse()
        return response.status, response.read()
    except http.client.HTTPException as error:
        raise ValueError(str(error)) from None
    finally:
        connection.close()

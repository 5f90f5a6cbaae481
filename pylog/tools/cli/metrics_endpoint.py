"""The metrics endpoint in commands: its options, and the quorum as controllers report it.

Owns: nothing.
Invariants: none.
Source: pylog.client.admin.metrics_endpoint reads the pages.
"""

from __future__ import annotations

from typing import Any

import click

from pylog.client.admin.metrics_endpoint import page
from pylog.client.network.cluster import Cluster


def endpoint_options(command: Any) -> Any:
    """Add the options that select an endpoint and its token."""
    command = click.option("--token", envvar="PYLOG_METRICS_TOKEN", show_envvar=True,
                           help="The endpoint's metrics.token.")(command)
    return click.option("-m", "--metrics", metavar="[https://]HOST:PORT", help="The broker's "
                        "metrics endpoint.  [default: its metrics.listener]")(command)


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

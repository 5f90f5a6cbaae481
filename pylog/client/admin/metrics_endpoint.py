"""Read pages from the brokers' metrics endpoints.

Owns: nothing.
Invariants: the address comes from the broker's settings or from the caller; a request takes
  ENDPOINT_S or PAGE_S at most, and a response has at most BYTES_MAX; an endpoint that is missing,
  silent or refuses is None or status 0, never an error.
Source: the pages of pylog.monitor.server.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from pylog.client.config.settings import Settings
from pylog.client.errors import KafkaError, raise_for
from pylog.client.admin.types import ResourceType
from pylog.client.network.cluster import Cluster
from pylog.protocol import messages

ENDPOINT_S = 2.0
PAGE_S = 10.0  # For pages that take longer, such as all metrics.
BYTES_MAX = 256 << 20
HTTPS = "https://"
LISTENER, KEYSTORE = "metrics.listener", "metrics.ssl.keystore.location"
ANY_ADDRESS = ("", "0.0.0.0", "::")


async def page(cluster: Cluster, broker: int, path: str, metrics: str | None = None,
               token: str | None = None) -> Any:
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


async def group_view(cluster: Cluster, coordinator: int, group: str, metrics: str | None = None,
                     token: str | None = None) -> dict[str, Any] | None:
    """Return what a group's coordinator knows about its lag and rebalances, None if its endpoint
    does not respond.
    """
    found = await page(cluster, coordinator, f"/explain/group/{quote(group, safe='')}", metrics,
                       token)
    return found if isinstance(found, dict) and "reasons" in found else None


def knows_pace(view: dict[str, Any]) -> bool:
    """Return True if the coordinator has observed the group for long enough to know its rates, or
    if the group has committed nothing.
    """
    rates = [row["consume_rate"] for row in view["partitions"]]
    return not rates or any(rate is not None for rate in rates)


async def _address(cluster: Cluster, broker: int) -> str | None:
    request = messages.DescribeConfigsRequest
    try:
        response = await cluster.send(broker, request(resources=[request.DescribeConfigsResource(
            resource_type=ResourceType.BROKER, resource_name=str(broker),
            configuration_keys=[LISTENER, KEYSTORE])]))
        result = response.results[0]
        raise_for(result.error_code, result.error_message)
    except KafkaError:
        return None
    values = {row.name: row.value for row in result.configs}
    value = values.get(LISTENER)
    if not value:
        return None
    host, _, port = value.rpartition(":")
    if host.strip("[]") in ANY_ADDRESS:
        node = cluster.metadata.nodes.get(broker)
        if node is None:
            return None
        host = f"[{node.host}]" if ":" in node.host else node.host
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
        body = response.read(BYTES_MAX + 1)
        if len(body) > BYTES_MAX:
            raise ValueError(f"the page has more than {BYTES_MAX} bytes")
        return response.status, body
    except http.client.HTTPException as error:
        raise ValueError(str(error)) from None
    finally:
        connection.close()

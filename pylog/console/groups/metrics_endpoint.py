"""Read pages of a broker's metrics endpoint.

Owns: nothing.
Invariants: the address comes from the broker's own setting metrics.listener, never from a request;
  an endpoint that is missing, protected by a token or silent is None, never an error; a response
  has at most BYTES_MAX.
Source: the pages of pylog.monitor.server.
"""

from __future__ import annotations

import asyncio
import http.client
import json
from typing import Any

from pylog.client.admin.admin import Admin
from pylog.client.admin.types import ConfigResource, ResourceType
from pylog.client.errors import KafkaError

SECONDS_MAX = 2.0
BYTES_MAX = 8 << 20
LISTENER = "metrics.listener"
ANY_ADDRESS = ("", "0.0.0.0", "::")


async def page(admin: Admin, broker: int, path: str) -> dict[str, Any] | None:
    """Return a JSON page of a broker's endpoint, or None."""
    address = await _address(admin, broker)
    if address is None:
        return None
    try:
        async with asyncio.timeout(SECONDS_MAX):
            status, body = await asyncio.to_thread(_get, *address, path)
        found = json.loads(body) if status == 200 else None
    except (OSError, ValueError, http.client.HTTPException):
        return None
    return found if isinstance(found, dict) else None


async def _address(admin: Admin, broker: int) -> tuple[str, int] | None:
    resource = ConfigResource(ResourceType.BROKER, str(broker))
    try:
        entries = (await admin.describe_configs([resource]))[resource]
    except KafkaError:
        return None
    entry = entries.get(LISTENER)
    if entry is None or not entry.value:
        return None
    host, _, port = entry.value.rpartition(":")
    host = host.strip("[]")
    if host in ANY_ADDRESS:
        node = admin.cluster.metadata.nodes.get(broker)
        if node is None:
            return None
        host = node.host
    return (host, int(port)) if port.isdecimal() else None


def _get(host: str, port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(host, port, timeout=SECONDS_MAX)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read(BYTES_MAX)
    finally:
        connection.close()

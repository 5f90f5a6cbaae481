"""Settings of topics, brokers, groups and loggers in a cluster.

Owns: nothing.
Invariants: a change sends all of its settings in one request, which is atomic; an error for an
  unknown key includes the closest existing one.
Source: Kafka's DescribeConfigs and IncrementalAlterConfigs (KIP-226, KIP-339, KIP-848).
"""

from __future__ import annotations

import base64
from typing import Any

from pylog.client.admin.admin import Admin
from pylog.client.admin.types import ConfigResource, ResourceType
from pylog.client.errors import KafkaError
from pylog.client.network.cluster import Cluster
from pylog.protocol import messages
from pylog.protocol.codec import ZERO_UUID
from pylog.protocol.errors import ErrorCode
from pylog.tools.cli import cluster_queries
from pylog.tools.cli.session import ToolError

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
KINDS = {"topic": TOPIC, "broker": BROKER, "logger": LOGGER, "group": GROUP,
         "client-metrics": CLIENT_METRICS}
SOURCES = {1: "topic", 2: "broker", 3: "cluster", 4: "file", 5: "default", 6: "logger",
           7: "client-metrics", 8: "group"}
TYPES = {1: "boolean", 2: "string", 3: "int", 4: "short", 5: "long", 6: "double", 7: "list",
         8: "class", 9: "password"}


def uuid_text(value: bytes) -> str | None:
    """Return a topic id as Kafka's tools print it, None if the topic has none."""
    if value == ZERO_UUID:
        return None
    return base64.urlsafe_b64encode(value).decode().rstrip("=")


async def node_of(cluster: Cluster, kind: int, name: str) -> int:
    """Return the broker to query: a broker's own settings need that broker, all other resources any
    broker. Raises ToolError.
    """
    if kind not in (BROKER, LOGGER) or not name:
        # A broker that has just started has no brokers in its metadata yet.
        found: int = await cluster.retry(cluster.controller)
        return found
    if not name.isdigit() or int(name) not in cluster.metadata.nodes:
        known = ", ".join(map(str, sorted(cluster.metadata.nodes)))
        raise ToolError(f"there is no broker {name!r}; there are: {known}")
    return int(name)


async def described(cluster: Cluster, kind: int, name: str, keys: list[str] | None = None,
                    documented: bool = False) -> list[dict[str, Any]]:
    """Return [{name, value, source, type, read_only, sensitive, documentation}] by name."""
    request = messages.DescribeConfigsRequest(
        include_documentation=documented,
        resources=[messages.DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=kind, resource_name=name, configuration_keys=keys)])
    response = await cluster.send(await node_of(cluster, kind, name), request)
    row = response.results[0]
    if row.error_code:
        raise ToolError(cluster_queries.error_code_text(row.error_code, row.error_message,
                                                        f"settings of {name}"))
    return sorted(({
        "name": entry.name, "value": entry.value,
        "source": SOURCES.get(entry.config_source, str(entry.config_source)),
        "type": TYPES.get(entry.config_type), "read_only": entry.read_only,
        "sensitive": entry.is_sensitive, "documentation": entry.documentation or None,
    } for entry in row.configs), key=lambda entry: entry["name"])


async def alter(admin: Admin, kind: int, name: str, changes: dict[str, str | None],
                dry_run: bool) -> None:
    """Set the settings that have a value and reset those without one. Raises ToolError."""
    await node_of(admin.cluster, kind, name)
    resource = ConfigResource(ResourceType(kind), name)
    try:
        await admin.incremental_alter_configs({resource: changes}, dry_run)
    except KafkaError as error:
        if error.code in (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST):
            await check_names(admin.cluster, kind, name, changes)
        if error.code < 0:
            raise
        raise ToolError(cluster_queries.error_text(error)) from None


async def check_names(cluster: Cluster, kind: int, name: str | None, changes: Any) -> None:
    """Raise ToolError for an unknown key, with the closest one. name None: keys of any topic."""
    if name is None:
        metadata = await cluster_queries.all_topics(cluster)
        name = next(iter(metadata.topics), None)
        if name is None:
            return
    known = {row["name"] for row in await described(cluster, kind, name)}
    for key in changes:
        if known and key not in known:
            raise cluster_queries.unknown("setting", key, known)

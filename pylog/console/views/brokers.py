"""Brokers: addresses, racks, versions, leaders, disks; and one broker's directories.

Owns: nothing.
Invariants: a broker that does not answer is listed with its error, and the others with their data.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from pylog.client.errors import KafkaError
from pylog.console.listings import Column, Row, listed
from pylog.console.pages import Page, PageError, integer
from pylog.console.rendering import render

if TYPE_CHECKING:
    from starlette.requests import Request

    from pylog.client.network.cluster_metadata import TopicInfo
    from pylog.console.clusters import ClusterSession

ANSWER_S = 5.0
REPLICAS_SHOWN_MAX = 1000
COLUMNS = [
    Column("broker", "Broker", is_number=True), Column("address", "Address"),
    Column("rack", "Rack"), Column("roles", "Role"), Column("version", "Feature level"),
    Column("leaders", "Leaders", is_number=True), Column("replicas", "Replicas", is_number=True),
    Column("bytes", "Records", is_number=True), Column("free", "Free disk", is_number=True),
    Column("state", "State")]


async def brokers(request: Request, cluster: ClusterSession) -> Response:
    """List the brokers."""
    described, topics = await asyncio.gather(
        cluster.admin.describe_cluster(), cluster.admin.list_topics(internal=True))
    disks = await _disks(cluster, [node.id for node in described.nodes])
    states = await asyncio.gather(*[_state(cluster, node.id) for node in described.nodes])
    leaders, replicas = _counts(topics)
    rows = []
    for node, (state, version) in zip(described.nodes, states):
        directories = disks.get(node.id)
        usable = [one.usable_bytes for one in (directories or {}).values()
                  if one.usable_bytes >= 0]
        rows.append({
            "broker": node.id, "address": f"{node.host}:{node.port}", "rack": node.rack or "",
            "roles": "controller" if node.id == described.controller else "", "version": version,
            "leaders": leaders.get(node.id, 0), "replicas": replicas.get(node.id, 0),
            "bytes": None if directories is None else _stored(directories),
            "free": sum(usable) if usable else None, "state": state})
    listing = await listed(request, COLUMNS, rows, search=("broker", "address", "rack"),
                           sort="broker")
    return listing.response("brokers") or render(request, "brokers.html", listing=listing)


async def broker(request: Request, cluster: ClusterSession) -> Response:
    """Show one broker with its log directories and their largest replicas."""
    number = integer(request.path_params["broker"], "Broker", 0, 2**31 - 1)
    described, topics = await asyncio.gather(
        cluster.admin.describe_cluster(), cluster.admin.list_topics(internal=True))
    node = next((node for node in described.nodes if node.id == number), None)
    if node is None:
        raise PageError(404, "There is no such broker", str(number),
                        f"There are: {', '.join(str(one.id) for one in described.nodes)}.")
    part = await cluster.attempt("DESCRIBE CLUSTER (sizes)",
                                 lambda: cluster.admin.describe_log_dirs([number]))
    directories = (part.value or {}).get(number, {})
    largest: list[Row] = sorted(
        ({"topic": tp.topic, "partition": tp.partition, "bytes": replica.size,
          "lag": replica.offset_lag, "path": path, "is_future": replica.is_future}
         for path, directory in directories.items() for tp, replica in directory.replicas.items()),
        key=lambda row: -row["bytes"])[:REPLICAS_SHOWN_MAX]
    leaders, replicas = _counts(topics)
    state, version = await _state(cluster, number)
    return render(request, "broker.html", node=node, state=state, version=version, part=part,
                  directories=directories, largest=largest, leaders=leaders.get(number, 0),
                  replicas=replicas.get(number, 0),
                  is_controller=described.controller == number)


async def _disks(cluster: ClusterSession, nodes: list[int]) -> dict[int, Any]:
    """Return the directories of the brokers that answer in time."""
    async def one(node: int) -> Any:
        return await cluster.attempt(
            "DESCRIBE CLUSTER (sizes)",
            lambda: cluster.admin.describe_log_dirs([node], timeout=ANSWER_S))

    parts = await asyncio.gather(*[one(node) for node in nodes])
    return {node: part.value[node] for node, part in zip(nodes, parts) if part.value is not None}


async def _state(cluster: ClusterSession, node: int) -> tuple[str, str]:
    """Return whether a broker answers, and the feature level of its metadata."""
    try:
        async with asyncio.timeout(ANSWER_S):
            connection = await cluster.admin.cluster.connection(node)
    except TimeoutError:
        return f"does not answer within {ANSWER_S:g} s", ""
    except KafkaError as error:
        return str(error), ""
    level = connection.features.get("metadata.version")
    return "answers", "" if level is None else str(level)


def _counts(topics: dict[str, TopicInfo]) -> tuple[dict[int, int], dict[int, int]]:
    """Return the number of leaders and of replicas by broker."""
    leaders: dict[int, int] = {}
    replicas: dict[int, int] = {}
    for topic in topics.values():
        for partition in topic.partitions.values():
            leaders[partition.leader] = leaders.get(partition.leader, 0) + 1
            for number in partition.replicas:
                replicas[number] = replicas.get(number, 0) + 1
    return leaders, replicas


def _stored(directories: dict[str, Any]) -> int:
    return sum(replica.size for directory in directories.values()
               for replica in directory.replicas.values())


PAGES = [
    Page("/brokers", brokers, operations=("DESCRIBE CLUSTER", "DESCRIBE TOPIC"), changes=False,
         audit=""),
    Page("/brokers/{broker}", broker, operations=("DESCRIBE CLUSTER", "DESCRIBE TOPIC"),
         changes=False, audit=""),
]

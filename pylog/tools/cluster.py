"""`pylog cluster`: brokers, controller, what they serve, and their log directories.

Owns: nothing.
Called by: tools.app (by name).
Invariants: (1) a broker that does not answer is a row that says so.
Source: Kafka's Metadata, ApiVersions, DescribeLogDirs.
"""

from __future__ import annotations

import asyncio
from typing import Any

import click

from pylog.client.cluster import Cluster
from pylog.client.errors import KafkaError
from pylog.tools import inquiry
from pylog.tools.command import Tool
from pylog.tools.printer import size
from pylog.tools.session import Session

BROKERS = {"broker": "BROKER", "host": "HOST", "port": "PORT", "rack": "RACK",
           "controller": "CONTROLLER", "leaders": "LEADERS", "replicas": "REPLICAS",
           "status": "STATUS"}
DIRS = {"broker": "BROKER", "path": "LOG DIRECTORY", "partitions": "PARTITIONS",
        "bytes": ("SIZE", size), "usable_bytes": ("FREE", size), "total_bytes": ("OF", size),
        "error": "ERROR"}


@click.command(cls=Tool)
@click.pass_obj
def cluster(session: Session) -> None:
    """Brokers, controller and log directories of the cluster."""
    async def work(asked: Cluster) -> dict[str, Any]:
        metadata = await inquiry.all_topics(asked)
        parts = [part for topic in metadata.topics.values() for part in topic.partitions.values()]
        brokers: list[dict[str, Any]] = [{
            "broker": node.id, "host": node.host, "port": node.port, "rack": node.rack,
            "controller": node.id == metadata.controller,
            "leaders": sum(part.leader == node.id for part in parts),
            "replicas": sum(node.id in part.replicas for part in parts)}
            for node in sorted(metadata.nodes.values())]
        answers = await asyncio.gather(*[_status(asked, row["broker"]) for row in brokers])
        for row, answer in zip(brokers, answers):
            row.update(answer)
        dirs = [{"broker": row["broker"], "path": row["path"],
                 "partitions": len(row["partitions"]), "bytes": sum(row["partitions"].values()),
                 "usable_bytes": row["usable_bytes"], "total_bytes": row["total_bytes"],
                 "error": row["error"]} for row in await inquiry.log_dirs(asked)]
        return {"cluster_id": metadata.cluster_id, "controller": metadata.controller,
                "topics": len(metadata.topics), "partitions": len(parts),
                "offline_partitions": sum(part.leader < 0 for part in parts),
                "under_replicated_partitions": sum(len(part.isr) < len(part.replicas)
                                                   for part in parts),
                "brokers": brokers, "log_dirs": dirs}

    found = session.run(work)
    out = session.out
    if out.as_json:
        out.document(found)
        return
    out.title(f"cluster {found['cluster_id']}")
    out.line(f"  {found['topics']} topics, {found['partitions']} partitions; "
             f"{found['offline_partitions']} offline, "
             f"{found['under_replicated_partitions']} under-replicated")
    out.line()
    out.table(found["brokers"], BROKERS)
    out.line()
    out.table(found["log_dirs"], DIRS, empty="no log directories are listed")


async def _status(asked: Cluster, node: int) -> dict[str, Any]:
    """Keeps (1)."""
    try:
        connection = await asked.connection(node)
    except KafkaError as error:
        return {"status": f"unreachable: {error}", "apis": None, "features": None}
    return {"status": "ok", "apis": len(connection.versions),
            "features": dict(connection.features)}


COMMANDS = {"cluster": cluster}

"""`pylog cluster`: brokers, controller, listeners, log directories, and problems.

Owns: nothing.
Invariants: an unreachable broker is a row with the reason; problems are sentences, the most severe
  first.
Source: Kafka's Metadata, ApiVersions, DescribeLogDirs, DescribeQuorum.
"""

from __future__ import annotations

import asyncio
from typing import Any

import click

from pylog.client.errors import KafkaError
from pylog.client.network.cluster import Cluster
from pylog.protocol.counts import counted
from pylog.tools.cli import cluster_queries, metrics_endpoint
from pylog.tools.cli.command import TOPIC, Tools, Watchable, shared, watch_option, watched
from pylog.tools.cli.output import size
from pylog.tools.cli.session import Session, ToolError
from pylog.tools.cluster import health, verify
from pylog.tools.cluster import replica_state
from pylog.tools.cluster.elections import elect
from pylog.tools.cluster.placement import drain, grow, move, shrink
from pylog.tools.cluster.reassignments import cancel, moves, reassign
from pylog.tools.cluster.replace import replace
from pylog.tools.cluster.unregister import forget

BROKERS = {"broker": "BROKER", "host": "HOST", "port": "PORT", "rack": "RACK",
           "controller": "CONTROLLER", "leaders": "LEADERS", "replicas": "REPLICAS",
           "status": "STATUS"}
DIRS = {"broker": "BROKER", "path": "LOG DIRECTORY", "partitions": "PARTITIONS",
        "bytes": ("SIZE", size), "usable_bytes": ("FREE", size), "total_bytes": ("OF", size),
        "error": "ERROR"}


@click.group(cls=Tools, invoke_without_command=True,
             params=[*shared(), watch_option()])
@click.pass_context
def cluster(ctx: click.Context, watch: float | None) -> None:
    """Show brokers, controller, log directories and problems of the cluster."""
    if ctx.invoked_subcommand is None:
        watched(ctx.obj, watch, lambda: _show(ctx.obj))


@cluster.command(cls=Watchable)
@metrics_endpoint.endpoint_options
@click.pass_obj
def status(session: Session, metrics: str | None, token: str | None) -> None:
    """Check every component of the cluster; fail if one is faulty or unreachable.

    Checks brokers, controllers and their quorum, partitions, log directories and certificates.
    Members of an external etcd or of ZooKeeper, and clocks, are checked through the metrics
    endpoints (metrics.listener). Facts that could not be checked are listed.
    """
    async def work(asked: Cluster) -> tuple[dict[str, Any], health.Checked]:
        found = await _overview(asked)
        return found, await health.check(asked, found, metrics, token)

    found, checked = session.run(work)
    troubles = [*_troubles(found), *checked.troubles]
    if session.out.as_json:
        session.out.document({"cluster_id": found["cluster_id"], "troubles": troubles,
                              "unchecked": checked.unchecked, "quorum_members": checked.members})
    else:
        for line in troubles or [health.verdict(found, checked)]:
            session.out.line(line)
        for line in checked.unchecked:
            session.out.line(f"not checked: {line}")
    if troubles:
        raise ToolError(f"{counted(len(troubles), 'of these needs', 'of these need')} attention")


@cluster.command()
@click.argument("name", metavar="TOPIC-P", type=TOPIC)
@click.pass_obj
def explain(session: Session, name: str) -> None:
    """Explain why a partition is offline, under-replicated or slow, and how to fix it."""
    topic, _, number = name.rpartition("-")
    if not topic or not number.isdigit():
        raise click.UsageError(f"{name!r}: expected a topic, a dash and a partition: orders-0")
    facts = session.run(lambda asked: replica_state.facts_of(asked, topic, int(number)))
    sentences = replica_state.sentences(facts)
    if session.out.as_json:
        session.out.document({**facts._asdict(), "alive": sorted(facts.alive),
                              "sentences": sentences})
        return
    for line in sentences:
        session.out.line(line)


@cluster.command("verify")
@click.argument("names", metavar="[TOPIC]...", type=TOPIC, nargs=-1)
@click.pass_obj
def compare(session: Session, names: tuple[str, ...]) -> None:
    """Compare the replicas of every partition byte by byte; fail if they differ."""
    async def work(asked: Cluster) -> list[dict[str, Any]]:
        known = await cluster_queries.topics(asked, names) if names else sorted(
            (await cluster_queries.all_topics(asked)).topics.values(), key=lambda row: row.name)
        return [(await verify.compare(asked, part))._asdict()
                for row in known for part in row.partitions.values()]

    rows = session.run(work)
    different = [row for row in rows if row["problems"]]
    if session.out.as_json:
        session.out.document(rows)
    for row in different:
        for problem in row["problems"]:
            session.out.line(f"{row['topic']}-{row['partition']}: {problem}")
    if different:
        raise ToolError("not the same on all replicas: "
                        f"{len(different)} of {counted(len(rows), 'partition')}")
    session.out.line(
        f"{counted(len(rows), 'partition')}, "
        f"{counted(sum(row['batches'] for row in rows), 'batch', 'batches')}: the same on all "
        "replicas")


def _troubles(found: dict[str, Any]) -> list[str]:
    """Return the problems as sentences, the most severe first."""
    gone = [row for row in found["brokers"] if row["status"] != "ok"]
    troubles = [f"broker {row['broker']} does not respond: {row['status']}" for row in gone]
    troubles += [f"broker {number} is not running: it has replicas of "
                 f"{counted(count, 'partition')}" if count else
                 f"broker {number} is not running; it has no replicas (if it will not return: "
                 f"pylog cluster forget {number})"
                 for number, count in found["missing_brokers"].items()]
    for key, is_so, are_so in (("offline", "has no leader", "have no leader"),
                               ("under_replicated", "is under-replicated", "are under-replicated")):
        names = found[key]
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            number = counted(len(names), f"partition {is_so}", f"partitions {are_so}")
            troubles.append(f"{number}: {', '.join(names[:3])}{more} "
                            "(pylog cluster explain shows why)")
    quorum = found["quorum"]
    if quorum is None:
        troubles.append(f"the controllers' quorum cannot be checked: {found['quorum_error']}")
    elif quorum["leader"] < 0:
        troubles.append("there is no active controller: metadata cannot change and no leader can "
                        "be elected")
    troubles += [f"log directory {row['path']} of broker {row['broker']}: {row['error']}"
                 for row in found["log_dirs"] if row["error"]]
    troubles += [f"the log directories of broker {broker} cannot be checked: {reason}"
                 for broker, reason in found["log_dir_errors"].items()]
    return troubles


for command in (move, drain, grow, shrink, moves, cancel, reassign, elect, forget,
                replace):
    cluster.add_command(command)


async def _overview(asked: Cluster) -> dict[str, Any]:
    """Return everything that the page shows."""
    metadata = await cluster_queries.all_topics(asked)
    parts = [part for topic in metadata.topics.values() for part in topic.partitions.values()]
    brokers: list[dict[str, Any]] = [{
        "broker": node.id, "host": node.host, "port": node.port, "rack": node.rack,
        "controller": node.id == metadata.controller,
        "leaders": sum(part.leader == node.id for part in parts),
        "replicas": sum(node.id in part.replicas for part in parts)}
        for node in sorted(metadata.nodes.values())]
    responses = await asyncio.gather(*[_status(asked, row["broker"]) for row in brokers])
    for row, response in zip(brokers, responses):
        row.update(response)
    listed, failed = await cluster_queries.log_dirs(
        asked, [row["broker"] for row in brokers if row["status"] == "ok"])
    dirs = [{"broker": row["broker"], "path": row["path"],
             "partitions": len(row["partitions"]), "bytes": sum(row["partitions"].values()),
             "usable_bytes": row["usable_bytes"], "total_bytes": row["total_bytes"],
             "error": row["error"]} for row in listed]
    # Log directories list every topic, metadata only those that this user may describe.
    hidden = {part.topic for row in listed for part in row["partitions"]} - metadata.topics.keys()
    quorum, quorum_error = await health.quorum(asked)
    offline = [part for part in parts if part.leader < 0]
    behind = [part for part in parts if len(part.isr) < len(part.replicas)]
    return {"cluster_id": metadata.cluster_id, "controller": metadata.controller,
            "topics": len(metadata.topics), "partitions": len(parts),
            "hidden_topics": len(hidden),
            "offline_partitions": len(offline), "under_replicated_partitions": len(behind),
            "offline": _names(offline), "under_replicated": _names(behind),
            "internal_factors": {
                name: min(len(part.replicas) for part in topic.partitions.values())
                for name, topic in metadata.topics.items()
                if topic.is_internal and topic.partitions},
            "missing_brokers": await cluster_queries.absent_brokers(asked, metadata),
            "quorum": quorum, "quorum_error": quorum_error, "brokers": brokers,
            "log_dirs": dirs, "log_dir_errors": failed}


def _names(parts: list[Any]) -> list[str]:
    return sorted(f"{part.topic}-{part.partition}" for part in parts)


def _show(session: Session) -> None:
    found = session.run(_overview)
    out = session.out
    if out.as_json:
        out.document(found)
        return
    out.title(f"cluster {found['cluster_id']}")
    out.line(f"  {counted(found['topics'], 'topic')}, {counted(found['partitions'], 'partition')}; "
             f"{found['offline_partitions']} offline, "
             f"{found['under_replicated_partitions']} under-replicated")
    out.line()
    out.table(found["brokers"], BROKERS)
    out.line()
    out.table(found["log_dirs"], DIRS, empty="no log directories are listed")
    troubles = _troubles(found)
    if troubles:
        out.line()
    for line in troubles:
        out.line(line)


async def _status(asked: Cluster, node: int) -> dict[str, Any]:
    """Return a row for each broker; an unreachable broker has the reason."""
    try:
        connection = await asked.connection(node)
    except KafkaError as error:
        return {"status": f"unreachable: {error}", "apis": None, "features": None}
    return {"status": "ok", "apis": len(connection.versions),
            "features": dict(connection.features)}


COMMANDS = {"cluster": cluster}

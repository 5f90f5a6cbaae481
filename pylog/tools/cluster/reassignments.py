"""`pylog cluster moves|cancel|reassign`: list, cancel and start reassignments of replicas.

Owns: nothing.
Invariants: a file is parsed completely and checked against the cluster before any move starts; the
  plan that undoes another one is written before that one starts.
Source: kafka-reassign-partitions, whose JSON is read and written (KIP-455).
"""

from __future__ import annotations

import fnmatch
import json
from typing import TYPE_CHECKING, Any

import click

from pylog.client.network.cluster_metadata import Metadata
from pylog.client.types import TopicPartition
from pylog.tools.cli import cluster_queries
from pylog.tools.cli.command import Tool, Watchable, confirmed
from pylog.tools.cli.session import Session, ToolError
from pylog.tools.cluster.placement import Plan, carry_out, move_options

if TYPE_CHECKING:
    from pylog.client.admin.admin import Admin

UNDER_WAY = {"topic": "TOPIC", "partition": "PARTITION", "replicas": "REPLICAS",
             "adding": "ADDING", "removing": "REMOVING"}


@click.command(cls=Watchable)
@click.argument("pattern", metavar="[TOPIC]", default="*")
@click.pass_obj
def moves(session: Session, pattern: str) -> None:
    """List the moves in progress, of TOPIC (a name or a pattern) or of all topics."""
    session.out.rows(_under_way(session, pattern), UNDER_WAY, empty="no replica is moving")


def _under_way(session: Session, pattern: str) -> list[dict[str, Any]]:
    found = session.administer(lambda admin: admin.list_partition_reassignments(session.timeout_s))
    return [{"topic": part.topic, "partition": part.partition, "replicas": list(row[0]),
             "adding": list(row[1]), "removing": list(row[2])}
            for part, row in sorted(found.items()) if fnmatch.fnmatchcase(part.topic, pattern)]


@click.command(cls=Tool)
@click.argument("pattern", metavar="[TOPIC]", default="*")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.pass_obj
def cancel(session: Session, pattern: str, yes: bool) -> None:
    """Cancel moves: the replicas stay on their original brokers."""
    rows = _under_way(session, pattern)
    session.out.rows(rows, UNDER_WAY, empty="no replica is moving")
    if not rows:
        return
    confirmed(f"Cancel {len(rows)} moves?", yes)
    session.administer(lambda admin: admin.alter_partition_reassignments(
        {TopicPartition(row["topic"], row["partition"]): None for row in rows},
        session.timeout_s))


@click.command(cls=Tool)
@click.argument("file", type=click.File("rb"))
@click.option("--undo", type=click.Path(dir_okay=False), metavar="FILE",
              help="Write the plan that reverts the moves to this file.")
@move_options
@click.pass_obj
def reassign(session: Session, file: Any, undo: str | None, **how: bool) -> None:
    """Move partitions as FILE specifies, in the format of kafka-reassign-partitions."""
    wanted = read(file.read())

    async def query(admin: Admin) -> tuple[Metadata, Plan]:
        metadata = await cluster_queries.all_topics(admin.cluster)
        for part, replicas in wanted.items():  # Check the whole file before any move starts.
            if metadata.partition(*part) is None:
                raise ToolError(f"there is no partition {part.topic}-{part.partition}")
            missing = set(replicas) - set(metadata.nodes)
            if missing:
                raise ToolError(f"{part.topic}-{part.partition}: there is no broker "
                                f"{min(missing)}")
        return metadata, {part: replicas for part, replicas in wanted.items()
                          if list(replicas_of(metadata, part)) != replicas}

    def keep(metadata: Metadata, plan: Plan) -> None:
        if undo is not None:
            with open(undo, "wb") as out:  # Write the undo plan first.
                out.write(written({part: list(replicas_of(metadata, part)) for part in plan}))

    carry_out(session, query, keep, **how)


def replicas_of(metadata: Metadata, part: TopicPartition) -> tuple[int, ...]:
    return tuple(metadata.topics[part.topic].partitions[part.partition].replicas)


def read(data: bytes) -> Plan:
    """Parse the JSON of kafka-reassign-partitions. Raises ToolError."""
    try:
        document = json.loads(data)
        rows = [(str(row["topic"]), row["partition"], list(row["replicas"]))
                for row in document["partitions"]]
    except (ValueError, KeyError, TypeError):
        raise ToolError('expected {"version": 1, "partitions": [{"topic": "…", "partition": 0, '
                        '"replicas": [1, 2]}]}') from None
    found: Plan = {}
    for topic, number, replicas in rows:
        part = TopicPartition(topic, number)
        if part in found:
            raise ToolError(f"{topic}-{number} is named twice")
        if not replicas or len(set(replicas)) < len(replicas) \
                or not all(type(value) is int for value in (number, *replicas)):
            raise ToolError(f"{topic}-{number}: replicas {replicas} are not different brokers")
        found[part] = replicas
    return found


def written(plan: Plan) -> bytes:
    """Return a plan in the same JSON format."""
    rows = [{"topic": part.topic, "partition": part.partition, "replicas": replicas,
             "log_dirs": ["any"] * len(replicas)} for part, replicas in sorted(plan.items())]
    return json.dumps({"version": 1, "partitions": rows}).encode() + b"\n"

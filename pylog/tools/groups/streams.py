"""`pylog streams`: Streams groups with their topology, tasks and lag.

Owns: nothing.
Invariants: read-only; a partition belongs to the active task with the same number in the
  subtopology that reads its topic.
Source: kafka-streams-groups, for the vocabulary (KIP-1071).
"""

from __future__ import annotations

from typing import Any

import click

from pylog.client.admin import group_lag
from pylog.client.admin.admin import Admin
from pylog.client.admin.types import (
    StreamsAssignment, StreamsGroupDescription, StreamsMemberDescription, StreamsTask,
)
from pylog.client.errors import GroupIdNotFoundError
from pylog.client.types import TopicPartition
from pylog.protocol.counts import counted
from pylog.tools.cli import cluster_queries, totals
from pylog.tools.cli.command import GROUP, Tools, Watchable
from pylog.tools.cli.output import span
from pylog.tools.cli.session import Session
from pylog.tools.groups import lag

LISTED = {"group": "GROUP", "state": "STATE", "coordinator": "COORDINATOR"}
TOPOLOGY = {"subtopology": "SUBTOPOLOGY", "sources": "SOURCES",
            "repartition_sources": "REPARTITION", "changelogs": "CHANGELOGS"}
PARTS = {"topic": "TOPIC", "partition": "PARTITION", "committed_offset": "COMMITTED",
         "end_offset": "END", "lag_records": "LAG", "lag_seconds": ("BEHIND", span),
         "task": "TASK", "client_id": "CLIENT"}
MEMBERS = {"member_id": "MEMBER", "process_id": "PROCESS", "client_id": "CLIENT",
           "member_epoch": "EPOCH", "topology_epoch": "TOPOLOGY", "active": "ACTIVE",
           "standby": "STANDBY", "warmup": "WARM-UP", "is_at_target": "AT TARGET"}


@click.group(cls=Tools)
def streams() -> None:
    """Streams groups: tasks, members and lag."""


@streams.command("list", cls=Watchable)
@click.argument("pattern", required=False)
@click.pass_obj
def list_groups(session: Session, pattern: str | None) -> None:
    """List Streams groups. PATTERN can contain * and ? as in a shell."""
    async def work(admin: Admin) -> tuple[list[dict[str, Any]], dict[str, str]]:
        return await cluster_queries.groups_of(admin.cluster, "streams", pattern)

    rows, failed = session.administer(work)
    session.out.rows(rows, LISTED, empty="no Streams groups")
    cluster_queries.check_complete(failed)


@streams.command(cls=Watchable)
@click.argument("names", nargs=-1, required=True, type=GROUP, metavar="GROUP...")
@click.pass_obj
def describe(session: Session, names: tuple[str, ...]) -> None:
    """Describe Streams groups: state, epochs, topology, and the lag of each partition."""
    async def work(admin: Admin) -> list[dict[str, Any]]:
        return [await _view(admin, name, session.now_ms) for name in names]

    found = session.administer(work)
    out = session.out
    if out.as_json:
        out.document(found)
    for at, row in enumerate([] if out.as_json else found):
        if at:
            out.line()
        out.title(row["group"])
        out.line(f"  state        {row['state']}")
        topology = "-" if row["topology_epoch"] is None else row["topology_epoch"]
        out.line(f"  epochs       group {row['group_epoch']}, "
                 f"assignment {row['assignment_epoch']}, topology {topology}")
        out.line(f"  members      {len(row['members'])}")
        out.line(f"  coordinator  {row['coordinator']}")
        out.line("  lag          " + ("-" if row["lag_records"] is None else
                                      counted(row["lag_records"], "record")))
        out.line()
        out.table(row["subtopologies"], TOPOLOGY, empty="it has no topology")
        out.line()
        out.table(row["partitions"], PARTS, empty="it reads nothing")
    totals.check_complete(part for row in found for part in row["missing_partitions"])


@streams.command(cls=Watchable)
@click.argument("name", type=GROUP, metavar="GROUP")
@click.pass_obj
def members(session: Session, name: str) -> None:
    """List the members of a Streams group with their tasks: active, standby, warm-up."""
    found = session.administer(lambda admin: _described(admin, name))
    session.out.rows([_member(member) for member in found.members], MEMBERS,
                     empty=f"{name} has no members ({found.state})")


async def _described(admin: Admin, name: str) -> StreamsGroupDescription:
    try:
        return (await admin.describe_streams_groups([name]))[name]
    except GroupIdNotFoundError:
        rows, _ = await cluster_queries.groups_of(admin.cluster, "streams", None)
        known = [group["group"] for group in rows]
        raise cluster_queries.unknown("Streams group", name, known) from None


async def _view(admin: Admin, name: str, now_ms: Any) -> dict[str, Any]:
    row = await _described(admin, name)
    committed = await admin.list_consumer_group_offsets(name)
    # By topic: the subtopology that reads it.
    reads = {topic: part.id for part in row.subtopologies
             for topic in (*part.sources, *part.repartition_sources)}
    runs = {task: member.client_id for member in row.members for task in member.assignment.active}
    parts = sorted({*committed, *await _read(admin, list(reads))})
    found = await group_lag.rows(
        admin.cluster, parts, {part: at.offset for part, at in committed.items()}, now_ms)
    for entry in found:
        # A partition belongs to the active task with the same number.
        task = StreamsTask(reads.get(entry["topic"], ""), entry["partition"])
        entry["task"] = _task(task) if task in runs else None
        entry["client_id"] = runs.get(task)
    return {"group": name, "state": row.state, "coordinator": row.coordinator,
            "group_epoch": row.group_epoch, "assignment_epoch": row.assignment_epoch,
            "topology_epoch": row.topology_epoch,
            "subtopologies": [{"subtopology": part.id, "sources": part.sources,
                               "repartition_sources": part.repartition_sources,
                               "repartition_sinks": part.repartition_sinks,
                               "changelogs": part.changelogs} for part in row.subtopologies],
            "members": [_member(member) for member in row.members],
            "lag_records": lag.total_of(found), "missing_partitions": lag.missing_of(found),
            "partitions": found}


async def _read(admin: Admin, topics: list[str]) -> list[TopicPartition]:
    """Return the partitions of the topics that exist."""
    there = await cluster_queries.all_topics(admin.cluster)
    return cluster_queries.partitions_of(
        [there.topics[name] for name in topics if name in there.topics])


def _member(member: StreamsMemberDescription) -> dict[str, Any]:
    return {"member_id": member.member_id, "instance_id": member.instance_id,
            "client_id": member.client_id, "host": member.host, "process_id": member.process_id,
            "endpoint": member.endpoint, "member_epoch": member.member_epoch,
            "topology_epoch": member.topology_epoch, "is_classic": member.is_classic,
            **_tasks(member.assignment), "target": _tasks(member.target),
            "is_at_target": _tasks(member.assignment) == _tasks(member.target)}


def _tasks(assignment: StreamsAssignment) -> dict[str, list[str]]:
    return {kind: [_task(task) for task in sorted(getattr(assignment, kind))]
            for kind in StreamsAssignment._fields}


def _task(task: StreamsTask) -> str:
    """Format a task id as Kafka Streams does."""
    return f"{task.subtopology}_{task.partition}"


COMMANDS = {"streams": streams}

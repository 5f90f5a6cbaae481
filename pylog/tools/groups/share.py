"""`pylog share`: share groups and their progress; dead_letters adds their dead letters.

Owns: nothing.
Invariants: read-only.
Source: kafka-share-groups, for the vocabulary.
"""

from __future__ import annotations

from typing import Any

import click

from pylog.client.admin.admin import Admin
from pylog.client.admin.types import ShareOffset
from pylog.client.errors import GroupIdNotFoundError
from pylog.client.types import TopicPartition
from pylog.protocol.counts import counted
from pylog.tools.cli import cluster_queries
from pylog.tools.cli.command import GROUP, Tools, Watchable
from pylog.tools.cli.session import Session
from pylog.tools.groups import dead_letters

LISTED = {"group": "GROUP", "state": "STATE", "coordinator": "COORDINATOR"}
PARTS = {"topic": "TOPIC", "partition": "PARTITION", "start_offset": "START", "lag": "LAG",
         "members": "MEMBERS"}


@click.group(cls=Tools)
def share() -> None:
    """Share groups: their progress and their dead letters."""


share.add_command(dead_letters.look)
share.add_command(dead_letters.redrive)
share.add_command(dead_letters.purge)


@share.command("list", cls=Watchable)
@click.argument("pattern", required=False)
@click.pass_obj
def list_groups(session: Session, pattern: str | None) -> None:
    """List share groups. PATTERN can contain * and ? as in a shell."""
    async def work(admin: Admin) -> tuple[list[dict[str, Any]], dict[str, str]]:
        return await cluster_queries.groups_of(admin.cluster, "share", pattern)

    rows, failed = session.administer(work)
    session.out.rows(rows, LISTED, empty="no share groups")
    cluster_queries.check_complete(failed)


@share.command(cls=Watchable)
@click.argument("names", nargs=-1, required=True, type=GROUP, metavar="GROUP...")
@click.pass_obj
def describe(session: Session, names: tuple[str, ...]) -> None:
    """Describe share groups: state, members, and the lag of each partition."""
    async def work(admin: Admin) -> list[dict[str, Any]]:
        return [await _described(admin, name) for name in names]

    found = session.administer(work)
    out = session.out
    if out.as_json:
        out.document(found)
        return
    for at, row in enumerate(found):
        if at:
            out.line()
        out.title(row["group"])
        out.line(f"  state         {row['state']}")
        out.line(f"  members       {row['members']}")
        out.line(f"  coordinator   {row['coordinator']}")
        out.line(f"  lag           "
                 f"{'-' if row['lag'] is None else counted(row['lag'], 'record')}")
        fault = row["dead_letter_fault"]
        out.line(f"  dead letters  {row['dead_letter_topic'] or 'none are written'}"
                 + (f", cannot be written: {fault}" if fault else ""))
        out.line()
        out.table(row["partitions"], PARTS, empty="it has not started yet")


async def _described(admin: Admin, name: str) -> dict[str, Any]:
    try:
        row = (await admin.describe_share_groups([name]))[name]
    except GroupIdNotFoundError:
        rows, _ = await cluster_queries.groups_of(admin.cluster, "share", None)
        known = [group["group"] for group in rows]
        raise cluster_queries.unknown("share group", name, known) from None
    offsets = await admin.list_share_group_offsets(name)
    members: dict[TopicPartition, int] = {}
    for member in row.members:
        for part in member.assignment:
            members[part] = members.get(part, 0) + 1
    parts = [_part(part, offsets.get(part, ShareOffset(-1, -1, -1)), members.get(part, 0))
             for part in sorted({*offsets, *members})]
    lags = [part["lag"] for part in parts]
    topic = await dead_letters.topic_of(admin, name)
    return {"group": name, "state": row.state, "coordinator": row.coordinator,
            "members": len(row.members), "lag": None if None in lags else sum(lags),
            "dead_letter_topic": topic, "partitions": parts,
            "dead_letter_fault": await dead_letters.fault_of(admin, topic) if topic else None}


def _part(part: TopicPartition, at: ShareOffset, members: int) -> dict[str, Any]:
    return {"topic": part.topic, "partition": part.partition,
            "start_offset": at.start_offset if at.start_offset >= 0 else None,
            "lag": at.lag if at.lag >= 0 else None, "members": members}


COMMANDS = {"share": share}

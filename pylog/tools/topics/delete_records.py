"""`pylog topics delete-records`: delete the records before an offset or a time.

Owns: nothing.
Invariants: the deletion is printed first and requires confirmation; an offset outside the log is
  moved to the nearer end of the log.
Source: kafka-delete-records (KIP-107).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pylog.client.types import TopicPartition
from pylog.protocol.counts import counted
from pylog.tools.cli import cluster_queries
from pylog.tools.cli.command import TOPIC, Tool, confirmed
from pylog.tools.cli.session import Session
from pylog.tools.cli.time_arguments import moment

if TYPE_CHECKING:
    from pylog.client.admin.admin import Admin

PARTS = {"topic": "TOPIC", "partition": "PARTITION", "start_offset": "START",
         "new_start_offset": "NEW START", "end_offset": "END", "records": "RECORDS"}


@click.command("delete-records", cls=Tool)
@click.argument("names", nargs=-1, required=True, type=TOPIC, metavar="TOPIC[:0,1]...")
@click.option("--before", "before", required=True, metavar="WHERE", help="An offset, `end` for "
              "all, or a time: 2026-11-01T10:00, -7d, @seconds.")
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.pass_obj
def delete_records(session: Session, names: tuple[str, ...], before: str, dry_run: bool,
                   yes: bool) -> None:
    """Delete the records before an offset or a time, which becomes the log start offset."""
    async def query(admin: Admin) -> list[dict[str, Any]]:
        parts = [part for name in names
                 for part in await cluster_queries.named(admin.cluster, name)]
        first, last = await cluster_queries.known_offset_bounds(admin.cluster, parts)
        wanted = await _wanted(session, admin, before, last)
        return [_row(part, first[part], last[part], wanted[part]) for part in parts]

    rows = session.administer(query)
    if session.out.as_json:
        session.out.document({"executed": not dry_run, "partitions": rows})
    else:
        session.out.table(rows, PARTS)
    count = sum(row["records"] for row in rows)
    if dry_run or not count:
        return
    confirmed(f"Delete {counted(count, 'record')}?", yes)  # Print first, then require confirmation.
    session.administer(lambda admin: admin.delete_records({
        TopicPartition(row["topic"], row["partition"]): row["new_start_offset"]
        for row in rows if row["records"]}, session.timeout_s))
    session.out.line(f"{counted(count, 'record')} deleted")


async def _wanted(session: Session, admin: Admin, before: str,
                  last: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
    if before == "end":
        return last
    if before.isdigit():
        return dict.fromkeys(last, int(before))
    when = moment(before.removeprefix("@"), session.now_ms())
    return await cluster_queries.at_time(admin.cluster, last, when)


def _row(part: TopicPartition, low: int, high: int, wanted: int) -> dict[str, Any]:
    """Return the offsets, clamped to the log."""
    target = min(max(wanted, low), high)
    return {"topic": part.topic, "partition": part.partition, "start_offset": low,
            "new_start_offset": target, "end_offset": high, "records": target - low}

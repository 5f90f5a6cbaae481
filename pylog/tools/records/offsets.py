"""`pylog offsets`: first and last offsets of partitions, and offsets by time.

Owns: nothing.
Invariants: the offset for a time is that of the first record at or after it, or the end offset
  without such a record.
Source: Kafka's ListOffsets.
"""

from __future__ import annotations

from typing import Any

import click

from pylog.client.network.cluster import Cluster
from pylog.tools.cli import cluster_queries
from pylog.tools.cli import totals
from pylog.tools.cli.command import TOPIC, Watchable
from pylog.tools.cli.session import Session
from pylog.tools.cli.time_arguments import moment, shown

ENDS = {"topic": "TOPIC", "partition": "PARTITION", "start_offset": "START", "end_offset": "END",
        "records": "RECORDS"}
AT = {"topic": "TOPIC", "partition": "PARTITION", "offset": "OFFSET", "timestamp": ("TIME", shown)}


@click.command(cls=Watchable)
@click.argument("names", nargs=-1, type=TOPIC, metavar="[TOPIC]...")
@click.option("--at", "at", metavar="TIME", help="First offset at or after a time: "
              "2026-11-01T10:00, -10m, seconds since 1970.")
@click.option("--latest-time", is_flag=True,
              help="Offset of the record with the greatest timestamp.")
@click.option("--committed", is_flag=True, help="End offset for a read_committed consumer.")
@click.pass_obj
def offsets(session: Session, names: tuple[str, ...], at: str | None, latest_time: bool,
            committed: bool) -> None:
    """Show first and last offsets of topics, or the offsets for a time; without TOPIC of all
    topics.
    """
    time_ms = moment(at, session.now_ms()) if at else None

    async def work(cluster: Cluster) -> list[dict[str, Any]]:
        infos = await cluster_queries.topics(cluster, names) if names else [
            row for _, row in sorted((await cluster_queries.all_topics(cluster)).topics.items())
            if not row.is_internal]
        parts = cluster_queries.partitions_of(infos)
        if time_ms is None and not latest_time:
            first = await cluster_queries.offsets(
                cluster, dict.fromkeys(parts, cluster_queries.EARLIEST))
            last = await cluster_queries.offsets(
                cluster, dict.fromkeys(parts, cluster_queries.LATEST), int(committed))
            return [_ends(part, first.get(part), last.get(part)) for part in parts]
        wanted = cluster_queries.MAX_TIMESTAMP if time_ms is None else time_ms
        found = await cluster_queries.offsets(cluster, dict.fromkeys(parts, wanted))
        last = await cluster_queries.offsets(cluster, dict.fromkeys(parts, cluster_queries.LATEST))
        return [_at(part, found.get(part), last.get(part)) for part in parts]

    rows = session.run(work)
    is_ends = time_ms is None and not latest_time
    session.out.rows(rows, ENDS if is_ends else AT)
    totals.check_complete({**row, "error": value} for row in rows for value in (
        (row["end_offset"], row["start_offset"]) if is_ends else (row["offset"],))
        if not isinstance(value, int))


def _ends(part: Any, first: Any, last: Any) -> dict[str, Any]:
    low = first[0] if isinstance(first, tuple) else first
    high = last[0] if isinstance(last, tuple) else last
    known = isinstance(low, int) and isinstance(high, int)
    return {"topic": part.topic, "partition": part.partition, "start_offset": low,
            "end_offset": high, "records": high - low if known else None}


def _at(part: Any, found: Any, last: Any) -> dict[str, Any]:
    """Return the offset of the first record at or after a time, else the end offset."""
    row = {"topic": part.topic, "partition": part.partition, "offset": found, "timestamp": None}
    if isinstance(found, tuple):
        row["offset"], row["timestamp"] = found
        if row["offset"] < 0:
            row["offset"], row["timestamp"] = last[0] if isinstance(last, tuple) else last, None
    return row


COMMANDS = {"offsets": offsets}

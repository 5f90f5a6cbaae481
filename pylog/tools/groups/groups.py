"""`pylog groups`: list groups, their members and lag, and reset offsets.

Owns: nothing.
Invariants: offsets change only with --execute and only for a group without members; an offset
  outside the log is moved to the nearer end of the log.
Source: kafka-consumer-groups, for the vocabulary.
"""

from __future__ import annotations

import fnmatch
from typing import Any

import click

from pylog.client.admin.admin import Admin
from pylog.client.errors import KafkaError
from pylog.client.types import TopicPartition
from pylog.protocol.counts import counted
from pylog.tools.cli import cluster_queries, totals
from pylog.tools.cli.command import GROUP, Tools, Watchable, confirmed
from pylog.tools.cli.output import span
from pylog.tools.cli.session import Session, ToolError
from pylog.tools.cli.time_arguments import moment
from pylog.tools.groups import explain, lag, rebalance_history

STATES = ("Empty", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling",
          "NotReady", "Stable", "Dead")  # The states of all types of groups.
LISTED = {"group": "GROUP", "state": "STATE", "type": "TYPE", "coordinator": "COORDINATOR"}
LONG = {"group": "GROUP", "state": "STATE", "type": "TYPE", "members": "MEMBERS",
        "partitions": "PARTITIONS", "lag_records": "LAG"}
PARTS = {"topic": "TOPIC", "partition": "PARTITION", "committed_offset": "COMMITTED",
         "end_offset": "END", "lag_records": "LAG", "lag_seconds": ("BEHIND", span),
         "client_id": "CLIENT", "member_id": "MEMBER"}
MEMBERS = {"member_id": "MEMBER", "instance_id": "INSTANCE", "client_id": "CLIENT", "host": "HOST",
           "partition_count": "PARTITIONS", "lag_records": "LAG", "lag_seconds": ("BEHIND", span),
           "assigned": "ASSIGNED"}
RESET = {"topic": "TOPIC", "partition": "PARTITION", "committed_offset": "COMMITTED",
         "new_offset": "NEW", "change": "CHANGE"}
CLAMPED = {**RESET, "wanted_offset": "WANTED"}


@click.group(cls=Tools)
def groups() -> None:
    """Consumer groups: lag, members, offsets, and why a group lags."""


groups.add_command(explain.explain)
groups.add_command(rebalance_history.history)


@groups.command("list", cls=Watchable)
@click.argument("pattern", required=False)
@click.option("-l", "--long", "is_long", is_flag=True, help="Show members and lag.")
@click.option("--state", "states", multiple=True, type=click.Choice(STATES, case_sensitive=False),
              metavar="STATE", help="Only in this state; may be repeated.")
@click.pass_obj
def list_groups(session: Session, pattern: str | None, is_long: bool,
                states: tuple[str, ...]) -> None:
    """List groups. PATTERN can contain * and ? as in a shell."""
    async def work(admin: Admin) -> tuple[list[dict[str, Any]], dict[str, str]]:
        listed, failed = await cluster_queries.groups(admin.cluster)
        rows = [row for row in listed
                if fnmatch.fnmatchcase(row["group"], pattern or "*")
                and (not states or row["state"] in states)]
        if is_long:
            amounts = await lag.totals(admin, [row["group"] for row in rows])
            for row in rows:
                row.update(amounts[row["group"]])
                if row["error"] is not None:
                    failed[f"group {row['group']}"] = row["error"]
        return rows, failed

    rows, failed = session.administer(work)
    session.out.rows(rows, LONG if is_long else LISTED, empty="no groups")
    cluster_queries.check_complete(failed)
    totals.check_complete(part for row in rows for part in row.get("missing_partitions", ()))


@groups.command(cls=Watchable)
@click.argument("names", nargs=-1, required=True, type=GROUP, metavar="GROUP...")
@click.pass_obj
def describe(session: Session, names: tuple[str, ...]) -> None:
    """Describe groups: state, and the lag of each partition in records and in time."""
    async def work(admin: Admin) -> list[dict[str, Any]]:
        return [await lag.view(admin, name, session.now_ms) for name in names]

    found = session.administer(work)
    out = session.out
    if out.as_json:
        out.document(found)
    for at, row in enumerate([] if out.as_json else found):
        if at:
            out.line()
        out.title(row["group"])
        out.line(f"  state        {row['state']} ({row['type']}"
                 f"{', ' + row['assignor'] if row['assignor'] else ''})")
        out.line(f"  members      {len(row['members'])}")
        out.line(f"  coordinator  {row['coordinator']}")
        out.line(f"  lag          {_lag_text(row)}")
        out.line()
        out.table(row["partitions"], PARTS, empty="it has committed nothing")
    totals.check_complete(part for row in found for part in row["missing_partitions"])


def _lag_text(row: dict[str, Any]) -> str:
    if row["lag_records"] is None:
        return "-"
    behind = f", {span(row['lag_seconds'])} behind" if row["lag_seconds"] else ""
    return f"{counted(row['lag_records'], 'record')}{behind}"


@groups.command(cls=Watchable)
@click.argument("name", type=GROUP, metavar="GROUP")
@click.pass_obj
def members(session: Session, name: str) -> None:
    """List the members of a group with their partitions and lag."""
    found = session.administer(lambda admin: lag.view(admin, name, session.now_ms))
    rows = []
    for member in found["members"]:
        own = [row for row in found["partitions"] if row["member_id"] == member["member_id"]]
        ages = [row["lag_seconds"] for row in own if row["lag_seconds"] is not None]
        rows.append({**member, "partition_count": len(own),
                     "lag_records": lag.total_of(own),
                     "lag_seconds": max(ages) if ages else None,
                     "missing_partitions": lag.missing_of(own), "assigned": _assigned(own)})
    session.out.rows(rows, MEMBERS, empty=f"{name} has no members ({found['state']})")
    totals.check_complete(part for row in rows for part in row["missing_partitions"])


def _assigned(parts: list[dict[str, Any]]) -> str:
    by_topic: dict[str, list[str]] = {}
    for row in parts:
        by_topic.setdefault(row["topic"], []).append(str(row["partition"]))
    return " ".join(f"{topic}:{','.join(numbers)}" for topic, numbers in by_topic.items())


@groups.command()
@click.argument("names", nargs=-1, required=True, type=GROUP, metavar="GROUP...")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.pass_obj
def delete(session: Session, names: tuple[str, ...], yes: bool) -> None:
    """Delete groups without members, including their offsets."""
    confirmed(f"Delete {', '.join(names)} with all offsets?", yes)

    async def work(admin: Admin) -> list[dict[str, Any]]:
        rows = []
        for name in names:
            row: dict[str, Any] = {"group": name, "deleted": False, "error": None}
            rows.append(row)
            try:
                await lag.described(admin, name)
                await admin.delete_consumer_groups([name])
                row["deleted"] = True
            except (ToolError, KafkaError) as error:
                row["error"] = str(error)
        return rows

    rows = session.administer(work)
    if session.out.as_json:
        session.out.document(rows)
    for row in rows:
        if row["deleted"]:
            session.out.line(f"{row['group']} deleted")
    failed = [row["error"] for row in rows if row["error"]]
    if failed:
        raise ToolError("; ".join(failed))


@groups.command("delete-offsets")
@click.argument("name", type=GROUP, metavar="GROUP")
@click.option("-t", "--topic", "topics", multiple=True, required=True, metavar="TOPIC[:0,1]",
              help="Offsets of these partitions; may be repeated.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.pass_obj
def delete_offsets(session: Session, name: str, topics: tuple[str, ...], yes: bool) -> None:
    """Delete a group's offsets of topics that no member subscribes to."""
    async def query(admin: Admin) -> list[TopicPartition]:
        await lag.described(admin, name)
        committed = await admin.list_consumer_group_offsets(name)
        return [part for text in topics for part in await cluster_queries.named(admin.cluster, text)
                if part in committed]

    parts = session.administer(query)
    if not parts:
        raise ToolError(f"group {name} has committed nothing there")
    shown = ", ".join(f"{part.topic}-{part.partition}" for part in parts)
    confirmed(f"Forget the offsets of {shown}?", yes)
    session.administer(lambda admin: admin.delete_consumer_group_offsets(
        name, parts, session.timeout_s))
    session.out.result({"group": name, "partitions": parts}, f"{name} has no offsets of {shown}")


@groups.command("reset-offsets")
@click.argument("name", type=GROUP, metavar="GROUP")
@click.option("-t", "--topic", "topics", multiple=True, metavar="TOPIC[:0,1]",
              help="Only these partitions; may be repeated.  [default: all with offsets]")
@click.option("--to-earliest", "way", flag_value="earliest", help="Reset to the first record.")
@click.option("--to-latest", "way", flag_value="latest", help="Reset to the end.")
@click.option("--to-offset", type=click.IntRange(min=0), metavar="N", help="Reset to an offset.")
@click.option("--shift-by", type=int, metavar="N",
              help="Move forward by N records, or back with -N.")
@click.option("--to-time", metavar="TIME", help="Reset to the first record at or after a time: "
              "2026-11-01T10:00 or -10m.")
@click.option("--execute", is_flag=True,
              help="Commit the offsets; without this option, only show them.")
@click.pass_obj
def reset_offsets(session: Session, name: str, topics: tuple[str, ...], way: str | None,
                  to_offset: int | None, shift_by: int | None, to_time: str | None,
                  execute: bool) -> None:
    """Show the offsets that a reset would commit; commit them with --execute."""
    ways = [one for one in (way, to_offset, shift_by, to_time) if one is not None]
    if len(ways) != 1:
        raise click.UsageError("name one of --to-earliest, --to-latest, --to-offset, --shift-by, "
                               "--to-time")
    time_ms = moment(to_time, session.now_ms()) if to_time is not None else None

    async def work(admin: Admin) -> list[dict[str, Any]]:
        committed = {part: row.offset for part, row in
                     (await admin.list_consumer_group_offsets(name)).items()}
        parts = await _selected_partitions(admin, name, topics, committed)
        if execute:
            await _refuse_members(admin, name)
        rows = await _targets(admin, parts, committed, way, to_offset, shift_by, time_ms)
        if execute:
            await admin.alter_consumer_group_offsets(name, {
                TopicPartition(row["topic"], row["partition"]): row["new_offset"]
                for row in rows})
        return rows

    rows = session.administer(work)
    if session.out.as_json:
        session.out.document({"group": name, "executed": execute, "partitions": rows})
        return
    clamped = [row for row in rows if row["wanted_offset"] != row["new_offset"]]
    session.out.table(rows, CLAMPED if clamped else RESET)
    for row in clamped:
        session.out.line(_clamp_text(row))
    session.out.line(f"{name} continues there" if execute
                     else "nothing was changed; add --execute to apply it")


async def _refuse_members(admin: Admin, name: str) -> None:
    """Raise ToolError if the group has members. A group that does not exist yet is accepted."""
    try:
        described = await lag.described(admin, name)
    except ToolError:
        return
    if described.members:
        who = ", ".join(sorted({member.client_id for member in described.members})[:3])
        raise ToolError(f"group {name} has {counted(len(described.members), 'member')} ({who}): "
                        "stop the group first, its commits would overwrite the change")


async def _selected_partitions(admin: Admin, name: str, topics: tuple[str, ...],
                               committed: dict[TopicPartition, int]) -> list[TopicPartition]:
    if not topics:
        if not committed:
            await lag.described(admin, name)
            raise ToolError(f"group {name} has committed nothing: name topics with --topic")
        await admin.cluster.refresh({part.topic for part in committed})
        return sorted(committed)
    return [part for text in topics for part in await cluster_queries.named(admin.cluster, text)]


async def _targets(admin: Admin, parts: list[TopicPartition],
                   committed: dict[TopicPartition, int], way: str | None, to_offset: int | None,
                   shift_by: int | None, time_ms: int | None) -> list[dict[str, Any]]:
    first, last = await cluster_queries.known_offset_bounds(admin.cluster, parts)
    timed = {} if time_ms is None else await cluster_queries.at_time(admin.cluster, last, time_ms)
    rows = []
    for part in parts:
        low, high = first[part], last[part]
        current = committed.get(part)
        if way is not None:
            target = {"earliest": low, "latest": high}[way]
        elif to_offset is not None:
            target = to_offset
        elif shift_by is not None:
            if current is None:
                raise ToolError(f"{part} has no committed offset to shift from")
            target = current + shift_by
        else:
            target = timed[part]
        nearer = min(max(target, low), high)  # Clamp the offset to the log.
        rows.append({"topic": part.topic, "partition": part.partition,
                     "committed_offset": current, "new_offset": nearer, "wanted_offset": target,
                     "change": None if current is None else nearer - current})
    return rows


def _clamp_text(row: dict[str, Any]) -> str:
    wanted, found = row["wanted_offset"], row["new_offset"]
    end = "the log ends at" if wanted > found else "the log begins at"
    return f"{row['topic']}-{row['partition']}: {wanted} is not there, {end} {found}: {found} it is"


COMMANDS = {"groups": groups}

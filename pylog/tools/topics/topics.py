"""`pylog topics`: list, describe, create, branch, alter and delete topics, and list partitions.

Owns: nothing.
Invariants: a change of several topics is attempted for all of them; the exit code is non-zero if
  one failed.
Source: Kafka's CreateTopics, DeleteTopics, CreatePartitions, Metadata.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Awaitable
from typing import Any

import click

from pylog.client.admin.admin import Admin
from pylog.client.admin.types import NewTopic
from pylog.client.errors import KafkaError
from pylog.client.network.cluster import Cluster
from pylog.client.types import TopicPartition
from pylog.protocol.counts import counted
from pylog.protocol.errors import ErrorCode
from pylog.tools.cli import cluster_queries, totals
from pylog.tools.cli import config_resources
from pylog.tools.cli.command import TOPIC, Tools, Watchable, confirmed, pairs
from pylog.tools.cli.output import cell, size
from pylog.tools.cli.session import Session, ToolError
from pylog.tools.topics.branch import branch
from pylog.tools.topics.delete_records import delete_records

LISTED = {"topic": "TOPIC", "partitions": "PARTITIONS", "replicas": "REPLICAS"}
LONG = {**LISTED, "records": "RECORDS", "bytes": ("SIZE", size)}
PARTS = {"topic": "TOPIC", "partition": "PARTITION", "leader": "LEADER", "replicas": "REPLICAS",
         "isr": "ISR", "start_offset": "START", "end_offset": "END", "records": "RECORDS",
         "bytes": ("SIZE", size)}


@click.group(cls=Tools)
def topics() -> None:
    """List, describe, create, change and delete topics."""


@topics.command("list", cls=Watchable)
@click.argument("pattern", required=False)
@click.option("-l", "--long", "is_long", is_flag=True, help="Show records and bytes.")
@click.option("-i", "--internal", is_flag=True, help="Include internal topics.")
@click.pass_obj
def list_topics(session: Session, pattern: str | None, is_long: bool, internal: bool) -> None:
    """List topics. PATTERN can contain * and ? as in a shell."""
    async def work(cluster: Cluster) -> list[dict[str, Any]]:
        metadata = await cluster_queries.all_topics(cluster)
        rows = [row for name, row in sorted(metadata.topics.items())
                if fnmatch.fnmatchcase(name, pattern or "*") and (internal or not row.is_internal)]
        made = [{"topic": row.name, "partitions": len(row.partitions),
                 "replicas": max((len(part.replicas) for part in row.partitions.values()),
                                 default=0),
                 "internal": row.is_internal} for row in rows]
        if is_long:
            await _add_amounts(cluster, rows, made)
        return made

    found = session.run(work)
    session.out.rows(found, LONG if is_long else LISTED, empty="no topics")
    totals.check_complete(part for row in found for part in row.get("missing_partitions", ()))


async def _add_amounts(cluster: Cluster, rows: list[Any], made: list[dict[str, Any]]) -> None:
    first, last = await cluster_queries.offset_bounds(cluster, cluster_queries.partitions_of(rows))
    bytes_of = await cluster_queries.sizes(cluster)
    for info, row in zip(rows, made):
        parts = [TopicPartition(info.name, number) for number in info.partitions]
        row["records"] = totals.total(_between(first, last, part) for part in parts)
        row["bytes"] = totals.total(bytes_of.get(part) for part in parts)
        row["missing_partitions"] = _missing(parts, first, last, bytes_of)


def _missing(parts: list[TopicPartition], first: dict[Any, Any], last: dict[Any, Any],
             bytes_of: dict[TopicPartition, int]) -> list[dict[str, Any]]:
    """Return [{topic, partition, error}] of the partitions that totals exclude."""
    missing = cluster_queries.unread(parts, first, last)
    named = {(row["topic"], row["partition"]) for row in missing}
    return missing + [{"topic": part.topic, "partition": part.partition, "error": "unknown size"}
                      for part in parts if part not in bytes_of and part not in named]


def _between(first: dict[Any, Any], last: dict[Any, Any], part: TopicPartition) -> int | None:
    low, high = first.get(part), last.get(part)
    return high - low if isinstance(low, int) and isinstance(high, int) else None


async def _parts(cluster: Cluster, rows: list[Any]
                 ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return (one row for each partition, the partitions that totals exclude)."""
    parts = cluster_queries.partitions_of(rows)
    first, last = await cluster_queries.offset_bounds(cluster, parts)
    bytes_of = await cluster_queries.sizes(cluster)
    found = []
    for info in rows:
        for number, part in info.partitions.items():
            at = TopicPartition(info.name, number)
            found.append({
                "topic": info.name, "partition": number,
                "leader": part.leader if part.leader >= 0 else "none",
                "replicas": list(part.replicas), "isr": list(part.isr),
                "offline": list(part.offline_replicas),
                "start_offset": first.get(at), "end_offset": last.get(at),
                "records": _between(first, last, at), "bytes": bytes_of.get(at)})
    return found, _missing(parts, first, last, bytes_of)


@topics.command(cls=Watchable)
@click.argument("names", nargs=-1, required=True, type=TOPIC, metavar="TOPIC...")
@click.pass_obj
def describe(session: Session, names: tuple[str, ...]) -> None:
    """Describe topics (names or patterns): id, settings that are not defaults, partitions."""
    async def work(cluster: Cluster) -> list[dict[str, Any]]:
        rows = await cluster_queries.topics(cluster, names)
        parts, missing = await _parts(cluster, rows)
        made = []
        for info in rows:
            configs = await config_resources.described(cluster, config_resources.TOPIC, info.name)
            own = [part for part in parts if part["topic"] == info.name]
            made.append({
                "topic": info.name, "id": config_resources.uuid_text(info.id),
                "internal": info.is_internal, "partition_count": len(own),
                "replicas": max((len(part["replicas"]) for part in own), default=0),
                "records": totals.total(part["records"] for part in own),
                "bytes": totals.total(part["bytes"] for part in own),
                "missing_partitions": [part for part in missing if part["topic"] == info.name],
                "configs": {row["name"]: row["value"] for row in configs
                            if row["source"] == "topic"},
                "partitions": own})
        return made

    found = session.run(work)
    if session.out.as_json:
        session.out.document(found)
    for at, row in enumerate([] if session.out.as_json else found):
        if at:
            session.out.line()
        _describe(session, row)
    totals.check_complete(part for row in found for part in row["missing_partitions"])


def _describe(session: Session, row: dict[str, Any]) -> None:
    out = session.out
    out.title(row["topic"])
    out.line(f"  id          {row['id']}")
    out.line(f"  partitions  {row['partition_count']} x {counted(row['replicas'], 'replica')}")
    out.line(f"  records     {cell(row['records'])}  ({size(row['bytes'])})")
    for number, (name, value) in enumerate(row["configs"].items()):
        out.line(f"  {'settings' if number == 0 else '':<10}  {name}={value}")
    out.line()
    out.table(row["partitions"], {key: head for key, head in PARTS.items() if key != "topic"})


@topics.command(cls=Watchable)
@click.argument("names", nargs=-1, type=TOPIC, metavar="[TOPIC]...")
@click.option("--under-replicated", is_flag=True, help="Only under-replicated partitions.")
@click.option("--offline", is_flag=True, help="Only partitions without a leader.")
@click.pass_obj
def partitions(session: Session, names: tuple[str, ...], under_replicated: bool,
               offline: bool) -> None:
    """List partitions with leader, replicas, offsets and size."""
    async def work(cluster: Cluster) -> list[dict[str, Any]]:
        if names:
            rows = await cluster_queries.topics(cluster, names)
        else:
            metadata = await cluster_queries.all_topics(cluster)
            rows = [row for _, row in sorted(metadata.topics.items())]
        found, _ = await _parts(cluster, rows)
        return found

    found = session.run(work)
    if under_replicated:
        found = [row for row in found if len(row["isr"]) < len(row["replicas"])]
    if offline:
        found = [row for row in found if row["leader"] == "none"]
    session.out.rows(found, PARTS, empty="no partitions")


@topics.command()
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...")
@click.option("-p", "--partitions", "partition_count", type=click.IntRange(min=1),
              help="Number of partitions.  [default: the broker's num.partitions]")
@click.option("-r", "--replicas", type=click.IntRange(min=1),
              help="Replication factor.  [default: the broker's default.replication.factor]")
@click.option("-s", "--set", "settings", metavar="KEY=VALUE", multiple=True,
              help="A setting of the topic; may be repeated.")
@click.option("--if-not-exists", is_flag=True, help="Ignore topics that exist.")
@click.option("--dry-run", is_flag=True, help="Validate only; change nothing.")
@click.pass_obj
def create(session: Session, names: tuple[str, ...], partition_count: int | None,
           replicas: int | None, settings: tuple[str, ...], if_not_exists: bool,
           dry_run: bool) -> None:
    """Create topics."""
    configs = pairs(settings, "--set")
    wanted = [NewTopic(name, partition_count or -1, replicas or -1, configs=configs)
              for name in names]

    async def work(admin: Admin) -> list[dict[str, Any]]:
        ended = await _tried(admin.create_topics(wanted, dry_run, session.timeout_s))
        rows = []
        for name in names:
            result = ended.get(name)
            failure = result if isinstance(result, KafkaError) else None
            if failure is not None and failure.code == ErrorCode.INVALID_CONFIG:
                await config_resources.check_names(
                    admin.cluster, config_resources.TOPIC, None, configs)
            if if_not_exists and failure is not None \
                    and failure.code == ErrorCode.TOPIC_ALREADY_EXISTS:
                failure = None
            id_ = config_resources.uuid_text(result) if isinstance(result, bytes) else None
            rows.append({"topic": name, "id": id_,
                         "error": failure and _sentence(failure)})
        return rows

    _outcome(session, session.administer(work), "would be created" if dry_run else "created")


async def _tried(change: Awaitable[Any]) -> dict[str, Any]:
    """Return {topic: result or error} of a change of several topics. Attempts all of them."""
    try:
        return await change or {}
    except KafkaError as error:
        results: dict[str, Any] | None = getattr(error, "results", None)
        if results is None:
            raise
        return results


def _sentence(error: KafkaError) -> str:
    return f"topic {cluster_queries.error_text(error)}"


def _outcome(session: Session, rows: list[dict[str, Any]], what: str) -> None:
    """Print the results; fail if one of them failed."""
    if session.out.as_json:
        session.out.document(rows)
    failed = [row["error"] for row in rows if row["error"]]
    for row in rows:
        if not row["error"] and row.get("deleted", True):
            session.out.line(f"{row['topic']} {what}")
    if failed:
        raise ToolError("; ".join(failed))


@topics.command()
@click.argument("names", nargs=-1, required=True, type=TOPIC, metavar="TOPIC...")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--if-exists", is_flag=True, help="Ignore topics that do not exist.")
@click.pass_obj
def delete(session: Session, names: tuple[str, ...], yes: bool, if_exists: bool) -> None:
    """Delete topics with all their records (names or patterns with * and ? as in a shell)."""
    if any(map(cluster_queries.is_pattern, names)):
        names = tuple(session.run(lambda cluster: cluster_queries.matching(cluster, names)))
    confirmed(f"Delete {', '.join(names)} with all records?", yes)

    async def work(admin: Admin) -> list[dict[str, Any]]:
        ended = await _tried(admin.delete_topics(names, session.timeout_s))
        rows = []
        for name in names:
            failure = ended.get(name)
            is_gone = isinstance(failure, KafkaError) \
                and failure.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            message = _sentence(failure) if isinstance(failure, KafkaError) else None
            if is_gone:
                message = None if if_exists else str(cluster_queries.unknown(
                    "topic", name, await cluster_queries.topic_names(admin.cluster)))
            rows.append({"topic": name, "deleted": not isinstance(failure, KafkaError),
                         "error": message})
        return rows

    _outcome(session, session.administer(work), "deleted")


@topics.command()
@click.argument("name", type=TOPIC, metavar="TOPIC")
@click.option("-p", "--partitions", "partition_count", type=click.IntRange(min=1),
              help="New number of partitions; it can only grow.")
@click.option("-s", "--set", "settings", metavar="KEY=VALUE", multiple=True,
              help="Set a setting; may be repeated.")
@click.option("-u", "--unset", "unset", metavar="KEY", multiple=True,
              help="Reset a setting to its default; may be repeated.")
@click.option("--dry-run", is_flag=True, help="Validate only; change nothing.")
@click.pass_obj
def alter(session: Session, name: str, partition_count: int | None, settings: tuple[str, ...],
          unset: tuple[str, ...], dry_run: bool) -> None:
    """Add partitions to a topic, or change its settings."""
    changes: dict[str, str | None] = {**pairs(settings, "--set"), **dict.fromkeys(unset)}
    if not changes and partition_count is None:
        raise click.UsageError("nothing to alter: --partitions, --set or --unset")

    async def work(admin: Admin) -> None:
        await cluster_queries.topics(admin.cluster, [name])
        if partition_count is not None:
            ended = await _tried(admin.create_partitions({name: partition_count}, dry_run,
                                                         session.timeout_s))
            if isinstance(ended.get(name), KafkaError):
                raise ToolError(_sentence(ended[name]))
        if changes:
            await config_resources.alter(admin, config_resources.TOPIC, name, changes, dry_run)

    session.administer(work)
    session.out.result({"topic": name, "partitions": partition_count, "configs": changes,
                        "dry_run": dry_run},
                       f"{name} {'would be altered' if dry_run else 'altered'}")


topics.add_command(branch)
topics.add_command(delete_records)

COMMANDS = {"topics": topics}

"""Consumer groups with their members, offsets and lag, in records and in seconds.

Owns: nothing.
Invariants: a total lag excludes partitions with unknown end offsets, which the group's
  missing_partitions lists.
Source: kafka-consumer-groups for the meaning of lag; works with any Kafka broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from pylog.client.admin import group_lag
from pylog.client.admin.admin import Admin
from pylog.client.errors import GroupIdNotFoundError, KafkaError
from pylog.client.types import TopicPartition
from pylog.config.errors import nearest
from pylog.tools.cli import cluster_queries
from pylog.tools.cli.totals import total
from pylog.tools.cli.session import ToolError


async def described(admin: Admin, group: str) -> Any:
    """Return the group's description. Raises ToolError if the group does not exist."""
    try:
        return (await admin.describe_consumer_groups([group]))[group]
    except GroupIdNotFoundError:
        known = {row.group_id: row.type.lower() for row in await admin.list_groups()}
        if group in known:
            raise ToolError(f"{group} is a {known[group]} group: see pylog {known[group]} describe"
                            ) from None
        near = nearest(group, list(known))
        hint = f"; nearest valid name: {near}" if near else ""
        raise ToolError(f"no such group: {group!r}{hint}") from None


async def view(admin: Admin, group: str, now_ms: Any, with_seconds: bool = True) -> dict[str, Any]:
    """Return a group with members and partitions. now_ms: a function. Raises ToolError, KafkaError.
    """
    group_row = await described(admin, group)
    committed = await admin.list_consumer_group_offsets(group)
    members = [{"member_id": member.member_id, "instance_id": member.group_instance_id,
                "client_id": member.client_id, "host": member.host,
                "partitions": [[part.topic, part.partition]
                               for part in sorted(member.assignment)]}
               for member in group_row.members]
    owner = {part: row for member, row in zip(group_row.members, members)
             for part in member.assignment}
    parts = sorted({*committed, *owner})
    found = await group_lag.rows(
        admin.cluster, parts, {part: row.offset for part, row in committed.items()},
        now_ms if with_seconds else None)
    for row in found:
        owned_by = owner.get(TopicPartition(row["topic"], row["partition"]))
        row["member_id"] = owned_by["member_id"] if owned_by else None
        row["client_id"] = owned_by["client_id"] if owned_by else None
    ages = [row["lag_seconds"] for row in found if row["lag_seconds"] is not None]
    return {"group": group, "state": group_row.state, "type": group_row.type,
            "assignor": group_row.assignor,
            "coordinator": group_row.coordinator, "members": members,
            "lag_records": total_of(found), "lag_seconds": max(ages) if ages else None,
            "missing_partitions": missing_of(found), "partitions": found}


def _counted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of group_lag.rows() with a committed offset; their lag can be unknown."""
    return [row for row in rows
            if row["committed_offset"] is not None and row["committed_offset"] >= 0]


def total_of(rows: list[dict[str, Any]]) -> int | None:
    """Return the sum of the lags of group_lag.rows(); None if nothing is committed or no lag is
    known.
    """
    having = _counted(rows)
    return total(row["lag_records"] for row in having) if having else None


def missing_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return [{topic, partition, error}] of the partitions that total_of() excludes."""
    return [{name: row[name] for name in ("topic", "partition", "error")}
            for row in _counted(rows) if row["error"]]


async def totals(admin: Admin, names: list[str]) -> dict[str, dict[str, Any]]:
    """Return {group: {members, partitions, lag_records, missing_partitions, error}} of many groups.

    Requests the end offsets of each partition once. error: why a group could not be described.
    """
    described, committed = await asyncio.gather(
        group_lag.settled(names, admin.describe_consumer_groups(names)),
        group_lag.settled(names, admin.list_offsets_of_consumer_groups(dict.fromkeys(names))))
    every = sorted({part for offsets in committed.values() if isinstance(offsets, dict)
                    for part in offsets})
    await admin.cluster.refresh({part.topic for part in every})
    first, last = await cluster_queries.offset_bounds(admin.cluster, every)
    return {name: _total(described[name], committed[name], first, last) for name in names}


def _total(described: Any, committed: Any, first: Mapping[TopicPartition, Any],
           last: Mapping[TopicPartition, Any]) -> dict[str, Any]:
    """Return one group's part of totals(). described, committed: a result or a KafkaError."""
    error = None
    if isinstance(described, KafkaError) or isinstance(committed, KafkaError):
        failure = described if isinstance(described, KafkaError) else committed
        if not isinstance(failure, GroupIdNotFoundError):
            error = cluster_queries.error_text(failure)
        # Otherwise it was deleted after it was listed.
        described, committed = None, {}
    missing = cluster_queries.unread(sorted(committed), first, last)
    unknown = {(row["topic"], row["partition"]) for row in missing}
    lags = [None if part in unknown else max(0, last[part] - max(row.offset, first[part]))
            for part, row in committed.items()]
    return {"members": len(described.members) if described is not None else None,
            "partitions": len(committed) if error is None else None,
            "lag_records": total(lags) if lags else None,
            "missing_partitions": missing, "error": error}

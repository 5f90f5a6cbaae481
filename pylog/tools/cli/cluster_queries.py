"""Queries that several commands use: names, offsets, sizes and timestamps of records.

Owns: nothing.
Invariants: each broker gets one request for all of its partitions, and all brokers are queried in
  parallel; an error of one partition or broker does not hide the other results: its result is the
  error's name.
Source: Kafka's protocol: Metadata, ListOffsets, Fetch, DescribeLogDirs.
"""

from __future__ import annotations

import asyncio
import fnmatch
from collections.abc import Iterable, Mapping
from typing import Any

from pylog.client.admin import partition_offsets
from pylog.client.admin.partition_offsets import error_name as error_name
from pylog.client.errors import KafkaError, raise_for
from pylog.client.network.cluster import Cluster
from pylog.client.network.cluster_metadata import Metadata, TopicInfo
from pylog.client.types import EARLIEST, LATEST, TopicPartition
from pylog.config import internal_topics
from pylog.config.errors import nearest
from pylog.protocol import messages
from pylog.protocol.errors import TABLE, ErrorCode
from pylog.tools.cli.session import ToolError

MAX_TIMESTAMP = -3
FENCED_BROKERS_VERSION = 2  # DescribeCluster: KIP-1073.
GROUPS_VERSION_MAX = 9  # OffsetFetch and OffsetCommit, for the same reason.


def error_text(error: KafkaError) -> str:
    """Return an error's message, with Kafka's error name if a broker sent it."""
    return f"{error} ({error_name(error.code)})" if error.code >= 0 else str(error)


def error_code_text(code: int, message: str | None, about: str) -> str:
    """Return one sentence for an error code."""
    row = TABLE.get(code)
    return f"{about}: {message or (row.message if row else '')} ({error_name(code)})"


async def all_topics(cluster: Cluster) -> Metadata:
    """Return the latest metadata of every topic."""
    cluster.wants_all_topics = True
    return await cluster.refresh()


async def fenced_brokers(cluster: Cluster) -> set[int]:
    """Return the registered brokers that are down. Empty if the brokers are older than Kafka 4.0.
    Raises KafkaError.
    """
    request = messages.DescribeClusterRequest
    connection = await cluster.any_connection()
    if not connection.serves(request) or connection.version(request) < FENCED_BROKERS_VERSION:
        return set()
    response = await connection.send(request(include_fenced_brokers=True))
    raise_for(response.error_code, response.error_message)
    return {row.broker_id for row in response.brokers if row.is_fenced}


async def absent_brokers(cluster: Cluster, metadata: Metadata) -> dict[int, int]:
    """Return {offline broker: number of partitions that have a replica on it}."""
    placed = [node for topic in metadata.topics.values() for part in topic.partitions.values()
              for node in part.replicas]
    absent = ({*placed} | await fenced_brokers(cluster)) - metadata.nodes.keys()
    return {node: placed.count(node) for node in sorted(absent)}


async def topic_names(cluster: Cluster) -> list[str]:
    return sorted((await all_topics(cluster)).topics)


async def group_names(cluster: Cluster) -> list[str]:
    rows, _ = await groups(cluster)
    return [row["group"] for row in rows]


def is_pattern(name: str) -> bool:
    """Return True if the name contains * ? or [, which no topic name contains."""
    return any(sign in name for sign in "*?[")


async def matching(cluster: Cluster, names: Iterable[str]) -> list[str]:
    """Return the names, with each pattern replaced by the matching topics, without duplicates. Only
    a pattern that begins with _ matches internal topics. Raises ToolError.
    """
    found: dict[str, None] = {}
    known: list[str] | None = None
    for name in names:
        if not is_pattern(name):
            found[name] = None
            continue
        if known is None:
            known = sorted(row.name for row in (await all_topics(cluster)).topics.values())
        meant = [one for one in fnmatch.filter(known, name)
                 if name.startswith("_") or not one.startswith("__")]
        if not meant:
            raise ToolError(f"there is no topic {name!r}")
        found.update(dict.fromkeys(meant))
    return list(found)


async def topics(cluster: Cluster, names: Iterable[str]) -> list[TopicInfo]:
    """Return the topics with these names or patterns. Raises UnknownName if one does not exist,
    ToolError if one is not authorized.
    """
    wanted = await matching(cluster, names)
    metadata = await cluster.refresh(wanted)
    found = []
    for name in wanted:
        row = metadata.topics.get(name)
        if row is not None and row.error_code == 0:
            found.append(row)
            continue
        if row is not None and row.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise ToolError(error_code_text(row.error_code, None, f"topic {name}"))
        raise unknown("topic", name, await topic_names(cluster))
    return found


class UnknownName(ToolError):
    """The name does not exist."""


def unknown(what: str, name: str, known: Iterable[str]) -> UnknownName:
    """Return an error for a name that does not exist, with the closest existing name."""
    names = list(known)
    if name in names:
        return UnknownName(f"not every broker knows the {what} {name!r} yet: run the command again")
    near = nearest(name, names)
    hint = f"; nearest valid name: {near}" if near else ""
    return UnknownName(f"there is no {what} {name!r}{hint}")


async def named(cluster: Cluster, text: str) -> list[TopicPartition]:
    """Return the partitions of TOPIC or TOPIC:0,1. Raises ToolError if one does not exist."""
    topic, _, numbers = text.partition(":")
    known = partitions_of(await topics(cluster, [topic]))
    if not numbers:
        return known
    wanted = {int(number) if number.isdigit() else number for number in numbers.split(",")}
    missing = wanted - {part.partition for part in known}
    if missing:
        raise ToolError(f"topic {topic} has no partition {min(map(str, missing))}")
    return [part for part in known if part.partition in wanted]


def partitions_of(rows: Iterable[TopicInfo]) -> list[TopicPartition]:
    return [TopicPartition(row.name, number) for row in rows for number in row.partitions]


# Offsets

async def offsets(cluster: Cluster, wanted: Mapping[TopicPartition, int], isolation: int = 0
                  ) -> dict[TopicPartition, Any]:
    """Return {partition: (offset, timestamp) or an error's name}. wanted: {partition: time in ms,
    EARLIEST, LATEST or MAX_TIMESTAMP}.
    """
    return await partition_offsets.offsets(cluster, cluster.metadata, wanted, isolation)


async def at_time(cluster: Cluster, last: Mapping[TopicPartition, int], time_ms: int
                  ) -> dict[TopicPartition, int]:
    """Return the offset of the first record at or after a time for each partition of `last`, or the
    partition's end offset in `last` if it has no such record. Raises ToolError if an offset is
    unknown.
    """
    found = await offsets(cluster, dict.fromkeys(last, time_ms))
    for part in last:
        if not isinstance(found.get(part), tuple):
            raise ToolError(f"{part}: {found.get(part)}")
    return {part: found[part][0] if found[part][0] >= 0 else end for part, end in last.items()}


async def offset_bounds(cluster: Cluster, parts: Iterable[TopicPartition]
                        ) -> tuple[dict[TopicPartition, Any], dict[TopicPartition, Any]]:
    """Return (first offsets, end offsets). Each value is an int or an error's name."""
    listed = list(parts)
    first, last = await asyncio.gather(offsets(cluster, dict.fromkeys(listed, EARLIEST)),
                                       offsets(cluster, dict.fromkeys(listed, LATEST)))
    return ({part: _offset(value) for part, value in first.items()},
            {part: _offset(value) for part, value in last.items()})


async def known_offset_bounds(cluster: Cluster, parts: Iterable[TopicPartition]
                              ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Like offset_bounds(), before a change. Raises ToolError if an offset is unknown."""
    listed = list(parts)
    both = await offset_bounds(cluster, listed)
    for part in listed:
        for found in both:
            if not isinstance(found.get(part), int):
                raise ToolError(f"{part}: {found.get(part)}")
    return both


def unread(parts: Iterable[TopicPartition], first: Mapping[TopicPartition, Any],
           last: Mapping[TopicPartition, Any]) -> list[dict[str, Any]]:
    """Return [{topic, partition, error}] of the partitions whose ends() are unknown."""
    rows = []
    for part in parts:
        failed = [str(found.get(part)) for found in (last, first)
                  if not isinstance(found.get(part), int)]
        if failed:
            rows.append({"topic": part.topic, "partition": part.partition, "error": failed[0]})
    return rows


def _offset(value: Any) -> Any:
    return value[0] if isinstance(value, tuple) else value


async def times(cluster: Cluster, wanted: Mapping[TopicPartition, int]
                ) -> dict[TopicPartition, int]:
    """Return {partition: time in ms of the first record at or after an offset}. Partitions without
    such a record are missing.
    """
    return await partition_offsets.times(cluster, cluster.metadata, wanted)


# Disks

async def log_dirs(cluster: Cluster, brokers: Iterable[int] | None = None
                   ) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """Return (one row for each log directory, {broker that did not report: reason}). brokers: None
    for all.
    """
    async def query(node: int) -> list[dict[str, Any]]:
        response = await cluster.send(node, messages.DescribeLogDirsRequest(topics=None))
        if response.error_code or not response.results:
            raise ToolError(error_code_text(response.error_code, None, "DescribeLogDirs")
                            if response.error_code else "it lists none")
        return [{
            "broker": node, "path": row.log_dir,
            "error": error_name(row.error_code) if row.error_code else None,
            "partitions": {TopicPartition(topic.name, part.partition_index): part.partition_size
                           for topic in row.topics for part in topic.partitions},
            "total_bytes": row.total_bytes, "usable_bytes": row.usable_bytes,
        } for row in response.results]

    nodes = sorted(cluster.metadata.nodes if brokers is None else brokers)
    ended = await asyncio.gather(*map(query, nodes), return_exceptions=True)
    found: list[dict[str, Any]] = []
    failed = {}
    for node, outcome in zip(nodes, ended):
        if isinstance(outcome, list):
            found += outcome
        elif isinstance(outcome, (KafkaError, ToolError)):
            failed[node] = str(outcome)
        else:
            raise outcome
    return found, failed


async def sizes(cluster: Cluster) -> dict[TopicPartition, int]:
    """Return the size in bytes of each partition's largest replica.

    A partition is missing if no broker that responds has it.
    """
    found: dict[TopicPartition, int] = {}
    rows, _ = await log_dirs(cluster)
    for row in rows:
        for part, count in row["partitions"].items():
            found[part] = max(count, found.get(part, 0))
    return found


# Groups

async def groups(cluster: Cluster) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return ([{group, state, type, protocol, coordinator}] by name, {source of missing groups:
    reason}).
    """
    async def query(node: int) -> list[dict[str, Any]]:
        response = await cluster.send(node, messages.ListGroupsRequest())
        if response.error_code:
            raise ToolError(error_code_text(response.error_code, None, "ListGroups"))
        return [{"group": row.group_id, "state": row.group_state or None,
                 "type": row.group_type or "classic", "protocol": row.protocol_type,
                 "coordinator": node} for row in response.groups]

    metadata = await cluster.refresh([internal_topics.OFFSETS])
    nodes = sorted(metadata.nodes)
    ended = await asyncio.gather(*map(query, nodes), return_exceptions=True)
    found: list[dict[str, Any]] = []
    failed = {}
    for node, outcome in zip(nodes, ended):
        if isinstance(outcome, list):
            found += outcome
        elif isinstance(outcome, (KafkaError, ToolError)):
            failed[f"broker {node}"] = str(outcome)
        else:
            raise outcome
    # No broker lists the groups of an offsets partition without a leader, and none reports an
    # error.
    info = metadata.topics.get(internal_topics.OFFSETS)
    leaderless = [number for number in (info.partitions if info else ())
                  if metadata.leader(internal_topics.OFFSETS, number) < 0]
    if leaderless:
        failed[f"{internal_topics.OFFSETS}:{','.join(map(str, leaderless))}"] = \
            error_name(ErrorCode.LEADER_NOT_AVAILABLE)
    return sorted(found, key=lambda row: row["group"]), failed


async def groups_of(cluster: Cluster, kind: str, pattern: str | None
                    ) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Like groups(), filtered by group type and by a shell pattern of names (None for all)."""
    rows, failed = await groups(cluster)
    return [row for row in rows if row["type"].lower() == kind
            and fnmatch.fnmatchcase(row["group"], pattern or "*")], failed


def check_complete(failed: Mapping[str, str]) -> None:
    """Raise ToolError if groups are missing from the output. failed: the second result of groups().
    """
    if failed:
        raise ToolError("groups are missing, namely those of " + "; ".join(
            f"{place} ({reason})" for place, reason in failed.items()))

"""Sizes and record counts of topics, read only for the topics that a page shows.

Owns: nothing.
Invariants: a number that could not be read is None, never 0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from pylog.client.admin.admin import Admin
from pylog.client.errors import KafkaError, error
from pylog.client.network.cluster_metadata import TopicInfo
from pylog.client.types import TopicPartition
from pylog.protocol import messages


async def replica_bytes(admin: Admin, topics: Mapping[str, TopicInfo]
                        ) -> dict[str, dict[tuple[int, int], int]]:
    """Return each topic's bytes on disk by (partition, broker), of the brokers that answer. Raises
    KafkaError if none does.
    """
    request = messages.DescribeLogDirsRequest
    wanted = [request.DescribableLogDirTopic(topic=name, partitions=list(topic.partitions))
              for name, topic in topics.items()]
    nodes = list(admin.cluster.metadata.nodes)
    answers = await asyncio.gather(*[
        admin.cluster.send(node, request(topics=wanted)) for node in nodes],
        return_exceptions=True)
    found: dict[str, dict[tuple[int, int], int]] = {}
    failures = []
    for node, answer in zip(nodes, answers):
        if isinstance(answer, KafkaError):
            failures.append(answer)
        elif isinstance(answer, BaseException):
            raise answer
        elif answer.error_code:
            failures.append(error(answer.error_code))
        else:
            for directory in answer.results:
                for topic in directory.topics:
                    for row in topic.partitions:
                        if not row.is_future_key:
                            sizes = found.setdefault(topic.name, {})
                            sizes[row.partition_index, node] = row.partition_size
    if failures and len(failures) == len(nodes):
        raise failures[0]
    return found


async def offset_ranges(admin: Admin, topics: Mapping[str, TopicInfo]
                        ) -> dict[tuple[str, int], tuple[int, int]]:
    """Return (first, end offset) by (topic, partition), of partitions that have a leader. Raises
    KafkaError.
    """
    parts = [TopicPartition(name, number) for name, topic in topics.items()
             for number, partition in topic.partitions.items() if partition.leader >= 0]
    if not parts:
        return {}
    first, end = await asyncio.gather(
        _offsets(admin, parts, "earliest"), _offsets(admin, parts, "latest"))
    return {(part.topic, part.partition): (first[part], end[part])
            for part in parts if part in first and part in end}


async def _offsets(admin: Admin, parts: Iterable[TopicPartition], which: str
                   ) -> dict[TopicPartition, int]:
    try:
        rows = await admin.list_offsets(dict.fromkeys(parts, which))
    except KafkaError as failure:
        rows = failure.results or {}
        if not any(not isinstance(row, BaseException) for row in rows.values()):
            raise
    return {part: row.offset for part, row in rows.items()
            if not isinstance(row, BaseException) and row is not None}


def totals(topic: TopicInfo, sizes: Mapping[str, Mapping[tuple[int, int], int]] | None,
           ranges: Mapping[tuple[str, int], tuple[int, int]] | None) -> dict[str, Any]:
    """Return a topic's bytes (all replicas) and offsets (about its records), None if unknown."""
    counted = [] if ranges is None else [
        ranges[topic.name, number] for number in topic.partitions if (topic.name, number) in ranges]
    stored = (sizes or {}).get(topic.name, {})
    return {"bytes": sum(stored.values()) if stored else None,
            "records": sum(end - first for first, end in counted)
            if counted and len(counted) == len(topic.partitions) else None}

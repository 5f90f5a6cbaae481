"""`pylog cluster verify`: compare the replicas of a partition byte by byte.

Owns: nothing.
Invariants: compares the batches that brokers send, which are the bytes of their logs, from the
  highest first offset to the lowest end offset of the in-sync replicas; reports the first differing
  offset, once for each replica; keeps one batch of each replica and one response in memory.
Source: Kafka's ReplicaVerificationTool (checksums of messages); KIP-392 (fetch from followers).
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from pylog._native.records import batch
from pylog.client.errors import KafkaError
from pylog.client.network.cluster import Cluster
from pylog.client.network.cluster_metadata import PartitionInfo
from pylog.client.types import EARLIEST, LATEST
from pylog.protocol import messages
from pylog.tools.cli import cluster_queries

BYTES_MAX = 4 << 20
FETCH_VERSION_MAX = 12  # Later versions identify topics by id.


class CheckedBatch(NamedTuple):
    """One batch of a replica."""

    base: int
    end: int
    digest: int


class Compared(NamedTuple):
    """The result for one partition: bytes compared of each replica; problems: sentences."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    batches: int
    problems: list[str]


class Unreadable(Exception):
    """A replica did not send the expected records."""


async def compare(cluster: Cluster, info: PartitionInfo) -> Compared:
    """Compare the in-sync replicas of one partition with the leader."""
    others = [node for node in info.isr if node != info.leader]
    problems = [f"broker {node} is not in sync and was not compared"
                for node in info.replicas if node not in info.isr]
    if info.leader not in cluster.metadata.nodes:
        return Compared(info.topic, info.partition, info.isr, 0, [*problems, "it has no leader"])
    try:
        start, end = await _range(cluster, info)
    except Unreadable as error:
        return Compared(info.topic, info.partition, info.isr, 0, [*problems, str(error)])
    count = 0
    for node in others:
        found, problem = await _first_difference(cluster, info, node, start, end)
        count = max(count, found)
        if problem is not None:
            problems.append(problem)
    return Compared(info.topic, info.partition, info.isr, count, problems)


async def _range(cluster: Cluster, info: PartitionInfo) -> tuple[int, int]:
    new = messages.ListOffsetsRequest
    found = []
    for at in (EARLIEST, LATEST):
        try:
            response = await cluster.send(info.leader, new(
                replica_id=-1, topics=[new.ListOffsetsTopic(name=info.topic, partitions=[
                    new.ListOffsetsPartition(partition_index=info.partition, timestamp=at)])]))
        except KafkaError as error:
            raise Unreadable(f"broker {info.leader} does not answer: {error}") from None
        row = response.topics[0].partitions[0]
        if row.error_code:
            raise Unreadable(f"broker {info.leader}: {cluster_queries.error_name(row.error_code)}")
        found.append(row.offset)
    return found[0], found[1]


async def _first_difference(cluster: Cluster, info: PartitionInfo, node: int, start: int, end: int
                            ) -> tuple[int, str | None]:
    """Return (number of equal batches, the first difference between `node` and the leader)."""
    leader = _batches(cluster, info, info.leader, start, end)
    other = _batches(cluster, info, node, start, end)
    count = 0
    try:
        async for mine in leader:
            theirs = await anext(other, None)
            if theirs is None:
                return count, f"broker {node} has no records from offset {mine.base}"
            if theirs != mine:
                return count, (f"broker {node} differs from broker {info.leader} at offset "
                               f"{min(mine.base, theirs.base)}")
            count += 1
    except Unreadable as error:
        return count, str(error)
    return count, None


async def _batches(cluster: Cluster, info: PartitionInfo, node: int, start: int, end: int
                   ) -> AsyncIterator[CheckedBatch]:
    """Yield the batches of one replica with records in [start, end). Raises Unreadable."""
    offset = start
    while offset < end:
        data = await _fetched(cluster, info, node, offset)
        position = 0
        while len(data) - position >= batch.LOG_OVERHEAD:
            size = batch.LOG_OVERHEAD + int.from_bytes(
                data[position + batch.LENGTH_AT:position + batch.LOG_OVERHEAD], "big")
            if position + size > len(data):
                break
            header = batch.header(data[position:position + size])
            past = header.base_offset + header.last_offset_delta + 1
            if past > offset:
                if header.base_offset >= end:
                    return
                yield CheckedBatch(header.base_offset, past,
                                   zlib.crc32(data[position:position + size]))
                offset = past
            position += size
        if position == 0:
            raise Unreadable(f"broker {node} returns no records from offset {offset}; its log "
                             f"ends at {end}")


async def _fetched(cluster: Cluster, info: PartitionInfo, node: int, offset: int) -> Any:
    new = messages.FetchRequest
    try:
        response = await cluster.send(node, new(
            max_wait_ms=1000, min_bytes=1, max_bytes=BYTES_MAX, session_epoch=-1,
            topics=[new.FetchTopic(topic=info.topic, partitions=[new.FetchPartition(
                partition=info.partition, fetch_offset=offset, partition_max_bytes=BYTES_MAX)])]),
            version_max=FETCH_VERSION_MAX)
    except KafkaError as error:
        raise Unreadable(f"broker {node} does not answer: {error}") from None
    row = response.responses[0].partitions[0]
    if row.error_code:
        name = cluster_queries.error_name(row.error_code)
        raise Unreadable(f"broker {node}, offset {offset}: {name}")
    return bytes(row.records or b"")

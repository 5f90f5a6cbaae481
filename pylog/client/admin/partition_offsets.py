"""Offsets of many partitions, and the times of records, without retries.

Owns: nothing.
Invariants: each broker gets one request for all of its partitions, and all brokers are queried in
  parallel; an error of one partition or broker does not hide the other results: its result is the
  error's name.
Source: Kafka's protocol: Metadata, ListOffsets, Fetch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from pylog.client.errors import KafkaError
from pylog.client.network.cluster import Cluster
from pylog.client.network.cluster_metadata import Metadata, merged
from pylog.client.types import EARLIEST, LATEST, TopicPartition
from pylog.protocol import messages
from pylog.protocol.errors import TABLE, ErrorCode

FIRST_BATCH_BYTES = 65_536
LATER_BATCH_BYTES = 1 << 20
PARTITIONS_AT_ONCE = 256
FETCH_VERSION_MAX = 12  # Later versions identify topics by id, which would need another request.


def error_name(code: int) -> str:
    """Return Kafka's name of an error code."""
    row = TABLE.get(code)
    return row.name if row is not None else f"UNKNOWN_{code}"


async def metadata_of(cluster: Cluster, topics: Iterable[str]) -> Metadata:
    """Return the metadata of topics, without remembering them. Raises KafkaError."""
    names = sorted(set(topics))
    if not names:
        return Metadata()
    return merged(Metadata(), await cluster.request_metadata(names), True)


async def offsets(cluster: Cluster, metadata: Metadata, wanted: Mapping[TopicPartition, int],
                  isolation: int = 0) -> dict[TopicPartition, Any]:
    """Return {partition: (offset, timestamp) or an error's name}. wanted: {partition: time in ms,
    EARLIEST, LATEST or another special time}.
    """
    found: dict[TopicPartition, Any] = {}
    by_leader = _by_leader(metadata, wanted, found)

    async def query(node: int, parts: list[TopicPartition]) -> None:
        request = messages.ListOffsetsRequest(
            replica_id=-1, isolation_level=isolation, timeout_ms=15_000,
            topics=[messages.ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[
                messages.ListOffsetsRequest.ListOffsetsPartition(
                    partition_index=part.partition, timestamp=wanted[part]) for part in some])
                for topic, some in _by_topic(parts).items()])
        response = await cluster.send(node, request)
        for topic in response.topics:
            for row in topic.partitions:
                found[TopicPartition(topic.name, row.partition_index)] = (
                    error_name(row.error_code) if row.error_code else (row.offset, row.timestamp))

    await _query_leaders(by_leader, query, found)
    return found


async def bounds(cluster: Cluster, metadata: Metadata, parts: Iterable[TopicPartition]
                 ) -> dict[TopicPartition, tuple[int, int] | str]:
    """Return {partition: (first offset, end offset) or an error's name}."""
    listed = list(parts)
    first, last = await asyncio.gather(
        offsets(cluster, metadata, dict.fromkeys(listed, EARLIEST)),
        offsets(cluster, metadata, dict.fromkeys(listed, LATEST)))
    found: dict[TopicPartition, tuple[int, int] | str] = {}
    for part in listed:
        low, high = first.get(part), last.get(part)
        if isinstance(low, tuple) and isinstance(high, tuple):
            found[part] = low[0], high[0]
        else:
            found[part] = str(low if isinstance(high, tuple) else high)
    return found


async def times(cluster: Cluster, metadata: Metadata, wanted: Mapping[TopicPartition, int]
                ) -> dict[TopicPartition, int]:
    """Return {partition: time in ms of the first record at or after an offset}. Partitions without
    such a record are missing.
    """
    found = await _times(cluster, metadata, wanted, FIRST_BATCH_BYTES)
    left = {part: offset for part, offset in wanted.items() if part not in found}
    # A broker sends a first batch larger than the limit only if the request has one partition.
    for part, offset in left.items():
        found.update(await _times(cluster, metadata, {part: offset}, LATER_BATCH_BYTES))
    return found


async def _times(cluster: Cluster, metadata: Metadata, wanted: Mapping[TopicPartition, int],
                 bytes_max: int) -> dict[TopicPartition, int]:
    from pylog._native.client.columns import Fetched, RecordsError, records

    found: dict[TopicPartition, int] = {}

    def take(part: TopicPartition, data: Any) -> None:
        fetched = Fetched(bytes(data or b""), next_offset=wanted[part])
        try:
            first = records(fetched, part.topic, part.partition, 1)
        except RecordsError:
            return  # The batch is damaged, so its timestamp is unknown.
        if first:
            found[part] = first[0].timestamp

    async def query(node: int, parts: list[TopicPartition]) -> None:
        request = messages.FetchRequest(
            max_wait_ms=0, min_bytes=0, max_bytes=max(bytes_max, len(parts) * bytes_max),
            topics=[messages.FetchRequest.FetchTopic(topic=topic, partitions=[
                messages.FetchRequest.FetchPartition(
                    partition=part.partition, fetch_offset=wanted[part],
                    partition_max_bytes=bytes_max) for part in some])
                for topic, some in _by_topic(parts).items()])
        response = await cluster.send(node, request, version_max=FETCH_VERSION_MAX)
        for topic in response.responses:
            for row in topic.partitions:
                take(TopicPartition(topic.topic, row.partition_index), row.records)

    for node, parts in _by_leader(metadata, wanted, {}).items():
        for at in range(0, len(parts), PARTITIONS_AT_ONCE):
            await query(node, parts[at:at + PARTITIONS_AT_ONCE])
    return found


def _by_leader(metadata: Metadata, parts: Iterable[TopicPartition],
               failed: dict[TopicPartition, Any]) -> dict[int, list[TopicPartition]]:
    by_leader: dict[int, list[TopicPartition]] = {}
    for part in parts:
        leader = metadata.leader(part.topic, part.partition)
        if leader >= 0:
            by_leader.setdefault(leader, []).append(part)
            continue
        info = metadata.partition(part.topic, part.partition)
        code = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if info is None
                else ErrorCode.LEADER_NOT_AVAILABLE)
        failed[part] = error_name(code)
    return by_leader


def _by_topic(parts: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    found: dict[str, list[TopicPartition]] = {}
    for part in parts:
        found.setdefault(part.topic, []).append(part)
    return found


async def _query_leaders(by_leader: dict[int, list[TopicPartition]], query: Any,
                         failed: dict[TopicPartition, Any]) -> None:
    """Send one request to each leader in parallel. Errors become error names in the result."""
    nodes = list(by_leader)
    ended = await asyncio.gather(*[query(node, by_leader[node]) for node in nodes],
                                 return_exceptions=True)
    for node, outcome in zip(nodes, ended):
        if isinstance(outcome, KafkaError):
            failed.update(dict.fromkeys(by_leader[node], type(outcome).__name__))
        elif isinstance(outcome, BaseException):
            raise outcome

"""The lag of partitions, in records and in time.

Owns: nothing.
Invariants: lag in records is the end offset minus the committed offset, or minus the log start
  offset if that is later; lag in seconds is the age of the first uncommitted record; both are None
  without a committed offset, or if a partition could not be read: its row has the error.
Source: kafka-consumer-groups for the meaning of lag; works with any Kafka broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from pylog.client.admin import partition_offsets
from pylog.client.errors import KafkaError
from pylog.client.network.cluster import Cluster
from pylog.client.types import LATEST, TopicPartition


async def settled(names: Iterable[str], call: Awaitable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the results of an Admin call about these names, or the KafkaError of each."""
    try:
        return dict(await call)
    except KafkaError as failure:
        return dict(failure.results or dict.fromkeys(names, failure))


async def rows(cluster: Cluster, parts: Sequence[TopicPartition],
               committed: Mapping[TopicPartition, int], now_ms: Callable[[], int] | None
               ) -> list[dict[str, Any]]:
    """Return one row for each partition. now_ms: None for no lag in seconds. Raises KafkaError."""
    metadata = await partition_offsets.metadata_of(cluster, {part.topic for part in parts})
    bounds, stable = await asyncio.gather(
        partition_offsets.bounds(cluster, metadata, parts),
        partition_offsets.offsets(cluster, metadata, dict.fromkeys(parts, LATEST), 1))
    found: list[dict[str, Any]] = []
    behind: dict[TopicPartition, int] = {}
    for part in parts:
        bound, offset, last_stable = bounds[part], committed.get(part), stable.get(part)
        low, high = bound if isinstance(bound, tuple) else (None, None)
        lag = None
        if low is not None and high is not None and offset is not None and offset >= 0:
            lag = max(0, high - max(offset, low))
            if lag:
                behind[part] = max(offset, low)
        found.append({
            "topic": part.topic, "partition": part.partition, "committed_offset": offset,
            "start_offset": low, "end_offset": high,
            "last_stable_offset": last_stable[0] if isinstance(last_stable, tuple) else None,
            "lag_records": lag, "lag_seconds": 0.0 if lag == 0 else None,
            "error": None if isinstance(bound, tuple) else bound})
    if now_ms is not None and behind:
        times = await partition_offsets.times(cluster, metadata, behind)
        for part, row in zip(parts, found, strict=True):
            if times.get(part, -1) >= 0:
                row["lag_seconds"] = max(0, now_ms() - times[part]) / 1000
    return found


def with_rates(row: Mapping[str, Any], before: Mapping[str, Any] | None, seconds: float
               ) -> dict[str, Any]:
    """Return a row as pylog.monitor.explain needs it, with the rates since an earlier row of the
    partition, in records a second; None if they are unknown.
    """
    made = {**row, "high_watermark": row["end_offset"], "consume_rate": None, "produce_rate": None,
            "cold_reads": None, "lag_records": row["lag_records"] or 0}
    if made["last_stable_offset"] is None:
        made["last_stable_offset"] = row["end_offset"]
    if before is None or seconds <= 0:
        return made
    for name, key in (("consume_rate", "committed_offset"), ("produce_rate", "end_offset")):
        if row[key] is not None and before[key] is not None:
            made[name] = round((row[key] - before[key]) / seconds, 3)
    return made

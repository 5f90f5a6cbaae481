"""One record of a partition, by its offset, with its neighbours.

Owns: nothing.
Invariants: a reader joins no group and commits nothing; a search for the record before an offset
  reads a bounded number of offsets.
"""

from __future__ import annotations

from typing import Any

from pylog.client.aio import Consumer, TopicPartition
from pylog.client.errors import OffsetOutOfRangeError
from pylog.console.clusters import ClusterSession

READ_S = 10.0
BACK_STEPS = (1, 64, 4096, 65536)


async def first_from(cluster: ClusterSession, topic: str, partition: int, offset: int) -> Any:
    """Return the first record at or after an offset, None if there is none. Raises KafkaError."""
    part = TopicPartition(topic, partition)
    async with _reader(cluster) as consumer:
        first = (await consumer.beginning_offsets([part]))[part]
        for record in await _read(consumer, part, max(first, offset), READ_S, 1):
            if record.offset >= offset:
                return record
    return None


async def last_before(cluster: ClusterSession, topic: str, partition: int, offset: int) -> Any:
    """Return the last record before an offset, None if there is none near it. Raises KafkaError."""
    part = TopicPartition(topic, partition)
    async with _reader(cluster) as consumer:
        first = (await consumer.beginning_offsets([part]))[part]
        for step in BACK_STEPS:
            at = max(first, offset - step)
            if at >= offset:
                return None
            found = None
            while at < offset:
                records = await _read(consumer, part, at, READ_S, 500)
                if not records:
                    break
                before = [record for record in records if record.offset < offset]
                found = before[-1] if before else found
                at = records[-1].offset + 1
            if found is not None:
                return found
            if offset - step <= first:
                return None
    return None


def _reader(cluster: ClusterSession) -> Consumer[bytes, bytes]:
    return Consumer.from_settings({
        **cluster.client_settings, "enable.auto.commit": False, "auto.offset.reset": "none",
        "allow.auto.create.topics": False})


async def _read(consumer: Consumer[bytes, bytes], part: TopicPartition, offset: int, wait_s: float,
                count: int) -> list[Any]:
    """Return records from an offset; none at the end of the partition or beyond it, or if records
    were deleted up to here just now.
    """
    end = (await consumer.end_offsets([part]))[part]
    if offset >= end:
        return []
    await consumer.assign([part])
    await consumer.seek(part, offset)
    try:
        return list(await consumer.poll(wait_s, count))
    except OffsetOutOfRangeError:
        return []

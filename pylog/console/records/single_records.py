"""One record of a partition, by its offset, with its neighbours.

Owns: nothing.
Invariants: a reader joins no group and commits nothing; a search for the record before an offset
  reads a bounded number of offsets.
"""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

from pylog._native.records import batch
from pylog.client.consumer.range_reader import RangeReader, current_ranges
from pylog.client.network.cluster import Cluster
from pylog.client.aio import Consumer, TopicPartition
from pylog.client.errors import OffsetOutOfRangeError
from pylog.console.clusters import ClusterSession

READ_S = 10.0
BACK_STEPS = (1, 64, 4096, 65536)
BATCH_BYTES = 64 << 10  # A larger batch is fetched whole.
SEQUENCES = 2**31
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"


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


class Batch(NamedTuple):
    """The batch of a record. sequence: of the record, None without one. state: of its transaction,
    "" if it is in none.
    """

    base_offset: int
    records: int
    bytes: int
    compression: str
    timestamps: str
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    sequence: int | None
    is_transactional: bool
    is_control: bool
    state: str


async def batch_of(cluster: ClusterSession, topic: str, partition: int, offset: int
                   ) -> Batch | None:
    """Return the batch that contains a record, None if it is gone. Raises KafkaError."""
    client = cluster.admin.cluster
    found = await _batch(client, topic, partition, offset, 0)
    if found is None:
        return None
    header, _ = found
    attributes = header.attributes
    state = ""
    if attributes & batch.TRANSACTIONAL and not attributes & batch.CONTROL:
        ends = await current_ranges(client, topic, [partition], isolation=1)
        # A partition without decided records has no range.
        if partition not in ends or offset >= ends[partition][1]:
            state = OPEN
        else:
            decided = await _batch(client, topic, partition, offset, 1)
            aborted = decided[1] if decided is not None else []
            state = ABORTED if any(producer == header.producer_id and first <= offset
                                   for producer, first in aborted) else COMMITTED
    codec = attributes & batch.CODEC_MASK
    return Batch(
        header.base_offset, header.record_count, header.batch_length + batch.LOG_OVERHEAD,
        CODECS[codec] if codec < len(CODECS) else str(codec),
        "of the broker" if attributes & batch.LOG_APPEND_TIME else "of the producer",
        header.leader_epoch, header.producer_id, header.producer_epoch,
        (header.base_sequence + offset - header.base_offset) % SEQUENCES
        if header.base_sequence >= 0 else None,
        bool(attributes & batch.TRANSACTIONAL), bool(attributes & batch.CONTROL), state)


async def _batch(client: Cluster, topic: str, partition: int, offset: int, isolation: int
                 ) -> tuple[batch.Header, list[tuple[int, int]]] | None:
    """Return the header of the batch with an offset, and the aborted transactions that end after
    it: (producer id, first offset).
    """
    reader = RangeReader(client, topic, {partition: (offset, offset + 1)}, isolation=isolation,
                         partition_bytes=BATCH_BYTES)
    async with contextlib.aclosing(reader.chunks()) as chunks:
        async for chunk in chunks:
            for _, header in batch.walk(chunk.records):
                if header.base_offset <= offset <= header.base_offset + header.last_offset_delta:
                    return header, list(chunk.aborted)
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

"""Fetch offset ranges of one topic as raw batches, for scans that need no consumer.

Owns: the fetches in flight.
Invariants: each leader has at most one fetch in flight, and its next one runs while the caller uses
  the last; chunks of a partition are in offset order and without gaps, except for offsets that the
  broker has deleted, which `deleted` lists; a range ends at its end, even if the log grows.
Source: KIP-74 (limits), KIP-516 (topic ids); Fetch without a session (KIP-227).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import NamedTuple

from pylog.client.consumer import fetch_response
from pylog.client.consumer.fetch_response import TOPIC_IDS, FetchedPartition
from pylog.client.consumer.list_offsets import list_offsets
from pylog.client.errors import KafkaError, KafkaTimeoutError, error, raise_for
from pylog.client.network.cluster import FETCH, Cluster
from pylog.client.network.connection import Frame
from pylog.client.types import EARLIEST, LATEST, TopicPartition
from pylog.protocol import messages
from pylog.protocol.codec import ZERO_UUID
from pylog.protocol.errors import ErrorCode

# Buffers have sizes of powers of two: leave room for the head of the response.
FETCH_SHARE_BYTES, FETCH_BYTES = (8 << 20) - 65_536, (16 << 20) - 65_536
WAIT_MS = 500
FAILURES_MAX = 10
EMPTY_MAX = 5

Ranges = dict[int, tuple[int, int]]


class Chunk(NamedTuple):
    """Batches of one partition that may contain records of [start, end) and of offsets around it.

    records is valid until the next chunk is requested. stop: the offset after the last batch.
    """

    partition: int
    start: int
    stop: int
    end: int
    records: memoryview
    aborted: list[tuple[int, int]]


class RangeReader:
    """ranges: [start, end) by partition. isolation: 1 omits offsets after the last stable one."""

    def __init__(self, cluster: Cluster, topic: str, ranges: Mapping[int, tuple[int, int]], *,
                 isolation: int = 0, partition_bytes: int = FETCH_SHARE_BYTES,
                 fetch_bytes: int = FETCH_BYTES):
        self._cluster = cluster
        self._topic = topic
        self._isolation = isolation
        self._partition_bytes = partition_bytes
        self._fetch_bytes = fetch_bytes
        self._left = {partition: list(one) for partition, one in ranges.items() if one[0] < one[1]}
        self._empty: dict[int, int] = {}
        self._failures = 0
        self._pauses = cluster.backoff()
        self._tasks: dict[int, asyncio.Task[tuple[list[FetchedPartition], Frame | None]]] = {}
        self.deleted: list[tuple[int, int, int]] = []  # Partition and its offsets [start, stop).

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """Yield the batches of all ranges. Raises KafkaError."""
        try:
            while self._left:
                await self._start_fetches()
                await asyncio.wait(self._tasks.values(), return_when=asyncio.FIRST_COMPLETED)
                for node in [node for node, task in self._tasks.items() if task.done()]:
                    async for chunk in self._finished(node):
                        yield chunk
        finally:
            tasks = list(self._tasks.values())
            self._tasks.clear()
            for task in tasks:
                task.cancel()
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                if not isinstance(outcome, BaseException) and outcome[1] is not None:
                    outcome[1].release()

    async def _start_fetches(self) -> None:
        """Start a fetch from every leader that has none in flight."""
        shares: dict[int, list[int]] = {}
        for partition in self._left:
            try:
                info = await self._cluster.leader(self._topic, partition)
            except KafkaError as failure:
                await self._failed(failure)
                return await self._start_fetches()
            shares.setdefault(info.leader, []).append(partition)
        for node, share in shares.items():
            if node not in self._tasks:
                self._tasks[node] = asyncio.create_task(self._fetch(node, share))

    async def _failed(self, failure: KafkaError) -> None:
        """Pause before a retry. Raises the failure if it is permanent, or was the last of many."""
        self._failures += 1
        if not failure.retriable or self._failures >= FAILURES_MAX:
            raise failure
        if failure.stale_metadata:
            self._cluster.request_refresh()
        await asyncio.sleep(self._pauses.next())

    async def _fetch(self, node: int, partitions: list[int]
                     ) -> tuple[list[FetchedPartition], Frame | None]:
        connection = await self._cluster.connection(node, FETCH)
        metadata = self._cluster.metadata
        topic_id = metadata.topic_id(self._topic)
        version = connection.version(messages.FetchRequest)
        if topic_id == ZERO_UUID:
            version = min(version, TOPIC_IDS - 1)
        request = messages.FetchRequest
        row = request.FetchTopic(topic=self._topic, topic_id=topic_id)
        for partition in partitions:
            info = metadata.partition(self._topic, partition)
            row.partitions.append(request.FetchPartition(
                partition=partition, current_leader_epoch=info.leader_epoch if info else -1,
                fetch_offset=self._left[partition][0], partition_max_bytes=self._partition_bytes))
        frame: Frame = await connection.send(request(
            replica_id=-1, max_wait_ms=WAIT_MS, min_bytes=1, max_bytes=self._fetch_bytes,
            isolation_level=self._isolation, session_id=0, session_epoch=-1, topics=[row],
            rack_id=""), version=version, raw=True)
        try:
            answer = fetch_response.read(frame)
            raise_for(answer.error_code, context=f"fetch from broker {node}")
            return answer.partitions, frame
        except BaseException:
            frame.release()
            raise

    async def _finished(self, node: int) -> AsyncGenerator[Chunk, None]:
        """Yield the result of a fetch, after the leader's next one has started."""
        task = self._tasks.pop(node)
        try:
            rows, frame = task.result()
        except KafkaError as failure:
            await self._failed(failure)
            return
        try:
            chunks = [chunk for row in rows if (chunk := await self._chunk(row)) is not None]
            if chunks:
                self._failures = 0
                self._pauses.reset()
            # The broker fills its response in this order: the others come first next time.
            for chunk in chunks:
                if chunk.partition in self._left:
                    self._left[chunk.partition] = self._left.pop(chunk.partition)
            if self._left:
                await self._start_fetches()
            for chunk in chunks:
                yield chunk
        finally:
            if frame is not None:
                frame.release()

    async def _chunk(self, row: FetchedPartition) -> Chunk | None:
        """Move a partition's range past the fetched batches, and return them."""
        partition = row.partition
        if partition not in self._left:
            return None
        start, end = self._left[partition]
        if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            await self._skip_deleted(partition, start, end)
            return None
        if row.error_code:
            failure = error(row.error_code, context=f"{self._topic}-{partition}")
            if row.leader is not None:
                self._cluster.learn_leader(self._topic, partition, *row.leader)
            await self._failed(failure)
            return None
        stop = fetch_response.end_of(row.records) if len(row.records) else None
        if stop is None or stop <= start:
            self._empty[partition] = self._empty.get(partition, 0) + 1
            if self._empty[partition] >= EMPTY_MAX:
                raise KafkaTimeoutError(
                    f"{self._topic}-{partition}: the broker returned no records from offset "
                    f"{start} on, which is before the end {end}")
            return None
        self._empty.pop(partition, None)
        if stop >= end:
            del self._left[partition]
        else:
            self._left[partition][0] = stop
        return Chunk(partition, start, min(stop, end), end, row.records, row.aborted)

    async def _skip_deleted(self, partition: int, start: int, end: int) -> None:
        """Continue at the log's start. Raises OffsetOutOfRangeError if that does not help."""
        tp = TopicPartition(self._topic, partition)
        found = (await list_offsets(self._cluster, {tp: EARLIEST}))[tp]
        first = found.offset if found is not None else end
        if first <= start:
            raise error(ErrorCode.OFFSET_OUT_OF_RANGE, context=f"{tp} at offset {start}")
        self.deleted.append((partition, start, min(first, end)))
        if first >= end:
            del self._left[partition]
        else:
            self._left[partition][0] = first


async def current_ranges(cluster: Cluster, topic: str, partitions: list[int], *,
                         isolation: int = 0, since_ms: int | None = None,
                         until_ms: int | None = None) -> Ranges:
    """Return [start, end) of partitions that have records to read. Raises KafkaError.

    A range begins at the first record not older than since_ms, and ends before the first record
    not older than until_ms.
    """
    parts = [TopicPartition(topic, number) for number in partitions]
    starts, ends = await asyncio.gather(
        list_offsets(cluster, dict.fromkeys(parts, EARLIEST), isolation),
        list_offsets(cluster, dict.fromkeys(parts, LATEST), isolation))
    found = {}
    for tp in parts:
        start, end = starts[tp], ends[tp]
        found[tp] = [start.offset if start else 0, end.offset if end else 0]
    for place, time_ms in ((0, since_ms), (1, until_ms)):
        if time_ms is None:
            continue
        listed = await list_offsets(cluster, dict.fromkeys(parts, time_ms), isolation)
        for tp, result in listed.items():
            # No record is that recent: the end in both cases.
            offset = found[tp][1] if result is None else result.offset
            found[tp][place] = min(max(offset, found[tp][0]), found[tp][1])
    return {tp.partition: (start, end) for tp, (start, end) in found.items() if start < end}

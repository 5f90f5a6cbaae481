"""Copies of records to another topic or cluster.

Owns: the connections of each copy while it runs.
Invariants: a copy reads ranges that are fixed when it starts; records keep their order within a
  partition; a batch that passes as bytes has passed its checksum before it gets a new one.
Source: KIP-98 (idempotent producers).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from pylog._native.client.batch_builder import copied
from pylog._native.client.columns import ColumnReader, Fetched
from pylog._native.client.search import Search
from pylog._native.records import batch as native_batch
from pylog.client.admin.admin import Admin
from pylog.client.columns.rows import Row, rows_of
from pylog.client.consumer.range_reader import Chunk, RangeReader
from pylog.client.producer.aio_producer import Producer
from pylog.console.records.jobs import Job
from pylog.console.records.filters import Filter
from pylog.console.records.search import Limits, RecordSearch
from pylog.console.values.row_decoding import RowDecoder

REQUEST_BYTES_MAX = 16 << 20
BUFFER_BYTES = 64 << 20
STEP_BYTES, STEP_RECORDS = 8 << 20, 10_000
FLUSH_S = 120.0


class Copy:
    """Copies ranges of a topic. by_key: choose partitions by key instead of keeping them.

    records_per_s: 0 for no limit. Without a filter, whole batches pass as bytes.
    """

    def __init__(self, source: Mapping[str, Any], topic: str, chosen: Filter,
                 ranges: dict[int, list[tuple[int, int]]], target: Mapping[str, Any],
                 target_topic: str, by_key: bool, records_per_s: int,
                 seconds: Callable[[], float], decoder: RowDecoder | None = None):
        self._decoder = decoder
        self._source = source
        self._topic = topic
        self._filter = chosen
        self._ranges = ranges
        self._target = target
        self._target_topic = target_topic
        self._by_key = by_key
        self._records_per_s = records_per_s
        self._seconds = seconds
        self._passed = 0  # Batches that passed as bytes.

    async def run(self, job: Job) -> None:
        """Copy until the end or until the job is stopped. Raises KafkaError."""
        settings = {**self._target, "acks": "all", "compression.type": "zstd", "linger.ms": 20,
                    "max.request.size": REQUEST_BYTES_MAX, "buffer.memory": BUFFER_BYTES}
        # Their own connections: a job survives the logout of its user.
        async with Admin.from_settings(dict(self._source)) as reader, \
                Producer.from_settings(settings) as producer:
            await producer.partitions_for(self._target_topic)
            if self._filter.is_empty and not self._by_key and not self._filter.limit:
                await self._copy_batches(job, reader, producer)
            else:
                await self._copy_matches(job, reader, producer)
            failed = await producer.flush(FLUSH_S)
        job.report.append(f"{job.records - failed} records were written, {failed} failed.")
        job.is_incomplete |= failed > 0
        if self._passed:
            job.report.append(f"{self._passed} batches passed unchanged.")

    async def _copy_matches(self, job: Job, reader: Admin, producer: Producer) -> None:
        """Copy the records that match, one at a time."""
        search = RecordSearch(reader.cluster, self._topic, self._filter, self._ranges,
                              Limits(self._filter.limit), self._seconds, self._decoder)
        async for found in search.found():
            await self._send(job, producer, list(found.rows()))
            job.read = search.progress.offsets
            await self._pace(job)
            if job.is_stopping:
                search.stop()
        for text in search.errors:
            job.miss(f"Left out: {text}")
        if search.unread:
            left = sum(end - start for rows in search.unread.values() for start, end in rows)
            job.miss(f"{left} offsets were not read.")

    async def _copy_batches(self, job: Job, reader: Admin, producer: Producer) -> None:
        """Copy everything. Batches stay as they are unless only a part of their records is wanted.
        """
        for number in range(max(map(len, self._ranges.values()), default=0)):
            ranges = {partition: rows[number] for partition, rows in self._ranges.items()
                      if number < len(rows)}
            source = RangeReader(reader.cluster, self._topic, ranges,
                                 isolation=int(self._filter.committed))
            async for chunk in source.chunks():
                if self._is_whole(chunk):
                    await self._pass_batches(job, producer, chunk)
                else:
                    await self._rebuild(job, producer, chunk)
                job.read += chunk.stop - chunk.start
                await self._pace(job)
                if job.is_stopping:
                    job.miss(f"{max(0, job.total - job.read)} offsets were not read.")
                    return
            for partition, start, stop in source.deleted:
                job.read += stop - start
                job.miss(f"Partition {partition}: offsets {start} to {stop - 1} were deleted "
                         "before they were read.")

    def _is_whole(self, chunk: Chunk) -> bool:
        """Return True if all batches of a chunk may be written as they are."""
        try:
            return not chunk.aborted and all(
                chunk.start <= header.base_offset
                and header.base_offset + header.last_offset_delta < chunk.end
                # The base timestamp of a compacted batch may be the time of its tombstones' end.
                and not header.attributes & native_batch.LOG_APPEND_TIME
                and not header.attributes & native_batch.DELETE_HORIZON
                and (header.attributes & native_batch.CONTROL
                     or header.record_count == header.last_offset_delta + 1)
                for _, header in native_batch.walk(chunk.records))
        except native_batch.BatchError:
            return False

    async def _pass_batches(self, job: Job, producer: Producer, chunk: Chunk) -> None:
        core = producer._core
        for position, header in native_batch.walk(chunk.records):
            if header.attributes & native_batch.CONTROL:
                continue
            size = header.batch_length + native_batch.LOG_OVERHEAD
            try:
                batch = copied(chunk.records[position:position + size], chunk.partition)
            except ValueError as failure:
                job.miss(f"Left out: partition {chunk.partition}: {failure}")
                continue
            queue = core.accumulator.queue(self._target_topic, chunk.partition)
            while core.accumulator.add(queue, batch) is None:
                await core.wait_for("memory", self._target_topic, None, core.block_s)
            if core.sender.failure is not None:
                raise core.sender.failure
            self._passed += 1
            job.records += header.record_count
            job.bytes += size

    async def _rebuild(self, job: Job, producer: Producer, chunk: Chunk) -> None:
        """Copy a chunk record by record: it has aborted, deleted or unwanted ones."""
        fetched = Fetched(chunk.records, source=chunk.partition, next_offset=chunk.start,
                          aborted=chunk.aborted, read_committed=self._filter.committed)
        everything = Search()
        while not fetched.exhausted and fetched.next_offset < chunk.stop:
            reader = ColumnReader()
            try:
                await asyncio.to_thread(
                    everything.append, fetched, reader, end_offset=chunk.end,
                    records_max=STEP_RECORDS, bytes_max=STEP_BYTES)
            except ValueError as failure:
                job.miss(f"Left out: partition {chunk.partition}: {failure}")
                return
            await self._send(job, producer, list(rows_of(reader.finish())))

    async def _send(self, job: Job, producer: Producer, rows: list[Row]) -> None:
        for row in rows:
            await producer.send(
                self._target_topic, row.value, row.key, timestamp=row.timestamp,
                partition=None if self._by_key else row.partition, headers=row.headers)
            job.records += 1
            job.bytes += row.bytes

    async def _pace(self, job: Job) -> None:
        """Wait until the number of records fits the rate."""
        while self._records_per_s and not job.is_stopping:
            ahead_s = job.records / self._records_per_s - (self._seconds() - job.started_s)
            if ahead_s <= 0:
                return
            await asyncio.sleep(min(ahead_s, 0.5))

"""Fetch an offset range of one partition: whole batches, one fetch ahead of the reader.

Owns: the connection of one task.
Invariants: nothing at or after `end` is requested, so a task costs the broker its own range and at
  most one additional fetch; while a response is processed, the next fetch is in flight.
Source: KIP-74, KIP-98 (aborted transactions), KIP-516 (topic ids).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pylog.client.background_loop import Driver
from pylog.client.config.settings import CONSUMER, Settings
from pylog.client.consumer import fetch_response
from pylog.client.consumer.fetch_response import TOPIC_IDS, FetchedPartition
from pylog.client.errors import (
    FatalError, KafkaError, KafkaTimeoutError, UnsupportedByBrokerError, error, raise_for,
)
from pylog.client.network.cluster import Cluster
from pylog.protocol import messages
from pylog.protocol.codec import ZERO_UUID
from pylog.protocol.errors import ErrorCode

_LOG = logging.getLogger("pylog.client")
_GONE = {int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), int(ErrorCode.UNKNOWN_TOPIC_ID)}
_SLACK_S = 5.0
_SPARE_BYTES = 1 << 16


class OffsetRange(NamedTuple):
    """Offsets [start, end) of one partition.

    size: estimated bytes, 0 if unknown. topic_id: id of the topic that the offsets belong to; zero
    bytes accept any topic of this name.
    """

    topic: str
    partition: int
    start: int
    end: int
    size: int = 0
    topic_id: bytes = ZERO_UUID


class DataLossError(FatalError):
    """Records to be read are gone from the log. The message is one line that names failOnDataLoss.
    """


def data_loss(what: str) -> DataLossError:
    return DataLossError(f"{what}, so data may have been lost. Set failOnDataLoss to false to "
                         "continue with the records that exist.")


def lost(offset_range: OffsetRange, offset: int, what: str) -> DataLossError:
    return data_loss(f"Cannot read {offset_range.topic}-{offset_range.partition} at offset "
                     f"{offset}: {what}")


class Chunk(NamedTuple):
    """The result of one fetch. position: its first requested offset."""

    position: int
    records: memoryview
    aborted: list[tuple[int, int]]
    frame: Any


class RangeReader:
    """Iterate over the chunks of a range. Do not use a chunk after taking the next one."""

    def __init__(self, settings: Mapping[str, Any], offset_range: OffsetRange,
                 fail_on_data_loss: bool):
        self.settings = Settings(CONSUMER, settings)
        self.offset_range = offset_range
        self.fail_on_data_loss = fail_on_data_loss
        self.committed_only = self.settings["isolation.level"] == "read_committed"
        self._driver = Driver.shared()
        self._cluster: Any = None
        self._fetch_bytes = self.settings["max.partition.fetch.bytes"]
        self._spare = _SPARE_BYTES // 2
        self._patience_s = self.settings.seconds("default.api.timeout.ms")

    def __iter__(self) -> Iterator[Chunk]:
        position, end = self.offset_range.start, self.offset_range.end
        self._cluster = self._driver.run(Cluster(self.settings).start())
        ahead = None
        try:
            ahead = self._driver.submit(self._fetch(position))
            last_s = time.monotonic()
            while position < end:
                assert ahead is not None, position
                try:
                    position, row, frame = ahead.result()
                except KafkaTimeoutError as failure:
                    if not self._is_gone(failure):
                        raise
                    self._report_loss(position, "the topic was deleted or re-created", failure)
                    return
                ahead = None
                following = fetch_response.end_of(row.records) if len(row.records) else None
                if following is None:
                    frame.release()
                    position = self._past(position, row, last_s)
                    if position < end:
                        ahead = self._driver.submit(self._fetch(position))
                    continue
                last_s = time.monotonic()
                if following < end:
                    ahead = self._driver.submit(self._fetch(following))  # Fetch ahead.
                yield Chunk(position, row.records, row.aborted, frame)
                frame.release()
                position = following
        finally:
            if ahead is not None:
                ahead.cancel()
            self._driver.close_client(self._cluster.close())

    def _past(self, position: int, row: FetchedPartition, last_s: float) -> int:
        """Return where to continue after an empty fetch. Raises if fetches stay empty for too long.
        """
        if position < row.log_start_offset:
            self._report_loss(position, f"the log starts at {row.log_start_offset}")
            return row.log_start_offset
        if time.monotonic() - last_s > self._patience_s:
            raise KafkaTimeoutError(
                f"{self.offset_range.topic}-{self.offset_range.partition}: no records at offset "
                f"{position} after {self._patience_s} s; expected records up to "
                f"{self.offset_range.end}")
        return position

    def _bytes_from(self, position: int) -> int:
        """Return the bytes to request: at most the rest of the range, so that a short range is
        cheap.
        """
        offset_range = self.offset_range
        if not offset_range.size:
            return self._fetch_bytes
        left = offset_range.size * (offset_range.end - position) // (
            offset_range.end - offset_range.start)
        if left < self._fetch_bytes:
            # Record sizes vary, so the estimate may be too low: double the margin each time.
            self._spare *= 2
        return min(self._fetch_bytes, left + self._spare)

    def _report_loss(self, position: int, what: str, cause: KafkaError | None = None) -> None:
        """Raise DataLossError, or log a warning if the options allow data loss."""
        failure = lost(self.offset_range, position, what)
        if self.fail_on_data_loss:
            raise failure from cause
        _LOG.warning("%s-%d: skipping records from offset %d: %s", self.offset_range.topic,
                     self.offset_range.partition, position, what)

    def _is_gone(self, failure: KafkaTimeoutError) -> bool:
        """Return True if the topic was missing until the timeout.

        Wait for the timeout: right after a topic is created, some brokers still list the old one.
        """
        cause = failure.__cause__
        return isinstance(cause, KafkaError) and cause.code in _GONE

    async def _fetch(self, position: int) -> tuple[int, FetchedPartition, Any]:
        """Return (position, the partition's row, the frame to release)."""
        response: tuple[int, FetchedPartition, Any] = await self._cluster.retry(
            lambda: self._try(position))
        return response

    async def _try(self, position: int) -> tuple[int, FetchedPartition, Any]:
        cluster, topic, number = self._cluster, self.offset_range.topic, self.offset_range.partition
        info = await cluster.leader(topic, number)
        connection = await cluster.connection(info.leader)
        topic_id = cluster.metadata.topic_id(topic)
        expected = self.offset_range.topic_id
        if ZERO_UUID not in (topic_id, expected) and topic_id != expected:
            raise error(ErrorCode.UNKNOWN_TOPIC_ID, context=f"{topic} was re-created")
        version = connection.version(messages.FetchRequest)
        if topic_id == ZERO_UUID:
            version = min(version, TOPIC_IDS - 1)
        wait_ms, most = self.settings["fetch.max.wait.ms"], self._bytes_from(position)
        shape = messages.FetchRequest
        request = shape(
            replica_id=-1, max_wait_ms=wait_ms, min_bytes=1, max_bytes=most,
            isolation_level=int(self.committed_only), session_id=0, session_epoch=-1,
            topics=[shape.FetchTopic(topic=topic, topic_id=topic_id, partitions=[
                shape.FetchPartition(
                    partition=number, current_leader_epoch=-1, fetch_offset=position,
                    partition_max_bytes=most)])],
            forgotten_topics_data=[], rack_id=self.settings["client.rack"])
        timeout_s = max(self.settings.seconds("request.timeout.ms"), wait_ms / 1000 + _SLACK_S)
        frame = await connection.send(request, version=version, raw=True, timeout_s=timeout_s)
        response = fetch_response.read(frame)
        raise_for(response.error_code, context=f"fetch of {topic}-{number}")
        row = response.partitions[0]
        if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return await self._out_of_range(position), row, frame
        raise_for(row.error_code, context=f"{topic}-{number} at {position}")
        return position, row, frame

    async def _out_of_range(self, position: int) -> int:
        """Return where to continue: the log start, or the range's end if the log ends before it."""
        from pylog.client.consumer import list_offsets
        from pylog.client.types import EARLIEST, LATEST, TopicPartition

        tp = TopicPartition(self.offset_range.topic, self.offset_range.partition)
        begins = (await list_offsets.list_offsets(self._cluster, {tp: EARLIEST}, 0))[tp]
        ends = (await list_offsets.list_offsets(self._cluster, {tp: LATEST}, 0))[tp]
        if begins is None or ends is None:
            raise UnsupportedByBrokerError(f"{tp}: the broker lists no offsets for it")
        if begins.offset <= position < ends.offset:
            return position  # A new leader had not caught up: fetch the same offset again.
        self._report_loss(position, f"the log has offsets {begins.offset} to {ends.offset}")
        return int(begins.offset) if position < begins.offset else self.offset_range.end

"""A share session with one broker: acquire records and send acknowledgements.

Owns: the session's epoch, the partitions in the broker's session, unsent acknowledgements.
Invariants: only one request is in flight, so that epochs are in order; acknowledgements are sent
  once: if a request fails, the broker may or may not have applied them, and they are reported as
  failed; records acquired in a lost session are lost.
Source: KIP-932, KIP-951 (the response names the new leader), KIP-1206 (how much is acquired),
  KIP-1222.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, NamedTuple

from pylog.client.errors import KafkaError, UnsupportedByBrokerError, error
from pylog.client.network.cluster import FETCH
from pylog.client.share.acknowledgements import Acknowledge, Batch
from pylog.client.types import TopicPartition
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode, ProtocolError

INITIAL, FINAL = 0, -1
EXACT_VERSION = RENEW_VERSION = 2
_LAST_EPOCH = 2**31 - 1
_ANSWER_SLACK_S = 5.0
_LOST = {int(ErrorCode.SHARE_SESSION_NOT_FOUND), int(ErrorCode.INVALID_SHARE_SESSION_EPOCH)}

Place = tuple[bytes, int]   # (topic id, partition)
Pending = dict[TopicPartition, list[Batch]]


class Acquired(NamedTuple):
    """Acquired records of one partition.

    ranges: (first, last, delivery count), both ends included. data may contain other records too.
    """

    node_id: int
    tp: TopicPartition
    data: Any
    ranges: list[tuple[int, int, int]]


class Outcome(NamedTuple):
    """The outcome of acknowledgements of one partition."""

    tp: TopicPartition
    batches: list[Batch]
    error: KafkaError | None


class ShareSession:
    """A share session. host: a share.core.Sharing."""

    def __init__(self, host: Any, node_id: int):
        self.host = host
        self.cluster = host.cluster
        self.id = node_id
        self.member_id: str = host.member_id
        self.pending: Pending = {}
        self.task: asyncio.Task[None] | None = None
        self._request_lock = asyncio.Lock()
        self._epoch = INITIAL
        self._session_partitions: set[Place] = set()
        self._names: dict[Place, TopicPartition] = {}
        settings = host.settings
        self._wait_ms = settings["fetch.max.wait.ms"]
        self._exact = settings["share.acquire.mode"] == "record_limit"
        self._timeout_s = max(settings.seconds("request.timeout.ms"),
                              self._wait_ms / 1000 + _ANSWER_SLACK_S)
        self._pauses = self.cluster.backoff()
        self._not_before_s = 0.0
        self._ended = False

    @property
    def idle(self) -> bool:
        return self.task is None or self.task.done()

    def acknowledge_later(self, tp: TopicPartition, batches: list[Batch]) -> None:
        """Queue acknowledgements for the next request."""
        if batches:
            self.pending.setdefault(tp, []).extend(batches)

    def end_fetching(self) -> None:
        """Pass on no more records. The end of the session releases those that still arrive."""
        self._ended = True

    async def work(self, wanted: dict[Place, TopicPartition]) -> None:
        """Send pending acknowledgements and acquire records of these partitions."""
        pause_s = self._not_before_s - time.monotonic()
        if pause_s > 0:
            await asyncio.sleep(pause_s)
        if not wanted or any(batch.kind == Acknowledge.RENEW for batches in self.pending.values()
                             for batch in batches):
            await self.flush()
        if not wanted:
            return
        async with self._request_lock:
            if self._ended:
                return
            try:
                await self._fetch(wanted)
                self._pauses.reset()
            except (KafkaError, ProtocolError) as failure:
                self._not_before_s = time.monotonic() + self._pauses.next()
                self.cluster.request_refresh()
                if isinstance(failure, KafkaError) and not failure.retriable:
                    self.host.fail(failure)
            finally:
                self.host.notify()

    async def flush(self, final: bool = False) -> list[Outcome]:
        """Send pending acknowledgements. `final` also ends the session and releases acquired
        records.
        """
        async with self._request_lock:
            self._ended = self._ended or final
            if not self.pending and not (final and self._epoch != INITIAL):
                return []
            acknowledgements, self.pending = self.pending, {}
            if self._epoch == INITIAL:  # The session was lost, and with it the acquired records.
                return self._report(acknowledgements, error(ErrorCode.SHARE_SESSION_NOT_FOUND))
            try:
                return await self._acknowledge(acknowledgements, final)
            except (KafkaError, ProtocolError) as failure:
                return self._lost(acknowledgements, failure)

    async def _acknowledge(self, acknowledgements: Pending, final: bool) -> list[Outcome]:
        request = messages.ShareAcknowledgeRequest
        connection = await self.cluster.connection(self.id, FETCH)
        version = connection.version(request)
        renews = any(batch.kind == Acknowledge.RENEW
                     for rows in acknowledgements.values() for batch in rows)
        if renews and version < RENEW_VERSION:
            raise UnsupportedByBrokerError("the broker cannot renew acquired records (KIP-1222)")
        topics: dict[bytes, Any] = {}
        for tp, batches in acknowledgements.items():
            row = self._topic(topics, request.AcknowledgeTopic, tp)
            row.partitions.append(request.AcknowledgePartition(
                partition_index=tp.partition, acknowledgement_batches=_rows(request, batches)))
        response = await connection.send(request(
            group_id=self.host.group, member_id=self.member_id,
            share_session_epoch=FINAL if final else self._epoch, is_renew_ack=renews,
            topics=list(topics.values())), version=version, timeout_s=self._timeout_s)
        if response.error_code:
            raise error(response.error_code, response.error_message, f"broker {self.id}")
        if final:
            self._epoch = INITIAL
        else:
            self._advance()
        codes = {(row.topic_id, cell.partition_index): (cell.error_code, cell.error_message)
                 for row in response.responses for cell in row.partitions}
        return self._judge(acknowledgements, codes)

    def _topic(self, topics: dict[bytes, Any], kind: Any, tp: TopicPartition) -> Any:
        topic_id = self.host.topic_id(tp)
        row = topics.get(topic_id)
        if row is None:
            row = topics[topic_id] = kind(topic_id=topic_id)
        return row

    async def _fetch(self, wanted: dict[Place, TopicPartition]) -> None:
        acknowledgements, self.pending = self.pending, {}
        if acknowledgements and self._epoch == INITIAL:
            self._report(acknowledgements, error(ErrorCode.SHARE_SESSION_NOT_FOUND))
            acknowledgements = {}
        try:
            connection = await self.cluster.connection(self.id, FETCH)
            version = connection.version(messages.ShareFetchRequest)
            response = await connection.send(self._request(wanted, acknowledgements, version),
                                             version=version,
                                             timeout_s=self._timeout_s)
            if response.error_code:
                raise error(response.error_code, response.error_message, f"broker {self.id}")
        except (KafkaError, ProtocolError) as failure:
            self._lost(acknowledgements, failure)
            if isinstance(failure, KafkaError) and failure.code in _LOST:
                return
            raise
        self._advance()
        codes = {(row.topic_id, cell.partition_index):
                 (cell.acknowledge_error_code, cell.acknowledge_error_message)
                 for row in response.responses for cell in row.partitions}
        self._judge(acknowledgements, codes)
        for row in response.responses:
            for cell in row.partitions:
                self._process_partition(self._names.get((row.topic_id, cell.partition_index)), cell)

    def _request(self, wanted: dict[Place, TopicPartition], acknowledgements: Pending,
                 version: int) -> Any:
        request = messages.ShareFetchRequest
        if self._epoch == INITIAL:
            self._session_partitions = set()
        self._names.update(wanted)
        cells = {key: request.FetchPartition(partition_index=key[1])
                 for key in wanted if key not in self._session_partitions}
        for tp, batches in acknowledgements.items():
            key = self.host.topic_id(tp), tp.partition
            cell = cells.setdefault(key, request.FetchPartition(partition_index=key[1]))
            cell.acknowledgement_batches = _rows(request, batches)
        topics: dict[bytes, Any] = {}
        for (topic_id, _), cell in cells.items():
            row = topics.setdefault(topic_id, request.FetchTopic(topic_id=topic_id))
            row.partitions.append(cell)
        # Partitions that are only acknowledged join the session and are forgotten by the next
        # request.
        gone = self._session_partitions - wanted.keys()
        self._session_partitions = (self._session_partitions | cells.keys()) - gone
        forgotten: dict[bytes, Any] = {}
        for topic_id, number in gone - cells.keys():
            row = forgotten.setdefault(topic_id, request.ForgottenTopic(topic_id=topic_id))
            row.partitions.append(number)
        settings, most = self.host.settings, self.host.settings["max.poll.records"]
        return request(
            group_id=self.host.group, member_id=self.member_id,
            share_session_epoch=self._epoch, max_wait_ms=self._wait_ms,
            min_bytes=settings["fetch.min.bytes"], max_bytes=settings["fetch.max.bytes"],
            max_records=most, batch_size=most, topics=list(topics.values()),
            share_acquire_mode=int(self._exact and version >= EXACT_VERSION),
            forgotten_topics_data=list(forgotten.values()))

    def _process_partition(self, tp: TopicPartition | None, cell: Any) -> None:
        if tp is None:
            return
        if cell.error_code:
            failure = error(cell.error_code, cell.error_message, str(tp))
            leader = cell.current_leader
            if leader.leader_epoch > 0 and leader.leader_id >= 0:
                self.cluster.learn_leader(*tp, leader.leader_id, leader.leader_epoch)
            if failure.retriable:
                self.cluster.request_refresh()
                self._not_before_s = time.monotonic() + self._pauses.next()
            else:
                self.host.fail(failure)
        elif cell.acquired_records and not self._ended:
            ranges = [(row.first_offset, row.last_offset, row.delivery_count)
                      for row in cell.acquired_records]
            self.host.arrived(Acquired(self.id, tp, cell.records or b"", ranges))

    def _advance(self) -> None:
        self._epoch = 1 if self._epoch == _LAST_EPOCH else self._epoch + 1

    def _lost(self, acknowledgements: Pending, failure: Exception) -> list[Outcome]:
        """Reset the session and report the acknowledgements in flight as failed."""
        self._epoch = INITIAL
        known = failure if isinstance(failure, KafkaError) else KafkaError(str(failure))
        return self._report(acknowledgements, known)

    def _judge(self, acknowledgements: Pending, codes: dict[Place, tuple[int, str | None]]
               ) -> list[Outcome]:
        found = {tp: codes.get((self.host.topic_id(tp), tp.partition), (0, None))
                 for tp in acknowledgements}
        return self._report_outcomes([
            Outcome(tp, acknowledgements[tp], error(code, text, str(tp)) if code else None)
            for tp, (code, text) in found.items()])

    def _report(self, acknowledgements: Pending, failure: KafkaError) -> list[Outcome]:
        return self._report_outcomes([
            Outcome(tp, batches, failure) for tp, batches in acknowledgements.items()])

    def _report_outcomes(self, outcomes: list[Outcome]) -> list[Outcome]:
        for outcome in outcomes:
            self.host.outcome(outcome)
        return outcomes


def _rows(request: Any, batches: list[Batch]) -> list[Any]:
    return [request.AcknowledgementBatch(
        first_offset=batch.first, last_offset=batch.last, acknowledge_types=[batch.kind])
        for batch in sorted(batches)]

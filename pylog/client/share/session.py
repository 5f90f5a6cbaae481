"""A share session with one broker: records acquired from it, and acknowledgements to it.

Owns: the session's epoch, what the broker was told that we fetch, acknowledgements not sent yet.
Invariants: (1) one request is under way at a time, so that epochs are in order; (2) what is
  acknowledged is sent once: when a request fails nobody knows whether it was taken, and it is
  reported as failed; (3) a session that was lost has lost what was acquired in it.
Source: KIP-932, KIP-951 (the answer names the new leader), KIP-1206 (how much is acquired),
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
    """Records of one partition that this member has now. ranges: (first, last, how often they were
    delivered), both ends included; data may hold others as well."""

    node_id: int
    tp: TopicPartition
    data: Any
    ranges: list[tuple[int, int, int]]


class Outcome(NamedTuple):
    """What became of acknowledgements of one partition."""

    tp: TopicPartition
    batches: list[Batch]
    error: KafkaError | None


class ShareSession:
    """host: client.sharing's."""

    def __init__(self, host: Any, node_id: int):
        self.host = host
        self.cluster = host.cluster
        self.id = node_id
        self.pending: Pending = {}
        self.task: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self._epoch = INITIAL
        self._told: set[Place] = set()
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
        """With the next request."""
        if batches:
            self.pending.setdefault(tp, []).extend(batches)

    async def work(self, wanted: dict[Place, TopicPartition]) -> None:
        """Sends what is pending, and acquires records of these partitions."""
        pause_s = self._not_before_s - time.monotonic()
        if pause_s > 0:
            await asyncio.sleep(pause_s)
        if not wanted or any(batch.kind == Acknowledge.RENEW for batches in self.pending.values()
                             for batch in batches):
            await self.flush()
        if not wanted:
            return
        async with self._turn:
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
        """Sends what is pending; `final` ends the session, and gives back what was acquired."""
        async with self._turn:
            self._ended = final
            if not self.pending and not (final and self._epoch != INITIAL):
                return []
            taken, self.pending = self.pending, {}
            if self._epoch == INITIAL:              # Keeps (3).
                return self._report(taken, error(ErrorCode.SHARE_SESSION_NOT_FOUND))
            try:
                return await self._acknowledge(taken, final)
            except (KafkaError, ProtocolError) as failure:
                return self._lost(taken, failure)

    async def _acknowledge(self, taken: Pending, final: bool) -> list[Outcome]:
        request = messages.ShareAcknowledgeRequest
        connection = await self.cluster.connection(self.id, FETCH)
        version = connection.version(request)
        renews = any(batch.kind == Acknowledge.RENEW for rows in taken.values() for batch in rows)
        if renews and version < RENEW_VERSION:
            raise UnsupportedByBrokerError("the broker cannot renew records in hand (KIP-1222)")
        topics: dict[bytes, Any] = {}
        for tp, batches in taken.items():
            row = self._topic(topics, request.AcknowledgeTopic, tp)
            row.partitions.append(request.AcknowledgePartition(
                partition_index=tp.partition, acknowledgement_batches=_rows(request, batches)))
        answer = await connection.send(request(
            group_id=self.host.group, member_id=self.host.member_id,
            share_session_epoch=FINAL if final else self._epoch, is_renew_ack=renews,
            topics=list(topics.values())), version=version, timeout_s=self._timeout_s)
        if answer.error_code:
            raise error(answer.error_code, answer.error_message, f"broker {self.id}")
        if final:
            self._epoch = INITIAL
        else:
            self._advance()
        codes = {(row.topic_id, cell.partition_index): (cell.error_code, cell.error_message)
                 for row in answer.responses for cell in row.partitions}
        return self._judge(taken, codes)

    def _topic(self, topics: dict[bytes, Any], kind: Any, tp: TopicPartition) -> Any:
        topic_id = self.host.topic_id(tp)
        row = topics.get(topic_id)
        if row is None:
            row = topics[topic_id] = kind(topic_id=topic_id)
        return row

    async def _fetch(self, wanted: dict[Place, TopicPartition]) -> None:
        taken, self.pending = self.pending, {}
        if taken and self._epoch == INITIAL:
            self._report(taken, error(ErrorCode.SHARE_SESSION_NOT_FOUND))
            taken = {}
        try:
            connection = await self.cluster.connection(self.id, FETCH)
            version = connection.version(messages.ShareFetchRequest)
            answer = await connection.send(self._request(wanted, taken, version), version=version,
                                           timeout_s=self._timeout_s)
            if answer.error_code:
                raise error(answer.error_code, answer.error_message, f"broker {self.id}")
        except (KafkaError, ProtocolError) as failure:
            self._lost(taken, failure)
            if isinstance(failure, KafkaError) and failure.code in _LOST:
                return
            raise
        self._advance()
        codes = {(row.topic_id, cell.partition_index):
                 (cell.acknowledge_error_code, cell.acknowledge_error_message)
                 for row in answer.responses for cell in row.partitions}
        self._judge(taken, codes)
        for row in answer.responses:
            for cell in row.partitions:
                self._take_in(self._names.get((row.topic_id, cell.partition_index)), cell)

    def _request(self, wanted: dict[Place, TopicPartition], taken: Pending, version: int) -> Any:
        request = messages.ShareFetchRequest
        if self._epoch == INITIAL:
            self._told = set()
        self._names.update(wanted)
        cells = {place: request.FetchPartition(partition_index=place[1])
                 for place in wanted if place not in self._told}
        for tp, batches in taken.items():
            place = self.host.topic_id(tp), tp.partition
            cell = cells.setdefault(place, request.FetchPartition(partition_index=place[1]))
            cell.acknowledgement_batches = _rows(request, batches)
        topics: dict[bytes, Any] = {}
        for (topic_id, _), cell in cells.items():
            row = topics.setdefault(topic_id, request.FetchTopic(topic_id=topic_id))
            row.partitions.append(cell)
        # What is only acknowledged becomes part of the session, and is forgotten with the next.
        gone = self._told - wanted.keys()
        self._told = (self._told | cells.keys()) - gone
        forgotten: dict[bytes, Any] = {}
        for topic_id, number in gone - cells.keys():
            row = forgotten.setdefault(topic_id, request.ForgottenTopic(topic_id=topic_id))
            row.partitions.append(number)
        settings, most = self.host.settings, self.host.settings["max.poll.records"]
        return request(
            group_id=self.host.group, member_id=self.host.member_id,
            share_session_epoch=self._epoch, max_wait_ms=self._wait_ms,
            min_bytes=settings["fetch.min.bytes"], max_bytes=settings["fetch.max.bytes"],
            max_records=most, batch_size=most, topics=list(topics.values()),
            share_acquire_mode=int(self._exact and version >= EXACT_VERSION),
            forgotten_topics_data=list(forgotten.values()))

    def _take_in(self, tp: TopicPartition | None, cell: Any) -> None:
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
        elif cell.acquired_records:
            ranges = [(row.first_offset, row.last_offset, row.delivery_count)
                      for row in cell.acquired_records]
            self.host.arrived(Acquired(self.id, tp, cell.records or b"", ranges))

    def _advance(self) -> None:
        self._epoch = 1 if self._epoch == _LAST_EPOCH else self._epoch + 1

    def _lost(self, taken: Pending, failure: Exception) -> list[Outcome]:
        """Keeps (2), (3)."""
        self._epoch = INITIAL
        known = failure if isinstance(failure, KafkaError) else KafkaError(str(failure))
        return self._report(taken, known)

    def _judge(self, taken: Pending, codes: dict[Place, tuple[int, str | None]]) -> list[Outcome]:
        found = {tp: codes.get((self.host.topic_id(tp), tp.partition), (0, None)) for tp in taken}
        return self._told_of([
            Outcome(tp, taken[tp], error(code, text, str(tp)) if code else None)
            for tp, (code, text) in found.items()])

    def _report(self, taken: Pending, failure: KafkaError) -> list[Outcome]:
        return self._told_of([Outcome(tp, batches, failure) for tp, batches in taken.items()])

    def _told_of(self, outcomes: list[Outcome]) -> list[Outcome]:
        for outcome in outcomes:
            self.host.outcome(outcome)
        return outcomes


def _rows(request: Any, batches: list[Batch]) -> list[Any]:
    return [request.AcknowledgementBatch(
        first_offset=batch.first, last_offset=batch.last, acknowledge_types=[batch.kind])
        for batch in sorted(batches)]

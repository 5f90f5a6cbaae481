"""Keep one fetch in flight to every broker that leads an assigned partition.

Owns: one task and one fetch session per broker.
Invariants: each broker has at most one fetch in flight, so that session epochs are in order; while
  the application reads, the next fetch runs if the queue has room; a response applies to a
  partition only if the partition's epoch has not changed since the request.
Source: KIP-74 (limits), KIP-227 (sessions), KIP-392 (preferred replica), KIP-516 (topic ids),
  KIP-951 (the response names the new leader).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from pylog.client.consumer import fetch_response
from pylog.client.consumer.fetch_buffer import CompletedFetch, FetchBuffer
from pylog.client.consumer.fetch_response import TOPIC_IDS, FetchedPartition
from pylog.client.consumer.subscription_state import PartitionState, Subscription
from pylog.client.errors import KafkaError, error
from pylog.client.network.cluster import FETCH, Cluster
from pylog.client.network.connection import Frame
from pylog.protocol import messages
from pylog.protocol.codec import ZERO_UUID
from pylog.protocol.errors import EncodeError, ErrorCode, ProtocolError

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
SESSIONS_VERSION = 7
_LAST_EPOCH = 2**31 - 1
_ANSWER_SLACK_S = 5.0

_SESSION_LOST = {int(ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
                 int(ErrorCode.INVALID_FETCH_SESSION_EPOCH),
                 int(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)}

Key = tuple[str | bytes, int]


class _Session:
    """A fetch session (KIP-227): the broker's state from the previous request."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.id = 0
        self.epoch = 0
        self.by_id = False
        self.sent: dict[Key, tuple[int, int]] = {}
        self.names: dict[Key, tuple[str, bytes]] = {}

    def advance(self, session_id: int) -> None:
        """Advance the session after a successful response. session_id 0: the broker has no session.
        """
        if session_id == 0:
            self.reset()
            return
        self.id = session_id
        self.epoch = 1 if self.epoch == _LAST_EPOCH else self.epoch + 1


class Fetcher:
    """Fetch for the partitions of a subscription. Call `poke` after any change."""

    def __init__(self, cluster: Cluster, subscription: Subscription, queue: FetchBuffer,
                 arrived: Callable[[], None]):
        self.cluster = cluster
        self.subscription = subscription
        self.queue = queue
        self.arrived = arrived
        self.settings = cluster.settings
        self.rack = self.settings["client.rack"]
        self.isolation = (READ_COMMITTED if self.settings["isolation.level"] == "read_committed"
                          else READ_UNCOMMITTED)
        # True while a broker's task waits for room; the reading thread then pokes.
        self.starved = False
        self.nodes: dict[int, _Node] = {}

    def poke(self) -> None:
        """Check again which partitions can be fetched."""
        self.starved = False
        metadata, now_s = self.cluster.metadata, time.monotonic()
        for state in self.subscription.states.values():
            node_id = self.node_of(state, metadata, now_s)
            if node_id >= 0 and node_id not in self.nodes:
                self.nodes[node_id] = _Node(self, node_id)
        for node in self.nodes.values():
            node.wake.set()

    def node_of(self, state: PartitionState, metadata: Any, now_s: float) -> int:
        """Return the broker to fetch a partition from; -1 if none is available now."""
        if state.preferred >= 0:
            if now_s < state.preferred_until_s and state.preferred in metadata.nodes:
                return state.preferred
            state.preferred = -1
        return int(metadata.leader(state.topic, state.partition))

    async def close(self) -> None:
        tasks = [node.task for node in self.nodes.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.nodes.clear()


class _Node:
    """The fetches from one broker."""

    def __init__(self, fetcher: Fetcher, node_id: int):
        self.fetcher = fetcher
        self.cluster = fetcher.cluster
        self.id = node_id
        self.wake = asyncio.Event()
        self.session = _Session()
        settings = fetcher.settings
        self.wait_ms = settings["fetch.max.wait.ms"]
        self.min_bytes = settings["fetch.min.bytes"]
        self.max_bytes = settings["fetch.max.bytes"]
        self.partition_bytes = settings["max.partition.fetch.bytes"]
        self.timeout_s = max(settings.seconds("request.timeout.ms"),
                             self.wait_ms / 1000 + _ANSWER_SLACK_S)
        self.task = asyncio.create_task(self._run())
        self.task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Report a bug in the fetch task and start a new one; otherwise the topic would seem empty.
        """
        if self.fetcher.nodes.get(self.id) is self:
            del self.fetcher.nodes[self.id]
        failure = None if task.cancelled() else task.exception()
        if isinstance(failure, Exception):
            states = list(self.fetcher.subscription.states.values())
            self._fail(states, failure)

    async def _run(self) -> None:
        pauses = self.cluster.backoff()
        while True:
            self.wake.clear()
            wanted, wait_s = self._wanted()
            if not wanted:
                await self._wait(wait_s)
                continue
            try:
                await self._fetch(wanted)
                pauses.reset()
            except (KafkaError, ProtocolError) as failure:
                self.session.reset()
                if isinstance(failure, EncodeError) or (
                        isinstance(failure, KafkaError) and not failure.retriable):
                    self._fail(wanted, failure)
                self.cluster.request_refresh()
                await asyncio.sleep(pauses.next())

    async def _wait(self, wait_s: float | None) -> None:
        try:
            async with asyncio.timeout(wait_s):
                await self.wake.wait()
        except TimeoutError:
            pass

    def _fail(self, wanted: list[PartitionState], failure: Exception) -> None:
        """Make the application's next poll raise the failure once, for any of these partitions:
        some may be revoked or sought until then.
        """
        for state in wanted:
            state.error = failure
        self.fetcher.queue.put([CompletedFetch(state, b"", [], None, failure)
                                for state in wanted])
        self.fetcher.arrived()

    def _wanted(self) -> tuple[list[PartitionState], float | None]:
        """Return (partitions to fetch now, seconds until more may be due)."""
        fetcher, metadata = self.fetcher, self.cluster.metadata
        if fetcher.queue.room_bytes <= 0:
            fetcher.starved = True
            # Check again with the flag set: the other thread may just have made room.
            if fetcher.queue.room_bytes <= 0:
                return [], None
        found: list[PartitionState] = []
        now_s, wait_s = time.monotonic(), None
        for state in fetcher.subscription.states.values():
            if (state.position is None or state.paused or state.revoking or state.error
                    or state.validate >= 0):
                continue
            node_id = fetcher.node_of(state, metadata, now_s)
            if node_id != self.id:
                if node_id < 0:
                    self.cluster.request_refresh()
                continue
            if state.not_before_s > now_s:
                left_s = state.not_before_s - now_s
                wait_s = left_s if wait_s is None else min(wait_s, left_s)
                continue
            found.append(state)
        return found, wait_s

    async def _fetch(self, wanted: list[PartitionState]) -> None:
        connection = await self.cluster.connection(self.id, FETCH)
        metadata = self.cluster.metadata
        ids = [metadata.topic_id(state.topic) for state in wanted]
        if not all([state.belongs_to(topic_id) for state, topic_id in zip(wanted, ids)]):
            self._fail_positions(wanted, ids)
            return
        version = connection.version(messages.FetchRequest)
        by_id = version >= TOPIC_IDS and ZERO_UUID not in ids
        if not by_id:
            version = min(version, TOPIC_IDS - 1)
        if by_id != self.session.by_id:
            self.session.reset()
            self.session.by_id = by_id
        asked = {
            (topic_id if by_id else state.topic, state.partition): (state, state.epoch, topic_id)
            for state, topic_id in zip(wanted, ids)
        }
        request = self._request(asked, version)
        future = connection.send(request, version=version, raw=True, timeout_s=self.timeout_s)
        frame: Frame = await future
        try:
            response = fetch_response.read(frame)
        except BaseException:
            frame.release()
            raise
        if response.error_code:
            frame.release()
            self.session.reset()
            if response.error_code not in _SESSION_LOST:
                raise error(response.error_code, context=f"fetch from broker {self.id}")
            return
        if version >= SESSIONS_VERSION:
            self.session.advance(response.session_id)
            self.session.by_id = by_id
        self._queue_fetched(response.partitions, asked, frame)

    def _fail_positions(self, wanted: list[PartitionState], ids: list[bytes]) -> None:
        """Report positions of a topic that no longer exists, as offsets that do not exist."""
        for state, topic_id in zip(wanted, ids):
            if not state.belongs_to(topic_id):
                self._fail([state], error(
                    ErrorCode.OFFSET_OUT_OF_RANGE, "the topic was deleted and created again",
                    str(state.tp)))

    def _request(self, asked: dict[Key, tuple[PartitionState, int, bytes]], version: int) -> Any:
        session, metadata = self.session, self.cluster.metadata
        request = messages.FetchRequest
        topics: dict[str, Any] = {}
        for key, (state, _, topic_id) in asked.items():
            info = metadata.partition(state.topic, state.partition)
            entry = (state.fetch_position, info.leader_epoch if info else -1)
            if session.epoch and session.sent.get(key) == entry:
                continue
            session.sent[key] = entry
            session.names[key] = (state.topic, topic_id)
            row = topics.get(state.topic)
            if row is None:
                row = topics[state.topic] = request.FetchTopic(topic=state.topic, topic_id=topic_id)
            row.partitions.append(request.FetchPartition(
                partition=state.partition, current_leader_epoch=entry[1],
                fetch_offset=state.fetch_position, partition_max_bytes=self.partition_bytes))
        return request(
            replica_id=-1, max_wait_ms=self.wait_ms, min_bytes=self.min_bytes,
            max_bytes=max(1, min(self.max_bytes, self.fetcher.queue.room_bytes)),
            isolation_level=self.fetcher.isolation, session_id=session.id,
            session_epoch=session.epoch if version >= SESSIONS_VERSION else -1,
            topics=list(topics.values()), forgotten_topics_data=self._forgotten(asked),
            rack_id=self.fetcher.rack)

    def _forgotten(self, asked: dict[Key, tuple[PartitionState, int, bytes]]) -> list[Any]:
        session = self.session
        gone = [key for key in session.sent if key not in asked]
        made: dict[Key, Any] = {}
        for key in gone:
            del session.sent[key]
            name, topic_id = session.names.pop(key)
            if not session.epoch:
                continue
            row = made.get((name, 0))
            if row is None:
                row = made[name, 0] = messages.FetchRequest.ForgottenTopic(
                    topic=name, topic_id=topic_id)
            row.partitions.append(key[1])
        return list(made.values())

    def _queue_fetched(self, partitions: list[FetchedPartition],
                       asked: dict[Key, tuple[PartitionState, int, bytes]], frame: Frame) -> None:
        items: list[CompletedFetch] = []
        for row in partitions:
            state, epoch, _ = asked.get((row.topic, row.partition), (None, 0, b""))
            if state is None or state.epoch != epoch:  # The partition's epoch has changed.
                continue
            if row.error_code:
                failed = self._refused(state, row)
                if failed is not None:
                    items.append(failed)
                continue
            state.high_watermark = row.high_watermark
            state.last_stable_offset = row.last_stable_offset
            state.log_start_offset = row.log_start_offset
            if row.preferred_replica >= 0 and row.preferred_replica != self.id:
                state.preferred = row.preferred_replica
                state.preferred_until_s = (
                    time.monotonic() + self.fetcher.settings.seconds("metadata.max.age.ms"))
                self.fetcher.poke()
                continue
            end = fetch_response.end_of(row.records) if len(row.records) else None
            if end is not None:
                items.append(CompletedFetch(state, row.records, row.aborted, frame))
                state.fetch_position = max(end, state.fetch_position)
        frame.users = sum([item.frame is not None for item in items])
        if not frame.users:
            frame.release()
        if items:
            self.fetcher.queue.put(items)
            self.fetcher.arrived()

    def _refused(self, state: PartitionState, row: FetchedPartition) -> CompletedFetch | None:
        """Handle a partition's error code. Returns an item if the application must see the error.
        """
        code = row.error_code
        state.not_before_s = time.monotonic() + self.fetcher.settings.seconds("retry.backoff.ms")
        failure = error(code, context=str(state.tp))
        if state.preferred >= 0:
            state.preferred = -1  # A follower may lag behind; ask the leader.
            self.fetcher.poke()
            return None
        if failure.retriable and code != ErrorCode.CORRUPT_MESSAGE:
            if row.leader is not None:
                self.cluster.learn_leader(state.topic, state.partition, *row.leader)
            if failure.stale_metadata:
                self.cluster.request_refresh()
            return None
        # Queue the error in order: records fetched before it are read first.
        state.error = failure
        return CompletedFetch(state, b"", [], None, failure)

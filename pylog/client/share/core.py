"""Shared core of the blocking and the asyncio share consumer.

Owns: cluster, subscription, membership and share sessions of one share consumer.
Invariants: at most one response per broker waits to be returned; records are acknowledged at the
  broker that they were acquired from; if a commit is cancelled or times out, its acknowledgements
  are still sent and their outcome is reported; if an unsubscribe or close is cancelled, it
  continues in the background.
Source: KIP-932; Kafka's KafkaShareConsumer, for the semantics of each call.
"""

from __future__ import annotations

import asyncio
import collections
import os
import time
from collections.abc import Iterable, Sequence
from typing import Any

from pylog.protocol.counts import counted
from pylog.client import callbacks
from pylog.client.share.acknowledgements import Acknowledge, DeliveredRecords
from pylog.client.network.cluster import Cluster
from pylog.client.errors import (
    ClosedError, ConfigError, IllegalStateError, KafkaError, KafkaTimeoutError, WakeupError,
)
from pylog.client.types import TopicPartition
from pylog.client.config.settings import Settings
from pylog.client.share.membership import ShareMembership
from pylog.client.share.session import Acquired, Outcome, Place, ShareSession
from pylog.client.consumer.subscription_state import Subscription, check_topic

OUTCOMES_MAX = 10_000  # If the application never reads outcomes, the oldest are dropped.


class Sharing:
    """One share consumer."""

    def __init__(self, settings: Settings):
        if settings["group.id"] is None:
            raise ConfigError("a share consumer needs group.id")
        self.settings = settings
        self.interceptors = callbacks.interceptors_of(settings["interceptor.classes"])
        self.process = os.getpid()
        self.group: str = settings["group.id"]
        self.explicit = settings["share.acknowledgement.mode"] == "explicit"
        self.cluster = Cluster(settings)
        self.subscription = Subscription(True)
        self.membership: ShareMembership | None = None
        self.sessions: dict[int, ShareSession] = {}
        self.delivered: dict[TopicPartition, DeliveredRecords] = {}
        # What the latest poll acquired, until its caller has the records. Reset by a single
        # assignment, so that a KeyboardInterrupt at any point keeps it.
        self.undelivered: Sequence[Acquired] = ()
        self.outcomes: collections.deque[Outcome] = collections.deque(maxlen=OUTCOMES_MAX)
        self.closed = self.woken = self.polling = False
        self._ready: list[Acquired] = []
        self._poll_number = 0
        self._failure: KafkaError | None = None
        self._changed = asyncio.Event()
        self._ids: dict[str, bytes] = {}
        self._flushes: set[asyncio.Task[list[Outcome]]] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        self._closing: asyncio.Task[None] | None = None

    async def start(self) -> Sharing:
        self.loop = asyncio.get_running_loop()
        self.cluster.watchers.append(self._metadata_changed)
        await self.cluster.start()
        return self

    # Called by sessions and the membership

    @property
    def member_id(self) -> str:
        assert self.membership is not None, "not subscribed"
        return self.membership.member_id

    def topic_id(self, tp: TopicPartition) -> bytes:
        """Return the topic id when the partition was assigned: acquired records belong to that
        topic.
        """
        return self._ids[tp.topic]

    def notify(self) -> None:
        self._changed.set()

    def fail(self, failure: KafkaError) -> None:
        """Make the next poll raise `failure`."""
        self._failure = failure
        self.notify()

    def arrived(self, acquired: Acquired) -> None:
        self._ready.append(acquired)
        self.notify()

    def outcome(self, outcome: Outcome) -> None:
        if outcome.error is not None:
            self.cluster.notices.warn(("acknowledge", outcome.tp), "%s: not acknowledged: %s",
                                      outcome.tp, outcome.error)
        self.outcomes.append(outcome)

    async def commit_before_revoke(self) -> None:
        """Do nothing: records of revoked partitions stay acquired and are acknowledged at their
        broker.
        """

    async def commit_stored_by_listener(self) -> None:
        """Do nothing: share groups have no committed offsets."""

    async def call_listener(self, what: str, partitions: list[TopicPartition]) -> None:
        self.cluster.notices.inform("share group %s: %s: %s", self.group, what,
                                    ", ".join(map(str, partitions)) or "nothing")

    def _metadata_changed(self, metadata: Any) -> None:
        if self.membership is not None:
            self.membership.metadata_changed()
        self.notify()

    # Subscription

    async def subscribe(self, topics: Iterable[str] | str) -> None:
        self._check_open()
        names = [topics] if isinstance(topics, str) else list(topics)
        for name in names:
            check_topic(name, "A share group has no patterns: list the topics by name")
        self.subscription.subscribe(names, None, None)
        self.cluster.keep_topics(self.subscription.topics)
        if self.membership is None:
            self.membership = ShareMembership(self, self.group)
        else:
            self.membership.subscription_changed()

    async def unsubscribe(self) -> None:
        """Leave the group and release unacknowledged records to other members.

        If the call is cancelled, this continues in the background.
        """
        membership = self.membership
        self._release_undelivered()
        if membership is not None:
            self._queue(None)
            self.membership = None
            self.delivered.clear()
            self._ready.clear()
            for session in self.sessions.values():
                session.end_fetching()
            task = asyncio.create_task(self._leave(membership, list(self.sessions.values())))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
            self.sessions = {}
            self.notify()
        self.subscription.unsubscribe()
        await asyncio.shield(asyncio.gather(*self._leaving))

    async def _leave(self, membership: ShareMembership, sessions: list[ShareSession]) -> None:
        """End the sessions, so that the brokers release their records, and leave the group."""
        try:
            async with asyncio.timeout(self.settings.seconds("default.api.timeout.ms")):
                await asyncio.gather(*(session.flush(final=True) for session in sessions))
                await membership.end()
        except TimeoutError:
            self.cluster.notices.warn(
                "leave", "share group %s: left without a response: records stay acquired until "
                "their lock duration ends", self.group)
        finally:
            tasks = [session.task for session in sessions if session.task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await membership.stop()

    # Polls

    async def poll(self, wait_s: float) -> list[Acquired]:
        """Return acquired records; empty after wait_s. Raises KafkaError, IllegalStateError.

        Records of earlier polls are acknowledged first; in explicit mode, the application must have
        acknowledged them.
        """
        self._check_open()
        membership = self.membership
        if membership is None:
            raise IllegalStateError("subscribe to topics first")
        self._release_undelivered()
        self._acknowledge_polled(None if self.explicit else Acknowledge.ACCEPT)
        self._poll_number += 1
        number = self._poll_number
        membership.polled_s = time.monotonic()
        end_s = membership.polled_s + wait_s
        self.polling = True
        try:
            while True:
                self._changed.clear()
                # Let the fetch tasks run even if the application polls without pause. Do it before
                # taking records: a cancellation after that would lose them.
                await asyncio.sleep(0)
                self._check_member(membership)
                self.raise_failure()
                if membership.has_pending_work:
                    await self._run_pending_work(membership, end_s)
                    self._check_member(membership)
                self._start_requests()
                if number != self._poll_number:
                    return []  # Its caller was interrupted and has begun another poll.
                if self._ready:
                    found, self._ready = self._ready, []
                    self.undelivered = found
                    return found
                left_s = end_s - time.monotonic()
                if left_s <= 0:
                    return []
                await _wait(self._changed, left_s)
        finally:
            self.polling = False
            membership.polled_s = time.monotonic()

    def _check_member(self, membership: ShareMembership) -> None:
        """Raise if the consumer has left the group since the poll began."""
        self._check_open()
        if self.membership is not membership:
            raise IllegalStateError("the share consumer unsubscribed during this poll")

    def raise_failure(self) -> None:
        """Raise the stored failure, once."""
        if self.woken:
            self.woken = False
            raise WakeupError("the consumer was woken up")
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    async def _run_pending_work(self, membership: ShareMembership, end_s: float) -> None:
        try:
            await membership.run_pending_work()
        except KafkaError as failure:
            if not failure.retriable:
                raise
            self.cluster.notices.warn("join", "share group %s: %s", self.group, failure)
            await asyncio.sleep(min(self.cluster.backoff().next(),
                                    max(0.0, end_s - time.monotonic())))
        self._ids.update((topic, self.cluster.metadata.topic_id(topic))
                         for topic, _ in self.subscription.states)

    def _acknowledge_polled(self, default: Acknowledge | None) -> None:
        """Queue acknowledgements of records from earlier polls."""
        if default is None:
            unacknowledged = sum(row.unacknowledged_count for row in self.delivered.values())
            if unacknowledged:
                raise IllegalStateError(
                    f"{counted(unacknowledged, 'record')} of earlier polls not yet acknowledged")
        self._queue(default)

    def _queue(self, default: Acknowledge | None) -> None:
        for tp, delivered in list(self.delivered.items()):
            self._session(delivered.node_id).acknowledge_later(tp, delivered.take(default))
            if not delivered.ranges:
                del self.delivered[tp]

    def _session(self, node_id: int) -> ShareSession:
        found = self.sessions.get(node_id)
        if found is None:
            found = self.sessions[node_id] = ShareSession(self, node_id)
        return found

    def _start_requests(self) -> None:
        """Send a request to every broker without one in flight: fetch, or only acknowledge."""
        wanted: dict[int, dict[Place, TopicPartition]] = {}
        for tp, state in self.subscription.states.items():
            leader = self.cluster.metadata.leader(*tp)
            if leader < 0:
                self.cluster.request_refresh()
            elif not state.revoking:
                wanted.setdefault(leader, {})[self.topic_id(tp), tp.partition] = tp
        full = {acquired.node_id for acquired in self._ready}
        for node_id in wanted.keys() | self.sessions.keys():
            session = self._session(node_id)
            partitions = {} if node_id in full else wanted.get(node_id, {})
            if session.idle and (partitions or session.pending):
                session.task = asyncio.create_task(session.work(partitions))
                session.task.add_done_callback(self._worked)

    def _worked(self, task: asyncio.Task[None]) -> None:
        """Report a bug in a session; otherwise the topic would seem empty."""
        failure = None if task.cancelled() else task.exception()
        if failure is not None:
            self._failure = failure if isinstance(failure, KafkaError) else KafkaError(
                f"{type(failure).__name__}: {failure}")
        self.notify()

    # Acknowledgements

    def add_acquired(self, acquired: Acquired, gaps: Iterable[int]) -> None:
        """Track acquired records that a poll returns. gaps: offsets without a record."""
        delivered = self.delivered.get(acquired.tp)
        if delivered is None or delivered.node_id != acquired.node_id:
            delivered = self.delivered[acquired.tp] = DeliveredRecords(acquired.node_id)
        delivered.add([(first, last) for first, last, _ in acquired.ranges], gaps)

    def _release_undelivered(self) -> None:
        """Release the records of a poll that raised."""
        for item in self.undelivered:
            offsets = [offset for first, last, _ in item.ranges
                       for offset in range(first, last + 1)]
            delivered = self.delivered.get(item.tp)
            if (delivered is None or delivered.node_id != item.node_id
                    or not all(map(delivered.has, offsets))):
                self.add_acquired(item, ())
                delivered = self.delivered[item.tp]
            for offset in offsets:
                delivered.kinds.setdefault(offset, int(Acknowledge.RELEASE))
            delivered.later.difference_update(offsets)
        self.undelivered = ()

    def acknowledge(self, tp: TopicPartition, offset: int, kind: Acknowledge) -> None:
        """Acknowledge a record. Raises IllegalStateError if it is not acquired."""
        self._check_open()
        if not self.explicit:
            raise IllegalStateError("acknowledging needs share.acknowledgement.mode=explicit")
        delivered = self.delivered.get(tp)
        if delivered is None or not delivered.acknowledge(offset, kind):
            raise IllegalStateError(f"{tp} at {offset} is not acquired: no poll returned it, or "
                                    f"it was already acknowledged")

    async def commit(self, timeout_s: float | None) -> dict[TopicPartition, KafkaError | None]:
        """Send acknowledgements; in implicit mode all acquired records are accepted."""
        self._check_open()
        self._release_undelivered()
        self._queue(None if self.explicit else Acknowledge.ACCEPT)
        if timeout_s is None:
            timeout_s = self.settings.seconds("default.api.timeout.ms")
        try:
            async with asyncio.timeout(timeout_s):
                found = await asyncio.gather(*(
                    asyncio.shield(self._flushed(session)) for session in self.sessions.values()))
        except TimeoutError as late:
            raise KafkaTimeoutError(f"not acknowledged within {timeout_s} s") from late
        return {outcome.tp: outcome.error for outcomes in found for outcome in outcomes}

    def _flushed(self, session: ShareSession) -> asyncio.Task[list[Outcome]]:
        """Flush a session in a task that continues if the caller is cancelled."""
        task = asyncio.create_task(session.flush())
        self._flushes.add(task)
        task.add_done_callback(self._flushes.discard)
        return task

    # Close

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError("the share consumer is closed")

    async def close(self, timeout_s: float) -> None:
        """Send acknowledgements, release other acquired records and leave the group.

        If the call is cancelled, this continues in the background.
        """
        if self._closing is None:
            self.closed = True
            self._closing = asyncio.create_task(self._close(timeout_s))
        await asyncio.shield(self._closing)

    async def _close(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self.unsubscribe()
        except TimeoutError:
            pass
        finally:
            tasks = [*self._leaving, *self._flushes]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            # Brokers release the records of a session when its connection ends.
            await self.cluster.close()
            callbacks.close_interceptors(self.interceptors)
            self.notify()

    async def abandon(self, timeout_s: float) -> None:
        """Close for an application that dropped the consumer."""
        await self.close(timeout_s)


async def _wait(event: asyncio.Event, wait_s: float) -> None:
    try:
        async with asyncio.timeout(wait_s):
            await event.wait()
    except TimeoutError:
        pass


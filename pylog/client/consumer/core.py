"""Shared core of the blocking and the asyncio consumer.

Owns: cluster, subscription, fetcher, membership of one consumer.
Invariants: joining, the commit before it and position lookups run in one task that polls start and
  await (`run_pending_work`), so a poll that times out does not interrupt them; callbacks run where
  the application polls; joining the group never waits for position lookups.
Source: Kafka's consumer, for the semantics of each call.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from pylog._native.client.columns import Record
from pylog.client import callbacks
from pylog.client.consumer import list_offsets, offset_requests
from pylog.client.arguments import several, whole
from pylog.client.network.cluster import Cluster
from pylog.client.consumer.commit_manager import CommitRequest, Committing
from pylog.client.errors import (
    ClosedError, IllegalStateError, KafkaError, KafkaTimeoutError, RetriableError, WakeupError,
)
from pylog.client.consumer.fetcher import Fetcher
from pylog.client.consumer.record_iterator import Iteration
from pylog.client.consumer.rebalance_listener import callback_of
from pylog.client.network.metrics import Metrics
from pylog.client.consumer.classic_membership import ClassicMembership
from pylog.client.types import EARLIEST, LATEST, TopicPartition
from pylog.client.consumer.fetch_buffer import CompletedFetch, FetchBuffer
from pylog.client.consumer.consumer_membership import ConsumerMembership
from pylog.client.config.settings import Settings
from pylog.client.consumer.subscription_state import NO_POLL, PartitionState, Subscription
from pylog.client.consumer.fetch_collector import FetchCollector
from pylog.protocol.errors import ErrorCode

# glibc returns the end of the heap to the system when 128 KiB of it are free, and faults it in
# again page by page: polls of 5000 values of 1 KiB took 1.2 instead of 0.6 s of CPU per million
# records (2-core EPYC). After freeing a block of this size, glibc keeps twice as much.
HEAP_KEPT_BYTES = 16 << 20
LEAVE_LATE_S = 1.0
RunCallback = Callable[[Callable[..., Any], list[TopicPartition]], Awaitable[Any]]


class Consuming(Committing):
    """One consumer. run_callback: runs the application's callbacks; notify: wakes a poll."""

    def __init__(self, settings: Settings, run_callback: RunCallback, notify: Callable[[], None]):
        super().__init__(settings)
        self._run_callback = run_callback
        self._notify = notify
        self.loop = asyncio.get_running_loop()
        self.process = os.getpid()
        self.cluster = Cluster(settings)
        self.subscription = Subscription(settings["exclude.internal.topics"])
        self.queue = FetchBuffer(settings["queued.max.messages.kbytes"] * 1024,
                                settings["isolation.level"] == "read_committed",
                                settings["check.crcs"])
        self.fetcher = Fetcher(self.cluster, self.subscription, self.queue, self.notify)
        self.collector = FetchCollector(
            self.queue, self._failed, callbacks.deserializer_of(settings["key.deserializer"]),
            callbacks.deserializer_of(settings["value.deserializer"]))
        self.interceptors = callbacks.interceptors_of(settings["interceptor.classes"])
        self.woken = False
        # Records not yet returned to an application that reads one record at a time.
        self.iteration: Iteration | None = None
        # Positions or metadata need attention, apart from membership.
        self.dirty = False
        self._pending_work: asyncio.Task[None] | None = None
        self._locating: asyncio.Task[None] | None = None
        # The task above awaits a callback. Calls made by the callback must not await the task.
        self._in_callback = False
        self._changed = asyncio.Event()
        self._closing = False
        self._rebalances = 0

    async def start(self) -> Consuming:
        bytearray(HEAP_KEPT_BYTES)  # Allocate and free without touching the memory.
        self.cluster.watchers.append(self._metadata_changed)
        await self.cluster.start()
        self.cluster.report(self.metrics)
        return self

    def metrics(self) -> Metrics:
        """Return totals with Kafka's names: of fetches per topic, the group and connections."""
        counts, states = self.collector.counts, list(self.subscription.states.values())
        lags = [max(0, state.high_watermark - position) for state in states
                if (position := self._delivered(state)) is not None and state.high_watermark >= 0]
        own: dict[str, float] = {
            "records-consumed-total": counts.records, "bytes-consumed-total": counts.bytes,
            "records-lag-max": max(lags, default=-1), "records-lag": sum(lags),
            "fetch-queued-bytes": self.queue.queued_bytes}
        group: dict[str, float] = {
            "assigned-partitions": len(states), "rebalance-total": self._rebalances,
            "commit-total": self._commits}
        return {"consumer-metrics": self.cluster.traffic_rows(),
                "consumer-fetch-manager-metrics": own, "consumer-coordinator-metrics": group,
                **{name: {key: row[key] for key in ("records-consumed-total",
                                                    "bytes-consumed-total")}
                   for name, row in counts.by_topic("consumer-fetch-manager-metrics", (
                       "records-consumed-total", "bytes-consumed-total", "")).items()}}

    def notify(self) -> None:
        """Wake a poll: data has arrived or a state has changed."""
        if self._locating is not None and self.membership is not None \
                and self.membership.has_pending_work:
            self._locating.cancel()  # Joining never waits for position lookups.
        self._changed.set()
        self._notify()

    def _metadata_changed(self, metadata: Any) -> None:
        if self.subscription.match(metadata) and self.membership is not None:
            self.membership.subscription_changed()
        if self.membership is not None:
            self.membership.metadata_changed()
        for state in self.subscription.states.values():
            info = metadata.partition(state.topic, state.partition)
            # Prevents skipping records if a new leader lacks some that the old leader had.
            if (info is not None and state.position is not None and state.record_epoch >= 0
                    and info.leader_epoch > state.record_epoch and state.validate < 0
                    and info.leader_epoch != state.checked_epoch):
                state.validate = state.checked_epoch = info.leader_epoch
                self.dirty = True
        self.fetcher.poke()
        self.notify()

    # Joining and positions

    @property
    def has_pending_work(self) -> bool:
        """Return True if a poll must call `run_pending_work`."""
        return (self.dirty or self.woken or self.closed or self._pending_work is not None
                or self.membership is not None and self.membership.has_pending_work)

    def check_topics(self) -> None:
        """Raise IllegalStateError if there is nothing to read, as Kafka does when a poll begins."""
        if not (self.subscription.by_group or self.subscription.is_manual):
            raise IllegalStateError(
                "the consumer has no topics to poll",
                remedy='call subscribe(["topic"]) or assign([TopicPartition("topic", 0)]) first')

    def polled(self) -> CommitRequest | None:
        """Begin a turn of a poll. Returns what to commit automatically, if that is due."""
        self._begin_poll()
        now_s = time.monotonic()
        if self.membership is not None:
            self.membership.polled_s = now_s
        if not self._auto or now_s < self._next_auto_s:
            return None
        self._next_auto_s = now_s + self._auto_s
        request = self.commit_request()
        if not request.offsets or self._stores and request.offsets == self._auto_committed:
            return None
        return request

    async def run_pending_work(self, wait_s: float | None) -> None:
        """Join and look up positions, for at most wait_s, or until records are available."""
        self._check_open()
        if self._closing:
            raise ClosedError("the consumer is being closed")
        if self.woken:
            self.woken = False
            raise WakeupError("the consumer was woken up")
        task = self._pending_work
        if task is None:
            task = self._pending_work = asyncio.create_task(self._run_pending_work())
            task.add_done_callback(lambda _: self.notify())
        end_s = None if wait_s is None else time.monotonic() + wait_s
        while not task.done() and not self.queue.items and not self.woken:
            self._changed.clear()
            try:
                async with asyncio.timeout(
                        None if end_s is None else max(0, end_s - time.monotonic())):
                    await self._changed.wait()
            except TimeoutError:
                break
        if task.done():
            if self._pending_work is task:
                self._pending_work = None
            if task.cancelled() and self._closing:
                raise ClosedError("the consumer was closed")
            task.result()
            if self.has_pending_work:
                self._notify()  # Changes after the task finished are handled by the next one.

    async def _run_pending_work(self) -> None:
        """Run joins and position lookups; only one such task at a time."""
        subscription = self.subscription
        pauses = self.cluster.backoff()
        while True:
            try:
                self.dirty = False
                if subscription.by_group:
                    if not self.cluster.metadata.version or subscription.pattern is not None and (
                            not subscription.topics):
                        await self.cluster.refresh()
                    if self.membership.has_pending_work:
                        await self.membership.run_pending_work()
                await self._locate_meanwhile()
                self.fetcher.poke()
            except RetriableError as failure:
                self.dirty = True
                if isinstance(failure, KafkaTimeoutError):
                    raise
                await asyncio.sleep(pauses.next())
                continue
            except BaseException:  # A callback may raise CancelledError too.
                self.dirty = True  # The next poll resumes the rest.
                raise
            if not self.dirty and not (self.membership and self.membership.has_pending_work):
                return
            await asyncio.sleep(0)

    async def _locate_meanwhile(self) -> None:
        """Run _locate() until the group needs attention: it may wait for partitions without a
        leader.
        """
        if self.membership is not None and self.membership.has_pending_work:
            return
        task = self._locating = asyncio.create_task(self._locate())
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
            self._locating = None
        if task.cancelled():
            self.dirty = True  # Resume after the group's work.
        else:
            task.result()

    async def _locate(self) -> None:
        """Look up unknown positions, and validate positions after a leader change."""
        states = [state for state in self.subscription.states.values() if not state.revoking]
        missing = [state for state in states if state.position is None]
        if missing:
            fresh = [state for state in missing if state.reset is None]
            if fresh and self.settings["group.id"] is not None:
                await self._from_committed(fresh)
            for state in fresh:
                if state.position is None and state.reset is None:
                    state.reset = self.settings["auto.offset.reset"]
            lost = [state for state in missing if state.position is None]
            if lost:
                await list_offsets.reset(self.cluster, lost, self.fetcher.isolation)
        check = [state for state in states if state.validate >= 0 and state.position is not None]
        if check:
            await list_offsets.validate(self.cluster, check,
                                        self.settings["auto.offset.reset"] != "none")

    async def _from_committed(self, states: list[PartitionState]) -> None:
        epochs = {state.tp: state.epoch for state in states}
        # The newest request version uses topic ids, but names work too.
        found = await self.cluster.retry(lambda: offset_requests.committed(
            self.cluster, self._reader(), epochs, True))
        for state in states:
            given = found.get(state.tp)
            if given is not None and state.epoch == epochs[state.tp]:
                state.move_to(given.offset, given.leader_epoch)

    def _failed(self, item: CompletedFetch) -> None:
        """Handle a failed fetch of a partition, after the application read all records before it.
        """
        state, failure = item.state, item.error
        if state.error is not failure:
            return  # Already raised for another partition.
        for other in self.subscription.states.values():
            if other.error is failure:
                other.error = None
        state.error = None
        policy = self.settings["auto.offset.reset"]
        if failure is not None and (
                not isinstance(failure, KafkaError)
                or failure.code != ErrorCode.OFFSET_OUT_OF_RANGE or policy == "none"):
            self.loop.call_soon_threadsafe(self.fetcher.poke)
            raise failure
        self.cluster.notices.warn(("reset", state.tp),
                                  "%s: %s; reading continues by auto.offset.reset=%s",
                                  state.tp, failure, policy)
        state.forget_position(policy)
        self.dirty = True
        self._notify()

    # Callbacks

    async def call_listener(self, what: str, partitions: list[TopicPartition]) -> None:
        """Call the listener's on_partitions_assigned, _revoked or _lost, where the application
        polls.
        """
        shown = ", ".join(map(str, partitions)) or "nothing"
        self._rebalances += what == "assigned"
        if what == "lost":
            self.cluster.notices.warn("lost", "group %s: lost without notice: %s",
                                      self.settings["group.id"], shown)
        else:
            self.cluster.notices.inform("group %s: %s: %s", self.settings["group.id"], what, shown)
        found = callback_of(self.subscription.listener, what)
        if found is None:
            return
        self._in_callback = True
        try:
            await self._run_callback(found, partitions)
        finally:
            self._in_callback = False

    # Subscription

    async def subscribe(self, topics: Any, pattern: Any, listener: Any) -> None:
        self._check_open()
        if self.settings["group.id"] is None:
            raise IllegalStateError(
                "subscribe needs the setting group.id",
                remedy="set it, or read without a group by "
                'assign([TopicPartition("topic", 0)])')
        subscription = self.subscription
        subscription.subscribe(topics, pattern, listener)
        self.cluster.wants_all_topics = subscription.pattern is not None
        self.cluster.keep_topics(subscription.topics if subscription.pattern is None else ())
        if subscription.pattern is not None:
            subscription.match(self.cluster.metadata)
            self.cluster.request_refresh()
        if self.membership is None:
            kind = (ClassicMembership if self.settings["group.protocol"] == "classic"
                    else ConsumerMembership)
            self.membership = kind(self, self.settings["group.id"])
        else:
            self.membership.subscription_changed()
        self.dirty = True
        self.notify()

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        self._check_open()
        self.subscription.assign(partitions)
        self.cluster.keep_topics(tp.topic for tp in self.subscription.states)
        self._auto_committed = {}
        self.dirty = True
        self.fetcher.poke()

    async def unsubscribe(self) -> None:
        await self._settle()
        self._begin_poll()
        membership = self.membership
        try:
            if membership is not None:
                with self._at_rest():
                    await membership.take(membership.owned())
        finally:
            # Even if the call is cancelled: the group would wait for a member without partitions.
            self.membership = None
            self.subscription.unsubscribe()
            self.cluster.wants_all_topics = False
            self.cluster.keep_topics(())
            self.fetcher.poke()
            if membership is not None:
                await membership.end()
        if membership is not None:
            membership.raise_callback_failure()

    async def _settle(self) -> None:
        """End the task that polls await."""
        task, self._pending_work = self._pending_work, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # Positions

    async def seek(self, tp: TopicPartition, offset: int) -> None:
        offset = whole("an offset", offset)
        if offset < 0:
            raise ValueError("an offset must not be negative")
        self.subscription.state(tp).move_to(offset)
        self.fetcher.poke()

    async def seek_to(self, partitions: Iterable[TopicPartition], where: str) -> None:
        """Seek to the beginning or end; in all assigned partitions by default."""
        for tp in list(partitions) or list(self.subscription.states):
            self.subscription.state(TopicPartition.of(tp)).forget_position(where)
        self.dirty = True

    async def set_paused(self, partitions: Iterable[TopicPartition], paused: bool) -> None:
        for tp in partitions:
            state = self.subscription.state(TopicPartition.of(tp))
            state.paused = paused
            if not paused:
                self.queue.unpark(state)
            elif self.iteration is not None:
                self.iteration.put_back(state)
        self.fetcher.poke()
        self.notify()

    def iterate(self, found: list[Record[Any, Any]]) -> None:
        """Set the records of a poll that next_record() returns."""
        self.iteration = Iteration(self.collector, self.subscription.states, found)

    def next_record(self) -> Record[Any, Any] | None:
        """Return the next record of an iteration; None if another poll is needed.

        The caller must reset undelivered_poll when it yields the record.
        """
        iteration, collector = self.iteration, self.collector
        if iteration is None or collector.undelivered_poll != NO_POLL:
            return None
        collector.undelivered_poll = collector.poll + 1
        record = next(iteration.rest, None)
        if record is None:
            self.iteration = None
            collector.undelivered_poll = NO_POLL
        return record

    @property
    def has_undelivered(self) -> bool:
        """Return True if a poll must call `put_back` first."""
        return self.iteration is not None or self.collector.undelivered_poll != NO_POLL

    async def put_back(self) -> None:
        """Make the next poll return the remaining records of an iteration, and those of an
        interrupted poll.
        """
        await self.restore_undelivered()
        await self._end_iteration()

    async def _end_iteration(self) -> None:
        iteration, self.iteration = self.iteration, None
        if iteration is not None:
            iteration.put_back()
            self.fetcher.poke()

    async def restore_undelivered(self, unread: Mapping[TopicPartition, int] | None = None) -> None:
        """Fetch records again that this poll took but the application did not receive.

        unread: the first offset of each partition that it did not receive; None: it received
        nothing.
        """
        first = self.collector.undelivered_poll
        if first == NO_POLL:
            return
        for tp, state in self.subscription.states.items():
            if state.poll < first or unread is not None and tp not in unread:
                continue
            state.position = state.before if unread is None else unread[tp]
            state.record_epoch = state.before_epoch
            state.refetch()
        self.collector.forget_read()
        if unread is None:
            self.collector.undelivered_poll = NO_POLL
        self.fetcher.poke()

    def _delivered(self, state: PartitionState) -> int | None:
        """Return a position that passes only records that the application received."""
        return state.position_before(self.collector.undelivered_poll)[0]

    async def position(self, tp: TopicPartition, timeout_s: float | None) -> int:
        """Return the position, waiting until it is known."""
        state = self.subscription.state(tp)
        if timeout_s is None:
            timeout_s = self.settings.seconds("default.api.timeout.ms")
        end_s = time.monotonic() + timeout_s
        while (found := self._delivered(state)) is None:
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                raise KafkaTimeoutError(f"the position of {tp} is not known after {timeout_s} s")
            if self._in_callback:
                try:
                    async with asyncio.timeout(left_s):
                        await self._locate()
                except TimeoutError as failure:
                    if isinstance(failure, KafkaError):
                        raise
            else:
                self.dirty = True
                with self._at_rest():
                    await self.run_pending_work(left_s)
            # If the lookup cannot start now, nothing above yields to the loop.
            await asyncio.sleep(0 if self._delivered(state) is not None else 0.001)
        return found

    async def list_offsets(self, times: Mapping[TopicPartition, int], timeout_s: float | None
                           ) -> dict[TopicPartition, Any]:
        self._check_open()
        return await list_offsets.list_offsets(
            self.cluster, {TopicPartition.of(tp): whole("a time", time_ms)
                           for tp, time_ms in times.items()},
            self.fetcher.isolation, timeout_s)

    async def boundary_offsets(self, partitions: Iterable[TopicPartition], which: int,
                               timeout_s: float | None) -> dict[TopicPartition, int]:
        """Return the first offsets (EARLIEST) or the next offsets (LATEST)."""
        assert which in (EARLIEST, LATEST), which
        found = await self.list_offsets(
            dict.fromkeys(several("partitions", partitions), which), timeout_s)
        return {tp: result.offset if result else 0 for tp, result in found.items()}

    async def lag(self, partitions: Iterable[TopicPartition], timeout_s: float | None
                  ) -> dict[TopicPartition, int]:
        """Return the number of records between each position and the end, from the last fetch if
        any.
        """
        made, unknown = {}, []
        for tp in map(TopicPartition.of, list(partitions) or list(self.subscription.states)):
            state = self.subscription.state(tp)
            end = (state.last_stable_offset if self.fetcher.isolation
                   else state.high_watermark)
            position = self._delivered(state)
            if position is None or end < 0:
                unknown.append(tp)
            else:
                made[tp] = max(0, end - position)
        if unknown:
            boundary_offsets = await self.boundary_offsets(unknown, LATEST, timeout_s)
            for tp in unknown:
                made[tp] = max(0, boundary_offsets[tp] - await self.position(tp, timeout_s))
        return made

    # Topics

    async def partitions_for(self, topic: str, timeout_s: float | None) -> list[int]:
        info = await self.cluster.topic(topic, timeout_s)
        return list(info.partitions)

    async def list_topics(self, timeout_s: float | None) -> dict[str, list[int]]:
        """Return every topic of the cluster with its partitions."""
        metadata = await self.cluster.retry(self.cluster.every_topic, timeout_s)
        return {name: list(topic.partitions) for name, topic in metadata.topics.items()
                if not (topic.is_internal and self.settings["exclude.internal.topics"])}

    # Close

    async def close(self, timeout_s: float) -> None:
        """Commit if that is automatic, call the listener and leave the group."""
        if self.closed or self._closing:
            return
        self._closing = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._settle()
                await self._end_iteration()
                if self._committing:
                    await asyncio.wait(set(self._committing))
                self._begin_poll()
                with self._at_rest():
                    if self.membership is not None:
                        await self.membership.take(self.membership.owned())
                        await self.membership.end()
                    else:
                        await self.commit_before_revoke()
        except TimeoutError:
            pass
        except BaseException:  # A cancellation, or an exit that a callback raised.
            await self._leave_after_interrupt()
            raise
        finally:
            self.closed = True
            if self.membership is not None:
                await self.membership.stop()
            await self.fetcher.close()
            await self.cluster.close()
            self.queue.clear()
            callbacks.close_interceptors(self.interceptors)
            self.notify()
        if self.membership is not None:
            self.membership.raise_callback_failure()

    async def _leave_after_interrupt(self) -> None:
        """Leave the group after an interrupted close, so that it need not wait for the session
        timeout.
        """
        try:
            async with asyncio.timeout(LEAVE_LATE_S):
                if self.membership is not None:
                    await self.membership.end()
        except TimeoutError:
            pass

    async def abandon(self, timeout_s: float) -> None:
        """Close for an application that dropped the consumer.

        Calls no listener and commits nothing: the last records may not have been processed.
        """
        self.subscription.listener = None
        self._auto = False
        await self.close(timeout_s)

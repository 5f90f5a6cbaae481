"""Commit offsets: automatic, explicit and stored offsets, and failed commits.

Owns: the order of commits, and the last automatically committed offsets.
Invariants: automatic commits include only records of earlier polls, not those that the application
  may still be processing; of several commits of a partition, the last requested wins; with
  enable.auto.offset.store=false, a commit without offsets includes only offsets stored with
  store_offsets(), each once.
Source: Kafka's consumer, for the semantics of each call.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from pylog._native.client.columns import Record
from pylog.client import callbacks
from pylog.client.arguments import several
from pylog.client.config.settings import Settings
from pylog.client.consumer import offset_requests
from pylog.client.consumer.consumer_membership import ConsumerMembership
from pylog.client.consumer.fetch_collector import FetchCollector
from pylog.client.consumer.fetcher import Fetcher
from pylog.client.consumer.offset_requests import Identity
from pylog.client.consumer.subscription_state import NO_POLL, PartitionState, Subscription
from pylog.client.errors import (
    ClosedError, CommitFailedError, IllegalStateError, KafkaError, RebalanceNeededError,
    RetriableError,
)
from pylog.client.network.cluster import Cluster
from pylog.client.types import GroupMetadata, OffsetAndMetadata, TopicPartition
from pylog.protocol.errors import ErrorCode

COMMIT_BEFORE_REVOKE_S = 5.0
_GONE = {int(ErrorCode.UNKNOWN_MEMBER_ID), int(ErrorCode.ILLEGAL_GENERATION),
         int(ErrorCode.FENCED_INSTANCE_ID), int(ErrorCode.FENCED_MEMBER_EPOCH)}


class CommitRequest(NamedTuple):
    """What a commit includes, fixed when the application requests it.

    number: orders commits. stored: the stored offsets that are committed when this commit succeeds.
    """

    number: int
    offsets: dict[TopicPartition, OffsetAndMetadata]
    stored: dict[TopicPartition, tuple[PartitionState, OffsetAndMetadata]]


class Committing:
    """The commit half of Consuming, which creates the attributes used here."""

    cluster: Cluster
    subscription: Subscription
    fetcher: Fetcher
    collector: FetchCollector
    loop: asyncio.AbstractEventLoop
    interceptors: list[Any]

    def __init__(self, settings: Settings):
        self.settings = settings
        self.membership: Any = None
        self.polling = False
        self.closed = False
        self._auto = settings["enable.auto.commit"] and settings["group.id"] is not None
        self._stores = settings["enable.auto.offset.store"]
        self._auto_s = settings.seconds("auto.commit.interval.ms")
        self._next_auto_s = time.monotonic() + self._auto_s
        self._auto_committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self._committing: set[asyncio.Task[None]] = set()
        self._commit_lock = asyncio.Lock()
        self._commits = 0
        self._commit_numbers = itertools.count(1)
        self._committed_by: dict[TopicPartition, int] = {}
        self._polled = asyncio.Event()
        self._awaits_poll = self._rests = False

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError("the consumer is closed")

    def consumed(self, before: int = NO_POLL) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the positions of assigned partitions. before: the positions before the poll of
        that number. Leaves out records that the application has not received.
        """
        before = min(before, self.collector.undelivered_poll)
        found = {tp: state.position_before(before)
                 for tp, state in list(self.subscription.states.items())}
        return {tp: OffsetAndMetadata(offset, "", record_epoch)
                for tp, (offset, record_epoch) in found.items() if offset is not None}

    def committable(self, before: int = NO_POLL) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets for a commit without offsets. Includes each stored offset once.

        before: leave out records that the poll of that number and later polls returned.
        """
        if self._stores:
            return self.consumed(before)
        found = {tp: (state.stored, state.stored_committed)
                 for tp, state in list(self.subscription.states.items())}
        return {tp: stored for tp, (stored, done) in found.items()
                if stored is not None and stored is not done}

    def store(self, offsets: Any) -> None:
        """Store offsets for later commits: all of them, or none. Callable from any thread.

        offsets: as for commit(), or one or more processed records. Raises IllegalStateError,
        TypeError, ValueError.
        """
        self._check_open()
        if self._stores:
            raise IllegalStateError(
                "offsets are stored automatically",
                remedy="set enable.auto.offset.store=false to store them with store_offsets()")
        if self.settings["group.id"] is None:
            raise IllegalStateError("stored offsets need group.id: nothing would commit them")
        given = _after(offsets)
        states = {tp: self.subscription.state(tp) for tp in given}
        for tp, state in states.items():
            # A new object, so that the same offset can be committed again after a later one.
            state.stored = OffsetAndMetadata(*given[tp])

    def moved(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the positions that a transaction must commit."""
        states = self.subscription.states
        return {tp: found for tp, found in self.consumed().items()
                if found.offset != states[tp].rewind_position}

    def keep(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Record offsets as committed."""
        for tp, found in offsets.items():
            state = self.subscription.states.get(tp)
            if state is not None:
                state.rewind_position = found.offset

    def rewind(self) -> None:
        """Continue at the last committed offset with the next poll, or where this consumer started.
        """
        for state in self.subscription.states.values():
            if state.rewind_position is not None and state.rewind_position != state.position:
                state.move_to(state.rewind_position)
        self.fetcher.poke()

    def group_metadata(self) -> GroupMetadata:
        """Return this consumer's group metadata. Raises IllegalStateError without a group."""
        who = self._committer() if self.membership is not None else None
        if who is None:
            if self.settings["group.id"] is None:
                raise IllegalStateError("the consumer has no group.id")
            return GroupMetadata(self.settings["group.id"])
        return GroupMetadata(who.group, who.generation, who.member_id, who.instance_id)

    def _committer(self) -> Identity:
        group = self.settings["group.id"]
        if group is None:
            raise IllegalStateError("commits need group.id")
        if self.membership is None:
            return Identity(group)
        if self.membership.generation < 0:
            raise CommitFailedError(f"the consumer is not a member of group {group!r} now")
        found: Identity = self.membership.identity
        return found

    def commit_request(self, offsets: Mapping[TopicPartition, Any] | None = None,
                       before: int = NO_POLL) -> CommitRequest:
        """Return what a commit that is requested now includes. Callable from any thread.

        offsets: None for those of committable(before). Raises TypeError.
        """
        stored = {tp: (state, state.stored)
                  for tp, state in list(self.subscription.states.items())}
        given = self.committable(before) if offsets is None else {
            TopicPartition.of(tp): OffsetAndMetadata.of(value) for tp, value in offsets.items()}
        return CommitRequest(next(self._commit_numbers), given, {
            tp: (state, last) for tp, (state, last) in stored.items()
            if last is not None and tp in given and last.offset <= given[tp].offset})

    async def commit(self, offsets: Mapping[TopicPartition, Any] | None,
                     timeout_s: float | None = None) -> dict[TopicPartition, OffsetAndMetadata]:
        """Commit, with retries. Raises CommitFailedError, RebalanceNeededError, KafkaError."""
        self._check_open()
        return await self._commit(self.commit_request(offsets), timeout_s)

    async def _commit(self, request: CommitRequest, timeout_s: float | None = None
                      ) -> dict[TopicPartition, OffsetAndMetadata]:
        self._check_open()
        self._commits += 1
        number, given, stored = request

        async def attempt() -> None:
            # One at a time, and without partitions that a later commit has written.
            async with self._commit_lock:
                left = {tp: one for tp, one in given.items()
                        if self._committed_by.get(tp, 0) < number}
                try:
                    await offset_requests.commit(self.cluster, self._committer(), left)
                except KafkaError as failure:
                    if failure.code != ErrorCode.STALE_MEMBER_EPOCH:
                        raise
                    self.membership.commit_refused(failure)
                    raise RetriableError(str(failure)) from failure
                self._committed_by.update(dict.fromkeys(left, number))
                for tp in left.keys() & stored.keys():
                    state, last = stored[tp]
                    state.stored_committed = last

        failure: KafkaError | None = None
        try:
            await self.cluster.retry(attempt, timeout_s)
        except KafkaError as refused:
            failure = self._commit_failure(refused)
        for interceptor in self.interceptors:
            if failure is None and hasattr(interceptor, "on_commit"):
                callbacks.call("an interceptor's on_commit", interceptor.on_commit, given)
        if failure is not None:
            raise failure
        return given

    def _commit_failure(self, refused: KafkaError) -> KafkaError:
        if refused.code in _GONE:
            if self.membership is not None:
                self.membership.commit_refused(refused)
            made: KafkaError = CommitFailedError(
                f"{refused}: the group rebalanced without this member")
        elif refused.code == ErrorCode.REBALANCE_IN_PROGRESS:
            made = RebalanceNeededError(f"{refused}", remedy="poll, then commit again")
        else:
            return refused
        made.__cause__ = refused
        return made

    def commit_in_background(self, request: CommitRequest,
                             callback: Callable[..., Any] | None = None) -> None:
        """Commit without waiting. Call on the loop; callback(offsets, error or None) runs on its
        thread.
        """
        async def work() -> None:
            failure = None
            try:
                await self._commit(request)
            except KafkaError as refused:
                failure = refused
                self.cluster.notices.warn(("commit", type(refused)),
                                          "offsets were not committed: %s", refused)
            if callback is not None:
                callbacks.call("a commit callback", callback, request.offsets, failure)

        task = asyncio.create_task(work())
        self._committing.add(task)
        task.add_done_callback(self._committing.discard)

    def auto_commit(self, request: CommitRequest) -> None:
        """Commit automatically. Call on the loop; the caller made the request before it took this
        poll's records.
        """
        def done(_: Any, failure: KafkaError | None) -> None:
            if failure is None:
                self._auto_committed = request.offsets

        # Revoked partitions belong to other members.
        mine = {tp: given for tp, given in request.offsets.items()
                if tp in self.subscription.states}
        self.commit_in_background(request._replace(offsets=mine), done)

    async def commit_before_revoke(self) -> None:
        """Commit before partitions are revoked. If it fails, their next owner reads the records
        again.
        """
        if self._auto:
            await self._records_processed()
            # Leave out records that may still be in processing.
            await self._commit_revoked(self.commit_request(before=self.collector.poll))

    async def commit_stored_by_listener(self) -> None:
        """Commit the offsets that the listener stored while its partitions were being revoked."""
        if self._auto and not self._stores:
            request = self.commit_request()
            if request.offsets:
                await self._commit_revoked(request)

    async def _commit_revoked(self, request: CommitRequest) -> None:
        try:
            await self._commit(request, COMMIT_BEFORE_REVOKE_S)
        except KafkaError:
            pass

    def _begin_poll(self) -> None:
        """Mark the records of earlier polls as processed. From the application's thread or the
        loop.
        """
        self.collector.poll += 1
        if self._awaits_poll:
            self.loop.call_soon_threadsafe(self._polled.set)

    @contextlib.contextmanager
    def _at_rest(self) -> Iterator[None]:
        """Mark that the application waits here, so it will not poll before this block ends."""
        before, self._rests = self._rests, True
        try:
            yield
        finally:
            self._rests = before

    async def _records_processed(self) -> None:
        """Wait until the application has processed the last poll's records: until it polls again,
        or max.poll.interval.ms passes.
        """
        self._polled.clear()
        self._awaits_poll = True
        try:
            # Set before this check, so that a poll that begins now sees the flag.
            if not (self.polling or self._rests):
                async with asyncio.timeout(self.settings.seconds("max.poll.interval.ms")):
                    await self._polled.wait()
        except TimeoutError:
            pass
        finally:
            self._awaits_poll = False

    async def committed(self, partitions: Iterable[TopicPartition], timeout_s: float | None
                        ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return committed offsets; None for a partition without one."""
        self._check_open()
        wanted = [TopicPartition.of(tp) for tp in several("committed", partitions)]
        if self.settings["group.id"] is None:
            raise IllegalStateError("committed offsets need group.id")
        found = await self.cluster.retry(lambda: offset_requests.committed(
            self.cluster, self._reader(), wanted, True), timeout_s)
        return {tp: found.get(tp) for tp in wanted}

    def _reader(self) -> Identity:
        """Return the identity for OffsetFetch: the newer protocol requires the member."""
        if isinstance(self.membership, ConsumerMembership) and self.membership.generation > 0:
            return Identity(self.settings["group.id"], self.membership.member_id,
                            self.membership.generation)
        return Identity(self.settings["group.id"])


def _after(given: Any) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets after one or more records, or the validated offsets by partition."""
    if isinstance(given, Mapping):
        found = {TopicPartition.of(tp): OffsetAndMetadata.of(value)
                 for tp, value in given.items()}
        if any(value.offset < 0 for value in found.values()):
            raise ValueError("an offset must not be negative")
        return found
    records = [given] if isinstance(given, Record) else list(given)
    made: dict[TopicPartition, OffsetAndMetadata] = {}
    for record in records:
        if not isinstance(record, Record):
            raise TypeError(f"{record!r} cannot be stored: expected records, or offsets by "
                            "partition such as {TopicPartition(topic, 0): 5}")
        tp = TopicPartition(record.topic, record.partition)
        if tp not in made or made[tp].offset <= record.offset:
            made[tp] = OffsetAndMetadata(record.offset + 1, "", record.leader_epoch)
    return made

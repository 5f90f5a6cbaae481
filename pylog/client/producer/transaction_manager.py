"""Manage a producer's id and epoch, and its transactions.

Owns: producer id and epoch, the state of the transaction.
Invariants:
- registered partitions: records are sent only to partitions that the transaction's coordinator has
  registered, unless brokers register them (transaction.version 2);
- abort after failure: after a failure inside a transaction only abort() works, after a fatal one
  nothing does;
- single ending: a commit or abort continues if its caller is cancelled. Only the same call may
  follow; it returns the outcome.
Source: KIP-98, KIP-360 (epochs), KIP-447 (group metadata), KIP-588, KIP-890 (transaction.version),
  KIP-939 (a transaction that another process ends).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple

from pylog.client.config.settings import Settings
from pylog.client.errors import (
    ClosedError, FatalError, IllegalStateError, KafkaError, error, raise_for,
)
from pylog.client.network.cluster import GROUP, TRANSACTION, Cluster
from pylog.client.types import OffsetAndMetadata, TopicPartition
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode

EPOCH_MAX = 32_767
INIT_VERSION_MAX = 5  # Version 6 adds two-phase commit, which this client does not support.
V1_PRODUCE_VERSION_MAX = 11
V1_END_VERSION_MAX = V1_OFFSETS_VERSION_MAX = 4
NAMES_VERSION_MAX = 5  # Version 6 of TxnOffsetCommit has ids of topics instead of names.
PARTITIONS_VERSION_MAX = 3
_COORDINATOR_MOVED = {int(ErrorCode.NOT_COORDINATOR), int(ErrorCode.COORDINATOR_NOT_AVAILABLE)}
_AGAIN = {int(ErrorCode.CONCURRENT_TRANSACTIONS), int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
          *_COORDINATOR_MOVED}

UNINITIALIZED, READY, OPEN, COMMITTING, ABORTING, BROKEN = (
    "not initialized", "without a transaction", "in a transaction", "committing a transaction",
    "aborting a transaction", "in a failed transaction")
COMMIT, ABORT = "commit_transaction", "abort_transaction"


class Prepared(NamedTuple):
    """An open transaction whose records are delivered. Any process with these values can end it."""

    transactional_id: str
    producer_id: int
    epoch: int


class Identity:
    """The producer id and epoch of an idempotent producer."""

    transactional_id: str | None = None
    produce_version_max: int | None = None

    def __init__(self, cluster: Cluster, settings: Settings, notify: Callable[[], Any],
                 fail: Callable[[KafkaError], Any]):
        self.cluster, self.settings = cluster, settings
        self.producer_id, self.epoch = -1, -1
        self._notify, self._fail = notify, fail
        self._task: asyncio.Task[None] | None = None

    def admits(self, topic: str, partition: int) -> bool:
        """Return True if a batch may be sent now; otherwise prepare that and notify when done."""
        if self.producer_id >= 0:
            return True
        self._work(self._obtain)
        return False

    @property
    def may_retry(self) -> bool:
        """Return True if a failed batch may be retried."""
        return True

    def bump(self) -> None:
        """Start a new epoch, or request a new producer id if epochs are exhausted."""
        if self.epoch < EPOCH_MAX:
            self.epoch += 1
        else:
            self.producer_id = self.epoch = -1

    def note_failure(self, failure: KafkaError) -> None:
        """Handle the loss of a batch."""

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _work(self, work: Callable[[], Any]) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._guarded(work))

    async def _guarded(self, work: Callable[[], Any]) -> None:
        try:
            await work()
        except KafkaError as failure:
            if not failure.retriable:
                self._fail(failure)
            else:
                await asyncio.sleep(self.settings.seconds("retry.backoff.ms"))
        finally:
            self._notify()

    async def _obtain(self) -> None:
        request = messages.InitProducerIdRequest(transactional_id=None,
                                                 transaction_timeout_ms=2**31 - 1)

        async def attempt() -> Any:
            connection = await self.cluster.any_connection()
            version = connection.version(messages.InitProducerIdRequest, INIT_VERSION_MAX)
            response = await connection.send(request, version=version)
            raise_for(response.error_code, context="producer id")
            return response

        response = await self.cluster.retry(attempt)
        self.producer_id, self.epoch = response.producer_id, response.producer_epoch


class Transactions(Identity):
    """The transactions of one transactional.id."""

    def __init__(self, cluster: Cluster, settings: Settings, notify: Callable[[], Any],
                 fail: Callable[[KafkaError], Any]):
        super().__init__(cluster, settings, notify, fail)
        self.transactional_id: str = settings["transactional.id"]
        self.state = UNINITIALIZED
        self.number = 0  # Of the last transaction that this producer began.
        self.failure: KafkaError | None = None
        self._block_s = settings.seconds("max.block.ms")
        self.brokers_add = False  # KIP-890: Produce and TxnOffsetCommit register partitions.
        self._known: set[tuple[str, int]] = set()
        self._wanted: set[tuple[str, int]] = set()
        self._touched = False  # The coordinator may have state for this transaction.
        self._ending: tuple[str, asyncio.Task[None]] | None = None
        self._adding: set[asyncio.Task[None]] = set()  # Running send_offsets() calls.

    # For the sender.

    def admits(self, topic: str, partition: int) -> bool:
        """Return True if the partition is registered; otherwise register it and notify then."""
        if self.producer_id < 0 or self.state not in (OPEN, COMMITTING):
            return False
        if self.brokers_add:
            self._touched = True
            return True
        if (topic, partition) in self._known:
            return True
        self._wanted.add((topic, partition))
        self._work(self._add_partitions)
        return False

    @property
    def may_retry(self) -> bool:
        return self.state not in (BROKEN, ABORTING)

    def note_failure(self, failure: KafkaError) -> None:
        """Record a failure: from now on only abort() works."""
        if self.failure is None or failure.fatal and not self.failure.fatal:
            self.failure = failure
        if self.state in (OPEN, COMMITTING):
            self.state = BROKEN
            # Not now: the sender may be choosing batches.
            asyncio.get_running_loop().call_soon(self._fail, failure)

    async def _add_partitions(self) -> None:
        wanted = sorted(self._wanted)
        topics: dict[str, list[int]] = {}
        for topic, partition in wanted:
            topics.setdefault(topic, []).append(partition)
        request = messages.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id, v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[
                messages.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(
                    name=name, partitions=numbers) for name, numbers in topics.items()])

        def check(response: Any) -> None:
            worst = {row.partition_error_code
                     for topic in response.results_by_topic_v3_and_below
                     for row in topic.results_by_partition}
            worst -= {0, int(ErrorCode.OPERATION_NOT_ATTEMPTED)}
            for code in sorted(worst):
                raise_for(code, context=self.transactional_id)

        try:
            await self._request(request, PARTITIONS_VERSION_MAX, check)
        except KafkaError as failure:
            self.note_failure(failure)
            raise
        self._touched = True
        self._known.update(wanted)
        self._wanted.difference_update(wanted)

    # For the application.

    def check_open(self) -> int:
        """Raise if records cannot be sent now. Returns the number of the open transaction."""
        if self.state == BROKEN and self.failure is not None:
            raise self._broken()
        self._check_ended()
        self._check_initialized()
        if self.state != OPEN:
            raise IllegalStateError(f"the producer is {self.state}",
                                    remedy="call begin_transaction() first")
        return self.number

    def _check_ended(self, call: str = "") -> None:
        """Raise IllegalStateError while a commit or abort other than `call` has no outcome."""
        known = self._ending[0] if self._ending is not None else {
            COMMITTING: COMMIT, ABORTING: ABORT}.get(self.state)
        if known not in (None, call):
            raise IllegalStateError(
                f"{known}() timed out or was cancelled",
                remedy=f"call {known}() again first. It waits for the outcome")

    def _broken(self) -> KafkaError:
        assert self.failure is not None
        return self.failure

    def _check_initialized(self) -> None:
        if self.state == UNINITIALIZED:
            raise IllegalStateError("the transactional producer is not initialized",
                                    remedy="call init_transactions() once, then "
                                    "begin_transaction(), or use `with producer.transaction():`")

    async def init(self) -> None:
        """Fence earlier producers of this id and end their open transactions."""
        self._check_ended()
        if self.state not in (UNINITIALIZED, READY):
            raise IllegalStateError(f"the producer is {self.state}")
        await self._init()
        self.state = READY

    def prepared(self) -> Prepared:
        return Prepared(self.transactional_id, self.producer_id, self.epoch)

    async def resume(self, given: Prepared) -> None:
        """Take over a transaction that another producer has prepared, to end it."""
        assert self.state == UNINITIALIZED, self.state
        self.transactional_id = given.transactional_id

        async def connect_coordinator() -> None:
            node_id = await self.cluster.coordinator(TRANSACTION, self.transactional_id)
            try:
                self._learn(await self.cluster.connection(node_id))
            except KafkaError as failure:
                if failure.stale_metadata:
                    self.cluster.forget_coordinator(TRANSACTION, self.transactional_id)
                raise

        await self.cluster.retry(connect_coordinator, self._block_s)
        self.producer_id, self.epoch = given.producer_id, given.epoch
        self._touched = True
        self.state = OPEN

    async def _init(self) -> None:
        request = messages.InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.settings["transaction.timeout.ms"],
            producer_id=self.producer_id, producer_epoch=self.epoch)
        response = await self._request(
            request, INIT_VERSION_MAX,
            lambda found: raise_for(found.error_code, context=self.transactional_id))
        self.producer_id, self.epoch = response.producer_id, response.producer_epoch
        self._forget()

    def _forget(self) -> None:
        self._known.clear()
        self._wanted.clear()
        self._touched = False
        self.failure = None

    def begin(self) -> None:
        self._check_ended()
        self._check_initialized()
        if self.state != READY:
            raise IllegalStateError(f"the producer is {self.state}")
        self._forget()
        self.number += 1
        self.state = OPEN

    async def finish(self, call: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Await work(), which ends the transaction. Keeps "single ending". call: COMMIT or ABORT.

        If the caller is cancelled, the work continues and the next call of the same kind awaits it.
        """
        self._check_ended(call)
        known = self._ending
        if known is None or known[1].done() and may_pass(known[1]):
            self._ending = known = call, asyncio.create_task(work())
        task = known[1]
        await asyncio.wait([task])
        self._ending = None
        if task.cancelled():
            raise ClosedError(f"the producer was closed during {call}()")
        task.result()

    def close(self) -> None:
        super().close()
        if self._ending is not None:
            self._ending[1].cancel()
        for task in self._adding:
            task.cancel()

    def begin_end(self, committed: bool) -> None:
        """Start ending, before batches are flushed or dropped. Raises the transaction's failure."""
        if self.state == (COMMITTING if committed else ABORTING):
            return  # A retry: the coordinator did not respond.
        if committed and self.state == BROKEN:
            raise self._broken()
        self._check_initialized()
        if self.state not in (OPEN, BROKEN):
            raise IllegalStateError(f"the producer is {self.state}",
                                    remedy="call begin_transaction() first")
        if self.failure is not None and self.failure.fatal:
            raise self.failure
        self.state = COMMITTING if committed else ABORTING

    async def end(self, committed: bool) -> None:
        """End the transaction. No batch may be in flight."""
        if self._adding:
            await asyncio.wait(self._adding)  # The coordinator must receive the offsets first.
        if committed and self.failure is not None:
            self.state = BROKEN
            raise self.failure
        failed = self.failure is not None
        if self._touched:
            await self._end(committed)
        if failed and not self.brokers_add:
            await self._init()  # KIP-360: sequences may be unknown; a new epoch begins at 0.
        self._forget()
        self.state = READY

    async def _end(self, committed: bool) -> None:
        request = messages.EndTxnRequest(
            transactional_id=self.transactional_id, producer_id=self.producer_id,
            producer_epoch=self.epoch, committed=committed)
        try:
            response = await self._request(
                request, None if self.brokers_add else V1_END_VERSION_MAX,
                lambda found: raise_for(found.error_code, context=self.transactional_id))
        except KafkaError as failure:
            # After a retriable error the outcome is unknown: keeps "single ending".
            if not failure.retriable:
                self.note_failure(failure)
            raise
        if response.producer_id >= 0:
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch

    async def send_offsets(self, offsets: Mapping[TopicPartition, Any], group: Any) -> None:
        """Commit consumed offsets with the transaction. group: its id, or group metadata.

        If the caller is cancelled, the work continues and the end of the transaction awaits it.
        """
        self.check_open()
        group_id = group if isinstance(group, str) else group.group_id
        request = self._offsets_request(offsets, group_id, group)
        task = asyncio.create_task(self._send_offsets(request, group_id))
        self._adding.add(task)
        task.add_done_callback(self._added)
        await asyncio.wait([task])
        if task.cancelled():
            raise ClosedError("the producer was closed during send_offsets_to_transaction()")
        task.result()

    def _added(self, task: asyncio.Task[None]) -> None:
        self._adding.discard(task)
        if not task.cancelled():
            task.exception()  # If the caller was cancelled, the commit raises it.

    async def _send_offsets(self, request: Any, group_id: str) -> None:
        try:
            if not self.brokers_add:
                await self._request(
                    messages.AddOffsetsToTxnRequest(
                        transactional_id=self.transactional_id, producer_id=self.producer_id,
                        producer_epoch=self.epoch, group_id=group_id),
                    None, lambda found: raise_for(found.error_code, context=group_id))
            self._touched = True
            version_max = NAMES_VERSION_MAX if self.brokers_add else V1_OFFSETS_VERSION_MAX
            await self._request(request, version_max, _check_offsets, GROUP, group_id)
        except KafkaError as failure:
            self.note_failure(failure)
            raise

    def _offsets_request(self, offsets: Mapping[TopicPartition, Any], group_id: str,
                         group: Any) -> Any:
        kinds = messages.TxnOffsetCommitRequest
        topics: dict[str, list[Any]] = {}
        for (topic, partition), given in offsets.items():
            row = OffsetAndMetadata.of(given)
            topics.setdefault(topic, []).append(kinds.TxnOffsetCommitRequestPartition(
                partition_index=partition, committed_offset=row.offset,
                committed_leader_epoch=row.leader_epoch, committed_metadata=row.metadata))
        return kinds(
            transactional_id=self.transactional_id, group_id=group_id,
            producer_id=self.producer_id, producer_epoch=self.epoch,
            generation_id_or_member_epoch=getattr(group, "generation_id", -1),
            member_id=getattr(group, "member_id", "") or "",
            group_instance_id=getattr(group, "group_instance_id", None),
            topics=[kinds.TxnOffsetCommitRequestTopic(name=name, partitions=rows)
                    for name, rows in topics.items()])

    # Requests to a coordinator.

    async def _request(self, request: Any, version_max: int | None, check: Callable[[Any], Any],
                       kind: int = TRANSACTION, key: str | None = None) -> Any:
        key = self.transactional_id if key is None else key

        async def attempt() -> Any:
            node_id = await self.cluster.coordinator(kind, key)
            try:
                connection = await self.cluster.connection(node_id)
                if kind == TRANSACTION:
                    self._learn(connection)
                version = connection.version(type(request), version_max)
                response = await connection.send(request, version=version)
                check(response)
                return response
            except KafkaError as failure:
                if failure.code in _COORDINATOR_MOVED or failure.stale_metadata:
                    self.cluster.forget_coordinator(kind, key)
                if failure.code in _AGAIN and not failure.retriable:
                    raise error(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(failure)) from failure
                raise

        try:
            return await self.cluster.retry(attempt, self._block_s)
        except FatalError as failure:
            self.failure = failure
            raise

    def _learn(self, connection: Any) -> None:
        if self.state == UNINITIALIZED or self.state == READY:
            self.brokers_add = connection.features.get("transaction.version", 0) >= 2
            self.produce_version_max = None if self.brokers_add else V1_PRODUCE_VERSION_MAX


def may_pass(task: asyncio.Task[None]) -> bool:
    """Return True if a finished task failed with a retriable error."""
    failure = None if task.cancelled() else task.exception()
    return isinstance(failure, KafkaError) and failure.retriable


def _check_offsets(response: Any) -> None:
    for topic in response.topics:
        for row in topic.partitions:
            raise_for(row.error_code, context=f"{topic.name}-{row.partition_index}")

"""The transaction coordinator service, on top of the coordinator runtime.

Owns: the runtime of `__transaction_state`; the completions in progress.
Invariants: a prepared transaction gets its markers until every partition has one or was deleted,
  and then its final record; a marker carries the leader epoch of the term that decided, so markers
  of an older coordinator are fenced, and a completion ends with its term; each transactional id has
  at most one completion in progress per term; a completion is retried after unexpected errors for
  as long as the term lasts, because otherwise the last stable offset of its partitions would not
  advance.
Source: Kafka's transaction coordinator and marker channel.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from typing import Any

from pylog import supervisor
from pylog._native.log.log import LogError
from pylog.config import internal_topics
from pylog.coordinator.runtime.deferred_response import DeferredResponse
from pylog.coordinator.runtime.internal_topic import Node, TopicSpec
from pylog.coordinator.runtime.local_append import Partition
from pylog.coordinator.runtime.runtime import Coordination, CoordinatorRuntime
from pylog.coordinator.runtime.timers import Clock
from pylog.coordinator.runtime.transactional_batches import Marker
from pylog.coordinator.transactions.shard import (
    Ending,
    Limits,
    NeedProducerId,
    Overdue,
    Transactions,
    init_fault,
)
from pylog.metadata.image.image import Topic
from pylog.protocol.api_error import Refusal
from pylog.protocol.errors import Error, ErrorCode

TOPIC = internal_topics.TRANSACTIONS
FEATURE = "transaction.version"
RETRY_SECONDS = 0.02, 1.0  # Backoff between attempts to write markers: first, maximum.
# With these results the partition is no longer part of the transaction.
SETTLED = frozenset((ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH))

log = logging.getLogger("pylog.coordinator")
# A completion in progress: (leader epoch of its term, callbacks for its end).
UnderWay = tuple[int, list[Callable[[], None]]]
Endings = dict[str, UnderWay]  # The newest one of each transactional id.
WriteMarkers = Callable[[Marker, tuple[Partition, ...]], Awaitable[dict[Partition, Error]]]


class _Adding:
    """A request to add partitions to a transaction.

    Uses no closures: each would be a reference cycle for the garbage collector.
    """

    __slots__ = ("_arguments", "_endings", "_late", "_loop", "_runtime", "_until_s", "response")

    def __init__(self, runtime: CoordinatorRuntime[Transactions], endings: Endings,
                 arguments: tuple[Any, ...], wait_ms: int):
        self.response = DeferredResponse(_unchanged)
        self._runtime = runtime
        self._endings = endings
        self._arguments = arguments  # Of Transactions.add.
        self._loop = asyncio.get_running_loop()
        self._until_s = self._loop.time() + wait_ms / 1000
        self._late: asyncio.TimerHandle | None = None

    def send(self) -> None:
        self._runtime.run(self._arguments[0], DeferredResponse(_unchanged), Transactions.add,
                          *self._arguments).then(self._added)

    def _added(self, error: Error) -> None:
        waiting = self._endings.get(self._arguments[0])
        if error != ErrorCode.CONCURRENT_TRANSACTIONS or waiting is None \
                or self._loop.time() >= self._until_s:
            self.response.respond(error)
            return
        self._late = self._loop.call_at(self._until_s, self.response.respond, error)
        waiting[1].append(self._ended)

    def _ended(self) -> None:
        assert self._late is not None
        self._late.cancel()
        if not self.response.is_set:
            self.send()


def _unchanged(error: Error) -> Error:
    return error


class TransactionCoordinator:
    """Coordinates transactions.

    broker: see internal_topic.Node. write: sends a marker to the leaders of partitions.
    """

    is_request = False  # For the journal, which uses this object as a Token.

    def __init__(self, broker: Node, write: WriteMarkers):
        settings = self._settings = broker.settings
        self._broker = broker
        self._write = write
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending: Endings = {}
        self.runtime: CoordinatorRuntime[Transactions] = CoordinatorRuntime(Coordination(
            TopicSpec(
                TOPIC, settings["transaction.state.log.num.partitions"],
                settings[internal_topics.FACTORS[TOPIC]],
                {"cleanup.policy": "compact", "compression.type": "uncompressed",
                 "unclean.leader.election.enable": "false",
                 "segment.bytes": str(settings["transaction.state.log.segment.bytes"])},
                settings["transaction.state.log.min.isr"]),
            self._open, expire=_expiry,
            expiry_ms=settings[
                "transaction.remove.expired.transaction.cleanup.interval.ms"]), broker)
        self.query = self.runtime.query
        self.leader_of = self.runtime.leader_of
        self.shards = self.runtime.shards

    def start(self) -> None:
        """Start loading; return immediately. Call on the event loop."""
        self.runtime.start()

    async def stop(self) -> None:
        """Stop serving requests. Unfinished completions resume at the next start."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.runtime.stop()

    async def ensure_topic(self) -> Error:
        """Create the internal topic unless it exists. Returns an error code."""
        return await self.runtime.topic.ensure()

    def topic_changed(self, topic: Topic) -> None:
        """Apply a new version of the topic: new, or with other partitions or leaders."""
        if topic.name == TOPIC:
            self.runtime.topic_changed(topic)

    def topic_deleted(self, name: str) -> None:
        if name == TOPIC:
            self.runtime.topic_deleted()

    @property
    def feature_level(self) -> int:
        """Return the finalized level of transaction.version."""
        return self._broker.image.features.get(FEATURE, 0)

    # ---- steps ----------------------------------------------------------------------------------

    def run(self, key: str, pending: DeferredResponse, step: Callable[..., Any],
            *arguments: Any) -> DeferredResponse:
        """Run a step; see runtime.run().

        If it needs a producer id, repeat it with a new one as the last argument.
        """
        first = DeferredResponse(lambda error: error)

        def on_response(message: Any) -> None:
            if message is NeedProducerId:
                self._spawn(self._run_with_id(key, pending, step, arguments))
            elif isinstance(message, Error):
                pending.refuse(message)
            else:
                pending.respond(message)

        self.runtime.run(key, first, step, *arguments).then(on_response)
        return pending

    async def _run_with_id(self, key: str, pending: DeferredResponse, step: Callable[..., Any],
                           arguments: tuple[Any, ...]) -> None:
        try:
            new_id = await self._broker.controller.next_producer_id()
        except LogError as error:
            pending.refuse(ErrorCode.of(error.code))
        except Refusal as refusal:
            # From a remote controller.
            pending.refuse(ErrorCode.of(refusal.error))
        except Exception:
            supervisor.report("producer ids", transactional_id=key)
            pending.refuse(ErrorCode.UNKNOWN_SERVER_ERROR)
        else:
            self.runtime.run(key, pending, step, *arguments, new_id)

    def add(self, id_: str, producer_id: int, epoch: int, partitions: list[Partition],
            version: int) -> DeferredResponse:
        """Add partitions to a transaction; the response is an error code.

        If the previous transaction is still completing, wait for it for a short time before
        returning CONCURRENT_TRANSACTIONS, to save the client a retry.
        """
        adding = _Adding(self.runtime, self._ending, (id_, producer_id, epoch, partitions, version),
                         self._settings["add.partitions.to.txn.retry.backoff.max.ms"])
        adding.send()
        return adding.response

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(
            supervisor.reporting("transactions", coroutine))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- state machines and their messages -------------------------------------------------------

    def _open(self, topic_id: bytes, index: int,
              clock: Clock) -> tuple[Callable[[], Transactions], None]:
        limits = self._limits()
        return lambda: Transactions(limits, clock, self, lambda: self.feature_level), None

    def _limits(self) -> Limits:
        settings = self._settings
        return Limits(settings["transaction.max.timeout.ms"],
                      settings["transactional.id.expiration.ms"],
                      settings["transaction.two.phase.commit.enable"])

    def init_fault(self, request: Any) -> Error:
        """Return the error if the InitProducerId request is invalid, or NONE."""
        return init_fault(request, self._limits())

    def respond(self, message: Ending | Overdue) -> None:
        """Handle a message of a state machine, whose records are durable by now."""
        if isinstance(message, Overdue):
            pending = DeferredResponse(lambda error: error)
            self._spawn(self._run_with_id(
                message.transactional_id, pending, Transactions.abort_overdue, (message,)))
            return
        epoch = self.runtime.epoch_of(message.transactional_id)
        under_way = self._ending.get(message.transactional_id)
        # One completion per term: a reload may request markers that are already being written.
        if epoch >= 0 and (under_way is None or under_way[0] != epoch):
            self._ending[message.transactional_id] = epoch, []
            self._spawn(self._end(message, self._ending[message.transactional_id]))

    def refuse(self, error: Error) -> None:
        """Ignore a message whose records may not be durable; the next load repeats it."""

    async def _end(self, ending: Ending, under_way: UnderWay) -> None:
        """Write the markers and complete the transaction.

        under_way: this completion's entry; a later term may have replaced it in `_ending`.
        """
        try:
            await supervisor.restarting(
                "transaction endings", partial(self._mark_and_complete, ending, under_way[0]),
                transactional_id=ending.transactional_id)
        finally:
            if self._ending.get(ending.transactional_id) is under_way:
                del self._ending[ending.transactional_id]
            for ended in under_way[1]:
                ended()

    async def _mark_and_complete(self, ending: Ending, epoch: int) -> None:
        """Make one attempt. It is repeated after unexpected errors, until the term is over."""
        if await self._mark(ending, epoch):
            self.runtime.run(ending.transactional_id, DeferredResponse(lambda error: error),
                             Transactions.complete, ending)

    async def _mark(self, ending: Ending, epoch: int) -> bool:
        """Return True once every partition has the marker.

        Returns False if the term is over: another coordinator, or this one in a later term, may
        have completed the transaction already, and the next one may be open.
        """
        left = ending.partitions
        pause_s, pause_s_max = RETRY_SECONDS
        while left and self.runtime.epoch_of(ending.transactional_id) == epoch:
            # The leader epoch in the marker fences older coordinators.
            results = await self._write(Marker(
                ending.producer_id, ending.epoch, epoch, ending.committed, ending.version), left)
            if ErrorCode.TRANSACTION_COORDINATOR_FENCED in results.values():
                return False
            left = tuple(partition for partition, error in results.items()
                         if error not in SETTLED and not self._has_gone(partition))
            if left:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, pause_s_max)
        return self.runtime.epoch_of(ending.transactional_id) == epoch

    def _has_gone(self, partition: Partition) -> bool:
        return self._broker.image.partition(*partition) is None


def _expiry(transactions: Transactions) -> Iterator[None]:
    return transactions.expire()

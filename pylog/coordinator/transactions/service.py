"""The transaction coordinator: what transactions add to the runtime of coordinators.

Owns: the runtime over `__transaction_state`; the endings under way.
Invariants: (1) a transaction that is prepared gets its markers until every partition has them, or
  has gone, and then its last record; (2) a marker carries the leader epoch of the term that
  decided, so that what an older coordinator sends is refused: an ending is over with the term that
  began it; (3) in a term one ending of a transactional id is under way at a time; (4) an unexpected
  error ends no ending: it is tried again for as long as the term lasts. Otherwise the last stable
  offset of its partitions would not move.
Source: Kafka's transaction coordinator and marker channel.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from typing import Any

from pylog import supervisor
from pylog._native.log import LogError
from pylog.coordinator.runtime.deferred_reply import Pending
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

TOPIC = "__transaction_state"
FEATURE = "transaction.version"
RETRY_SECONDS = 0.02, 1.0     # Between tries of an ending: at first, at last.
# A partition that answers so has no part in the transaction any more.
SETTLED = frozenset((ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH))

log = logging.getLogger("pylog.coordinator")
# An ending: the leader epoch of its term, and what is called at its end.
UnderWay = tuple[int, list[Callable[[], None]]]
Endings = dict[str, UnderWay]     # The newest one of each transactional id.
WriteMarkers = Callable[[Marker, tuple[Partition, ...]], Awaitable[dict[Partition, Error]]]


class _Adding:
    """Partitions on their way into a transaction. No closures: each would be a cycle, for the
    collector to find."""

    __slots__ = ("_arguments", "_endings", "_late", "_loop", "_runtime", "_until_s", "answer")

    def __init__(self, runtime: CoordinatorRuntime[Transactions], endings: Endings,
                 arguments: tuple[Any, ...], wait_ms: int):
        self.answer = Pending(_unchanged)
        self._runtime = runtime
        self._endings = endings
        self._arguments = arguments     # Of Transactions.add.
        self._loop = asyncio.get_running_loop()
        self._until_s = self._loop.time() + wait_ms / 1000
        self._late: asyncio.TimerHandle | None = None

    def ask(self) -> None:
        self._runtime.run(self._arguments[0], Pending(_unchanged), Transactions.add,
                          *self._arguments).then(self._added)

    def _added(self, error: Error) -> None:
        waiting = self._endings.get(self._arguments[0])
        if error != ErrorCode.CONCURRENT_TRANSACTIONS or waiting is None \
                or self._loop.time() >= self._until_s:
            self.answer.answer(error)
            return
        self._late = self._loop.call_at(self._until_s, self.answer.answer, error)
        waiting[1].append(self._ended)

    def _ended(self) -> None:
        assert self._late is not None
        self._late.cancel()
        if not self.answer.is_answered:
            self.ask()


def _unchanged(error: Error) -> Error:
    return error


class TransactionCoordinator:
    """broker: see internal_topic.Node. write: brings a marker to the leaders of partitions."""

    is_request = False     # To the journal, whose token it is.

    def __init__(self, broker: Node, write: WriteMarkers):
        settings = self._settings = broker.settings
        self._broker = broker
        self._write = write
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending: Endings = {}
        self.runtime: CoordinatorRuntime[Transactions] = CoordinatorRuntime(Coordination(
            TopicSpec(
                TOPIC, settings["transaction.state.log.num.partitions"],
                settings["transaction.state.log.replication.factor"],
                {"cleanup.policy": "compact", "compression.type": "uncompressed",
                 "unclean.leader.election.enable": "false",
                 "segment.bytes": str(settings["transaction.state.log.segment.bytes"])},
                settings["transaction.state.log.min.isr"]),
            self._open, expire=_expiry,
            expiry_ms=settings[
                "transaction.remove.expired.transaction.cleanup.interval.ms"]), broker)
        self.look = self.runtime.look
        self.leader_of = self.runtime.leader_of
        self.shards = self.runtime.shards

    def start(self) -> None:
        """Begins to load what there is; returns at once. On the event loop."""
        self.runtime.start()

    async def stop(self) -> None:
        """Takes no more requests; endings under way go on at the next start."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.runtime.stop()

    async def ensure_topic(self) -> Error:
        """Creates the internal topic unless it is there. Returns an error code."""
        return await self.runtime.topic.ensure()

    def topic_changed(self, topic: Topic) -> None:
        """The topic, as it now is, has other partitions or leaders, or is new."""
        if topic.name == TOPIC:
            self.runtime.topic_changed(topic)

    def topic_deleted(self, name: str) -> None:
        if name == TOPIC:
            self.runtime.topic_deleted()

    @property
    def feature_level(self) -> int:
        """Of transaction.version, as finalized."""
        return self._broker.image.features.get(FEATURE, 0)

    # ---- steps ----------------------------------------------------------------------------------

    def run(self, key: str, pending: Pending, step: Callable[..., Any],
            *arguments: Any) -> Pending:
        """As runtime.run(), of a step that may need a producer id, its last argument."""
        first = Pending(lambda error: error)

        def answered(message: Any) -> None:
            if message is NeedProducerId:
                self._spawn(self._run_with_id(key, pending, step, arguments))
            elif isinstance(message, Error):
                pending.refuse(message)
            else:
                pending.answer(message)

        self.runtime.run(key, first, step, *arguments).then(answered)
        return pending

    async def _run_with_id(self, key: str, pending: Pending, step: Callable[..., Any],
                           arguments: tuple[Any, ...]) -> None:
        try:
            new_id = await self._broker.controller.next_producer_id()
        except LogError as error:
            pending.refuse(ErrorCode.of(error.code))
        except Refusal as refusal:
            # Of a controller elsewhere.
            pending.refuse(ErrorCode.of(refusal.error))
        except Exception:
            supervisor.report("producer ids", transactional_id=key)
            pending.refuse(ErrorCode.UNKNOWN_SERVER_ERROR)
        else:
            self.runtime.run(key, pending, step, *arguments, new_id)

    def add(self, id_: str, producer_id: int, epoch: int, partitions: list[Partition],
            version: int) -> Pending:
        """Makes partitions part of a transaction; answers with an error code. An ending that is
        under way is waited for a little: the client would ask again."""
        adding = _Adding(self.runtime, self._ending, (id_, producer_id, epoch, partitions, version),
                         self._settings["add.partitions.to.txn.retry.backoff.max.ms"])
        adding.ask()
        return adding.answer

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(
            supervisor.reporting("transactions", coroutine))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- machines and what they send ------------------------------------------------------------

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
        """What is wrong with an InitProducerId, whoever its coordinator is."""
        return init_fault(request, self._limits())

    def answer(self, message: Ending | Overdue) -> None:
        """What a machine sends when its records are durable: it is the outbox."""
        if isinstance(message, Overdue):
            pending = Pending(lambda error: error)
            self._spawn(self._run_with_id(
                message.transactional_id, pending, Transactions.abort_overdue, (message,)))
            return
        epoch = self.runtime.epoch_of(message.transactional_id)
        under_way = self._ending.get(message.transactional_id)
        # Keeps (3): a load may ask for what is under way.
        if epoch >= 0 and (under_way is None or under_way[0] != epoch):
            self._ending[message.transactional_id] = epoch, []
            self._spawn(self._end(message, self._ending[message.transactional_id]))

    def refuse(self, error: Error) -> None:
        """It was not written, or may not have been: whoever loads the log knows."""

    async def _end(self, ending: Ending, under_way: UnderWay) -> None:
        """Keeps (1). under_way: its entry, which one of a later term may have replaced."""
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
        """One try. Keeps (4): a restart after it finds another term if there is one."""
        if await self._mark(ending, epoch):
            self.runtime.run(ending.transactional_id, Pending(lambda error: error),
                             Transactions.complete, ending)

    async def _mark(self, ending: Ending, epoch: int) -> bool:
        """Whether every partition has the marker; False when another coordinator cares, or this one
        in a later term: by then others may have ended it, and the next one may be open."""
        left = ending.partitions
        pause_s, pause_s_max = RETRY_SECONDS
        while left and self.runtime.epoch_of(ending.transactional_id) == epoch:
            # Keeps (2).
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


def _expiry(machine: Transactions) -> Iterator[None]:
    return machine.expire()

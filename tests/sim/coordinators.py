"""The coordinators of a simulated broker: pylog's own, on model logs.

Owns: the calls that wait for model logs.
Invariants: only logs are models; every decision is made by pylog's code.
Source: pylog.broker; csrc/log_manager/flusher (FlushWaits).
"""

import asyncio
import itertools
from types import SimpleNamespace

from pylog.api.groups.committed_offsets import CommittedOffsetsApi
from pylog.api.data.transactions import TransactionsApi
from pylog._native.log.log import NotLeader, StorageError
from pylog.coordinator.groups.state import group_store
from pylog.coordinator.runtime.broker_client import Brokers
from pylog.coordinator.groups.shard import GroupShard
from pylog.coordinator.runtime.local_append import Markers
from pylog.coordinator.groups.service import GroupCoordinator
from pylog.coordinator.transactions.service import TransactionCoordinator
from pylog.eventloop.end_of_tick import EndOfTick
from pylog.coordinator.transactions.verification import Verification
from pylog.protocol import api
from tests.sim.logs import NOT_LEADER_CODE, STORAGE_CODE
from tests.sim.loop import OWNER


class FlushWaits:
    """Model of pylog._native.log.flush_waits.FlushWaits."""

    def __init__(self, count: int):
        self.count = count
        self._loop, self._process = asyncio.get_running_loop(), OWNER.get()
        self._woken: list = []

    def fileno(self) -> int:
        return id(self)

    def wait_acknowledged(self, slot: int, log, offset: int) -> bool:
        """Raises LogError."""
        if log.log_dir.offline:
            raise StorageError(0, STORAGE_CODE, "its directory failed")
        if log.failed:
            raise NotLeader(0, NOT_LEADER_CODE, "it follows")
        if log.is_durable(offset):
            return True
        waiter = self._loop.create_future()
        waiter.add_done_callback(lambda _: self._wake(slot))
        log.durable_waits.append((offset, waiter))
        if log.flushed_offset <= offset:
            self._loop.call_later(self._process.flush_s(), log.flush_if_well)
        return False

    def _wake(self, slot: int) -> None:
        if slot not in self._woken:
            self._woken.append(slot)
        self._loop.readable(self.fileno())

    def take(self) -> list:
        woken, self._woken = self._woken, []
        return woken


def producer_of(log, producer_id: int, now_ms: int = 0) -> tuple:
    """Model of pylog._native.log.producer_state.producer_of()."""
    return log.written_by.of(producer_id).last_batches()


def verify_producer(log, producer_id: int, epoch: int, holder: int) -> None:
    """Model of pylog._native.log.producer_state.verify_producer(), with a single holder."""
    log.written_by.verify(producer_id, epoch)


class _GroupCoordinator(GroupCoordinator):
    """A group coordinator without state.lmdb: it loads by reading the whole log."""

    def _open(self, topic_id, index, clock):
        numbers = itertools.count()
        return lambda: GroupShard(
            self._limits, clock, lambda: f"member-{next(numbers)}", events=dict.fromkeys(
                group_store.EVENTS, 0), image=lambda: self._broker.image), None


class Coordinators:
    """The coordinators of one process, with the interface of internal_topic.Node."""

    credentials = None

    def __init__(self, process):
        self._process = process
        self.node_id, self.settings = process.node.id, process.node.settings
        self.now_ms, self.logs, self.defer = process.now_ms, process.logs, EndOfTick().defer
        self.groups = _GroupCoordinator(self)
        self.markers = Markers(self, self.groups)
        self._brokers = Brokers(self, self.markers)
        self.transactions = TransactionCoordinator(self, self._brokers.write)
        self.verification = Verification(
            self.transactions, self._brokers, self.logs,
            SimpleNamespace(holder=lambda principal: principal), self.settings, self.node_id)
        transactions = TransactionsApi(
            self.transactions, self.verification, self.markers, self.groups, process.metadata,
            self.now_ms)
        self.handlers = {
            api.INIT_PRODUCER_ID: transactions.init_producer_id, **transactions.handlers(),
            **CommittedOffsetsApi(self.groups, process.metadata).handlers()}

    @property
    def image(self):
        return self._process.metadata.image

    @property
    def controller(self):
        return self._process.membership.controller

    def start(self) -> None:
        self.groups.start(SimpleNamespace(directory=str(self._process.node.disk.folder)))
        self.markers.start()
        self.transactions.start()

    async def stop(self) -> None:
        self._brokers.close()
        await self.transactions.stop()
        await self.groups.stop()
        self.markers.close()

    async def ensure_topics(self):
        """Create internal topics as FindCoordinator does."""
        return [await each.ensure_topic() for each in (self.groups, self.transactions)]

"""Whether what a producer writes is part of its transaction: asked before the first write to a
partition, and, of clients that leave that to the brokers, made part of it.

Owns: nothing.
Invariants: (1) a partition is told NONE, or takes batches without asking, only when the coordinator
  has it in the open transaction of this producer and epoch; (2) a client gets an error that its
  version knows.
Source: KIP-890.
"""

import logging
from collections.abc import Iterable
from typing import Any

from pylog._native.grants import Grants
from pylog._native.producers import verify_producer
from pylog.config import Settings
from pylog.coordinator.runtime.broker_client import Brokers
from pylog.coordinator.runtime.local_append import Partition
from pylog.coordinator.transactions.service import TransactionCoordinator
from pylog.coordinator.transactions.transaction_metadata import EPOCH_BUMP_SINCE
from pylog.coordinator.transactions.shard import Transactions
from pylog.metadata.image.image import NO_LEADER
from pylog.protocol.errors import Error, ErrorCode

# How a client's version lets it be answered: it knows 48; 120 too; and it adds nothing itself.
PLAIN, ABORTABLE, ADDING = range(3)
PRODUCE_KINDS = (11, ABORTABLE), (12, ADDING)
OFFSETS_KINDS = (4, ABORTABLE), (5, ADDING)
log = logging.getLogger("pylog.coordinator")
_LATER = frozenset((
    ErrorCode.NETWORK_EXCEPTION, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR))


def kind_of(version: int, kinds: tuple[tuple[int, int], ...]) -> int:
    """PLAIN, ABORTABLE or ADDING for a request's version."""
    return max((kind for since, kind in kinds if version >= since), default=PLAIN)


class Verification:
    """By the coordinators of this cluster."""

    def __init__(self, transactions: TransactionCoordinator, brokers: Brokers, logs: Any,
                 grants: Grants, settings: Settings, node_id: int):
        """logs: see internal_topic.Node."""
        self._transactions = transactions
        self._brokers = brokers
        self._logs = logs
        self.holder = grants.holder     # Of a right: a request's principal by the rules of now.
        self._node_id = node_id
        self._settings = settings

    async def verdicts(self, asked: Any) -> list[int]:
        """The error code of each partition that a reactor.Verify names, whatever goes wrong."""
        partitions = [(name.decode(), index) for name, index in asked.partitions]
        try:
            found = await self.of_produce(
                asked.transactional_id.decode("utf-8", "replace"), asked.producer_id, asked.epoch,
                partitions, asked.api_version)
            return [found[partition] for partition in partitions]
        except Exception:
            log.exception("a transaction was not verified")
            return [ErrorCode.UNKNOWN_SERVER_ERROR] * len(partitions)

    async def of_produce(self, id_: str, producer_id: int, epoch: int,
                         partitions: list[Partition], version: int) -> dict[Partition, Error]:
        """Partition -> NONE, or the error that a Produce of this version is answered with."""
        kind = kind_of(version, PRODUCE_KINDS)
        found = await self.verified(id_, producer_id, epoch, partitions, kind)
        return {partition: _for_produce(error, kind) for partition, error in found.items()}

    async def verified(self, id_: str, producer_id: int, epoch: int,
                       partitions: list[Partition], kind: int) -> dict[Partition, Error]:
        """Partition -> NONE, or the coordinator's error as a client of this kind knows it."""
        if kind != ADDING and not self._settings["transaction.partition.verification.enable"]:
            return dict.fromkeys(partitions, ErrorCode.NONE)
        leader = self._transactions.leader_of(id_)
        if leader == NO_LEADER:
            found = dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif leader != self._node_id:
            found = await self._brokers.ask_coordinator(
                leader, id_, producer_id, epoch, partitions, kind != ADDING)
        elif kind == ADDING:
            found = dict.fromkeys(partitions, await self._transactions.add(
                id_, producer_id, epoch, partitions, EPOCH_BUMP_SINCE))
        else:
            found = self._looked_up(id_, producer_id, epoch, partitions)
        return {partition: _known(error, kind) for partition, error in found.items()}

    def added(self, id_: str, producer_id: int, epoch: int, partitions: Iterable[Partition],
              holder: int) -> None:
        """Partitions have become part of a transaction that the holder, of before that was asked
        for, may write to: those that are led here need not ask before its first batch."""
        # Looked up anew: the marker may be there by now, and would void nothing that comes after.
        for partition, error in self._looked_up(id_, producer_id, epoch, partitions).items():
            partition_log = self._logs.get(*partition) if error == ErrorCode.NONE else None
            if partition_log is not None:
                verify_producer(partition_log, producer_id, epoch, holder)

    def _looked_up(self, id_: str, producer_id: int, epoch: int,
                   partitions: Iterable[Partition]) -> dict[Partition, Error]:
        found, error = self._transactions.look(
            id_, Transactions.verify, id_, producer_id, epoch, partitions)
        return dict.fromkeys(partitions, error) if found is None else found


def _known(error: Error, kind: int) -> Error:
    """Keeps (2)."""
    if error == ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error == ErrorCode.TRANSACTION_ABORTABLE and kind == PLAIN:
        return ErrorCode.INVALID_TXN_STATE
    return error


def _for_produce(error: Error, kind: int) -> Error:
    """What is over soon is an error that every client tries again after, with no new metadata."""
    if error in _LATER or error == ErrorCode.CONCURRENT_TRANSACTIONS and kind != ADDING:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return error

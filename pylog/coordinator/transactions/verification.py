"""Verify that a producer's write belongs to its transaction, before its first write to a partition.
For newer clients, add the partition to the transaction (KIP-890).

Owns: nothing.
Invariants: a partition accepts a producer's transactional batches, or gets NONE, only while the
  coordinator has the partition in the open transaction of this producer and epoch; a client gets
  only errors that its version supports.
Source: KIP-890.
"""

import logging
from collections.abc import Iterable
from typing import Any

from pylog._native.server.grants import Grants
from pylog._native.log.producer_state import verify_producer
from pylog.config import Settings
from pylog.coordinator.runtime.broker_client import Brokers
from pylog.coordinator.runtime.local_append import Partition
from pylog.coordinator.transactions.service import TransactionCoordinator
from pylog.coordinator.runtime.transactional_batches import EPOCH_BUMP_SINCE
from pylog.coordinator.transactions.shard import Transactions
from pylog.metadata.image.image import NO_LEADER
from pylog.protocol.errors import Error, ErrorCode

# What the client's version supports: INVALID_TXN_STATE (48) only; also TRANSACTION_ABORTABLE (120);
# also leaving AddPartitionsToTxn to the broker.
PLAIN, ABORTABLE, ADDING = range(3)
PRODUCE_KINDS = (11, ABORTABLE), (12, ADDING)
OFFSETS_KINDS = (4, ABORTABLE), (5, ADDING)
log = logging.getLogger("pylog.coordinator")
_LATER = frozenset((
    ErrorCode.NETWORK_EXCEPTION, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR))


def kind_of(version: int, kinds: tuple[tuple[int, int], ...]) -> int:
    """Return PLAIN, ABORTABLE or ADDING for a request's version."""
    return max((kind for since, kind in kinds if version >= since), default=PLAIN)


class Verification:
    """Verifies with the transaction coordinators of this cluster."""

    def __init__(self, transactions: TransactionCoordinator, brokers: Brokers, logs: Any,
                 grants: Grants, settings: Settings, node_id: int):
        """logs: the LogManager, see internal_topic.Node."""
        self._transactions = transactions
        self._brokers = brokers
        self._logs = logs
        self.holder = grants.holder  # principal -> current grants id.
        self._node_id = node_id
        self._settings = settings

    async def verdicts(self, request: Any) -> list[int]:
        """Return the error code of each partition in a reactor.Verify. Never raises."""
        partitions = [(name.decode(), index) for name, index in request.partitions]
        try:
            found = await self.of_produce(
                request.transactional_id.decode("utf-8", "replace"), request.producer_id,
                request.epoch, partitions, request.api_version)
            return [found[partition] for partition in partitions]
        except Exception:
            log.exception("a transaction was not verified")
            return [ErrorCode.UNKNOWN_SERVER_ERROR] * len(partitions)

    async def of_produce(self, id_: str, producer_id: int, epoch: int,
                         partitions: list[Partition], version: int) -> dict[Partition, Error]:
        """Return {partition: NONE, or the error for a Produce of this version}."""
        kind = kind_of(version, PRODUCE_KINDS)
        found = await self.verified(id_, producer_id, epoch, partitions, kind)
        return {partition: _for_produce(error, kind) for partition, error in found.items()}

    async def verified(self, id_: str, producer_id: int, epoch: int,
                       partitions: list[Partition], kind: int) -> dict[Partition, Error]:
        """Return {partition: NONE, or the coordinator's error, mapped for this kind of client}."""
        if kind != ADDING and not self._settings["transaction.partition.verification.enable"]:
            return dict.fromkeys(partitions, ErrorCode.NONE)
        leader = self._transactions.leader_of(id_)
        if leader == NO_LEADER:
            found = dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif leader != self._node_id:
            found = await self._brokers.query_coordinator(
                leader, id_, producer_id, epoch, partitions, kind != ADDING)
        elif kind == ADDING:
            found = dict.fromkeys(partitions, await self._transactions.add(
                id_, producer_id, epoch, partitions, EPOCH_BUMP_SINCE))
        else:
            found = self._query(id_, producer_id, epoch, partitions)
        return {partition: _known(error, kind) for partition, error in found.items()}

    def added(self, id_: str, producer_id: int, epoch: int, partitions: Iterable[Partition],
              holder: int) -> None:
        """Mark partitions as verified, so that locally led ones skip it for their first batch.

        holder: taken before the authorization check of the request.
        """
        # Check again: if the marker was already written, nothing would clear this mark.
        for partition, error in self._query(id_, producer_id, epoch, partitions).items():
            partition_log = self._logs.get(*partition) if error == ErrorCode.NONE else None
            if partition_log is not None:
                verify_producer(partition_log, producer_id, epoch, holder)

    def _query(self, id_: str, producer_id: int, epoch: int,
                   partitions: Iterable[Partition]) -> dict[Partition, Error]:
        found, error = self._transactions.query(
            id_, Transactions.verify, id_, producer_id, epoch, partitions)
        return dict.fromkeys(partitions, error) if found is None else found


def _known(error: Error, kind: int) -> Error:
    """Map an error to one that the client's version supports."""
    if error == ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error == ErrorCode.TRANSACTION_ABORTABLE and kind == PLAIN:
        return ErrorCode.INVALID_TXN_STATE
    return error


def _for_produce(error: Error, kind: int) -> Error:
    """Map short-lived errors to one that all clients retry without refreshing metadata."""
    if error in _LATER or error == ErrorCode.CONCURRENT_TRANSACTIONS and kind != ADDING:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return error

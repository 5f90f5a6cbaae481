"""Admin calls for transactions: list, describe, abort and fence.

Owns: nothing.
Invariants: requests for a transactional id go to its coordinator, requests for a partition's
  producers to the partition's leader.
Source: Kafka's Admin client (KIP-664, KIP-994).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pylog.client.admin.types import (
    ProducerDescription, TransactionDescription, TransactionListing,
)
from pylog.client.errors import KafkaError, UnsupportedByBrokerError, raise_for
from pylog.client.network.cluster import TRANSACTION
from pylog.client.types import TopicPartition
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode

FENCE_TIMEOUT_MS = 1
INIT_VERSION_MAX = 5  # Later versions add two-phase commit.
_DURATIONS_VERSION = 1


class TransactionAdministration:
    """Methods of Admin, which provides `cluster`, `_run_concurrently` and `_run_on_all_brokers`."""

    cluster: Any
    _run_concurrently: Any
    _run_on_all_brokers: Any

    async def list_transactions(self, states: Iterable[str] = (), duration_ms: int = -1,
                                timeout: float | None = None) -> list[TransactionListing]:
        """Return the transactional ids of every broker, in these states and open for longer than
        duration_ms.
        """
        request = messages.ListTransactionsRequest(
            state_filters=list(states), duration_filter=duration_ms)

        async def listed(node: int) -> list[TransactionListing]:
            connection = await self.cluster.connection(node)
            version = connection.version(messages.ListTransactionsRequest)
            if duration_ms != -1 and version < _DURATIONS_VERSION:
                raise UnsupportedByBrokerError(f"broker {node} cannot list transactions by "
                                               f"duration")
            response = await connection.send(request, version=version)
            raise_for(response.error_code)
            return [TransactionListing(row.transactional_id, row.producer_id,
                                       row.transaction_state, node)
                    for row in response.transaction_states]

        found = await self._run_on_all_brokers(timeout, listed)
        return [row for _, rows in sorted(found.items()) for row in rows]

    async def describe_transactions(self, ids: Iterable[str], timeout: float | None = None
                                    ) -> dict[str, TransactionDescription]:
        """Describe transactions by transactional id. Raises TransactionalIdNotFoundError."""
        async def described(id_: str) -> TransactionDescription:
            node, response = await self._ask_coordinator(
                id_, messages.DescribeTransactionsRequest(transactional_ids=[id_]))
            row = response.transaction_states[0]
            self._check(id_, row.error_code)
            return TransactionDescription(
                id_, row.transaction_state, row.producer_id, row.producer_epoch,
                row.transaction_timeout_ms, row.transaction_start_time_ms, tuple(
                    TopicPartition(topic.topic, number)
                    for topic in row.topics for number in topic.partitions), node)

        return await self._run_concurrently(ids, timeout, described)

    async def describe_producers(self, partition: TopicPartition, timeout: float | None = None
                                 ) -> list[ProducerDescription]:
        """Return the producers that the partition's leader has state for."""
        new = messages.DescribeProducersRequest

        async def attempt() -> list[ProducerDescription]:
            leader = await self.cluster.leader(partition.topic, partition.partition)
            response = await self.cluster.send(leader.leader, new(topics=[new.TopicRequest(
                name=partition.topic, partition_indexes=[partition.partition])]))
            row = response.topics[0].partitions[0]
            raise_for(row.error_code, context=str(partition))
            return [ProducerDescription(
                one.producer_id, one.producer_epoch, one.last_sequence, one.last_timestamp,
                one.coordinator_epoch, one.current_txn_start_offset)
                for one in row.active_producers]

        found: list[ProducerDescription] = await self.cluster.retry(attempt, timeout)
        return found

    async def abort_transaction(self, partition: TopicPartition, producer_id: int,
                                producer_epoch: int, coordinator_epoch: int,
                                timeout: float | None = None) -> None:
        """Write an abort marker to one partition, for a transaction that its coordinator has lost.
        """
        new = messages.WriteTxnMarkersRequest

        async def attempt() -> None:
            leader = await self.cluster.leader(partition.topic, partition.partition)
            response = await self.cluster.send(leader.leader, new(markers=[new.WritableTxnMarker(
                producer_id=producer_id, producer_epoch=producer_epoch, transaction_result=False,
                coordinator_epoch=max(coordinator_epoch, 0), topics=[
                    new.WritableTxnMarkerTopic(name=partition.topic,
                                               partition_indexes=[partition.partition])])]))
            raise_for(response.markers[0].topics[0].partitions[0].error_code,
                      context=str(partition))

        await self.cluster.retry(attempt, timeout)

    async def fence_producers(self, ids: Iterable[str], timeout: float | None = None
                              ) -> dict[str, tuple[int, int]]:
        """Abort open transactions of these ids and fence their producers; return (producer id,
        epoch).
        """
        async def fenced(id_: str) -> tuple[int, int]:
            _, response = await self._ask_coordinator(id_, messages.InitProducerIdRequest(
                transactional_id=id_, transaction_timeout_ms=FENCE_TIMEOUT_MS))
            self._check(id_, response.error_code)
            return response.producer_id, response.producer_epoch

        return await self._run_concurrently(ids, timeout, fenced)

    async def _ask_coordinator(self, id_: str, request: Any) -> tuple[int, Any]:
        node = await self.cluster.coordinator(TRANSACTION, id_)
        try:
            connection = await self.cluster.connection(node)
            version = connection.version(type(request), INIT_VERSION_MAX)
            return node, await connection.send(request, version=version)
        except KafkaError as failure:
            if failure.stale_metadata:
                self.cluster.forget_coordinator(TRANSACTION, id_)
            raise

    def _check(self, id_: str, code: int) -> None:
        if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            self.cluster.forget_coordinator(TRANSACTION, id_)
        raise_for(code, context=id_)

"""Store the state of share partitions at the share coordinator, on this or another broker.

Owns: nothing.
Invariants: NONE means that the change is durable; if the coordinator moves, loads or is
  unreachable, requests are retried for RETRY_SECONDS, which is longer than a failover.
Source: KIP-932; Kafka's DefaultStatePersister.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from pylog.coordinator.runtime.broker_client import Brokers
from pylog.coordinator.runtime.deferred_response import DeferredResponse
from pylog.coordinator.share.partition_state import Batch, ShareKey, ShareState
from pylog.coordinator.share.service import ShareCoordinator
from pylog.coordinator.share.shard import FINE, Fault, ShareStates
from pylog.metadata.image.image import NO_LEADER
from pylog.peer.errors import PeerError
from pylog.protocol import messages
from pylog.protocol.errors import Error, ErrorCode

PAUSE_SECONDS = 0.02, 0.5  # Backoff: first, maximum.
# More than broker.session.timeout.ms, less than clients' request.timeout.ms.
RETRY_SECONDS = 20.0
INITIALIZE_VERSION, READ_VERSION, WRITE_VERSION, DELETE_VERSION, SUMMARY_VERSION = 0, 0, 1, 0, 1
_AGAIN = frozenset((ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE,
                    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NETWORK_EXCEPTION))


class Persister:
    """Accesses share state. node_id: this broker. brokers: sends requests to other brokers."""

    def __init__(self, coordinator: ShareCoordinator, brokers: Brokers, node_id: int):
        self._coordinator = coordinator
        self._brokers = brokers
        self._node_id = node_id

    async def initialize(self, key: ShareKey, state_epoch: int, start_offset: int) -> Fault:
        new = messages.InitializeShareGroupStateRequest
        await self._coordinator.ensure_topic()
        fault, _ = await self._call(
            key, INITIALIZE_VERSION, new(group_id=key.group_id, topics=[new.InitializeStateData(
                topic_id=key.topic_id, partitions=[new.PartitionData(
                    partition=key.partition, state_epoch=state_epoch,
                    start_offset=start_offset)])]),
            lambda: self._here(key, ShareStates.initialize, state_epoch, start_offset))
        return fault

    async def read(self, key: ShareKey, leader_epoch: int) -> tuple[Fault, ShareState | None]:
        """Return (fault, state) for the leader with this epoch. Fences older epochs."""
        new = messages.ReadShareGroupStateRequest
        fault, row = await self._call(
            key, READ_VERSION, new(group_id=key.group_id, topics=[new.ReadStateData(
                topic_id=key.topic_id, partitions=[new.PartitionData(
                    partition=key.partition, leader_epoch=leader_epoch)])]),
            lambda: self._here_with(key, ShareStates.read, leader_epoch))
        if row is None or isinstance(row, ShareState):
            return fault, row
        state = ShareState(0, row.state_epoch)
        state.start_offset = row.start_offset
        state.add([Batch(cell.first_offset, cell.last_offset, cell.delivery_state,
                         cell.delivery_count) for cell in row.state_batches])
        return fault, state

    async def write(self, key: ShareKey, state_epoch: int, leader_epoch: int,
                    progress: Callable[[], tuple[int, int]], batches: list[Batch]) -> Fault:
        """Write the state of a share partition.

        progress: returns (start offset, number of finished records above it) for each attempt, so
        that a retry does not move the start offset back behind a later write.
        """
        new = messages.WriteShareGroupStateRequest

        def request() -> Any:
            start_offset, complete_count = progress()
            return new(group_id=key.group_id, topics=[new.WriteStateData(
                topic_id=key.topic_id, partitions=[new.PartitionData(
                    partition=key.partition, state_epoch=state_epoch, leader_epoch=leader_epoch,
                    start_offset=start_offset, delivery_complete_count=complete_count,
                    state_batches=[new.StateBatch(
                        first_offset=row.first, last_offset=row.last, delivery_state=row.state,
                        delivery_count=row.deliveries) for row in batches])])])

        fault, _ = await self._call(key, WRITE_VERSION, request, lambda: self._here(
            key, ShareStates.write, state_epoch, leader_epoch, *progress(), batches))
        return fault

    async def delete(self, key: ShareKey) -> Fault:
        if not self._coordinator.has_topic:
            return FINE
        new = messages.DeleteShareGroupStateRequest
        fault, _ = await self._call(
            key, DELETE_VERSION, new(group_id=key.group_id, topics=[new.DeleteStateData(
                topic_id=key.topic_id, partitions=[new.PartitionData(partition=key.partition)])]),
            lambda: self._here(key, ShareStates.delete))
        return fault

    async def summary(self, key: ShareKey) -> tuple[Fault, Any]:
        """Return (fault, summary or None).

        The summary has start_offset, leader_epoch, state_epoch and delivery_complete_count.
        """
        if not self._coordinator.has_topic:
            return FINE, None
        new = messages.ReadShareGroupStateSummaryRequest
        fault, row = await self._call(
            key, SUMMARY_VERSION, new(group_id=key.group_id, topics=[new.ReadStateSummaryData(
                topic_id=key.topic_id, partitions=[new.PartitionData(
                    partition=key.partition, leader_epoch=-1)])]),
            lambda: self._here_with(key, ShareStates.summary))
        if isinstance(row, ShareState):
            row = messages.ReadShareGroupStateSummaryResponse.PartitionResult(
                start_offset=row.start_offset, leader_epoch=row.leader_epoch,
                state_epoch=row.state_epoch, delivery_complete_count=row.complete_count)
        return fault, row

    # ---- local or remote ------------------------------------------------------------------------

    async def _call(self, key: ShareKey, version: int, request: Any,
                   here: Callable[[], Awaitable[tuple[Fault, Any]]]) -> tuple[Fault, Any]:
        """Return (fault, the result of `here` or the partition's row of the remote response).

        request: a message, or a function that creates it. Retries for RETRY_SECONDS.
        """
        pause_s, pause_s_max = PAUSE_SECONDS
        found: tuple[Fault, Any] = (ErrorCode.COORDINATOR_NOT_AVAILABLE, None), None
        loop = asyncio.get_running_loop()
        end_s = loop.time() + RETRY_SECONDS
        while True:
            leader = self._coordinator.leader_of(key.text)
            if leader == self._node_id:
                found = await here()
            elif leader != NO_LEADER:
                found = await self._there(leader, version,
                                          request() if callable(request) else request)
            if found[0][0] not in _AGAIN or loop.time() >= end_s:
                return found
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, pause_s_max)

    async def _here(self, key: ShareKey, step: Callable[..., Fault],
                    *arguments: Any) -> tuple[Fault, None]:
        pending: DeferredResponse = DeferredResponse(_refused)
        return await self._coordinator.run(key, pending, step, *arguments), None

    async def _here_with(self, key: ShareKey, step: Callable[..., tuple[Fault, Any]],
                         *arguments: Any) -> tuple[Fault, Any]:
        pending: DeferredResponse = DeferredResponse(lambda error: (_refused(error), None))
        found: tuple[Fault, Any] = await self._coordinator.run(key, pending, step, *arguments)
        return found

    async def _there(self, leader: int, version: int, request: Any) -> tuple[Fault, Any]:
        try:
            response = await self._brokers.send(leader, request, version)
        except PeerError as error:
            return (ErrorCode.NETWORK_EXCEPTION, str(error)), None
        if not response.results or not response.results[0].partitions:
            return (ErrorCode.UNKNOWN_SERVER_ERROR, "An empty answer."), None
        row = response.results[0].partitions[0]
        if row.error_code != ErrorCode.NONE:
            return (ErrorCode.of(row.error_code), row.error_message), None
        return (ErrorCode.NONE, None), row


def _refused(error: Error) -> Fault:
    return error, None

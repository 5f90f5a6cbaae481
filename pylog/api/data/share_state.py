"""Requests of brokers to the share coordinator: InitializeShareGroupState (83), ReadShareGroupState
(84), WriteShareGroupState (85), DeleteShareGroupState (86), ReadShareGroupStateSummary (87).

Owns: nothing.
Invariants: a response is sent after its state is durable.
Source: KIP-932.
"""

from __future__ import annotations

import asyncio

from pylog.coordinator.runtime.deferred_response import DeferredResponse
from pylog.coordinator.share.partition_state import NO_OFFSET, NOT_COUNTED, Batch, ShareKey
from pylog.coordinator.share.shard import ShareStates
from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pylog._native.server.reactor import RequestContext
    from pylog.api.handler import Handler, Message
    from pylog.coordinator.share.service import ShareCoordinator


class ShareStatesApi:
    """The states of share partitions, on the coordinator `shares`."""

    def __init__(self, shares: ShareCoordinator):
        self._shares = shares

    def handlers(self) -> dict[int, Handler]:
        return {
            api.INITIALIZE_SHARE_GROUP_STATE: self.initialize,
            api.READ_SHARE_GROUP_STATE: self.read,
            api.WRITE_SHARE_GROUP_STATE: self.write,
            api.DELETE_SHARE_GROUP_STATE: self.delete,
            api.READ_SHARE_GROUP_STATE_SUMMARY: self.summary,
        }

    async def initialize(self, context: RequestContext, request: Message) -> Message:
        """Reset the state of share partitions. Errors: FENCED_STATE_EPOCH, INVALID_REQUEST,
        UNKNOWN_TOPIC_OR_PARTITION, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS.
        """
        new = messages.InitializeShareGroupStateResponse
        return await self._each(
            request, new, new.InitializeStateResult, ShareStates.initialize,
            lambda cell: (cell.state_epoch, cell.start_offset))

    async def write(self, context: RequestContext, request: Message) -> Message:
        """Store newer states of offsets. Errors: FENCED_LEADER_EPOCH, FENCED_STATE_EPOCH,
        INVALID_REQUEST (not initialized), else as for initialize().
        """
        new = messages.WriteShareGroupStateResponse
        return await self._each(
            request, new, new.WriteStateResult, ShareStates.write,
            lambda cell: (cell.state_epoch, cell.leader_epoch, cell.start_offset,
                          getattr(cell, "delivery_complete_count", NOT_COUNTED),
                          [Batch(row.first_offset, row.last_offset, row.delivery_state,
                                 row.delivery_count) for row in cell.state_batches]))

    async def delete(self, context: RequestContext, request: Message) -> Message:
        """Delete states, also missing ones. Errors as for initialize()."""
        new = messages.DeleteShareGroupStateResponse
        return await self._each(request, new, new.DeleteStateResult, ShareStates.delete,
                                lambda cell: ())

    async def read(self, context: RequestContext, request: Message) -> Message:
        """Return states for the leader of an epoch; an older epoch is fenced. Errors as for
        write().
        """
        new = messages.ReadShareGroupStateResponse

        def shape(row: Any, state: Any) -> None:
            if state is not None:
                row.state_epoch, row.start_offset = state.state_epoch, state.start_offset
                row.state_batches = [new.StateBatch(
                    first_offset=cell.first, last_offset=cell.last, delivery_state=cell.state,
                    delivery_count=cell.deliveries) for cell in state.batches]

        return await self._each(request, new, new.ReadStateResult, ShareStates.read,
                                lambda cell: (cell.leader_epoch,), shape)

    async def summary(self, context: RequestContext, request: Message) -> Message:
        """Return the start offsets of share partitions; -1 if they are not initialized. Errors as
        for initialize().
        """
        new = messages.ReadShareGroupStateSummaryResponse

        def shape(row: Any, state: Any) -> None:
            if state is None:
                row.start_offset, row.delivery_complete_count = NO_OFFSET, NOT_COUNTED
            else:
                row.state_epoch, row.leader_epoch = state.state_epoch, state.leader_epoch
                row.start_offset = state.start_offset
                row.delivery_complete_count = state.complete_count

        return await self._each(request, new, new.ReadStateSummaryResult, ShareStates.summary,
                                lambda cell: (), shape)

    async def _each(self, request: Message, new: Any, result: Any, step: Callable[..., Any],
                    arguments: Callable[[Any], tuple[Any, ...]],
                    shape: Callable[[Any, Any], None] | None = None) -> Message:
        """Run one step for each partition. shape: (row, state), for steps that also return a state.
        """
        if not request.group_id or any(not topic.partitions for topic in request.topics):
            return new()
        cells = [(bytes(topic.topic_id), cell) for topic in request.topics
                 for cell in topic.partitions]

        def refused(error: Any) -> Any:
            return (error, None) if shape is None else ((error, None), None)

        found = await asyncio.gather(*(_awaited(self._shares.run(
            ShareKey(request.group_id, topic, cell.partition), DeferredResponse(refused), step,
            *arguments(cell))) for topic, cell in cells))
        rows: dict[bytes, list[Any]] = {}
        for (topic, cell), outcome in zip(cells, found, strict=True):
            (error, text), state = (outcome, None) if shape is None else outcome
            row = new.PartitionResult(
                partition=cell.partition, error_code=error,
                error_message=None if error == ErrorCode.NONE else text or error.message)
            if shape is not None:
                shape(row, state)
            rows.setdefault(topic, []).append(row)
        return new(results=[result(topic_id=topic, partitions=cells)
                            for topic, cells in rows.items()])


async def _awaited(pending: DeferredResponse) -> Any:
    return await pending

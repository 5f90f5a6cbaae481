"""Producers: their ids, InitProducerId (22), and their state in the logs, DescribeProducers (61).

Owns: nothing.
Invariants: an id is assigned only once, also across restarts: blocks come from the metadata log.
Source: KIP-98, KIP-360, KIP-664.
"""

from __future__ import annotations

import asyncio
import struct

from pylog._native.log import producer_state
from pylog._native.log.log import LogError
from pylog.coordinator.runtime.deferred_response import DeferredResponse
from pylog.metadata.controller.partitions.topics import NO_TOPIC, topic_name_fault
from pylog.protocol import api, messages
from pylog.protocol.api_error import Refusal
from pylog.protocol.errors import ErrorCode

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from pylog._native.server.reactor import RequestContext
    from pylog.api.handler import Handler, Message
    from pylog.api.data.transactions import TransactionsApi
    from pylog.log.manager import LogManager
    from pylog.metadata.controller.active_controller import ActiveController
    from pylog.metadata.service import MetadataService

NONE = -1   # No producer id, no epoch.
# One producer of a .snapshot file (docs/reference/file-formats.md).
SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
PART_BYTES = 1000 * SNAPSHOT_ENTRY.size


class ProducersApi:
    """InitProducerId and DescribeProducers. transactions: handles transactional ids. now_ms: the
    wall clock, by which producers expire.
    """

    def __init__(self, controller: ActiveController, metadata: MetadataService, logs: LogManager,
                 transactions: TransactionsApi, now_ms: Callable[[], int]):
        self._controller = controller
        self._metadata = metadata
        self._logs = logs
        self._transactions = transactions
        self._now_ms = now_ms

    def handlers(self) -> dict[int, Handler]:
        return {
            api.INIT_PRODUCER_ID: self.init_producer_id,
            api.DESCRIBE_PRODUCERS: self.describe_producers,
        }

    async def init_producer_id(self, context: RequestContext, request: Message) -> Message:
        """Return a new producer id with epoch 0; an idempotent producer that names its old id gets
        a new one as well (KIP-360).

        Errors: INVALID_REQUEST for an id without an epoch, or the reverse; KAFKA_STORAGE_ERROR if
        no block of ids could be written. For transactional ids see api.data.transactions.
        """
        if (request.producer_id == NONE) != (request.producer_epoch == NONE):
            return messages.InitProducerIdResponse(
                error_code=ErrorCode.INVALID_REQUEST, producer_id=NONE, producer_epoch=NONE)
        if request.transactional_id is not None:
            found = self._transactions.init_producer_id(context, request)
            return await found if isinstance(found, DeferredResponse) else found
        # An idempotent producer that names its old id and epoch gets a new id as well (KIP-360).
        try:
            producer_id = await self._controller.next_producer_id()
        except LogError as error:
            return messages.InitProducerIdResponse(
                error_code=error.code, producer_id=NONE, producer_epoch=NONE)
        except Refusal as refusal:
            return messages.InitProducerIdResponse(
                error_code=refusal.error, producer_id=NONE, producer_epoch=NONE)
        return messages.InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)

    async def describe_producers(
            self, context: RequestContext, request: Message) -> AsyncIterator[Message | None]:
        """Yield the producers in each partition's log, in parts (KIP-664).

        Errors: INVALID_TOPIC_EXCEPTION, UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER,
        KAFKA_STORAGE_ERROR.
        """
        response = messages.DescribeProducersResponse
        loop = asyncio.get_running_loop()
        yield response()
        for topic in request.topics:
            yield response(topics=[response.TopicResponse(name=topic.name)])
            for index in topic.partition_indexes:
                row, states = await self._described(loop, topic.name, index)
                yield response(topics=[response.TopicResponse(name=topic.name, partitions=[row])])
                for first in range(producer_state.HEAD_BYTES, len(states), PART_BYTES):
                    yield response(topics=[response.TopicResponse(name=topic.name, partitions=[
                        response.PartitionResponse(
                            partition_index=index,
                            active_producers=_producers(states[first:first + PART_BYTES]))])])

    async def _described(self, loop, name: str, index: int):
        """Return (row without producers, its producers in the format of a .snapshot file)."""
        row = messages.DescribeProducersResponse.PartitionResponse(partition_index=index)
        row.error_code, row.error_message, states = await self._active_producers(loop, name, index)
        return row, memoryview(states)

    async def _active_producers(self, loop, name: str, index: int):
        """Return (error, message, the states)."""
        fault = topic_name_fault(name)
        if fault is not None:
            return ErrorCode.INVALID_TOPIC_EXCEPTION, fault, b""
        if name not in self._metadata.image.topics:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NO_TOPIC, b""
        if self._metadata.image.partition(name, index) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None, b""
        if self._logs.is_offline(name, index):
            return ErrorCode.KAFKA_STORAGE_ERROR, None, b""
        partition_log = self._logs.get(name, index)
        if partition_log is None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, None, b""
        try:
            states = await loop.run_in_executor(None, partition_log.producers, self._now_ms())
        except LogError as error:
            return error.code, None, b""
        return ErrorCode.NONE, None, states


def _producers(states) -> list:
    return [messages.DescribeProducersResponse.ProducerState(
        producer_id=id_, producer_epoch=epoch, last_sequence=sequence, last_timestamp=seen_ms,
        coordinator_epoch=coordinator_epoch, current_txn_start_offset=first_open)
        for id_, epoch, sequence, _, _, seen_ms, coordinator_epoch, first_open
        in SNAPSHOT_ENTRY.iter_unpack(states)]

"""ListOffsets (2) and OffsetForLeaderEpoch (23): start, end and epoch offsets of partitions.

Owns: nothing.
Invariants: a client never receives an offset at or above the high watermark, nor, at
  read_committed, above the last stable offset; operations that may read from disk run on a worker
  thread.
Source: KIP-79, KIP-98, KIP-101, KIP-207, KIP-320, KIP-405, KIP-734, KIP-1005, KIP-1023.
"""

from __future__ import annotations

import asyncio

from pylog._native.log.log import LogError
from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from pylog._native.server.reactor import RequestContext
    from pylog._native.log.log import Log
    from pylog.api.handler import Handler, Message
    from pylog.log.manager import LogManager
    from pylog.metadata.service import MetadataService

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
# The first version of ListOffsets with each special timestamp.
SPECIAL_SINCE = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9,
                 EARLIEST_PENDING_UPLOAD: 11}
READ_COMMITTED = 1
EPOCH_SINCE = 4
LAG_NAMED_SINCE = 5
UNKNOWN = -1


class Leaders:
    """The logs of the partitions that this broker leads."""

    def __init__(self, metadata: MetadataService, logs: LogManager, node_id: int):
        self._metadata = metadata
        self._logs = logs
        self._node_id = node_id

    def log(self, topic_name: str, index: int, client_epoch: int) -> tuple[Log | None, int]:
        """Return (the partition's log, NONE) if this broker leads it, else (None, the error).

        client_epoch: the client's leader epoch, -1 for any (KIP-320). Errors:
        UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH,
        NOT_LEADER_OR_FOLLOWER.
        """
        state = self._metadata.image.partition(topic_name, index)
        if state is None:
            return None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if self._logs.is_offline(topic_name, index):
            return None, ErrorCode.KAFKA_STORAGE_ERROR
        if client_epoch != UNKNOWN and client_epoch < state.leader_epoch:
            return None, ErrorCode.FENCED_LEADER_EPOCH
        if client_epoch > state.leader_epoch:
            return None, ErrorCode.UNKNOWN_LEADER_EPOCH
        if state.leader != self._node_id:
            return None, ErrorCode.NOT_LEADER_OR_FOLLOWER
        partition_log = self._logs.get(topic_name, index)
        if partition_log is None:
            return None, ErrorCode.KAFKA_STORAGE_ERROR
        if not partition_log.is_leader:
            # It was the leader before the broker restarted, and may have been replaced since.
            return None, ErrorCode.NOT_LEADER_OR_FOLLOWER
        if partition_log.failed:
            return None, ErrorCode.KAFKA_STORAGE_ERROR
        return partition_log, ErrorCode.NONE


class OffsetsApi:
    """ListOffsets and OffsetForLeaderEpoch, of the logs that this broker leads."""

    def __init__(self, leaders: Leaders):
        self._leaders = leaders

    def handlers(self) -> dict[int, Handler]:
        return {
            api.LIST_OFFSETS: self.list_offsets,
            api.OFFSET_FOR_LEADER_EPOCH: self.offset_for_leader_epoch,
        }

    async def list_offsets(self, context: RequestContext, request: Message) -> Message:
        """Return the offset of each partition at a timestamp in ms, or at a special one (LATEST,
        ...).

        Errors: INVALID_REQUEST, once, for a repeated partition; UNSUPPORTED_VERSION for a special
        timestamp of a later version; else those of Leaders.log(). Offset, timestamp and epoch are
        -1 if no record is that new. KIP-79, KIP-734.
        """
        seen: dict[tuple[str, int], int] = {}
        for topic in request.topics:
            for partition in topic.partitions:
                key = (topic.name, partition.partition_index)
                seen[key] = seen.get(key, 0) + 1
        entries = []
        for topic in request.topics:
            partitions = []
            for partition in topic.partitions:
                # A repeated partition is rejected, once.
                times = seen.pop((topic.name, partition.partition_index), 0)
                if times:
                    partitions.append(await self._offset(
                        context, request, topic.name, partition, times > 1))
            if partitions:
                entries.append(messages.ListOffsetsResponse.ListOffsetsTopicResponse(
                    name=topic.name, partitions=partitions))
        return messages.ListOffsetsResponse(topics=entries)

    async def _offset(self, context, request, topic_name, partition, twice):
        new = messages.ListOffsetsResponse.ListOffsetsPartitionResponse
        index = partition.partition_index
        requested = partition.timestamp
        if twice:
            return new(partition_index=index, error_code=ErrorCode.INVALID_REQUEST)
        if requested < 0 and SPECIAL_SINCE.get(requested, 1 << 15) > context.api_version:
            return new(partition_index=index, error_code=ErrorCode.UNSUPPORTED_VERSION)
        partition_log, error = self._leaders.log(topic_name, index, partition.current_leader_epoch)
        if partition_log is None:
            return new(partition_index=index, error_code=error)
        bound = partition_log.last_stable_offset if request.isolation_level == READ_COMMITTED \
            else partition_log.high_watermark
        lags = _lags(context, request, partition_log)
        if requested == LATEST and lags:
            return new(partition_index=index, error_code=lags)
        if requested == LATEST:
            offset, timestamp, epoch = bound, UNKNOWN, partition_log.leader_epoch
        elif requested in (EARLIEST, EARLIEST_LOCAL):
            offset, timestamp = partition_log.start_offset, UNKNOWN
            epoch = partition_log.epoch_of(offset)
        elif requested in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
            # There is no remote tier: it is empty, and nothing waits for upload.
            offset = timestamp = epoch = UNKNOWN
        else:
            found, error = await _find_offset(partition_log, requested)
            if error != ErrorCode.NONE:
                return new(partition_index=index, error_code=error)
            if lags and found is not None and found[0] >= bound:
                return new(partition_index=index, error_code=lags)
            # Return no offset at or above the bound.
            offset, timestamp, epoch = found if found is not None and found[0] < bound \
                else (UNKNOWN, UNKNOWN, UNKNOWN)
        if context.api_version < EPOCH_SINCE:
            epoch = UNKNOWN
        return new(partition_index=index, offset=offset, timestamp=timestamp, leader_epoch=epoch)

    def offset_for_leader_epoch(self, context: RequestContext, request: Message) -> Message:
        """Return the end of the largest epoch up to the requested one, per partition (KIP-320).

        Epoch and end offset are -1 if there is no such epoch, or with an error of Leaders.log().
        """
        response = messages.OffsetForLeaderEpochResponse
        topics = []
        for topic in request.topics:
            partitions = []
            for partition in topic.partitions:
                partition_log, error = self._leaders.log(topic.topic, partition.partition,
                                        partition.current_leader_epoch)
                epoch, end = (UNKNOWN, UNKNOWN) if partition_log is None else \
                    partition_log.end_for_epoch(partition.leader_epoch)
                partitions.append(response.EpochEndOffset(
                    partition=partition.partition, error_code=error, leader_epoch=epoch,
                    end_offset=end))
            topics.append(response.OffsetForLeaderTopicResult(
                topic=topic.topic, partitions=partitions))
        return response(topics=topics)


def _lags(context, request, partition_log) -> int:
    """Return an error while the offset could be lower than an earlier leader's response: until the
    high watermark has reached the start of this leader's epoch (KIP-207). Else NONE.
    """
    if request.replica_id >= 0 or partition_log.high_watermark_is_current:
        return ErrorCode.NONE
    return ErrorCode.OFFSET_NOT_AVAILABLE if context.api_version >= LAG_NAMED_SINCE \
        else ErrorCode.LEADER_NOT_AVAILABLE


async def _find_offset(partition_log, requested):
    """Return ((offset, timestamp, leader epoch) or None, error) of a search that may block."""
    loop = asyncio.get_running_loop()
    try:
        if requested == MAX_TIMESTAMP:
            found = await loop.run_in_executor(None, partition_log.offset_of_max_time)
        else:
            found = await loop.run_in_executor(None, partition_log.offset_for_time, requested)
        return found, ErrorCode.NONE
    except LogError as error:
        return None, error.code

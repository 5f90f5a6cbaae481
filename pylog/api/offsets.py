"""ListOffsets (2) and OffsetForLeaderEpoch (23): where a partition's offsets begin, end and turn.

Owns: nothing.
Called by: dispatch through api.HANDLERS.
Invariants: (1) a client never learns of an offset at or above the high watermark, nor, at
  read_committed, above the last stable offset; (2) what may read from disk runs on a worker thread.
Source: KIP-79, KIP-98, KIP-101, KIP-207, KIP-320, KIP-405, KIP-734, KIP-1005, KIP-1023.
"""

import asyncio

from pylog._native.log import LogError
from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
# The version of ListOffsets from which a special timestamp may be used.
SPECIAL_SINCE = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9,
                 EARLIEST_PENDING_UPLOAD: 11}
READ_COMMITTED = 1
EPOCH_TOLD_SINCE = 4
UNKNOWN = -1


async def list_offsets(broker, context, request):
    seen = {}
    for topic in request.topics:
        for partition in topic.partitions:
            key = (topic.name, partition.partition_index)
            seen[key] = seen.get(key, 0) + 1
    entries = []
    for topic in request.topics:
        partitions = []
        for partition in topic.partitions:
            # One that is named more than once is refused, once.
            times = seen.pop((topic.name, partition.partition_index), 0)
            if times:
                partitions.append(await _offset(
                    broker, context, request, topic.name, partition, times > 1))
        if partitions:
            entries.append(messages.ListOffsetsResponse.ListOffsetsTopicResponse(
                name=topic.name, partitions=partitions))
    return messages.ListOffsetsResponse(topics=entries)


async def _offset(broker, context, request, topic_name, partition, twice):
    new = messages.ListOffsetsResponse.ListOffsetsPartitionResponse
    index = partition.partition_index
    asked = partition.timestamp
    if twice:
        return new(partition_index=index, error_code=ErrorCode.INVALID_REQUEST)
    if asked < 0 and SPECIAL_SINCE.get(asked, 1 << 15) > context.api_version:
        return new(partition_index=index, error_code=ErrorCode.UNSUPPORTED_VERSION)
    log, error = leader_log(broker, topic_name, index, partition.current_leader_epoch)
    if error != ErrorCode.NONE:
        return new(partition_index=index, error_code=error)
    bound = log.last_stable_offset if request.isolation_level == READ_COMMITTED \
        else log.high_watermark
    if asked == LATEST:
        offset, timestamp, epoch = bound, UNKNOWN, log.leader_epoch
    elif asked in (EARLIEST, EARLIEST_LOCAL):
        offset, timestamp = log.start_offset, UNKNOWN
        epoch = log.epoch_of(offset)
    elif asked in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        # There is no remote tier: nothing is there, and nothing waits to go there.
        offset = timestamp = epoch = UNKNOWN
    else:
        found, error = await _look_up(log, asked)
        if error != ErrorCode.NONE:
            return new(partition_index=index, error_code=error)
        # Keeps (1).
        offset, timestamp, epoch = found if found is not None and found[0] < bound \
            else (UNKNOWN, UNKNOWN, UNKNOWN)
    if context.api_version < EPOCH_TOLD_SINCE:
        epoch = UNKNOWN
    return new(partition_index=index, offset=offset, timestamp=timestamp, leader_epoch=epoch)


async def _look_up(log, asked):
    """((offset, timestamp, leader epoch) or None, error) of a search that may block (2)."""
    loop = asyncio.get_running_loop()
    try:
        if asked == MAX_TIMESTAMP:
            return await loop.run_in_executor(None, log.offset_of_max_time), ErrorCode.NONE
        return await loop.run_in_executor(None, log.offset_for_time, asked), ErrorCode.NONE
    except LogError as error:
        return None, error.code


def leader_log(broker, topic_name, index, client_epoch):
    """(the partition's log, NONE) when this broker leads it, else (None, the error to answer)."""
    state = broker.image.partition(topic_name, index)
    if state is None:
        return None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if broker.logs.is_offline(topic_name, index):
        return None, ErrorCode.KAFKA_STORAGE_ERROR
    if client_epoch != UNKNOWN and client_epoch < state.leader_epoch:
        return None, ErrorCode.FENCED_LEADER_EPOCH
    if client_epoch > state.leader_epoch:
        return None, ErrorCode.UNKNOWN_LEADER_EPOCH
    if state.leader != broker.node_id:
        return None, ErrorCode.NOT_LEADER_OR_FOLLOWER
    log = broker.logs.get(topic_name, index)
    if log is None or log.failed:
        return None, ErrorCode.KAFKA_STORAGE_ERROR
    return log, ErrorCode.NONE


def offset_for_leader_epoch(broker, context, request):
    response = messages.OffsetForLeaderEpochResponse
    topics = []
    for topic in request.topics:
        partitions = []
        for partition in topic.partitions:
            log, error = leader_log(broker, topic.topic, partition.partition,
                                    partition.current_leader_epoch)
            epoch, end = (UNKNOWN, UNKNOWN) if log is None else \
                log.end_for_epoch(partition.leader_epoch)
            partitions.append(response.EpochEndOffset(
                partition=partition.partition, error_code=error, leader_epoch=epoch,
                end_offset=end))
        topics.append(response.OffsetForLeaderTopicResult(
            topic=topic.topic, partitions=partitions))
    return response(topics=topics)


HANDLERS = {api.LIST_OFFSETS: list_offsets,
            api.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch}

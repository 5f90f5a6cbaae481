"""DeleteRecords (21): the log of a partition begins later.

Owns: nothing.
Called by: dispatch through api.HANDLERS.
Invariants: (1) the low watermark that is told is the log's start, and the start does not
  come back after a crash; (2) records of a topic that is only compacted stay.
Source: KIP-107; error codes as Kafka 4.3's.
"""

import asyncio

from pylog._native.log import LogError
from pylog.api.offsets import leader_log
from pylog.metadata.image import is_internal
from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode

HIGH_WATERMARK = -1     # As an offset: everything up to there.
NO_WATERMARK = -1
ANY_EPOCH = -1


async def delete_records(broker, context, request):
    response = messages.DeleteRecordsResponse
    # One that is named twice counts once, the last time.
    wanted = {}
    for topic in request.topics:
        for partition in topic.partitions:
            wanted.setdefault(topic.name, {})[partition.partition_index] = partition.offset
    loop = asyncio.get_running_loop()
    topics = []
    for name, offsets in wanted.items():
        partitions = []
        for index, offset in offsets.items():
            watermark, error = await _delete(loop, broker, name, index, offset)
            partitions.append(response.DeleteRecordsPartitionResult(
                partition_index=index, low_watermark=watermark, error_code=error))
        topics.append(response.DeleteRecordsTopicResult(name=name, partitions=partitions))
    return response(topics=topics)


async def _delete(loop, broker, name: str, index: int, offset: int):
    """(low watermark, error)."""
    if broker.image.partition(name, index) is None:
        return NO_WATERMARK, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if is_internal(name):
        return NO_WATERMARK, ErrorCode.INVALID_TOPIC_EXCEPTION
    log, error = leader_log(broker, name, index, ANY_EPOCH)
    if error != ErrorCode.NONE:
        return NO_WATERMARK, error
    policy = broker.settings.topic_config(broker.image.topic_config(name))["cleanup.policy"]
    # Keeps (2).
    if "compact" in policy and "delete" not in policy:
        return NO_WATERMARK, ErrorCode.POLICY_VIOLATION
    offset = log.high_watermark if offset == HIGH_WATERMARK else offset
    if not 0 <= offset <= log.high_watermark:
        return NO_WATERMARK, ErrorCode.OFFSET_OUT_OF_RANGE
    try:
        # Segments are renamed away: on a thread that may wait for the disk.
        return await loop.run_in_executor(
            None, broker.logs.move_start, name, index, offset), ErrorCode.NONE
    except LogError as fault:
        return NO_WATERMARK, fault.code
    except KeyError:
        # The topic was deleted meanwhile.
        return NO_WATERMARK, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


HANDLERS = {api.DELETE_RECORDS: delete_records}

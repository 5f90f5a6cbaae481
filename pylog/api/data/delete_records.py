"""DeleteRecords (21): moves the log start offset of a partition.

Owns: nothing.
Invariants: the low watermark in a response is the log start offset, which is never lower after a
  crash; records of a topic with cleanup.policy=compact only are not deleted.
Source: KIP-107; error codes as in Kafka 4.4.
"""

from __future__ import annotations

import asyncio

from pylog._native.log.log import LogError
from pylog.metadata.image.image import is_internal
from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from pylog._native.server.reactor import RequestContext
    from pylog.api.handler import Handler, Message
    from pylog.api.data.offsets import Leaders
    from pylog.config import Settings
    from pylog.log.manager import LogManager
    from pylog.metadata.service import MetadataService

HIGH_WATERMARK = -1  # As an offset: everything up to the high watermark.
NO_WATERMARK = -1
ANY_EPOCH = -1


class RecordsApi:
    """DeleteRecords, on the logs that this broker leads."""

    def __init__(self, leaders: Leaders, metadata: MetadataService, logs: LogManager, settings:
                 Settings):
        self._leaders = leaders
        self._metadata = metadata
        self._logs = logs
        self._settings = settings

    def handlers(self) -> dict[int, Handler]:
        return {api.DELETE_RECORDS: self.delete_records}

    async def delete_records(self, context: RequestContext, request: Message) -> Message:
        """Move the log start offset of partitions to an offset; return low watermarks (KIP-107).

        offset -1: the high watermark. If a partition is named twice, the last one counts. Errors:
        OFFSET_OUT_OF_RANGE, POLICY_VIOLATION (compacted only), INVALID_TOPIC_EXCEPTION (internal),
        KAFKA_STORAGE_ERROR, and those of Leaders.log().
        """
        response = messages.DeleteRecordsResponse
        # For a repeated partition, the last entry counts.
        wanted: dict[str, dict[int, int]] = {}
        for topic in request.topics:
            for partition in topic.partitions:
                wanted.setdefault(topic.name, {})[partition.partition_index] = partition.offset
        loop = asyncio.get_running_loop()
        topics = []
        for name, offsets in wanted.items():
            partitions = []
            for index, offset in offsets.items():
                watermark, error = await self._delete(loop, name, index, offset)
                partitions.append(response.DeleteRecordsPartitionResult(
                    partition_index=index, low_watermark=watermark, error_code=error))
            topics.append(response.DeleteRecordsTopicResult(name=name, partitions=partitions))
        return response(topics=topics)

    async def _delete(self, loop, name: str, index: int, offset: int):
        """Return (low watermark, error)."""
        if self._metadata.image.partition(name, index) is None:
            return NO_WATERMARK, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if is_internal(name):
            return NO_WATERMARK, ErrorCode.INVALID_TOPIC_EXCEPTION
        partition_log, error = self._leaders.log(name, index, ANY_EPOCH)
        if partition_log is None:
            return NO_WATERMARK, error
        policy = self._settings.topic_config(
            self._metadata.image.topic_config(name))["cleanup.policy"]
        # Records of a topic that is only compacted are not deleted.
        if "compact" in policy and "delete" not in policy:
            return NO_WATERMARK, ErrorCode.POLICY_VIOLATION
        offset = partition_log.high_watermark if offset == HIGH_WATERMARK else offset
        if not 0 <= offset <= partition_log.high_watermark:
            return NO_WATERMARK, ErrorCode.OFFSET_OUT_OF_RANGE
        try:
            # Segments are renamed: on a thread that may wait for the disk.
            return await loop.run_in_executor(
                None, self._logs.move_start, name, index, offset), ErrorCode.NONE
        except LogError as fault:
            return NO_WATERMARK, fault.code
        except KeyError:
            # The topic was deleted in the meantime.
            return NO_WATERMARK, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

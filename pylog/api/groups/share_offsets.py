"""Share group offsets: DescribeShareGroupOffsets (90), AlterShareGroupOffsets (91),
DeleteShareGroupOffsets (92).

Owns: nothing.
Invariants: a NONE result is sent after the change is durable; a share partition without state has
  offset -1, not an error.
Source: KIP-932, KIP-1226 (lag); Kafka 4.4, by its responses.
"""

from __future__ import annotations

import asyncio

from pylog.coordinator.groups.share import offsets as share_offsets
from pylog.coordinator.share.partition_state import NO_OFFSET, NOT_COUNTED, ShareKey
from pylog.protocol import api, messages
from pylog.protocol.errors import Error, ErrorCode

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from typing import Any

    from pylog._native.server.reactor import RequestContext
    from pylog.api.handler import Handler, Message
    from pylog.coordinator.groups.service import GroupCoordinator
    from pylog.metadata.service import MetadataService
    from pylog.share.service import Sharing

NO_ID = bytes(16)
NO_LAG = -1
LAG_MAX = 2**63 - 1


class ShareOffsetsApi:
    """Uses the coordinator `groups` and the parts of `sharing`."""

    def __init__(self, groups: GroupCoordinator, sharing: Sharing, metadata: MetadataService):
        self._groups = groups
        self._sharing = sharing
        self._metadata = metadata

    def handlers(self) -> dict[int, Handler]:
        return {
            api.DESCRIBE_SHARE_GROUP_OFFSETS: self.describe,
            api.ALTER_SHARE_GROUP_OFFSETS: self.alter,
            api.DELETE_SHARE_GROUP_OFFSETS: self.delete,
        }

    # ---- describe -------------------------------------------------------------------------------

    async def describe(self, context: RequestContext, request: Message) -> Message:
        """Return the start offset and the lag of share partitions.

        Errors per group: UNSUPPORTED_VERSION (no share groups here); for all its topics
        NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS; per partition, the reason if the end offset
        is unavailable. Partitions without state have -1.
        """
        return messages.DescribeShareGroupOffsetsResponse(
            groups=[await self._described(group) for group in request.groups])

    async def _described(self, group: Message) -> Message:
        row = messages.DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup(
            group_id=group.group_id)
        error: Error = ErrorCode.NONE if self._sharing.coordinator.is_enabled \
            else ErrorCode.UNSUPPORTED_VERSION
        requested: list[tuple[str, list[int]]] = []
        if error == ErrorCode.NONE and group.topics is None:
            found, error = self._groups.query(
                group.group_id, share_offsets.initialized, group.group_id)
            topics = self._metadata.image.topics_by_id
            requested = [(topics[topic].name, indexes) for topic, indexes in (found or {}).items()
                     if topic in topics]
        elif error == ErrorCode.NONE:
            requested = [(topic.topic_name, list(topic.partitions)) for topic in group.topics]
        if error == ErrorCode.NONE:
            row.topics = await self._topics(group.group_id, requested)
        else:
            row.error_code = error
            row.error_message = None if error == ErrorCode.UNSUPPORTED_VERSION else error.message
        return row

    async def _topics(self, group_id: str, requested: list[tuple[str, list[int]]]) -> list[Any]:
        new = messages.DescribeShareGroupOffsetsResponse
        topics = self._metadata.image.topics
        keys = [ShareKey(group_id, topics[name].id, index) for name, indexes in requested
                if name in topics for index in indexes]
        states = dict(zip(keys, await asyncio.gather(
            *(self._summary(key) for key in keys)), strict=True))
        counted = {(name, index) for name, indexes in requested if name in topics
                   for index in indexes
                   if _is_counted(states[ShareKey(group_id, topics[name].id, index)])}
        end_offsets = await self._sharing.end_offsets.find(counted) if counted else {}
        rows = []
        for name, indexes in requested:
            topic = topics.get(name)
            rows.append(new.DescribeShareGroupOffsetsResponseTopic(
                topic_name=name, topic_id=NO_ID if topic is None else topic.id, partitions=[
                    _partition(index, None if topic is None else states[
                        ShareKey(group_id, topic.id, index)], end_offsets.get((name, index)))
                    for index in indexes]))
        return rows

    async def _summary(self, key: ShareKey) -> Any:
        """Return the state of a share partition, or None."""
        if not key.group_id or key.partition < 0:
            return None
        (error, _), row = await self._sharing.persister.summary(key)
        return row if error == ErrorCode.NONE else None

    # ---- alter ----------------------------------------------------------------------------------

    async def alter(self, context: RequestContext, request: Message) -> Message:
        """Set the start offset of share partitions, for a group without members, which is created
        if it does not exist. Responds when the change is durable.

        Errors: INVALID_GROUP_ID, GROUP_ID_NOT_FOUND (another type of group), NON_EMPTY_GROUP,
        UNSUPPORTED_VERSION, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS. Per partition:
        UNKNOWN_TOPIC_OR_PARTITION, and the share coordinator's errors.
        """
        new = messages.AlterShareGroupOffsetsResponse
        error = self._fault(request)
        if error is not None:
            return new(error_code=error, error_message=error.message)
        topics = self._metadata.image.topics
        starts: dict[bytes, dict[int, int]] = {}
        for topic in request.topics:
            known = topics.get(topic.topic_name)
            for cell in topic.partitions:
                if known is not None and 0 <= cell.partition_index < len(known.partitions):
                    starts.setdefault(known.id, {})[cell.partition_index] = cell.start_offset
        fault, errors = await self._sharing.states.alter(request.group_id, starts)
        if fault.error != ErrorCode.NONE:
            return new(error_code=fault.error, error_message=fault.text or fault.error.message)
        rows = []
        for topic in request.topics:
            known = topics.get(topic.topic_name)
            id_ = NO_ID if known is None else known.id
            cells = []
            for cell in topic.partitions:
                error = errors.get((id_, cell.partition_index),
                                   ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                cells.append(new.AlterShareGroupOffsetsResponsePartition(
                    partition_index=cell.partition_index, error_code=error,
                    error_message=None if error == ErrorCode.NONE else error.message))
            rows.append(new.AlterShareGroupOffsetsResponseTopic(
                topic_name=topic.topic_name, topic_id=id_, partitions=cells))
        return new(responses=rows)

    # ---- delete ---------------------------------------------------------------------------------

    async def delete(self, context: RequestContext, request: Message) -> Message:
        """Delete the offsets of topics, for a group without members. Responds when the change is
        durable.

        Errors: INVALID_GROUP_ID, GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP, UNSUPPORTED_VERSION,
        NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS. Per topic: UNKNOWN_TOPIC_OR_PARTITION (no
        such topic, or it has no state), and the share coordinator's errors.
        """
        new = messages.DeleteShareGroupOffsetsResponse
        error = self._fault(request)
        if error is not None:
            return new(error_code=error, error_message=error.message)
        fault, rows = await self._sharing.states.delete_offsets(
            request.group_id, list(dict.fromkeys(row.topic_name for row in request.topics)))
        if fault.error != ErrorCode.NONE:
            return new(error_code=fault.error, error_message=fault.text or fault.error.message)
        topics = self._metadata.image.topics
        return new(responses=[
            new.DeleteShareGroupOffsetsResponseTopic(
                topic_name=name, error_code=error, error_message=text,
                topic_id=topics[name].id if error == ErrorCode.NONE and name in topics else NO_ID)
            for name, (error, text) in rows.items()])

    def _fault(self, request: Message) -> Error | None:
        if not self._sharing.coordinator.is_enabled:
            return ErrorCode.UNSUPPORTED_VERSION
        return None if request.group_id else ErrorCode.INVALID_GROUP_ID


def _is_counted(state: Any) -> bool:
    return state is not None and state.start_offset != NO_OFFSET \
        and state.delivery_complete_count != NOT_COUNTED


def _partition(index: int, state: Any, end: int | Error | None) -> Any:
    """end: the partition's end offset, or the error when reading it; None: it was not read."""
    new = messages.DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponsePartition
    if isinstance(end, Error):
        return new(partition_index=index, error_code=end, error_message=end.message)
    if state is None:
        return new(partition_index=index, start_offset=NO_OFFSET)
    # An administrator may have set it to any offset.
    lag = NO_LAG if end is None \
        else min(end - state.start_offset - state.delivery_complete_count, LAG_MAX)
    return new(partition_index=index, start_offset=state.start_offset,
               leader_epoch=state.leader_epoch, lag=lag)

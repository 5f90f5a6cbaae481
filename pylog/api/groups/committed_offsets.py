"""Committed offsets on the wire: OffsetCommit (8), OffsetFetch (9), OffsetDelete (47).

Owns: nothing.
Invariants: the response to a commit is sent after its records are durable; topics and partitions
  are returned in the request's order; for a commit, only topics with partitions.
Source: KIP-211, KIP-447 (require_stable), KIP-496, KIP-709 (several groups), KIP-848; topic ids:
  KIP-516.
"""

from __future__ import annotations

from pylog.coordinator.groups import offsets
from pylog.coordinator.runtime.deferred_response import DeferredResponse
from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from pylog._native.server.reactor import RequestContext
    from pylog.api.handler import Handler, Message, Result
    from pylog.coordinator.groups.service import GroupCoordinator
    from pylog.coordinator.groups.shard import GroupShard
    from pylog.metadata.service import MetadataService

IDS_SINCE = 10
GROUPS_SINCE = 8
MEMBERS_SINCE = 9  # KIP-848
NOBODY = None, -1
PART_PARTITIONS = 500
NONE_COMMITTED = -1
NO_ID = bytes(16)


class CommittedOffsetsApi:
    """Committed offsets, on the coordinator `groups`."""

    def __init__(self, groups: GroupCoordinator, metadata: MetadataService):
        self._groups = groups
        self._metadata = metadata

    def handlers(self) -> dict[int, Handler]:
        return {
            api.OFFSET_COMMIT: self.offset_commit,
            api.OFFSET_FETCH: self.offset_fetch,
            api.OFFSET_DELETE: self.offset_delete,
        }

    def offset_commit(self, context: RequestContext,
                      request: Message) -> Message | DeferredResponse:
        """Commit offsets; respond when they are written, with an error code per partition.

        Errors: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID (version 10, by id),
        OFFSET_METADATA_TOO_LARGE; for all of them ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID,
        FENCED_INSTANCE_ID, REBALANCE_IN_PROGRESS, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS.
        """
        new = messages.OffsetCommitResponse
        image = self._metadata.image
        by_id = context.api_version >= IDS_SINCE
        topics, positions, entries = [], [], []
        for requested in request.topics:
            topic = image.topics_by_id.get(bytes(requested.topic_id)) if by_id \
                else image.topics.get(requested.name)
            missing = ErrorCode.UNKNOWN_TOPIC_ID if by_id and topic is None \
                else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            rows = []
            for cell in requested.partitions:
                index = cell.partition_index
                row = new.OffsetCommitResponsePartition(partition_index=index)
                rows.append(row)
                if topic is None or not 0 <= index < len(topic.partitions):
                    row.error_code = missing
                    continue
                positions.append(row)
                entries.append((topic.name, topic.id, index, cell.committed_offset,
                                cell.committed_leader_epoch, cell.committed_metadata))
            if rows:
                topics.append(new.OffsetCommitResponseTopic(
                    name=requested.name, topic_id=requested.topic_id, partitions=rows))
        message = new(topics=topics)
        if not entries:
            return message

        def refusal(error):
            for row in positions:
                row.error_code = error
            return message

        def commit(store: GroupShard) -> Message:
            result = offsets.commit(store, request, entries, context.api_version)
            if isinstance(result, list):
                for row, code in zip(positions, result, strict=True):
                    row.error_code = code
            elif result != ErrorCode.NONE:
                return refusal(result)
            return message

        return self._groups.run(request.group_id, DeferredResponse(refusal), commit)

    def offset_fetch(self, context: RequestContext, request: Message) -> Result:
        """Return committed offsets of a group or, from version 8, several (KIP-709); -1 for none.

        Returns many offsets of a group in parts. Errors: UNKNOWN_TOPIC_ID per partition (version
        10); NOT_COORDINATOR and COORDINATOR_LOAD_IN_PROGRESS per group.
        """
        if context.api_version < GROUPS_SINCE:
            found = self._found(request.group_id, None if request.topics is None else [
                (topic.name, topic.partition_indexes) for topic in request.topics],
                request.require_stable)
            if request.topics is None and _may_be_much(found):
                return _group_in_parts(context, request, found)
            return _shaped(found, lambda found: _single_group(context, request, found))
        new = messages.OffsetFetchResponse
        every = [(group, self._of_group(context, request, group)) for group in request.groups]
        if len(every) != 1 or every[0][0].topics is None and _may_be_much(every[0][1]):
            return self._several_in_parts(context, every)
        (group, found), = every
        return _shaped(found, lambda found: new(groups=[self._group(context, group, found)]))

    async def _several_in_parts(self, context, every):
        new = messages.OffsetFetchResponse
        yield new()
        for group, found in every:
            for rows in _parts(await found if isinstance(found, DeferredResponse) else found):
                yield new(groups=[self._group(context, group, rows)])

    def _of_group(self, context, request, group):
        stable = request.require_stable
        caller = (group.member_id, group.member_epoch) if context.api_version >= MEMBERS_SINCE \
            else NOBODY
        if group.topics is None:
            return self._found(group.group_id, None, stable, caller)
        if context.api_version < IDS_SINCE:
            return self._found(group.group_id, [
                (topic.name, topic.partition_indexes) for topic in group.topics], stable, caller)
        names = self._metadata.image.topics_by_id
        return self._found(group.group_id, [
            (names[bytes(topic.topic_id)].name, topic.partition_indexes) for topic in group.topics
            if bytes(topic.topic_id) in names], stable, caller)

    def _group(self, context, group, found):
        """Return one group's part of a response."""
        new = messages.OffsetFetchResponse
        if isinstance(found, int):
            return new.OffsetFetchResponseGroup(group_id=group.group_id, error_code=found)
        by_id = context.api_version >= IDS_SINCE
        topics = []
        for name, cells in _rows(found):
            topic_id = NO_ID
            if by_id:
                topic = self._metadata.image.topics.get(name)
                if topic is None:
                    continue  # It was deleted, and an id cannot name it any more.
                topic_id = topic.id
            topics.append(new.OffsetFetchResponseTopics(
                name=name, topic_id=topic_id, partitions=[
                    _partition(new.OffsetFetchResponsePartitions, index, entry)
                    for index, entry in cells]))
        if by_id:
            topics += [new.OffsetFetchResponseTopics(topic_id=topic.topic_id, partitions=[
                _partition(new.OffsetFetchResponsePartitions, index, None,
                           ErrorCode.UNKNOWN_TOPIC_ID) for index in topic.partition_indexes])
                for topic in group.topics or () if bytes(topic.topic_id) not in
                self._metadata.image.topics_by_id]
        return new.OffsetFetchResponseGroup(group_id=group.group_id, topics=topics)

    def _found(self, group_id: str, topics, stable: bool, caller=NOBODY):
        """Return the result of offsets.fetch, or an error code. While commits are being
        flushed, return a DeferredResponse of it. caller: (member id, member epoch).
        """
        pending = DeferredResponse(lambda code: code)
        if caller != NOBODY:
            fault, error = self._groups.query(group_id, offsets.fetch_fault, group_id, *caller)
            error = error if fault is None else fault
            if error != ErrorCode.NONE:
                return error
        if topics is None:
            self._groups.run(group_id, pending, offsets.everything, group_id, stable)
        else:
            self._groups.run(group_id, pending, offsets.fetch, group_id, topics, stable)
        return pending.message if pending.is_set else pending

    def offset_delete(self, context: RequestContext,
                      request: Message) -> Message | DeferredResponse:
        """Remove committed offsets of unsubscribed topics; respond when written (KIP-496).

        Errors: GROUP_SUBSCRIBED_TO_TOPIC and UNKNOWN_TOPIC_OR_PARTITION per partition;
        INVALID_GROUP_ID, GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP, NOT_COORDINATOR,
        COORDINATOR_LOAD_IN_PROGRESS for all.
        """
        new = messages.OffsetDeleteResponse
        if not request.group_id:
            return new(error_code=ErrorCode.INVALID_GROUP_ID)
        image = self._metadata.image
        wanted = [(topic.name, [
            cell.partition_index for cell in topic.partitions
            if image.partition(topic.name, cell.partition_index) is not None])
            for topic in request.topics]

        def delete(store: GroupShard) -> Message:
            error, errors = offsets.delete(store, request.group_id, wanted)
            if error != ErrorCode.NONE:
                return new(error_code=error)
            return new(topics=[new.OffsetDeleteResponseTopic(name=topic.name, partitions=[
                new.OffsetDeleteResponsePartition(
                    partition_index=cell.partition_index,
                    error_code=errors[topic.name] if cell.partition_index in known
                    else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) for cell in topic.partitions])
                for topic, (_, known) in zip(request.topics, wanted, strict=True)])

        return self._groups.run(
            request.group_id, DeferredResponse(lambda code: new(error_code=code)), delete)


def _may_be_much(found) -> bool:
    return isinstance(found, DeferredResponse) or \
        isinstance(found, offsets.Everything) and len(found) > PART_PARTITIONS


async def _group_in_parts(context, request, found):
    for rows in _parts(await found if isinstance(found, DeferredResponse) else found):
        yield _single_group(context, request, rows)


def _parts(found):
    return found.parts(PART_PARTITIONS) if isinstance(found, offsets.Everything) else (found,)


def _single_group(context, request, found):
    """Return the response in versions with one group."""
    new = messages.OffsetFetchResponse
    error: int = ErrorCode.NONE
    if isinstance(found, int):
        error = found
        # Version 1 has an error field only in partitions.
        found = [] if context.api_version >= 2 else [
            (topic.name, [(index, None) for index in topic.partition_indexes])
            for topic in request.topics]
    return new(error_code=error, topics=[
        new.OffsetFetchResponseTopic(name=name, partitions=[
            _partition(new.OffsetFetchResponsePartition, index, entry, error)
            for index, entry in cells]) for name, cells in _rows(found)])


def _rows(found) -> list:
    return found.rows() if isinstance(found, offsets.Everything) else found


def _partition(new, index, entry, error=ErrorCode.NONE):
    if entry is offsets.UNSTABLE:
        entry, error = None, ErrorCode.UNSTABLE_OFFSET_COMMIT
    if entry is None:
        return new(partition_index=index, committed_offset=NONE_COMMITTED,
                   committed_leader_epoch=-1, metadata="", error_code=error)
    return new(partition_index=index, committed_offset=entry.offset,
               committed_leader_epoch=entry.leader_epoch, metadata=entry.metadata)


def _shaped(found, shape):
    """Return shape(found), or a coroutine of it."""
    if not isinstance(found, DeferredResponse):
        return shape(found)

    async def later():
        return shape(await found)
    return later()

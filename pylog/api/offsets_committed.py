"""Committed offsets on the wire: OffsetCommit (8), OffsetFetch (9), OffsetDelete (47).

Owns: nothing.
Called by: dispatch through api.HANDLERS.
Invariants: (1) the answer to a commit leaves after its records are durable; (2) topics and
  partitions are answered as they were asked for; of a commit, topics with partitions only.
Source: KIP-211, KIP-447 (require_stable), KIP-496, KIP-709 (several groups), KIP-848; topic ids:
  KIP-516.
"""

from pylog.api.groups import shard_of_named
from pylog.coordinator import offsets
from pylog.coordinator.service import Pending
from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode

IDS_SINCE = 10
GROUPS_SINCE = 8
PART_PARTITIONS = 500
NONE_COMMITTED = -1
NO_ID = bytes(16)


def offset_commit(broker, context, request):
    new = messages.OffsetCommitResponse
    image = broker.image
    by_id = context.api_version >= IDS_SINCE
    topics, places, entries = [], [], []
    for asked in request.topics:
        topic = image.topics_by_id.get(bytes(asked.topic_id)) if by_id \
            else image.topics.get(asked.name)
        missing = ErrorCode.UNKNOWN_TOPIC_ID if by_id and topic is None \
            else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        rows = []
        for cell in asked.partitions:
            index = cell.partition_index
            row = new.OffsetCommitResponsePartition(partition_index=index)
            rows.append(row)
            if topic is None or not 0 <= index < len(topic.partitions):
                row.error_code = missing
                continue
            places.append(row)
            entries.append((topic.name, topic.id, index, cell.committed_offset,
                            cell.committed_leader_epoch, cell.committed_metadata))
        if rows:
            topics.append(new.OffsetCommitResponseTopic(
                name=asked.name, topic_id=asked.topic_id, partitions=rows))
    message = new(topics=topics)
    if not entries:
        return message

    def refusal(error):
        for row in places:
            row.error_code = error
        return message

    shard, error = broker.groups.shard_of(request.group_id)
    if shard is None:
        return refusal(error)
    result = offsets.commit(shard.groups, request, entries, context.api_version)
    if isinstance(result, list):
        for row, code in zip(places, result, strict=True):
            row.error_code = code
    elif result != ErrorCode.NONE:
        broker.groups.settle(shard)
        return refusal(result)
    return broker.groups.settled(shard, Pending(refusal), message)


def offset_fetch(broker, context, request):
    """The answer, or its parts where all that a group has committed is much."""
    if context.api_version < GROUPS_SINCE:
        found = _found(broker, request.group_id, None if request.topics is None else [
            (topic.name, topic.partition_indexes) for topic in request.topics])
        if request.topics is None and _may_be_much(found):
            return _one_in_parts(context, request, found)
        return _shaped(found, lambda found: _of_one(context, request, found))
    new = messages.OffsetFetchResponse
    every = [(group, _of_group(broker, context, group)) for group in request.groups]
    if len(every) != 1 or every[0][0].topics is None and _may_be_much(every[0][1]):
        return _several_in_parts(broker, context, every)
    (group, found), = every
    return _shaped(found, lambda found: new(groups=[_group(broker, context, group, found)]))


def _may_be_much(found) -> bool:
    return isinstance(found, Pending) or \
        isinstance(found, offsets.Everything) and len(found) > PART_PARTITIONS


async def _one_in_parts(context, request, found):
    for rows in _parts(await found if isinstance(found, Pending) else found):
        yield _of_one(context, request, rows)


async def _several_in_parts(broker, context, every):
    new = messages.OffsetFetchResponse
    yield new()
    for group, found in every:
        for rows in _parts(await found if isinstance(found, Pending) else found):
            yield new(groups=[_group(broker, context, group, rows)])


def _parts(found):
    return found.parts(PART_PARTITIONS) if isinstance(found, offsets.Everything) else (found,)


def _of_one(context, request, found):
    """The answer in versions that ask for one group."""
    new = messages.OffsetFetchResponse
    error = ErrorCode.NONE
    if isinstance(found, int):
        error = found
        # Version 1 has no place for the error but the partitions.
        found = [] if context.api_version >= 2 else [
            (topic.name, [(index, None) for index in topic.partition_indexes])
            for topic in request.topics]
    return new(error_code=error, topics=[
        new.OffsetFetchResponseTopic(name=name, partitions=[
            _partition(new.OffsetFetchResponsePartition, index, entry, error)
            for index, entry in cells]) for name, cells in _rows(found)])


def _rows(found) -> list:
    return found.rows() if isinstance(found, offsets.Everything) else found


def _of_group(broker, context, group):
    if group.topics is None:
        return _found(broker, group.group_id, None)
    if context.api_version < IDS_SINCE:
        return _found(broker, group.group_id, [
            (topic.name, topic.partition_indexes) for topic in group.topics])
    names = broker.image.topics_by_id
    return _found(broker, group.group_id, [
        (names[bytes(topic.topic_id)].name, topic.partition_indexes) for topic in group.topics
        if bytes(topic.topic_id) in names])


def _group(broker, context, group, found):
    """One group's part of an answer."""
    new = messages.OffsetFetchResponse
    if isinstance(found, int):
        return new.OffsetFetchResponseGroup(group_id=group.group_id, error_code=found)
    by_id = context.api_version >= IDS_SINCE
    topics = []
    for name, cells in _rows(found):
        topic = broker.image.topics.get(name)
        if by_id and topic is None:
            continue   # It was deleted, and an id can name it no more.
        topics.append(new.OffsetFetchResponseTopics(
            name=name, topic_id=topic.id if by_id else NO_ID, partitions=[
                _partition(new.OffsetFetchResponsePartitions, index, entry)
                for index, entry in cells]))
    if by_id:
        topics += [new.OffsetFetchResponseTopics(topic_id=topic.topic_id, partitions=[
            _partition(new.OffsetFetchResponsePartitions, index, None,
                       ErrorCode.UNKNOWN_TOPIC_ID) for index in topic.partition_indexes])
            for topic in group.topics or () if bytes(topic.topic_id) not in
            broker.image.topics_by_id]
    return new.OffsetFetchResponseGroup(group_id=group.group_id, topics=topics)


def _partition(new, index, entry, error=ErrorCode.NONE):
    if entry is None:
        return new(partition_index=index, committed_offset=NONE_COMMITTED,
                   committed_leader_epoch=-1, metadata="", error_code=error)
    return new(partition_index=index, committed_offset=entry.offset,
               committed_leader_epoch=entry.leader_epoch, metadata=entry.metadata)


def _found(broker, group_id: str, topics):
    """What offsets.fetch gives, or an error code; as a Pending while commits are on their way to
    disk.
    """
    shard, error = broker.groups.shard_of(group_id)
    if shard is None:
        return error
    found = offsets.everything(shard.groups, group_id) if topics is None \
        else offsets.fetch(shard.groups, group_id, topics)
    pending = Pending(lambda code: code)
    shard.journal.after(pending, found)
    return pending.message if pending.is_answered else pending


def _shaped(found, shape):
    """shape(found), or a coroutine of it."""
    if not isinstance(found, Pending):
        return shape(found)

    async def later():
        return shape(await found)
    return later()


def offset_delete(broker, context, request):
    new = messages.OffsetDeleteResponse
    shard, error = shard_of_named(broker, request.group_id)
    if shard is None:
        return new(error_code=error)
    image = broker.image
    wanted = [(topic.name, [
        cell.partition_index for cell in topic.partitions
        if image.partition(topic.name, cell.partition_index) is not None])
        for topic in request.topics]
    error, errors = offsets.delete(shard.groups, request.group_id, wanted)
    if error != ErrorCode.NONE:
        return new(error_code=error)
    message = new(topics=[new.OffsetDeleteResponseTopic(name=topic.name, partitions=[
        new.OffsetDeleteResponsePartition(
            partition_index=cell.partition_index,
            error_code=errors[topic.name] if cell.partition_index in known
            else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) for cell in topic.partitions])
        for topic, (_, known) in zip(request.topics, wanted, strict=True)])
    return broker.groups.settled(shard, Pending(lambda code: new(error_code=code)), message)


HANDLERS = {api.OFFSET_COMMIT: offset_commit, api.OFFSET_FETCH: offset_fetch,
            api.OFFSET_DELETE: offset_delete}

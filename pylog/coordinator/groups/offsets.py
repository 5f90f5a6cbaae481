"""Committed offsets of groups: commit, fetch, delete, expire.

Owns: nothing; the offsets are stored in their groups.
Invariants: a member can commit only in its own generation; every change is recorded.
Source: Kafka's offset requests; KIP-211 (expiry when a group is empty), KIP-496 (OffsetDelete).
"""

from array import array

from pylog.coordinator.groups import transactional_offsets
from pylog.coordinator.groups.classic import protocol as classic_protocol
from pylog.coordinator.groups.state import classic_records
from pylog.coordinator.groups.state import consumer_protocol
from pylog.coordinator.groups.state.classic_group import (
    CLASSIC,
    COMPLETING,
    CONSUMER,
    EMPTY,
    NO_TIME,
    PREPARING,
    STABLE,
    Offset,
)
from pylog.coordinator.runtime.transactional_batches import TransactionalRecords
from pylog.protocol.errors import Error, ErrorCode, ProtocolError

POSITIONS_STEP = 5000
FORGET_STEP = 1000
UNSTABLE = object()  # Replaces an offset that an open transaction may change.
UNKNOWN_GROUP_SINCE = 9  # KIP-848; earlier versions get ILLEGAL_GENERATION for a missing group.
MEMBER_ERRORS_SINCE = 6  # The same of TxnOffsetCommit (KIP-1319), and STALE_MEMBER_EPOCH.


def commit(groups, request, entries, version: int = 0) -> int | list:
    """Commit offsets. Return one error code, or one per entry if they differ.

    entries: [(topic, topic id, partition, offset, leader epoch, metadata or None)]. version: of the
    request.
    """
    group, error = group_of_commit(
        groups, request, request.generation_id_or_member_epoch, False, version, entries)
    if error != ErrorCode.NONE:
        return error
    wall_ms = groups.clock.wall_ms()
    retention_ms = request.retention_time_ms
    expire_ms = wall_ms + retention_ms if retention_ms >= 0 else NO_TIME
    limit = groups.limits.metadata_characters_max
    changes = []
    refused = set()
    stem_of = stem = None
    for position, (topic, topic_id, partition, offset, epoch, metadata) in enumerate(entries):
        if metadata and len(metadata) > limit:
            refused.add(position)
            continue
        entry = Offset(offset, epoch, metadata or "", wall_ms, expire_ms, topic_id)
        group.offsets[topic, partition] = entry
        if group.unstable:
            transactional_offsets.supersede(group, (topic, partition))
        if topic != stem_of:
            stem_of, stem = topic, classic_records.offset_keys(group, topic)
            groups.changed.add((group.id, topic))
        changes.append((stem + partition.to_bytes(4, "big"), classic_records.offset_value(entry)))
    groups.records += changes
    groups.events["offset_committed"] += len(changes)
    if not changes and group.is_spent and not group.generation:
        groups.groups.pop(group.id, None)
    if not refused:
        return ErrorCode.NONE
    return [ErrorCode.OFFSET_METADATA_TOO_LARGE if position in refused else ErrorCode.NONE
            for position in range(len(entries))]


def commit_in_transaction(groups, request, entries, version: int) -> list:
    """Handle TxnOffsetCommit and return the error of each entry; see commit()."""
    group, error = group_of_commit(
        groups, request, request.generation_id_or_member_epoch, True, version, entries)
    if error == ErrorCode.STALE_MEMBER_EPOCH and version < MEMBER_ERRORS_SINCE:
        error = ErrorCode.ILLEGAL_GENERATION  # The error that older producers support.
    if error != ErrorCode.NONE:
        return [error] * len(entries)
    wall_ms = groups.clock.wall_ms()
    limit = groups.limits.metadata_characters_max
    errors = []
    written: list[tuple[bytes, bytes | None]] = []
    for topic, topic_id, partition, offset, epoch, metadata in entries:
        if metadata and len(metadata) > limit:
            errors.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
            continue
        entry = Offset(offset, epoch, metadata or "", wall_ms, NO_TIME, topic_id)
        transactional_offsets.add(groups, group, request.producer_id, (topic, partition), entry)
        written.append((classic_records.offset_key(group.id, topic, partition),
                        classic_records.offset_value(entry)))
        errors.append(ErrorCode.NONE)
    if written:
        groups.records.append(TransactionalRecords(
            request.producer_id, request.producer_epoch, written))
        groups.events["offset_committed"] += len(written)
    elif group.is_spent and not group.generation:
        groups.groups.pop(group.id, None)
    return errors


def group_of_commit(groups, request, generation: int, in_transaction: bool, version: int = 0,
                    entries=()):
    """Return (group, NONE), or (None, error) if the commit is rejected."""
    member_id, instance_id = request.member_id, request.group_instance_id
    group = groups.find(request.group_id)
    if group is None:
        if request.group_id in groups.deleting:
            return None, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if generation >= 0 or request.group_id in groups.shares:
            known_since = MEMBER_ERRORS_SINCE if in_transaction else UNKNOWN_GROUP_SINCE
            return None, (ErrorCode.GROUP_ID_NOT_FOUND if version >= known_since
                          else ErrorCode.ILLEGAL_GENERATION)
        return groups.find_or_make(request.group_id), ErrorCode.NONE
    if group.kind != CLASSIC:
        error = _member_fault(group, request, generation, in_transaction, version, entries)
        return (group if error == ErrorCode.NONE else None), error
    if generation < 0 and group.state == EMPTY:
        # Committed by an administrator or a consumer with manual assignment.
        return group, ErrorCode.NONE
    if generation >= 0 or member_id or instance_id is not None:
        fault = group.fault_of(member_id, instance_id)
        if fault is not None:
            return None, (ErrorCode.FENCED_INSTANCE_ID if fault == "fenced"
                          else ErrorCode.UNKNOWN_MEMBER_ID)
        if generation != group.generation:
            return None, ErrorCode.ILLEGAL_GENERATION
    elif group.state != EMPTY and not in_transaction:
        # Older clients do not send their member id in transactions.
        return None, ErrorCode.UNKNOWN_MEMBER_ID
    if group.state == COMPLETING and not in_transaction:
        return None, ErrorCode.REBALANCE_IN_PROGRESS
    if group.state in (STABLE, PREPARING) and member_id in group.members:
        classic_protocol.expect(groups, group, member_id)
    return group, ErrorCode.NONE


def _member_fault(group, request, epoch: int, in_transaction: bool, version: int,
                  entries) -> Error:
    """Return the error if a consumer or Streams group rejects a commit, or NONE.

    A member with an older epoch may commit partitions that it has owned since that epoch
    (KIP-1251).
    """
    if epoch < 0 and not group.members:
        return ErrorCode.NONE
    if in_transaction and epoch == -1 and not request.member_id \
            and request.group_instance_id is None:
        return ErrorCode.NONE  # Older clients do not send their member id in transactions.
    member = group.members.get(request.member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if not in_transaction and member.classic is None and version < UNKNOWN_GROUP_SINCE:
        return ErrorCode.UNSUPPORTED_VERSION
    if epoch == member.epoch:
        return ErrorCode.NONE
    stale = ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION
    if epoch > member.epoch:
        return stale
    for topic, topic_id, partition, *_ in entries:
        since = group.epoch_of(member, topic, topic_id, partition)
        if since is None or epoch < since:
            return stale
    return ErrorCode.NONE


def fetch_fault(groups, group_id: str, member_id: str | None, epoch: int) -> Error:
    """Return the error if the member may not fetch its group's offsets, or NONE (KIP-848)."""
    group = groups.find(group_id)
    if group is None or group.kind == CLASSIC or member_id is None and epoch < 0:
        return ErrorCode.NONE
    member = group.members.get(member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if epoch != member.epoch:
        return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None \
            else ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.NONE


def fetch(groups, group_id: str, topics, stable: bool) -> list:
    """Return [(topic, [(partition, Offset or None)])].

    topics: [(topic, [partition])], or None for all. stable: return UNSTABLE for offsets in open
    transactions.
    """
    if topics is None:
        return everything(groups, group_id, stable).rows()
    group = groups.find(group_id)
    known = {} if group is None else group.offsets
    if stable and group is not None and group.unstable:
        return [(topic, [(partition, UNSTABLE if (topic, partition) in group.unstable
                          else known.get((topic, partition))) for partition in partitions])
                for topic, partitions in topics]
    return [(topic, [(partition, known.get((topic, partition))) for partition in partitions])
            for topic, partitions in topics]


def everything(groups, group_id: str, stable: bool = False) -> "Everything":
    group = groups.find(group_id)
    if group is None:
        return Everything({})
    if stable and group.unstable:
        return Everything({key: UNSTABLE if key in group.unstable else entry
                           for key, entry in group.offsets.items()})
    return Everything(group.offsets)


class Everything:
    """All committed offsets of a group at this moment. A million of them need little more memory
    than their references.
    """

    def __init__(self, known: dict):
        self._keys = list(known)
        self._entries = list(known.values())

    def __len__(self) -> int:
        return len(self._keys)

    def rows(self) -> list:
        """Return [(topic, [(partition, Offset)])], each topic once."""
        return [row for part in self.parts(len(self) or 1) for row in part]

    def parts(self, count: int):
        """Yield rows with at most `count` partitions in total, sometimes an empty list."""
        positions: dict[str, array[int]] = {}
        for position, (topic, _) in enumerate(self._keys, 1):
            positions.setdefault(topic, array("L")).append(position - 1)
            if position % POSITIONS_STEP == 0:
                yield []
        rows, room = [], count
        for topic, found in positions.items():
            first = 0
            while first < len(found):
                chunk = found[first:first + room]
                rows.append((topic, [(self._keys[position][1], self._entries[position])
                                     for position in chunk]))
                first += len(chunk)
                room -= len(chunk)
                if not room:
                    yield rows
                    rows, room = [], count
        yield rows


def forget(groups, group, topic: str, partition: int) -> bool:
    """Remove one committed offset and record it; return False if there is none."""
    open_here = bool(group.unstable) and transactional_offsets.forget(
        groups, group, (topic, partition))
    if group.offsets.pop((topic, partition), None) is None and not open_here:
        return False
    groups.records.append((classic_records.offset_key(group.id, topic, partition), None))
    group.offset_keys.pop(topic, None)
    groups.changed.add((group.id, topic))
    return True


def forget_all(groups, group):
    """Record the removal of all offsets of a hidden group. Yields after each FORGET_STEP."""
    partitions = [*group.offsets,
                  *(pair for pair in group.unstable if pair not in group.offsets)]
    for pair in list(group.unstable):
        transactional_offsets.forget(groups, group, pair)
    for count, (topic, partition) in enumerate(partitions, 1):
        key = classic_records.offset_keys(group, topic) + partition.to_bytes(4, "big")
        groups.records.append((key, None))
        if count % FORGET_STEP == 0:
            yield


def delete(groups, group_id: str, topics):
    """Handle OffsetDelete for [(topic, [partition])]. Return (request error, {topic: error})."""
    if not group_id:
        return ErrorCode.INVALID_GROUP_ID, {}
    group = groups.find(group_id)
    if group is None:
        return ErrorCode.GROUP_ID_NOT_FOUND, {}
    if group.kind == CLASSIC and group.state != EMPTY and group.protocol_type != CONSUMER:
        return ErrorCode.NON_EMPTY_GROUP, {}
    errors = {}
    for topic, partitions in topics:
        if is_subscribed(group, topic):
            errors[topic] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            continue
        errors[topic] = ErrorCode.NONE
        for partition in partitions:
            forget(groups, group, topic, partition)
    return ErrorCode.NONE, errors


def subscribed_topics(group) -> set | None:
    """Return the topics that members of a consumer group subscribe to, or None if unknown."""
    if group.kind != CLASSIC:
        return group.topics()
    if group.protocol_type != CONSUMER:
        return None
    if not group.members:
        return set()
    if group.protocol is None:
        return None
    topics = set()
    for member in group.members.values():
        try:
            topics.update(consumer_protocol.subscription(member.metadata(group.protocol)).topics)
        except ProtocolError:
            return None
    return topics


def is_subscribed(group, topic: str) -> bool:
    topics = subscribed_topics(group)
    return group.protocol_type == CONSUMER if topics is None else topic in topics


def expire(groups, group) -> int:
    """Remove expired offsets, then the group if it is empty. Return how many were removed."""
    wall_ms = groups.clock.wall_ms()
    retention_ms = groups.limits.retention_ms
    empty = group.state == EMPTY
    subscribed = None
    if not empty:
        subscribed = subscribed_topics(group) \
            if group.kind != CLASSIC or group.state == STABLE else None
        if subscribed is None:
            return 0
    due = []
    for (topic, partition), entry in group.offsets.items():
        if entry.expire_ms != NO_TIME:
            over = wall_ms >= entry.expire_ms
        elif subscribed is not None:
            over = topic not in subscribed and wall_ms - entry.commit_ms >= retention_ms
        else:
            since_ms = entry.commit_ms if group.kind != CLASSIC or group.protocol_type is None \
                or group.state_ms < 0 else group.state_ms
            over = wall_ms - since_ms >= retention_ms
        if over and (topic, partition) not in group.unstable:
            due.append((topic, partition))
    for topic, partition in due:
        forget(groups, group, topic, partition)
    groups.events["offset_expired"] += len(due)
    if empty and not (group.offsets or group.unstable or getattr(group, "pending", None)):
        groups.drop(group)
    return len(due)


def forget_topic(groups, group, topic: str) -> None:
    """Remove the group's offsets of a deleted topic."""
    for name, partition in dict.fromkeys(
            key for key in (*group.offsets, *group.unstable) if key[0] == topic):
        forget(groups, group, name, partition)

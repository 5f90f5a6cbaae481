"""Share groups in the group coordinator's state machine: heartbeats, members, assignment, and
initialization of share partitions.

Owns: nothing; the groups belong to the state machine.
Invariants: a rejected step changes nothing; a member's epoch never exceeds that of the target
  assignment; only initialized share partitions are assigned; a member is removed when its session
  times out.
Source: KIP-932; Kafka 4.4's group coordinator (response behaviour).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import NamedTuple

from pylog.protocol.counts import counted
from pylog.coordinator.groups.assignors import share as share_assignor
from pylog.coordinator.groups.share import group as share_group
from pylog.coordinator.groups.assignors.share import Assignment
from pylog.coordinator.groups.share.group import TopicPartitions, ShareGroup, ShareMember
from pylog.protocol import messages
from pylog.protocol.errors import Error, ErrorCode

TYPE_CHECKING = False  # Importing typing would cost 6 ms at startup.
if TYPE_CHECKING:
    from typing import Any

    from pylog.coordinator.groups.state.group_store import GroupStore
    from pylog.metadata.image.image import Topic

TIMER = "share"
JOIN, LEAVE = 0, -1
BYTES_MAX = 512 << 10  # Of a member's metadata.


class ShareGroupConfig(NamedTuple):
    """The settings of a group."""

    session_ms: int
    heartbeat_ms: int
    assignment_ms: int
    members_max: int
    retry_ms: int


class ToInitialize(NamedTuple):
    """Share partitions that must be initialized: topic id -> partitions."""

    group_id: str
    state_epoch: int
    partitions: dict[bytes, list[int]]


class Refused(Exception):
    """Raised when a heartbeat is rejected."""

    def __init__(self, error: Error, text: str):
        super().__init__(text)
        self.error = error


def replay(store: GroupStore, key: bytes, value: bytes | None) -> bool:
    """Apply a log record if it is a share group's; return True if it was. Raises ProtocolError."""
    found = share_group.decode(key, value)
    if found is not None:
        share_group.replay(store.shares, *found, store.clock.wall_ms())
        store.changed.add((found[0].group_id, None))
    return found is not None


def heartbeat(store: GroupStore, request: Any, client_id: str, host: str,
              topics: Mapping[str, Topic], config: ShareGroupConfig, starter: Any) -> Any:
    """Handle ShareGroupHeartbeat and return the response.

    topics: the image's topics, by name. starter: receives ToInitialize once its record is durable.
    """
    try:
        _check_size(request)
        if request.member_epoch == LEAVE:
            return _leave(store, request, topics)
        group, member = _found(store, request, config)
    except Refused as refused:
        return messages.ShareGroupHeartbeatResponse(
            error_code=refused.error, error_message=str(refused))
    is_new = member.id not in group.members
    before = member.assigned
    if is_new:
        store.events["member_joined"] += 1
        store.shares[group.id] = group
        group.members[member.id] = member
    subscribed = _subscribe(store, group, member, request, client_id, host, is_new)
    _follow_topics(store, group, topics, subscribed)
    _retarget(store, group, topics, config)
    _reconcile(store, group, member, topics, subscribed)
    _initialize(store, group, topics, config, starter)
    store.timers.set((TIMER, group.id, member.id), store.clock.now_ms() + config.session_ms)
    response = messages.ShareGroupHeartbeatResponse(
        member_id=member.id, member_epoch=member.epoch, heartbeat_interval_ms=config.heartbeat_ms)
    if request.member_epoch == JOIN or request.subscribed_topic_names is not None \
            or member.assigned != before:
        new = messages.ShareGroupHeartbeatResponse
        response.assignment = new.Assignment(topic_partitions=[
            new.TopicPartitions(topic_id=topic, partitions=list(indexes))
            for topic, indexes in member.assigned.items()])
    return response


def _check_size(request: Any) -> None:
    """Raise Refused if the member's metadata is too large."""
    texts = request.member_id, request.rack_id or "", *(request.subscribed_topic_names or ())
    if sum(len(text) + 2 for text in texts) > BYTES_MAX:
        raise Refused(ErrorCode.MESSAGE_TOO_LARGE,
                      f"A member's metadata is limited to {BYTES_MAX} bytes.")


def _found(store: GroupStore, request: Any,
           config: ShareGroupConfig) -> tuple[ShareGroup, ShareMember]:
    """Return (group, member) of a heartbeat; new ones are not in the state machine yet.

    Raises Refused.
    """
    group_id, member_id, epoch = request.group_id, request.member_id, request.member_epoch
    group = store.shares.get(group_id)
    if group is None:
        if epoch != JOIN or store.find(group_id) is not None:
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"There is no share group {group_id}.")
        if group_id in store.deleting:
            raise Refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "The group is being deleted.")
        group = ShareGroup(group_id)
    member = group.members.get(member_id)
    if member is None:
        if len(group.members) >= config.members_max:
            raise Refused(ErrorCode.GROUP_MAX_SIZE_REACHED,
                          f"The group has {counted(config.members_max, 'member')}, as many as "
                          "it may have.")
        if epoch != JOIN:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID,
                          f"{member_id} is no member of group {group_id}.")
        member = ShareMember(member_id)
    elif epoch not in (JOIN, member.epoch, member.previous_epoch) or epoch > member.epoch:
        raise Refused(ErrorCode.FENCED_MEMBER_EPOCH,
                      f"The member's epoch is {member.epoch}: it must join again.")
    return group, member


def _subscribe(store: GroupStore, group: ShareGroup, member: ShareMember, request: Any,
               client_id: str, host: str, is_new: bool) -> bool:
    """Update the member from a heartbeat; return True if its topics changed."""
    topics = member.topics if request.subscribed_topic_names is None \
        else frozenset(request.subscribed_topic_names)
    rack = member.rack if request.rack_id is None else request.rack_id
    now = rack, client_id, host, topics
    changed = topics != member.topics
    if is_new or now != (member.rack, member.client_id, member.host, member.topics):
        member.rack, member.client_id, member.host, member.topics = now
        _record(store, group, share_group.member_record(group.id, member))
    return changed


def _follow_topics(store: GroupStore, group: ShareGroup, topics: Mapping[str, Topic],
                   subscribed: bool) -> None:
    """Increase the group epoch if an input of the assignment has changed."""
    bump = subscribed
    if group.target_epoch >= group.epoch:
        bump |= _is_pending(group)
    if bump or group.topics_seen is not topics:
        group.topics_seen = topics
        digest = _digest(group.topics, topics)
        bump |= digest != group.hash
        group.hash = digest
    if bump:
        group.epoch += 1
        store.events["rebalance"] += 1
        _record(store, group, share_group.group_record(group))


def _is_pending(group: ShareGroup) -> bool:
    """Return True if initialized partitions of subscribed topics are not assigned."""
    if not group.members or not group.initialized:
        return False
    names = group.topics
    had: dict[bytes, set[int]] = {}
    for target in group.target.values():
        for topic, indexes in target.items():
            had.setdefault(topic, set()).update(indexes)
    return any(row.name in names and had.get(topic, set()) != row.partitions
               for topic, row in group.initialized.items())


def _digest(names: Iterable[str], topics: Mapping[str, Topic]) -> int:
    """Return a hash of the ids and partition counts of the subscribed topics."""
    from hashlib import blake2b  # Takes 1 ms, which a start does not need.

    found = blake2b(digest_size=8)
    for name in sorted(names):
        topic = topics.get(name)
        if topic is not None:
            found.update(b"%d %d " % (len(name), len(topic.partitions)))
            found.update(name.encode("utf-8", "surrogatepass") + topic.id)
    return int.from_bytes(found.digest(), "big", signed=True)


def _retarget(store: GroupStore, group: ShareGroup, topics: Mapping[str, Topic],
              config: ShareGroupConfig) -> None:
    """Compute the target assignment of the group epoch, unless the last one is too recent.

    Assigns only initialized share partitions.
    """
    now_ms = store.clock.wall_ms()
    if group.target_epoch >= group.epoch or \
            0 < group.assigned_ms <= now_ms < group.assigned_ms + config.assignment_ms:
        return
    wanted = {member.id: [topics[name].id for name in member.topics if name in topics]
              for member in group.members.values()}
    target = share_assignor.assign(
        wanted, {topic: row.partitions for topic, row in group.initialized.items()}, group.target)
    for member_id, assignment in target.items():
        if group.target.get(member_id) != assignment:
            _record(store, group, share_group.target_record(group.id, member_id, assignment))
    group.target = target
    group.target_epoch = group.epoch
    group.assigned_ms = now_ms
    _record(store, group, share_group.target_epoch_record(group))


def _reconcile(store: GroupStore, group: ShareGroup, member: ShareMember,
               topics: Mapping[str, Topic], subscribed: bool) -> None:
    """Give a member its part of the target assignment, and the target's epoch."""
    if group.target_epoch == member.epoch and not subscribed:
        return
    ids = {topics[name].id for name in member.topics if name in topics}
    assigned: Assignment = {topic: indexes for topic, indexes
                            in group.target.get(member.id, {}).items() if topic in ids}
    if group.target_epoch == member.epoch and assigned == member.assigned:
        return
    if group.target_epoch != member.epoch:
        member.previous_epoch, member.epoch = member.epoch, group.target_epoch
    member.assigned = assigned
    _record(store, group, share_group.current_record(group.id, member))


def _record(store: GroupStore, group: ShareGroup, record: share_group.Record) -> None:
    store.records.append(record)
    store.changed.add((group.id, None))


# ---- share partitions ---------------------------------------------------------------------------


def _initialize(store: GroupStore, group: ShareGroup, topics: Mapping[str, Topic],
                config: ShareGroupConfig, starter: Any) -> None:
    """Request initialization of the subscribed partitions that are not initialized."""
    now_ms = store.clock.wall_ms()
    missing: dict[bytes, list[int]] = {}
    for name in sorted(group.topics):
        topic = topics.get(name)
        if topic is None:
            continue
        known = set(group.initialized[topic.id].partitions) if topic.id in group.initialized \
            else set()
        under_way = group.initializing.get(topic.id)
        if under_way is not None and now_ms - under_way.since_ms < config.retry_ms:
            known |= under_way.partitions
        left = [index for index in range(len(topic.partitions)) if index not in known]
        if left:
            missing[topic.id] = left
            group.initializing[topic.id] = TopicPartitions(
                name, frozenset(left) | (under_way.partitions if under_way else frozenset()),
                now_ms)
            # Cancel an unfinished deletion: the partitions are initialized again.
            group.deleting.pop(topic.id, None)
    if missing:
        _record(store, group, share_group.partitions_record(group))
        store.responses.append((starter, ToInitialize(group.id, group.epoch, missing)))


def initialized(store: GroupStore, group_id: str, partitions: Mapping[bytes, Iterable[int]],
                names: Mapping[bytes, str]) -> Error:
    """Note that share partitions were initialized. names: of the topics that still exist."""
    group = store.shares.get(group_id)
    if group is None:
        return ErrorCode.GROUP_ID_NOT_FOUND
    for topic, indexes in partitions.items():
        _no_longer(group, topic, indexes)
        if topic in names:
            old = group.initialized.get(topic)
            group.initialized[topic] = TopicPartitions(names[topic], frozenset(indexes) | (
                old.partitions if old is not None else frozenset()), store.clock.wall_ms())
    _record(store, group, share_group.partitions_record(group))
    return ErrorCode.NONE


def uninitialized(store: GroupStore, group_id: str,
                  partitions: Mapping[bytes, Iterable[int]]) -> Error:
    """Note that the initialization failed, so that it is requested again."""
    group = store.shares.get(group_id)
    if group is None:
        return ErrorCode.GROUP_ID_NOT_FOUND
    for topic, indexes in partitions.items():
        _no_longer(group, topic, indexes)
    _record(store, group, share_group.partitions_record(group))
    return ErrorCode.NONE


def _no_longer(group: ShareGroup, topic: bytes, indexes: Iterable[int]) -> None:
    row = group.initializing.get(topic)
    if row is not None:
        left = row.partitions - set(indexes)
        if left:
            group.initializing[topic] = row._replace(partitions=left)
        else:
            del group.initializing[topic]


def forget_topics(store: GroupStore, there: Set[bytes]) -> None:
    """Remove share partitions of deleted topics. there: the ids of all topics."""
    for group in store.shares.values():
        gone = [topic for partitions in (group.initializing, group.initialized, group.deleting)
                for topic in partitions if topic not in there]
        for topic in gone:
            group.initializing.pop(topic, None)
            group.initialized.pop(topic, None)
            group.deleting.pop(topic, None)
        if gone:
            before = len(store.records)
            _record(store, group, share_group.partitions_record(group))
            store.cleanups += len(store.records) - before


# ---- leaving members ----------------------------------------------------------------------------


def _leave(store: GroupStore, request: Any, topics: Mapping[str, Topic]) -> Any:
    """Remove a member that leaves. Raises Refused."""
    group = store.shares.get(request.group_id)
    if group is None:
        raise Refused(ErrorCode.GROUP_ID_NOT_FOUND,
                      f"There is no share group {request.group_id}.")
    member = group.members.get(request.member_id)
    if member is None:
        raise Refused(ErrorCode.UNKNOWN_MEMBER_ID,
                      f"{request.member_id} is no member of group {request.group_id}.")
    store.events["member_left"] += 1
    _remove(store, group, member, topics)
    return messages.ShareGroupHeartbeatResponse(member_id=member.id, member_epoch=LEAVE)


def _remove(store: GroupStore, group: ShareGroup, member: ShareMember,
            topics: Mapping[str, Topic] | None = None) -> None:
    """Remove a member. topics: the image's topics; None: the next heartbeat updates the hash."""
    store.timers.cancel((TIMER, group.id, member.id))
    del group.members[member.id]
    group.target.pop(member.id, None)
    for record in share_group.member_tombstones(group.id, member.id):
        _record(store, group, record)
    group.epoch += 1
    group.topics_seen = None
    if topics is not None:
        group.hash = _digest(group.topics, topics)
    store.events["rebalance"] += 1
    _record(store, group, share_group.group_record(group))


def is_due(store: GroupStore, group_id: str, member_id: str) -> None:
    """Remove a member whose session timed out."""
    group = store.shares.get(group_id)
    member = None if group is None else group.members.get(member_id)
    if group is not None and member is not None:
        store.events["member_expired"] += 1
        _remove(store, group, member)


def expect_all(store: GroupStore, session_ms: int) -> None:
    """Start the sessions of all members after a load."""
    for group in store.shares.values():
        for member_id in group.members:
            store.timers.set((TIMER, group.id, member_id), store.clock.now_ms() + session_ms)


# ---- describe and list --------------------------------------------------------------------------


def described(store: GroupStore, group_id: str, names: Mapping[bytes, Topic]) -> Any:
    """Return a DescribedGroup. names: topics by id."""
    new = messages.ShareGroupDescribeResponse
    group = store.shares.get(group_id)
    if group is None:
        return new.DescribedGroup(
            group_id=group_id, error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"Group {group_id} not found.")
    return new.DescribedGroup(
        group_id=group_id, group_state=group.state, group_epoch=group.epoch,
        assignment_epoch=group.target_epoch, assignor_name="simple", members=[
            new.Member(
                member_id=member.id, rack_id=member.rack, member_epoch=member.epoch,
                client_id=member.client_id, client_host=member.host,
                subscribed_topic_names=sorted(member.topics), assignment=new.Assignment(
                    topic_partitions=[new.TopicPartitions(
                        topic_id=topic, topic_name=names[topic].name, partitions=list(indexes))
                        for topic, indexes in member.assigned.items() if topic in names]))
            for member in group.members.values()])


def listed(store: GroupStore, states: set[str], types: set[str]) -> Iterator[Any]:
    """Yield ListedGroups. states, types: lower-case names; empty for all."""
    if types and share_group.TYPE not in types:
        return
    for group in list(store.shares.values()):
        if not states or group.state.lower() in states:
            yield messages.ListGroupsResponse.ListedGroup(
                group_id=group.id, protocol_type=share_group.TYPE, group_state=group.state,
                group_type=share_group.TYPE)

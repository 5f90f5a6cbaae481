"""List, describe and delete groups.

Owns: nothing.
Invariants: only a group without members is deleted, together with all its offsets.
Source: KIP-222, KIP-518 (states), KIP-1043 (types, GROUP_ID_NOT_FOUND (69) for unknown groups).
"""

from itertools import islice

from pylog.coordinator.groups import offsets
from pylog.coordinator.groups.share import heartbeat as share_heartbeat
from pylog.coordinator.groups.state.classic_group import CLASSIC, CONSUMER, DEAD, EMPTY, STABLE
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode

UNKNOWN_IS_ERROR_SINCE = 6


def listed(groups, states, types):
    """Yield ListedGroups. states, types: sets of lower-case names; empty for all."""
    yield from share_heartbeat.listed(groups, states, types)
    new = messages.ListGroupsResponse.ListedGroup
    # A copy, so that a group that changes during the listing is not listed twice.
    elsewhere = groups.elsewhere() if not states or EMPTY.lower() in states else ()
    for group in list(groups.groups.values()):
        if types and group.kind not in types:
            continue
        state = group.state
        if not states or state.lower() in states:
            yield new(group_id=group.id, protocol_type=group.protocol_type or "",
                      group_state=state, group_type=group.kind)
    for group_id, protocol_type, kind in elsewhere:
        if not types or kind in types:
            yield new(group_id=group_id, protocol_type=protocol_type, group_state=EMPTY,
                      group_type=kind)


def described(groups, group_id: str, version: int, members_max: int):
    """Yield a DescribedGroup with at most members_max members, then more for the rest."""
    group = groups.find(group_id)
    if group is None or group.kind != CLASSIC:
        error = ErrorCode.GROUP_ID_NOT_FOUND if version >= UNKNOWN_IS_ERROR_SINCE \
            else ErrorCode.NONE
        row = refused(group_id, error, version)
        row.group_state = DEAD
        return iter((row,))
    return _described(group, members_max)


def _described(group, members_max: int):
    new = messages.DescribeGroupsResponse
    stable = group.state == STABLE
    protocol = group.protocol
    members = list(group.members.values())
    for first in range(0, len(members) or 1, members_max):
        yield new.DescribedGroup(
            group_id=group.id, group_state=group.state, protocol_type=group.protocol_type or "",
            protocol_data=protocol or "" if stable else "",
            members=[new.DescribedGroupMember(
                member_id=member.id, group_instance_id=member.instance_id,
                client_id=member.client_id, client_host=member.client_host,
                member_metadata=member.metadata(protocol) if stable else b"",
                member_assignment=member.assignment)
                for member in members[first:first + members_max]])


def described_consumers(groups, group_id: str, members_max: int):
    """Yield DescribedGroups for ConsumerGroupDescribe; see described()."""
    group = groups.find(group_id)
    if group is None or group.kind != CONSUMER:
        return iter((refused_consumers(group_id, ErrorCode.GROUP_ID_NOT_FOUND),))
    return _described_consumers(groups, group, members_max)


def _described_consumers(groups, group, members_max: int):
    topics = groups.image().topics_by_id
    state, members = group.state, iter(list(group.members.values()))
    assignor = group.preferred_assignor() or next(iter(groups.limits.consumer.assignors))
    some = list(islice(members, members_max))
    while True:
        yield messages.ConsumerGroupDescribeResponse.DescribedGroup(
            group_id=group.id, group_state=state, group_epoch=group.epoch,
            assignment_epoch=group.assignment_epoch, assignor_name=assignor,
            members=[_described_consumer(group, member, topics) for member in some])
        some = list(islice(members, members_max))
        if not some:
            return


def _described_consumer(group, member, topics):
    new = messages.ConsumerGroupDescribeResponse
    # The member still owns partitions that it must revoke.
    held = {topic_id: {*member.assigned.get(topic_id, ()), *member.revoking.get(topic_id, ())}
            for topic_id in {**member.assigned, **member.revoking}}
    return new.Member(
        member_id=member.id, instance_id=member.instance_id, rack_id=member.rack_id,
        member_epoch=member.epoch, client_id=member.client_id, client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics), subscribed_topic_regex=member.regex,
        assignment=_partitions(held, topics),
        target_assignment=_partitions(group.targets.get(member.id, {}), topics),
        member_type=0 if member.classic is not None else 1)


def _partitions(held, topics):
    new = messages.ConsumerGroupDescribeResponse
    return new.Assignment(topic_partitions=[
        new.TopicPartitions(topic_id=topic_id, topic_name=topics[topic_id].name,
                            partitions=sorted(partitions))
        for topic_id, partitions in held.items() if topic_id in topics])


def refused_consumers(group_id: str, error: int):
    """Return a ConsumerGroupDescribe DescribedGroup with an error."""
    return messages.ConsumerGroupDescribeResponse.DescribedGroup(
        group_id=group_id, error_code=error,
        error_message="there is no such consumer group"
        if error == ErrorCode.GROUP_ID_NOT_FOUND else None)


def refused(group_id: str, error: int, version: int):
    """Return a DescribedGroup with an error."""
    text = None
    if error == ErrorCode.GROUP_ID_NOT_FOUND and version >= UNKNOWN_IS_ERROR_SINCE:
        text = f"Group {group_id} not found."
    return messages.DescribeGroupsResponse.DescribedGroup(
        group_id=group_id, error_code=error, error_message=text)


def delete(groups, group_id: str):
    """Delete a group. A generator that removes some offsets per step and returns the error code.

    The group is hidden first, so no request sees it partially deleted; its name is free at the end.
    """
    if group_id in groups.deleting:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    group = groups.find(group_id)
    if group is None:
        return ErrorCode.GROUP_ID_NOT_FOUND
    if group.state != EMPTY:
        return ErrorCode.NON_EMPTY_GROUP
    groups.hide(group)
    groups.deleting.add(group_id)
    yield from offsets.forget_all(groups, group)
    assert group_id not in groups.groups, group_id
    groups.deleting.discard(group_id)
    groups.record_gone(group)
    return ErrorCode.NONE

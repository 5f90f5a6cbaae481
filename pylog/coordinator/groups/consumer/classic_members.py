"""Classic-protocol members of a consumer group: they use JoinGroup, SyncGroup and Heartbeat, and
get their assignment from the group's target.

Owns: nothing.
Invariants: a member revokes partitions before it gets new ones, and is asked to rejoin until it has
  reached the target; a member that does not rejoin, or does not sync after joining, is fenced after
  its rebalance timeout.
Source: KIP-848 (migration); Kafka's GroupMetadataManager.
"""

from typing import Any

from pylog.coordinator.groups.consumer import (
    heartbeat as consumer_heartbeat, migration, sessions, target_assignment,
)
from pylog.coordinator.groups.consumer.group import (
    NO_TIMEOUT,
    UNRELEASED,
    UNREVOKED,
    ClassicMember,
    ConsumerGroup,
    ConsumerMember,
)
from pylog.coordinator.groups.state import consumer_protocol, rebalance_tracker
from pylog.coordinator.groups.state.classic_group import CONSUMER
from pylog.metadata.image.uuids import random_uuid
from pylog.protocol import messages
from pylog.protocol.api_error import Refusal
from pylog.protocol.errors import Error, ErrorCode, ProtocolError

MEMBER_ID_SINCE = 4  # The JoinGroup version with MEMBER_ID_REQUIRED (KIP-394).


# ---- JoinGroup ----------------------------------------------------------------------------------

def join(groups: Any, group: ConsumerGroup, request: Any, version: int, client_id: str,
         host: str) -> Any:
    """Handle JoinGroup and return the response immediately. Raises Refusal."""
    if not (groups.limits.consumer.may_upgrade or groups.limits.consumer.may_downgrade):
        raise Refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    member_id = request.member_id or random_uuid()
    consumer_heartbeat.check_room(groups, group, request.member_id)
    protocols = tuple((row.name, bytes(row.metadata)) for row in request.protocols)
    if request.protocol_type != CONSUMER or not group.supports(name for name, _ in protocols):
        raise Refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if not request.member_id and request.group_instance_id is None and version >= MEMBER_ID_SINCE:
        return messages.JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED,
                                          member_id=member_id, protocol_name=None)
    try:
        subscription = consumer_protocol.subscription(protocols[0][1])
    except ProtocolError as error:
        raise Refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(error)) from None
    if request.group_instance_id is None:
        before, replaced = consumer_heartbeat.member_of(group, member_id, True), None
    else:
        before, replaced = consumer_heartbeat.static_member_of(
            group, member_id, request.group_instance_id, not request.member_id, True)
    former = replaced or group.members.get(before.id)
    downgrades = (request.group_instance_id is not None and former is not None
                  and former.classic is None
                  and migration.may_downgrade(groups, group, (former.id,), 1))
    member = _as_requested(before, request, subscription, client_id, host, protocols)

    if replaced is not None:
        consumer_heartbeat.replace(groups, group, replaced, before)
    changed = target_assignment.subscribe(groups, group, before, member, None)
    owned = consumer_protocol.by_id(groups.image(), getattr(subscription, "owned_partitions", ()))
    if downgrades:
        rebalance = group.assignment_epoch < group.epoch
        if not rebalance:
            member = consumer_heartbeat.reconcile(groups, group, member, changed, owned)
        migration.downgrade(groups, group, (), rebalance)
    else:
        if not target_assignment.assign_if_due(groups, group):
            raise Refusal(ErrorCode.UNKNOWN_SERVER_ERROR)
        member = consumer_heartbeat.reconcile(groups, group, member, changed, owned)
        _expect_sync(groups, group, member)
    return messages.JoinGroupResponse(
        member_id=member.id, generation_id=member.epoch, protocol_type=CONSUMER,
        protocol_name=protocols[0][0])


def _as_requested(before: ConsumerMember, request: Any, subscription: Any, client_id: str,
                  host: str, protocols: tuple[tuple[str, bytes], ...]) -> ConsumerMember:
    member = before.copy()
    member.client_id, member.client_host = client_id, host
    member.classic = ClassicMember(request.session_timeout_ms, protocols)
    if request.group_instance_id is not None:
        member.instance_id = request.group_instance_id
    rack_id = getattr(subscription, "rack_id", None)
    if rack_id:
        member.rack_id = rack_id
    if request.rebalance_timeout_ms != NO_TIMEOUT:
        member.rebalance_ms = request.rebalance_timeout_ms
    member.topics, member.regex = frozenset(subscription.topics), ""
    return member


def _expect_sync(groups: Any, group: ConsumerGroup, member: ConsumerMember) -> None:
    """Fence the member if it does not sync within its rebalance timeout."""
    groups.timers.cancel((sessions.JOIN, group.id, member.id))
    sessions.expect(groups, group, member)
    groups.timers.set((sessions.SYNC, group.id, member.id),
                      groups.clock.now_ms() + member.rebalance_ms)


# ---- SyncGroup, Heartbeat, LeaveGroup -----------------------------------------------------------

def sync(groups: Any, group: ConsumerGroup, request: Any) -> Any:
    """Handle SyncGroup and return the response. Raises Refusal."""
    member = _member(group, request.member_id, request.group_instance_id, request.generation_id)
    assert member.classic is not None
    name, metadata = member.classic.protocols[0]
    if request.protocol_type not in (None, CONSUMER) or request.protocol_name not in (None, name):
        raise Refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if group.assignment_epoch > member.epoch and member.state != UNREVOKED:
        _expect_join(groups, group, member)
        raise Refusal(ErrorCode.REBALANCE_IN_PROGRESS)
    groups.timers.cancel((sessions.SYNC, group.id, member.id))
    sessions.expect(groups, group, member)
    held = {topic_id: frozenset(partitions) for topic_id, partitions in member.assigned.items()}
    return messages.SyncGroupResponse(
        protocol_type=request.protocol_type, protocol_name=request.protocol_name,
        assignment=consumer_protocol.assignment_bytes(groups.image(), held, metadata))


def heartbeat(groups: Any, group: ConsumerGroup, request: Any) -> Error:
    """Handle Heartbeat and return its error code. Requests a rejoin until the target is reached."""
    try:
        member = _member(group, request.member_id, request.group_instance_id,
                         request.generation_id)
    except Refusal as refused:
        return ErrorCode.of(refused.error)
    sessions.expect(groups, group, member)
    if member.epoch < group.assignment_epoch or member.state == UNREVOKED or \
            member.state == UNRELEASED and not group.waits_for_others(member):
        _expect_join(groups, group, member)
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def leave(groups: Any, group: ConsumerGroup,
          members: list[tuple[Any, ...]]) -> list[Error]:
    """Handle LeaveGroup and return an error code per member.

    members: [(member id, instance id or None, optionally the reason)].
    """
    gone: dict[str, ConsumerMember] = {}
    errors: list[Error] = []
    for member_id, instance_id, *reason in members:
        try:
            if instance_id is None:
                member = consumer_heartbeat.member_of(group, member_id)
            else:
                # An administrator removes a static member by instance id, without its member id.
                member, _ = consumer_heartbeat.static_member_of(
                    group, member_id or group.statics.get(instance_id, ""), instance_id, False)
            gone[member.id] = member
            groups.rebalances.because(group, rebalance_tracker.LEFT, member, *reason)
            errors.append(ErrorCode.NONE)
        except Refusal as refused:
            errors.append(ErrorCode.of(refused.error))
    groups.events["member_left"] += len(gone)
    consumer_heartbeat.fence(groups, group, gone.values())
    return errors


def _member(group: ConsumerGroup, member_id: str, instance_id: str | None,
            generation: int) -> ConsumerMember:
    """Return the classic member with this generation. Raises Refusal."""
    member = consumer_heartbeat.member_of(group, member_id) if instance_id is None else \
        consumer_heartbeat.static_member_of(group, member_id, instance_id, False)[0]
    if member.classic is None:
        raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID)
    if member.epoch != generation:
        raise Refusal(ErrorCode.ILLEGAL_GENERATION)
    return member


def _expect_join(groups: Any, group: ConsumerGroup, member: ConsumerMember) -> None:
    """Fence the member if it does not rejoin in time, counted from the first rejoin request."""
    key = sessions.JOIN, group.id, member.id
    if key not in groups.timers:
        groups.timers.set(key, groups.clock.now_ms() + member.rebalance_ms)

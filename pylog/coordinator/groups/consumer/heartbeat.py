"""Consumer groups (KIP-848) as a pure state machine: the effects of a heartbeat.

Owns: nothing; groups, timers and records belong to the state machine.
Invariants: a rejected request changes nothing; a partition is assigned only when no other member
  owns it; a heartbeat without changes writes nothing, reads no other member and computes no
  assignment; every change is recorded.
Source: KIP-848; Kafka's GroupMetadataManager.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from pylog.protocol.counts import counted
from pylog.coordinator.groups.consumer import (
    current_assignment, migration, records as consumer_records, target_assignment,
)
from pylog.coordinator.groups.state import rebalance_tracker
from pylog.coordinator.groups.consumer.group import (
    LEAVE,
    LEAVE_STATIC,
    MEMBER_STABLE,
    NO_TIMEOUT,
    UNRELEASED,
    UNREVOKED,
    ConsumerGroup,
    ConsumerMember,
)
from pylog.coordinator.groups.state.classic_group import EMPTY, Group
from pylog.coordinator.groups.consumer.current_assignment import Owned
from pylog.coordinator.groups.consumer.sessions import (
    JOIN, REBALANCE, SESSION, SYNC, cancel, expect, setting,
)
from pylog.coordinator.groups.state.heartbeat_cache import CachedHeartbeat
from pylog.metadata.image.uuids import random_uuid
from pylog.protocol.api_error import Refusal
from pylog.protocol import messages
from pylog.protocol.errors import Error, ErrorCode

MEMBER_ID_SINCE = 1  # Since this version clients choose their member ids.
BYTES_MAX = 512 << 10  # Of a member's metadata.
PARTITIONS_MAX = 100_000  # Of the owned partitions it reports.
SETTLING_MS = 3000  # How long further changes are likely after a new target.
# One core handles about 30,000 heartbeats/s; this causes at most 2,000, for any group size.
SOON_MS, SOON_MEMBERS = 500, 1000
# Timer types.
CAUSES = {SESSION: rebalance_tracker.EXPIRED, REBALANCE: rebalance_tracker.NOT_REVOKED,
          JOIN: rebalance_tracker.NOT_REJOINED, SYNC: rebalance_tracker.NOT_SYNCED}
TIMERS = frozenset((SESSION, REBALANCE, JOIN, SYNC, target_assignment.RESOLVE))


class Client(NamedTuple):
    """The sender of a heartbeat.

    sees: filter for topics that it may describe; None: all topics. repeat: receives an offer to
    repeat the answer without the coordinator; None: not supported.
    """

    id: str
    host: str
    sees: Callable[[str], bool] | None = None
    repeat: CachedHeartbeat | None = None


# ---- ConsumerGroupHeartbeat ---------------------------------------------------------------------

def heartbeat(groups: Any, request: Any, version: int, client: Client) -> Any:
    """Handle ConsumerGroupHeartbeat, which also joins, leaves and acknowledges."""
    group = groups.groups.get(request.group_id)
    if type(group) is ConsumerGroup:
        member = group.members.get(request.member_id)
        if member is not None and _changes_nothing(groups, group, member, request, client):
            expect(groups, group, member)
            _offer(groups, group, member, client)
            return messages.ConsumerGroupHeartbeatResponse(
                member_id=member.id, member_epoch=member.epoch,
                heartbeat_interval_ms=_interval_ms(groups, group, member))
    try:
        _check(groups, request, version)
        if request.member_epoch in (LEAVE, LEAVE_STATIC):
            return _leave(groups, request)
        written = len(groups.records)
        response = _beat(groups, request, client)
        if len(groups.records) == written:
            _offer_if_at_rest(groups, groups.groups[request.group_id], request, client)
        return response
    except Refusal as refused:
        return refusal(ErrorCode.of(refused.error), refused.message)


def refusal(error: Error, text: str | None = None) -> Any:
    return messages.ConsumerGroupHeartbeatResponse(error_code=error, error_message=text)


def _changes_nothing(groups: Any, group: ConsumerGroup, member: ConsumerMember, request: Any,
                     client: Client) -> bool:
    """Return True if the heartbeat changes nothing, so it can be answered without further work."""
    return (request.member_epoch == member.epoch == group.assignment_epoch == group.epoch
            and member.state == MEMBER_STABLE and member.epoch > 0
            and request.topic_partitions is None and request.subscribed_topic_names is None
            and request.subscribed_topic_regex is None and request.server_assignor is None
            and request.rebalance_timeout_ms == NO_TIMEOUT and request.rack_id is None
            and request.instance_id == member.instance_id and member.classic is None
            and client.id == member.client_id and client.host == member.client_host
            and not group.regexes and groups.clock.now_ms() < group.refresh_ms)


def _check(groups: Any, request: Any, version: int) -> None:
    """Validate the request. Raises Refusal if it is invalid for any group."""
    epoch = request.member_epoch
    if not request.member_id and (version >= MEMBER_ID_SINCE or epoch > 0 or epoch == LEAVE):
        raise Refusal(ErrorCode.INVALID_REQUEST, "a member id is needed")
    for what, text in (("group id", request.group_id), ("instance id", request.instance_id),
                       ("rack id", request.rack_id)):
        if text == "":
            raise Refusal(ErrorCode.INVALID_REQUEST, f"the {what} is empty")
    if epoch == 0:
        if request.rebalance_timeout_ms == NO_TIMEOUT:
            raise Refusal(ErrorCode.INVALID_REQUEST,
                          "a joining member must set a rebalance timeout")
        if request.topic_partitions is None or request.topic_partitions:
            raise Refusal(ErrorCode.INVALID_REQUEST,
                          "a joining member must send an empty list of owned partitions")
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            raise Refusal(ErrorCode.INVALID_REQUEST,
                          "a joining member must set topics or a regular expression")
    elif epoch == LEAVE_STATIC and request.instance_id is None:
        raise Refusal(ErrorCode.INVALID_REQUEST, "only static members can leave temporarily")
    elif epoch < LEAVE_STATIC:
        raise Refusal(ErrorCode.INVALID_REQUEST, "the member epoch is invalid")
    assignor = request.server_assignor
    if assignor is not None and assignor not in groups.limits.consumer.assignors:
        raise Refusal(ErrorCode.UNSUPPORTED_ASSIGNOR, "available assignors: "
                      + ", ".join(groups.limits.consumer.assignors))
    _check_size(request)
    if request.group_id in groups.deleting:
        raise Refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


def _check_size(request: Any) -> None:
    texts = (request.member_id, request.instance_id, request.rack_id,
             request.subscribed_topic_regex, *(request.subscribed_topic_names or ()))
    if sum(len(text) + 2 for text in texts if text is not None) > BYTES_MAX or \
            sum(len(row.partitions) for row in request.topic_partitions or ()) > PARTITIONS_MAX:
        raise Refusal(ErrorCode.MESSAGE_TOO_LARGE)


def _beat(groups: Any, request: Any, client: Client) -> Any:
    joins = request.member_epoch == 0
    group, install = _group_for(groups, request.group_id, joins)
    check_room(groups, group, request.member_id)
    owned = current_assignment.owned_from(request.topic_partitions)
    member_id = request.member_id or random_uuid()
    if request.instance_id is None:
        before = member_of(group, member_id, joins)
        _check_epoch(before, request.member_epoch, owned)
        replaced = None
    else:
        before, replaced = static_member_of(group, member_id, request.instance_id, joins)
        if not joins:
            _check_epoch(before, request.member_epoch, owned)
    if before.state not in (MEMBER_STABLE, UNREVOKED, UNRELEASED) and (owned is None or owned):
        raise Refusal(ErrorCode.FENCED_MEMBER_EPOCH, "the member's state is unknown")
    member = _as_requested(before, request, client)
    target_assignment.check_expression(group, before, member)

    # The request is accepted: only now may anything change.
    install()
    if replaced is not None:
        replace(groups, group, replaced, before)
    changed = target_assignment.subscribe(groups, group, before, member, client.sees)
    assigned = target_assignment.assign_if_due(groups, group)
    after = reconcile(groups, group, member, changed, owned)
    expect(groups, group, after)
    if joins and not assigned:
        # Kafka rejects existing members too, although they have a target.
        return refusal(ErrorCode.UNKNOWN_SERVER_ERROR, "the assignor failed")
    full = (request.rebalance_timeout_ms != NO_TIMEOUT and owned is not None
            and (request.subscribed_topic_names is not None
                 or request.subscribed_topic_regex is not None))
    return _response(groups, group, after, joins or full or after.assigned != before.assigned)


def _response(groups: Any, group: ConsumerGroup, member: ConsumerMember,
            with_assignment: bool) -> Any:
    new = messages.ConsumerGroupHeartbeatResponse
    response = new(member_id=member.id, member_epoch=member.epoch,
                 heartbeat_interval_ms=_interval_ms(groups, group, member))
    if with_assignment:
        response.assignment = new.Assignment(topic_partitions=[
            new.TopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
            for topic_id, partitions in member.assigned.items()])
    return response


def _interval_ms(groups: Any, group: ConsumerGroup, member: ConsumerMember) -> int:
    """Return the heartbeat interval for a member.

    It is shorter during a rebalance, which takes as long as the slowest heartbeat of a member that
    must revoke or waits for partitions.
    """
    usual_ms: int = setting(groups, group.id, "consumer.heartbeat.interval.ms")
    if member.state == MEMBER_STABLE and not _settles_ms(groups, group):
        return usual_ms
    return min(usual_ms, SOON_MS * (1 + len(group.members) // SOON_MEMBERS))


def _settles_ms(groups: Any, group: ConsumerGroup) -> int:
    """Return how long the group is still likely to change, in ms, or 0."""
    left_ms: int = SETTLING_MS - (groups.clock.wall_ms() - group.assignment_ms)
    return left_ms if 0 < left_ms <= SETTLING_MS else 0


# ---- repeated answers ---------------------------------------------------------------------------

def _offer_if_at_rest(groups: Any, group: ConsumerGroup, request: Any, client: Client) -> None:
    """Offer the answer for repetition if it changed nothing and the group is stable.

    Makes no offer if the next heartbeat could have work to do just because time passes.
    """
    member = group.members.get(request.member_id)
    if member is not None and member.state == MEMBER_STABLE and member.classic is None \
            and 0 < request.member_epoch == member.epoch == group.assignment_epoch == group.epoch \
            and not group.regexes and groups.clock.now_ms() < group.refresh_ms:
        _offer(groups, group, member, client)


def _offer(groups: Any, group: ConsumerGroup, member: ConsumerMember, client: Client) -> None:
    """Offer to answer the member's next identical heartbeats with the same answer."""
    if client.repeat is None:
        return
    until_ms, settles_ms = group.refresh_ms, _settles_ms(groups, group)
    if settles_ms:  # After that the member gets a longer interval.
        until_ms = min(until_ms, groups.clock.now_ms() + settles_ms)
    groups.repeats.offer(
        group.id, member.id, client.repeat, (SESSION, group.id, member.id),
        setting(groups, group.id, "consumer.session.timeout.ms"), until_ms)


def _as_requested(before: ConsumerMember, request: Any, client: Client) -> ConsumerMember:
    """Return the member updated from the request. Fields that are not set stay unchanged."""
    member = before.copy()
    member.client_id, member.client_host, member.classic = client.id, client.host, None
    if request.instance_id is not None:
        member.instance_id = request.instance_id
    if request.rack_id is not None:
        member.rack_id = request.rack_id
    if request.rebalance_timeout_ms != NO_TIMEOUT:
        member.rebalance_ms = request.rebalance_timeout_ms
    if request.server_assignor is not None:
        member.assignor = request.server_assignor
    if request.subscribed_topic_names is not None:
        member.topics = frozenset(request.subscribed_topic_names)
    if request.subscribed_topic_regex is not None:
        member.regex = request.subscribed_topic_regex
    return member


# ---- groups and members -------------------------------------------------------------------------

def _group_for(groups: Any, group_id: str,
               joins: bool) -> tuple[ConsumerGroup, Callable[[], object]]:
    """Return (group, function that installs it in the state machine).

    A joining member creates the group, or converts a classic group. Raises Refusal.
    """
    found = groups.find(group_id)
    if found is None and joins and group_id not in groups.shares:
        group = ConsumerGroup(group_id)
        return group, lambda: groups.groups.__setitem__(group_id, group)
    if isinstance(found, ConsumerGroup):
        return found, lambda: None
    if isinstance(found, Group) and joins:
        if found.state == EMPTY:
            group = ConsumerGroup(group_id)
        else:
            group = migration.upgraded(groups, found)
        return group, lambda: migration.install(groups, found, group)
    raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, "there is no such consumer group")


def consumer_group(groups: Any, group_id: str) -> ConsumerGroup:
    """Return the consumer group. Raises Refusal if it does not exist."""
    found = groups.find(group_id)
    if not isinstance(found, ConsumerGroup):
        raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, "there is no such consumer group")
    return found


def check_room(groups: Any, group: ConsumerGroup, member_id: str) -> None:
    limit = groups.limits.consumer.members_max
    if len(group.members) >= limit and member_id not in group.members:
        raise Refusal(ErrorCode.GROUP_MAX_SIZE_REACHED, f"the group has {counted(limit, 'member')}")


def member_of(group: ConsumerGroup, member_id: str, joins: bool = False) -> ConsumerMember:
    """Return the member, or a new one if it joins. Raises Refusal."""
    member = group.members.get(member_id)
    if member is None and not joins:
        raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"the group has no member {member_id}")
    return ConsumerMember(member_id) if member is None else member


def static_member_of(group: ConsumerGroup, member_id: str, instance_id: str, joins: bool,
                     classic: bool = False) -> tuple[ConsumerMember, ConsumerMember | None]:
    """Return (static member of the instance, member that it replaces or None). Raises Refusal."""
    current = group.statics.get(instance_id)
    if not joins:
        if current is None:
            raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"no member has instance id {instance_id}")
        if current != member_id:
            raise Refusal(ErrorCode.FENCED_INSTANCE_ID,
                          "the instance id now belongs to another member")
        return group.members[current], None
    if current is None:
        return member_of(group, member_id, True), None
    replaced = group.members[current]
    if not classic and replaced.classic is None and replaced.epoch != LEAVE_STATIC:
        raise Refusal(ErrorCode.UNRELEASED_INSTANCE_ID, f"{current} still owns the instance id")
    member = replaced.copy(member_id)
    member.epoch = member.previous_epoch = 0
    return member, replaced


def _check_epoch(member: ConsumerMember, epoch: int, owned: Owned) -> None:
    """Check the member epoch. Raises Refusal.

    The response with the latest epoch may have been lost, so the previous epoch is accepted if the
    member owns only partitions that it was assigned.
    """
    if epoch in (0, member.epoch):
        return
    if epoch > member.epoch or epoch != member.previous_epoch \
            or not current_assignment.is_within(owned, member.assigned):
        raise Refusal(ErrorCode.FENCED_MEMBER_EPOCH,
                      f"the member is in epoch {member.epoch}, not {epoch}: join again")


def replace(groups: Any, group: ConsumerGroup, old: ConsumerMember, member: ConsumerMember) -> None:
    """Replace a static member that returned under a new member id; it keeps its assignment."""
    target = current_assignment.target_of(group, old.id)
    group.remove(old.id)
    cancel(groups, group.id, old.id)
    group.put(member)
    group.targets[member.id] = target
    groups.records += [*consumer_records.member_gone(group.id, old.id),
                       consumer_records.member_record(group, member),
                       consumer_records.target_record(group, member.id, target),
                       consumer_records.assignment_record(group, member)]
    groups.changed.update({(group.id, (old.id,)), (group.id, (member.id,))})


def reconcile(groups: Any, group: ConsumerGroup, member: ConsumerMember, changed: bool,
              owned: Owned) -> ConsumerMember:
    """Move the member one step towards its target and return its new state."""
    epoch = group.assignment_epoch
    if not changed and member.is_at(epoch):
        return member
    after = current_assignment.reconciled(
        group, member, epoch, current_assignment.target_of(group, member.id),
        target_assignment.topic_ids_of(groups, group, member), changed, owned)
    if after.progress() == member.progress():
        return member
    group.put(after)
    groups.records.append(consumer_records.assignment_record(group, after))
    groups.changed.add((group.id, (after.id,)))
    if after.assigned or after.state == MEMBER_STABLE:
        groups.rebalances.works(group, after.id)
    else:
        groups.rebalances.stops(group, after)
    if after.is_at(group.epoch):
        groups.rebalances.arrived(group, after.id)
    if after.classic is None:
        # Classic members have timers for JoinGroup and SyncGroup instead.
        if after.state == UNREVOKED:
            groups.timers.set((REBALANCE, group.id, after.id),
                              groups.clock.now_ms() + after.rebalance_ms)
        else:
            groups.timers.cancel((REBALANCE, group.id, after.id))
    return after


# ---- leaving members ----------------------------------------------------------------------------

def _leave(groups: Any, request: Any) -> Any:
    group = consumer_group(groups, request.group_id)
    if request.instance_id is None:
        member = member_of(group, request.member_id)
    else:
        member, _ = static_member_of(group, request.member_id, request.instance_id, False)
        if request.member_epoch == LEAVE_STATIC:
            _leave_for_a_while(groups, group, member)
            return messages.ConsumerGroupHeartbeatResponse(
                member_id=member.id, member_epoch=LEAVE_STATIC)
    groups.events["member_left"] += 1
    groups.rebalances.because(group, rebalance_tracker.LEFT, member)
    fence(groups, group, [member])
    return messages.ConsumerGroupHeartbeatResponse(
        member_id=request.member_id, member_epoch=request.member_epoch)


def _leave_for_a_while(groups: Any, group: ConsumerGroup, member: ConsumerMember) -> None:
    """Mark a static member as temporarily gone. It keeps its partitions until its session ends."""
    away = member.copy()
    away.epoch = LEAVE_STATIC
    away.revoking = {}
    # Epoch 0: the instance returns under a new member id and may commit with any epoch.
    away.assigned = {topic_id: dict.fromkeys(held, 0) for topic_id, held in member.assigned.items()}
    group.put(away)
    groups.rebalances.arrived(group, away.id)
    groups.records.append(consumer_records.assignment_record(group, away))
    groups.changed.add((group.id, (away.id,)))


def fence(groups: Any, group: ConsumerGroup, members: Iterable[ConsumerMember]) -> None:
    """Remove members. Converts the group if only classic members remain."""
    gone = {member.id: member for member in members}
    if not gone:
        return
    for member_id in gone:
        cancel(groups, group.id, member_id)
        groups.rebalances.works(group, member_id)
    if migration.may_downgrade(groups, group, gone):
        migration.downgrade(groups, group, gone)
        return
    for member_id in gone:
        group.remove(member_id)
        groups.records += consumer_records.member_gone(group.id, member_id)
        groups.changed.add((group.id, (member_id,)))
    target_assignment.forget_expressions(groups, group)
    target_assignment.next_epoch(groups, group)


def due(groups: Any, group: ConsumerGroup, key: tuple[Any, ...]) -> None:
    """Handle an expired timer of the group."""
    if key[0] == target_assignment.RESOLVE:
        target_assignment.resolve_some(groups, group)
        return
    member = group.members.get(key[2])
    if member is None or key[0] == REBALANCE and member.state != UNREVOKED:
        return
    if key[0] == SESSION and groups.repeats.extend_session(group.id, member.id,
                                                           groups.clock.now_ms()):
        return
    groups.events["member_expired"] += 1
    groups.rebalances.because(group, CAUSES[key[0]], member)
    fence(groups, group, [member])


def loaded(groups: Any, group: ConsumerGroup) -> None:
    """Start sessions and revocation timeouts of all members after a load."""
    for member_id in group.targets.keys() - group.members.keys():
        del group.targets[member_id]
    now_ms = groups.clock.now_ms()
    for member in group.members.values():
        expect(groups, group, member)
        if member.state == UNREVOKED and member.classic is None:
            groups.timers.set((REBALANCE, group.id, member.id), now_ms + member.rebalance_ms)

"""Consumer groups of KIP-848 as a pure state machine: what a heartbeat does to a group.

Owns: nothing; the groups, their timers and records are the machine's (coordinator.groups).
Invariants: (1) a request that is refused has changed nothing; (2) a partition is given to a member
  only when nobody has it; (3) a heartbeat that changes nothing writes nothing, looks at no other
  member and makes no assignment; (4) every change has its record.
Source: KIP-848; Kafka's GroupMetadataManager.
"""

import uuid
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
from pylog.coordinator.groups.state.group_config import GROUP_RESOURCE
from pylog.coordinator.groups.consumer.current_assignment import Owned
from pylog.coordinator.groups.state.heartbeat_cache import Offer
from pylog.protocol.api_error import Refusal
from pylog.protocol import messages
from pylog.protocol.errors import Error, ErrorCode

MEMBER_ID_SINCE = 1             # The version whose clients choose their ids.
BYTES_MAX = 512 << 10           # Of what a member says of itself.
PARTITIONS_MAX = 100_000        # That it says it owns.
SETTLING_MS = 3000              # After a target was made another change is likely.
# A core answers some 30,000 heartbeats a second; these are 2,000 whatever the group's size.
SOON_MS, SOON_MEMBERS = 500, 1000
# Kinds of timers.
SESSION, REBALANCE, JOIN, SYNC = (
    "consumer session", "consumer rebalance", "consumer join", "consumer sync")
CAUSES = {SESSION: rebalance_tracker.EXPIRED, REBALANCE: rebalance_tracker.NOT_REVOKED,
          JOIN: rebalance_tracker.NOT_REJOINED, SYNC: rebalance_tracker.NOT_SYNCED}
TIMERS = frozenset((SESSION, REBALANCE, JOIN, SYNC, target_assignment.RESOLVE))


class Client(NamedTuple):
    """Who sends a heartbeat. sees: whether it may know of a topic; None: of all. repeat: has its
    answer given again, where it is offered; None: it is not."""

    id: str
    host: str
    sees: Callable[[str], bool] | None = None
    repeat: Offer | None = None


# ---- ConsumerGroupHeartbeat ---------------------------------------------------------------------

def heartbeat(groups: Any, request: Any, version: int, client: Client) -> Any:
    """The answer to a heartbeat, which also joins, leaves and acknowledges."""
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
        answer = _beat(groups, request, client)
        if len(groups.records) == written:
            _offer_if_at_rest(groups, groups.groups[request.group_id], request, client)
        return answer
    except Refusal as refused:
        return refusal(ErrorCode.of(refused.error), refused.message)


def refusal(error: Error, text: str | None = None) -> Any:
    return messages.ConsumerGroupHeartbeatResponse(error_code=error, error_message=text)


def _changes_nothing(groups: Any, group: ConsumerGroup, member: ConsumerMember, request: Any,
                     client: Client) -> bool:
    """Keeps (3)."""
    return (request.member_epoch == member.epoch == group.assignment_epoch == group.epoch
            and member.state == MEMBER_STABLE and member.epoch > 0
            and request.topic_partitions is None and request.subscribed_topic_names is None
            and request.subscribed_topic_regex is None and request.server_assignor is None
            and request.rebalance_timeout_ms == NO_TIMEOUT and request.rack_id is None
            and request.instance_id == member.instance_id and member.classic is None
            and client.id == member.client_id and client.host == member.client_host
            and not group.regexes and groups.clock.now_ms() < group.refresh_ms)


def _check(groups: Any, request: Any, version: int) -> None:
    """Raises Refusal for what no group accepts."""
    epoch = request.member_epoch
    if not request.member_id and (version >= MEMBER_ID_SINCE or epoch > 0 or epoch == LEAVE):
        raise Refusal(ErrorCode.INVALID_REQUEST, "a member id is needed")
    for what, text in (("group id", request.group_id), ("instance id", request.instance_id),
                       ("rack id", request.rack_id)):
        if text == "":
            raise Refusal(ErrorCode.INVALID_REQUEST, f"the {what} is empty")
    if epoch == 0:
        if request.rebalance_timeout_ms == NO_TIMEOUT:
            raise Refusal(ErrorCode.INVALID_REQUEST, "who joins names a rebalance time-out")
        if request.topic_partitions is None or request.topic_partitions:
            raise Refusal(ErrorCode.INVALID_REQUEST, "who joins owns no partitions, and says so")
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            raise Refusal(ErrorCode.INVALID_REQUEST, "who joins names topics or an expression")
    elif epoch == LEAVE_STATIC and request.instance_id is None:
        raise Refusal(ErrorCode.INVALID_REQUEST, "only an instance leaves for a while")
    elif epoch < LEAVE_STATIC:
        raise Refusal(ErrorCode.INVALID_REQUEST, "there is no such member epoch")
    assignor = request.server_assignor
    if assignor is not None and assignor not in groups.limits.consumer.assignors:
        raise Refusal(ErrorCode.UNSUPPORTED_ASSIGNOR, "the assignors here are "
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
    member_id = request.member_id or str(uuid.uuid4())
    if request.instance_id is None:
        before = member_of(group, member_id, joins)
        _check_epoch(before, request.member_epoch, owned)
        replaced = None
    else:
        before, replaced = static_member_of(group, member_id, request.instance_id, joins)
        if not joins:
            _check_epoch(before, request.member_epoch, owned)
    if before.state not in (MEMBER_STABLE, UNREVOKED, UNRELEASED) and (owned is None or owned):
        raise Refusal(ErrorCode.FENCED_MEMBER_EPOCH, "nobody knows the member's state")
    member = _as_requested(before, request, client)
    target_assignment.check_expression(group, before, member)

    # Keeps (1): nothing is refused from here on.
    install()
    if replaced is not None:
        replace(groups, group, replaced, before)
    changed = target_assignment.subscribe(groups, group, before, member, client.sees)
    assigned = target_assignment.assign_if_due(groups, group)
    after = reconcile(groups, group, member, changed, owned)
    expect(groups, group, after)
    if joins and not assigned:
        # Kafka refuses the others too, who have a target.
        return refusal(ErrorCode.UNKNOWN_SERVER_ERROR, "the assignor failed")
    full = (request.rebalance_timeout_ms != NO_TIMEOUT and owned is not None
            and (request.subscribed_topic_names is not None
                 or request.subscribed_topic_regex is not None))
    return _answer(groups, group, after, joins or full or after.assigned != before.assigned)


def _answer(groups: Any, group: ConsumerGroup, member: ConsumerMember,
            with_assignment: bool) -> Any:
    new = messages.ConsumerGroupHeartbeatResponse
    answer = new(member_id=member.id, member_epoch=member.epoch,
                 heartbeat_interval_ms=_interval_ms(groups, group, member))
    if with_assignment:
        answer.assignment = new.Assignment(topic_partitions=[
            new.TopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
            for topic_id, partitions in member.assigned.items()])
    return answer


def _interval_ms(groups: Any, group: ConsumerGroup, member: ConsumerMember) -> int:
    """When the member is to ask again. While the group comes together that is soon: a rebalance
    takes as long as those who wait, and those who have to give something up, stay silent."""
    usual_ms: int = setting(groups, group.id, "consumer.heartbeat.interval.ms")
    if member.state == MEMBER_STABLE and not _settles_ms(groups, group):
        return usual_ms
    return min(usual_ms, SOON_MS * (1 + len(group.members) // SOON_MEMBERS))


def _settles_ms(groups: Any, group: ConsumerGroup) -> int:
    """For how long the group is still likely to change; 0: it is not."""
    left_ms: int = SETTLING_MS - (groups.clock.wall_ms() - group.assignment_ms)
    return left_ms if 0 < left_ms <= SETTLING_MS else 0


# ---- answers that are given again ---------------------------------------------------------------

def _offer_if_at_rest(groups: Any, group: ConsumerGroup, request: Any, client: Client) -> None:
    """Of a heartbeat that said something and wrote nothing. A member whose next one may find
    something to do, because of time alone, gets no such offer."""
    member = group.members.get(request.member_id)
    if member is not None and member.state == MEMBER_STABLE and member.classic is None \
            and 0 < request.member_epoch == member.epoch == group.assignment_epoch == group.epoch \
            and not group.regexes and groups.clock.now_ms() < group.refresh_ms:
        _offer(groups, group, member, client)


def _offer(groups: Any, group: ConsumerGroup, member: ConsumerMember, client: Client) -> None:
    """The same heartbeat would get the same answer again."""
    if client.repeat is None:
        return
    until_ms, settles_ms = group.refresh_ms, _settles_ms(groups, group)
    if settles_ms:   # Then it is told another interval.
        until_ms = min(until_ms, groups.clock.now_ms() + settles_ms)
    groups.repeats.offer(
        group.id, member.id, client.repeat, (SESSION, group.id, member.id),
        setting(groups, group.id, "consumer.session.timeout.ms"), until_ms)


def _as_requested(before: ConsumerMember, request: Any, client: Client) -> ConsumerMember:
    """The member with what the request says; what it does not say stays."""
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
    """(the group, what makes it the machine's). Who joins makes one, also of a classic group.
    Raises Refusal."""
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
    """Raises Refusal."""
    found = groups.find(group_id)
    if not isinstance(found, ConsumerGroup):
        raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, "there is no such consumer group")
    return found


def check_room(groups: Any, group: ConsumerGroup, member_id: str) -> None:
    limit = groups.limits.consumer.members_max
    if len(group.members) >= limit and member_id not in group.members:
        raise Refusal(ErrorCode.GROUP_MAX_SIZE_REACHED, f"the group has {counted(limit, 'member')}")


def member_of(group: ConsumerGroup, member_id: str, joins: bool = False) -> ConsumerMember:
    """The member, or a new one for who joins. Raises Refusal."""
    member = group.members.get(member_id)
    if member is None and not joins:
        raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"the group has no member {member_id}")
    return ConsumerMember(member_id) if member is None else member


def static_member_of(group: ConsumerGroup, member_id: str, instance_id: str, joins: bool,
                     classic: bool = False) -> tuple[ConsumerMember, ConsumerMember | None]:
    """(the member with that instance, the one whose place it takes or None). Raises Refusal."""
    current = group.statics.get(instance_id)
    if not joins:
        if current is None:
            raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"nobody is instance {instance_id}")
        if current != member_id:
            raise Refusal(ErrorCode.FENCED_INSTANCE_ID, "another member is the instance now")
        return group.members[current], None
    if current is None:
        return member_of(group, member_id, True), None
    replaced = group.members[current]
    if not classic and replaced.classic is None and replaced.epoch != LEAVE_STATIC:
        raise Refusal(ErrorCode.UNRELEASED_INSTANCE_ID, f"{current} is the instance still")
    member = replaced.copy(member_id)
    member.epoch = member.previous_epoch = 0
    return member, replaced


def _check_epoch(member: ConsumerMember, epoch: int, owned: Owned) -> None:
    """Raises Refusal. The answer with the last epoch may have been lost: who has the one before it
    is believed if it owns nothing that it was not given."""
    if epoch in (0, member.epoch):
        return
    if epoch > member.epoch or epoch != member.previous_epoch \
            or not current_assignment.is_within(owned, member.assigned):
        raise Refusal(ErrorCode.FENCED_MEMBER_EPOCH,
                      f"the member is in epoch {member.epoch}, not {epoch}: join again")


def replace(groups: Any, group: ConsumerGroup, old: ConsumerMember, member: ConsumerMember) -> None:
    """An instance is back under another member id, with what it had."""
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
    """Takes the member a step towards its target, if it is not there. Returns it as it now is."""
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
        # Those of the classic protocol have timers for JoinGroup and SyncGroup.
        if after.state == UNREVOKED:
            groups.timers.set((REBALANCE, group.id, after.id),
                              groups.clock.now_ms() + after.rebalance_ms)
        else:
            groups.timers.cancel((REBALANCE, group.id, after.id))
    return after


# ---- who goes -----------------------------------------------------------------------------------

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
    """The instance keeps what it has until its session ends."""
    away = member.copy()
    away.epoch = LEAVE_STATIC
    away.revoking = {}
    # Whoever comes back has another id, and has had them since ever.
    away.assigned = {topic_id: dict.fromkeys(held, 0) for topic_id, held in member.assigned.items()}
    group.put(away)
    groups.rebalances.arrived(group, away.id)
    groups.records.append(consumer_records.assignment_record(group, away))
    groups.changed.add((group.id, (away.id,)))


def fence(groups: Any, group: ConsumerGroup, members: Iterable[ConsumerMember]) -> None:
    """Takes members out; the group becomes a classic one when only such members are left."""
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
    """A timer of the group has come."""
    if key[0] == target_assignment.RESOLVE:
        target_assignment.resolve_some(groups, group)
        return
    member = group.members.get(key[2])
    if member is None or key[0] == REBALANCE and member.state != UNREVOKED:
        return
    if key[0] == SESSION and groups.repeats.heard(group.id, member.id, groups.clock.now_ms()):
        return
    groups.events["member_expired"] += 1
    groups.rebalances.because(group, CAUSES[key[0]], member)
    fence(groups, group, [member])


def loaded(groups: Any, group: ConsumerGroup) -> None:
    """After the load of the machine: members have a session's time to show up again."""
    for member_id in group.targets.keys() - group.members.keys():
        del group.targets[member_id]
    now_ms = groups.clock.now_ms()
    for member in group.members.values():
        expect(groups, group, member)
        if member.state == UNREVOKED and member.classic is None:
            groups.timers.set((REBALANCE, group.id, member.id), now_ms + member.rebalance_ms)


# ---- time ---------------------------------------------------------------------------------------

def setting(groups: Any, group_id: str, name: str) -> int:
    """A setting of the group, else of the broker."""
    return groups.limits.consumer.of_group(
        groups.image().configs.get((GROUP_RESOURCE, group_id)), name)


def expect(groups: Any, group: ConsumerGroup, member: ConsumerMember) -> None:
    """A sign of life."""
    session_ms = setting(groups, group.id, "consumer.session.timeout.ms") \
        if member.classic is None else member.classic.session_ms
    groups.timers.set((SESSION, group.id, member.id), groups.clock.now_ms() + session_ms)


def cancel(groups: Any, group_id: str, member_id: str) -> None:
    for kind in (SESSION, REBALANCE, JOIN, SYNC):
        groups.timers.cancel((kind, group_id, member_id))

"""Streams groups (KIP-1071) as a pure state machine: the effects of a heartbeat.

Owns: nothing; groups, timers and records belong to the state machine.
Invariants: a rejected request changes nothing; a heartbeat without changes writes nothing, reads no
  other member and computes no assignment; every change is recorded, except for shutdown requests
  and query endpoints; no tasks are assigned while a topic of the topology is missing or has the
  wrong number of partitions.
Source: KIP-1071; Kafka's GroupMetadataManager.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from pylog.protocol.counts import counted
from pylog.coordinator.groups.assignors import tasks as task_assignor
from pylog.coordinator.groups.state import rebalance_tracker, subscribed_topics
from pylog.coordinator.groups.streams import (
    current_assignment, describe as streams_describe, records as streams_records,
    topology as streams_topology,
)
from pylog.coordinator.groups.state.modern_group import retarget
from pylog.coordinator.groups.state.classic_group import CLASSIC, EMPTY
from pylog.coordinator.groups.state.group_config import GROUP_RESOURCE
from pylog.coordinator.groups.assignors.tasks import Assignment
from pylog.coordinator.groups.streams.group import (
    DELAY,
    MEMBER_STABLE,
    NO_EPOCH,
    NO_TIMEOUT,
    NOTHING,
    NOTHING_HELD,
    UNKNOWN,
    UNREVOKED,
    StreamsGroup,
    StreamsMember,
)
from pylog.coordinator.groups.streams.topology import Configured, Missing, Topology
from pylog.protocol.api_error import Refusal
from pylog.protocol import messages
from pylog.protocol.errors import Error, ErrorCode

LEAVE, LEAVE_STATIC = -1, -2    # Member epochs.
BYTES_MAX = 512 << 10  # Of a member's metadata and topology,
TASKS_MAX = 100_000  # and of the tasks it reports as owned.
STANDBYS, TAGS = "num.standby.replicas", "rack.aware.assignment.tags"
MISSING_TAGS_SINCE = 1  # A version of StreamsGroupHeartbeat.
NEVER_MS = 2**31 - 1  # Kafka's interval for refreshes without a cause.
# Timer types, besides DELAY.
SESSION, REBALANCE = "streams session", "streams rebalance"
CAUSES = {SESSION: rebalance_tracker.EXPIRED, REBALANCE: rebalance_tracker.NOT_REVOKED}
TIMERS = frozenset((SESSION, REBALANCE, DELAY))

# A heartbeat response, and the internal topics to create.
Result = tuple[Any, tuple[Missing, ...]]


class Client(NamedTuple):
    """The sender of a heartbeat. version: of StreamsGroupHeartbeat."""

    id: str
    host: str
    version: int = 0


class Seen(NamedTuple):
    """A topology, resolved in the cluster. hash: of its topics. is_fresh: resolved just now."""

    topology: Topology
    hash: int
    configured: Configured
    is_fresh: bool


# ---- StreamsGroupHeartbeat ----------------------------------------------------------------------

def heartbeat(groups: Any, request: Any, client: Client) -> Result:
    """Handle StreamsGroupHeartbeat, which also joins, leaves and acknowledges."""
    try:
        _check(groups, request)
        if request.member_epoch in (LEAVE, LEAVE_STATIC):
            return _leave(groups, request), ()
        return _beat(groups, request, client)
    except Refusal as refused:
        return refusal(ErrorCode.of(refused.error), refused.message)


def refusal(error: Error, text: str | None = None) -> Result:
    return messages.StreamsGroupHeartbeatResponse(error_code=error, error_message=text), ()


def _check(groups: Any, request: Any) -> None:
    """Validate the request. Raises Refusal if it is invalid for any group."""
    _check_shape(request)
    texts = [request.member_id, request.instance_id or "", request.rack_id or "",
             request.process_id or ""]
    texts += [text for tag in request.client_tags or () for text in (tag.key, tag.value)]
    tasks = sum(len(row.partitions) + 1 for rows in (
        request.active_tasks, request.standby_tasks, request.warmup_tasks) for row in rows or ())
    tasks += sum(len(rows or ()) for rows in (request.task_offsets, request.task_end_offsets))
    if sum(map(len, texts)) > BYTES_MAX or tasks > TASKS_MAX:
        raise Refusal(ErrorCode.MESSAGE_TOO_LARGE)
    if request.topology is not None:
        _check_topology(request.topology)
    if request.group_id in groups.deleting:
        raise Refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


def _check_shape(request: Any) -> None:
    def invalid(text: str) -> Refusal:
        return Refusal(ErrorCode.INVALID_REQUEST, text)

    for what, text in (("member id", request.member_id), ("group id", request.group_id),
                       ("instance id", request.instance_id), ("rack id", request.rack_id)):
        if text == "":
            raise invalid(f"the {what} is empty")
    owned = request.active_tasks, request.standby_tasks, request.warmup_tasks
    if request.member_epoch == 0:
        if request.rebalance_timeout_ms == NO_TIMEOUT:
            raise invalid("a joining member must set a rebalance timeout")
        if any(owned):
            raise invalid("a joining member must not own tasks")
        if request.topology is None:
            raise invalid("a joining member must send its topology")
    elif request.member_epoch == LEAVE_STATIC and request.instance_id is None:
        raise invalid("only static members can leave temporarily")
    elif request.member_epoch < LEAVE_STATIC:
        raise invalid("the member epoch is invalid")
    elif request.topology is not None:
        raise invalid("only a joining member may send its topology")
    if any(rows is None for rows in owned) and any(rows is not None for rows in owned):
        raise invalid("active, standby and warmup tasks must be sent together")


def _check_topology(message: Any) -> None:
    for row in message.subtopologies:
        if row.source_topic_regex:
            raise Refusal(ErrorCode.INVALID_REQUEST,
                          "Regular expressions for source topics are not supported yet.")
        for topic in row.state_changelog_topics:
            if topic.partitions:
                raise Refusal(ErrorCode.STREAMS_INVALID_TOPOLOGY,
                              f"Changelog topic {topic.name} must have an undefined partition "
                              f"count, but it is set to {topic.partitions}.")
    internal = [topic for row in message.subtopologies for topic in (
        *row.state_changelog_topics, *row.repartition_source_topics)]
    size = sum(len(name) + 2 for name in streams_topology.topics_of(message)) + sum(
        len(config.key) + len(config.value) + 4 for topic in internal
        for config in topic.topic_configs) + sum(
        len(row.subtopology_id) + 8 for row in message.subtopologies)
    if size > BYTES_MAX or message.epoch < 0:
        raise Refusal(ErrorCode.MESSAGE_TOO_LARGE if size > BYTES_MAX
                      else ErrorCode.INVALID_REQUEST)


def _beat(groups: Any, request: Any, client: Client) -> Result:
    joins = request.member_epoch == 0
    group, install = _group_for(groups, request.group_id, joins)
    owned = None if request.active_tasks is None else streams_records.assignment_from(request)
    before, replaced = _member_of(groups, group, request, joins, owned)
    member = _as_requested(before, request, client)
    seen = _resolve_topics(groups, group, _topology_for(group, request.topology))
    _check_tasks(seen.configured, owned)

    # The request is accepted: only now may anything change.
    is_new = install()
    begins = not group.members
    if replaced is not None:
        _replace(groups, group, replaced, before)
    bump = _take(groups, group, before, member)
    _follow(groups, group, seen, bump)
    delay_ms = setting(groups, group.id, "streams.initial.rebalance.delay.ms")
    if begins and delay_ms and group.delay not in groups.timers:
        groups.timers.set(group.delay, groups.clock.now_ms() + delay_ms)
    waits = _assign_if_due(groups, group)
    target = NOTHING if group.delay in groups.timers else group.targets.get(member.id, NOTHING)
    after = _reconcile(groups, group, member, target, owned)
    _expect(groups, group, after)
    if request.shutdown_application and group.shutdown is None:
        group.shutdown = after.id
    response = messages.StreamsGroupHeartbeatResponse(
        member_id=after.id, member_epoch=after.epoch,
        heartbeat_interval_ms=setting(groups, group.id, "streams.heartbeat.interval.ms"),
        task_offset_interval_ms=setting(groups, group.id, "streams.task.offset.interval.ms"),
        acceptable_recovery_lag=setting(groups, group.id, "streams.acceptable.recovery.lag"),
        status=streams_describe.statuses(
            group, after, waits, _tags(group) if client.version >= MISSING_TAGS_SINCE else []))
    changed = after.assigned != before.assigned
    # A response may have been lost: repeat the tasks if the member does not report all of them.
    if joins or changed or request.member_epoch != before.epoch or \
            owned is not None and not after.assigned.equals(owned):
        streams_describe.with_tasks(response, after)
    streams_describe.with_endpoints(
        response, group, after, groups.image().topics,
        after.endpoint != before.endpoint or changed and after.endpoint is not None, is_new,
        request.endpoint_information_epoch)
    return response, seen.configured.missing


def _as_requested(before: StreamsMember, request: Any, client: Client) -> StreamsMember:
    """Return the member updated from the request. Fields that are not set stay unchanged."""
    member = before.copy()
    member.client_id, member.client_host = client.id, client.host
    if request.instance_id is not None:
        member.instance_id = request.instance_id
    if request.rack_id is not None:
        member.rack_id = request.rack_id
    if request.rebalance_timeout_ms != NO_TIMEOUT:
        member.rebalance_ms = request.rebalance_timeout_ms
    if request.topology is not None:
        member.topology_epoch = request.topology.epoch
    if request.process_id is not None:
        member.process_id = request.process_id
    if request.user_endpoint is not None:
        member.endpoint = request.user_endpoint.host, request.user_endpoint.port
    elif request.member_epoch == 0:
        member.endpoint = None
    if request.client_tags is not None:
        member.tags = {tag.key: tag.value for tag in request.client_tags}
    return member


# ---- groups and members -------------------------------------------------------------------------

def _group_for(groups: Any, group_id: str,
               joins: bool) -> tuple[StreamsGroup, Callable[[], bool]]:
    """Return (group, function that installs it in the state machine and returns True if it is new).

    A joining member creates the group, or converts an empty classic group. Raises Refusal.
    """
    found = groups.find(group_id)
    if isinstance(found, StreamsGroup):
        return found, lambda: False
    is_free = found is None and group_id not in groups.shares \
        or found is not None and found.kind == CLASSIC and found.state == EMPTY
    if not joins or not is_free:
        raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, "there is no such streams group")
    group = StreamsGroup(group_id)

    def install() -> bool:
        if found is not None:
            groups.record_gone(found)
            group.take_offsets(found)
        groups.groups[group_id] = group
        return True

    return group, install


def _member_of(groups: Any, group: StreamsGroup, request: Any, joins: bool,
               owned: Assignment | None) -> tuple[StreamsMember, StreamsMember | None]:
    """Return (member or a new one if it joins, the static member that it replaces or None). Raises
    Refusal.
    """
    member, epoch, replaced = group.members.get(request.member_id), request.member_epoch, None
    if request.instance_id is not None:
        static = _static_member(group, request, joins)
        if static is not None and static.id != request.member_id:
            replaced, member = static, static.copy(request.member_id)
            member.epoch = member.previous_epoch = 0
    if member is None:
        if not joins:
            raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID,
                          f"the group has no member {request.member_id}")
        limit = groups.limits.streams_members_max
        if len(group.members) >= limit:
            raise Refusal(ErrorCode.GROUP_MAX_SIZE_REACHED,
                          f"the group has {counted(limit, 'member')}")
        return StreamsMember(request.member_id), None
    # The response with the latest epoch may have been lost, so the previous epoch is accepted if
    # the member owns only tasks that it was assigned.
    if epoch not in (0, member.epoch) and (
            epoch > member.epoch or epoch != member.previous_epoch or owned is None
            or not member.assigned.has(owned)):
        raise Refusal(ErrorCode.FENCED_MEMBER_EPOCH,
                      f"the member is in epoch {member.epoch}, not {epoch}: join again")
    if member.state == UNKNOWN and (owned is None or any(owned)):
        raise Refusal(ErrorCode.FENCED_MEMBER_EPOCH, "the member's state is unknown")
    return member, replaced


def _static_member(group: StreamsGroup, request: Any, joins: bool) -> StreamsMember | None:
    """Return the static member of the request's instance id, None if it joins first. Raises
    Refusal if another member owns the instance id.
    """
    member_id = group.statics.get(request.instance_id)
    if member_id is None:
        if joins:
            return None
        raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID,
                      f"no member has instance id {request.instance_id}")
    member = group.members[member_id]
    if joins and member.epoch != LEAVE_STATIC:
        raise Refusal(ErrorCode.UNRELEASED_INSTANCE_ID, f"{member_id} still owns the instance id")
    if not joins and member_id != request.member_id:
        raise Refusal(ErrorCode.FENCED_INSTANCE_ID, "the instance id now belongs to another member")
    return member


def _topology_for(group: StreamsGroup, message: Any) -> Topology:
    """Return the group's topology, or the request's if the group has none. Raises Refusal."""
    if message is None:
        if group.topology is None:
            raise Refusal(ErrorCode.FENCED_MEMBER_EPOCH, "the group has no topology: join again")
        return group.topology
    if group.topology is not None and group.topology.epoch > message.epoch:
        return group.topology
    named = streams_topology.topology_from(message)
    if group.topology is not None:
        if group.topology != named:
            raise Refusal(ErrorCode.INVALID_REQUEST, "Topology updates are not supported yet.")
        return group.topology
    fault = streams_topology.fault(named)
    if fault is not None:
        raise Refusal(ErrorCode.STREAMS_INVALID_TOPOLOGY, fault)
    return named


def _resolve_topics(groups: Any, group: StreamsGroup, topology: Topology) -> Seen:
    """Resolve the topology's topics, only if some have changed. Raises Refusal."""
    known = group.configured
    if known is not None and groups.clock.now_ms() < group.refresh_ms:
        return Seen(topology, group.hash, known, False)
    image = groups.image()
    found = subscribed_topics.metadata_hash(image, topology.required())
    if known is None or found != group.hash:
        def count(name: str) -> int | None:
            topic = image.topics.get(name)
            return None if topic is None else len(topic.partitions)

        known = streams_topology.configure(topology, count)
    return Seen(topology, found, known, True)


def _check_tasks(configured: Configured, owned: Assignment | None) -> None:
    """Raise Refusal if the request names tasks that do not exist."""
    if owned is None or configured.status is not None or configured.tasks is None:
        return
    for tasks in owned:
        for id_, indexes in tasks.items():
            count = configured.tasks.get(id_)
            if count is None or not all(0 <= index < count for index in indexes):
                raise Refusal(ErrorCode.INVALID_REQUEST,
                              f"subtopology {id_} has no such task, or is not in the topology")


# ---- epochs and targets -------------------------------------------------------------------------

def _take(groups: Any, group: StreamsGroup, before: StreamsMember, member: StreamsMember) -> bool:
    """Update the member in its group. Return True if it is new or its metadata changed; of a static
    member, only the metadata counts that the assignment depends on.
    """
    is_new = member.id not in group.members
    if not is_new and before.description() == member.description():
        return False
    if is_new:
        groups.events["member_joined"] += 1
    groups.rebalances.because(
        group, rebalance_tracker.JOINED if is_new else rebalance_tracker.SUBSCRIBED, member)
    group.put(member)
    groups.records.append(streams_records.member_record(group, member))
    groups.changed.add((group.id, (member.id,)))
    return member.instance_id is None or before.placement() != member.placement()


def _replace(groups: Any, group: StreamsGroup, old: StreamsMember, member: StreamsMember) -> None:
    """Replace a static member that returned under a new member id; it keeps its tasks."""
    target = group.targets.get(old.id, NOTHING)
    for kind in (SESSION, REBALANCE):
        groups.timers.cancel((kind, group.id, old.id))
    group.remove(old.id)
    group.put(member)
    group.targets[member.id] = target
    groups.records += [*streams_records.member_gone(group.id, old.id),
                       streams_records.member_record(group, member),
                       streams_records.target_record(group, member.id, target),
                       streams_records.assignment_record(group, member)]
    groups.changed.update({(group.id, (old.id,)), (group.id, (member.id,))})


def _follow(groups: Any, group: StreamsGroup, seen: Seen, bump: bool) -> None:
    """Increase the group epoch if an input of the assignment has changed."""
    if group.topology is None:
        group.topology = seen.topology
        groups.records.append(streams_records.topology_record(group.id, seen.topology))
        groups.changed.add((group.id, None))
    group.configured = seen.configured
    if seen.is_fresh:
        group.refresh_ms = groups.clock.now_ms() + NEVER_MS
    validated = NO_EPOCH if seen.configured.status is not None else seen.topology.epoch
    configs = _assignment_configs(groups, group)
    if seen.hash != group.hash or validated != group.validated:
        if not bump:
            groups.rebalances.because(group, rebalance_tracker.TOPICS)
        bump = True
    elif configs != group.configs:
        if not bump:
            groups.rebalances.because(group, rebalance_tracker.SETTINGS)
        bump = True
    if bump:
        group.hash, group.validated, group.configs = seen.hash, validated, configs
        _next_epoch(groups, group)


def _assignment_configs(groups: Any, group: StreamsGroup) -> dict[str, str]:
    """Return the settings that the assignment depends on, as they are recorded."""
    found = {STANDBYS: str(setting(groups, group.id, "streams.num.standby.replicas"))}
    tags = values(groups, group.id, "streams.rack.aware.assignment.tags")
    return {**found, TAGS: ",".join(tags)} if tags else found


def _tags(group: StreamsGroup) -> list[str]:
    """Return the client tags that every member must have."""
    tags = group.configs.get(TAGS)
    return tags.split(",") if tags else []


def _next_epoch(groups: Any, group: StreamsGroup) -> None:
    group.epoch += 1
    groups.events["rebalance"] += 1
    groups.records.append(streams_records.group_record(group))
    groups.changed.add((group.id, None))
    groups.rebalances.waits_for(group, lambda: group.members)


def _assign_if_due(groups: Any, group: StreamsGroup) -> str | None:
    """Compute the target of the group epoch, unless it exists. Return why it must wait, or None."""
    if group.delay in groups.timers:
        return "Assignment delayed due to the configured initial rebalance delay."
    if group.assignment_epoch >= group.epoch:
        return None
    interval_ms = setting(groups, group.id, "streams.assignment.interval.ms")
    now_ms = groups.clock.wall_ms()
    if 0 < group.assignment_ms <= now_ms < group.assignment_ms + interval_ms:
        return "Assignment delayed due to the configured assignment interval."
    _assign(groups, group, now_ms)
    return None


def _assign(groups: Any, group: StreamsGroup, now_ms: int) -> None:
    """Compute and store the target; without tasks while topics are missing or invalid."""
    configured, topology = group.configured, group.topology
    made: dict[str, Assignment] = {}
    if configured is not None and topology is not None and configured.tasks is not None \
            and configured.status is None:
        made = task_assignor.assign(
            [task_assignor.Runner(member.id, member.process_id,
                                  group.targets.get(member.id, NOTHING))
             for member in group.members.values()], configured.tasks,
            [row.id for row in topology.subtopologies.values() if row.changelogs],
            int(group.configs.get(STANDBYS, 0)))
    retarget(groups, group, made, NOTHING, streams_records.target_record,
             streams_records.target_epoch_record, now_ms)


def _reconcile(groups: Any, group: StreamsGroup, member: StreamsMember, target: Assignment,
               owned: Assignment | None) -> StreamsMember:
    """Move the member one step towards its target and return its new state."""
    after = current_assignment.reconciled(group, member, group.assignment_epoch, target, owned)
    if after.progress() == member.progress():
        return member
    group.put(after)
    groups.records.append(streams_records.assignment_record(group, after))
    groups.changed.add((group.id, (after.id,)))
    if not after.assigned.is_empty() or after.state == MEMBER_STABLE:
        groups.rebalances.works(group, after.id)
    else:
        groups.rebalances.stops(group, after)
    if after.is_at(group.epoch):
        groups.rebalances.arrived(group, after.id)
    if after.state == UNREVOKED:
        groups.timers.set((REBALANCE, group.id, after.id),
                          groups.clock.now_ms() + after.rebalance_ms)
    else:
        groups.timers.cancel((REBALANCE, group.id, after.id))
    return after


# ---- leaving members ----------------------------------------------------------------------------

def _leave(groups: Any, request: Any) -> Any:
    group = groups.find(request.group_id)
    if not isinstance(group, StreamsGroup):
        raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, "there is no such streams group")
    member = group.members.get(request.member_id)
    if request.instance_id is not None:
        member = _static_member(group, request, False)
    if member is None:
        raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID,
                      f"the group has no member {request.member_id}")
    if request.shutdown_application and group.shutdown is None:
        group.shutdown = member.id
    if request.member_epoch == LEAVE_STATIC:
        _leave_for_a_while(groups, group, member)
        return messages.StreamsGroupHeartbeatResponse(
            member_id=member.id, member_epoch=LEAVE_STATIC)
    groups.events["member_left"] += 1
    groups.rebalances.because(group, rebalance_tracker.LEFT, member)
    _fence(groups, group, member)
    return messages.StreamsGroupHeartbeatResponse(member_id=member.id, member_epoch=LEAVE)


def _leave_for_a_while(groups: Any, group: StreamsGroup, member: StreamsMember) -> None:
    """Mark a static member as temporarily gone. It keeps its tasks until its session ends."""
    away = member.copy()
    away.epoch = LEAVE_STATIC
    away.revoking = NOTHING_HELD
    # Epoch 0: the instance returns under a new member id and may commit with any epoch.
    away.assigned = member.assigned._replace(active={
        id_: dict.fromkeys(held, 0) for id_, held in member.assigned.active.items()})
    group.put(away)
    groups.rebalances.arrived(group, away.id)
    groups.records.append(streams_records.assignment_record(group, away))
    groups.changed.add((group.id, (away.id,)))


def _fence(groups: Any, group: StreamsGroup, member: StreamsMember) -> None:
    """Remove a member."""
    for kind in (SESSION, REBALANCE):
        groups.timers.cancel((kind, group.id, member.id))
    groups.rebalances.works(group, member.id)
    group.remove(member.id)
    groups.records += streams_records.member_gone(group.id, member.id)
    groups.changed.add((group.id, (member.id,)))
    _next_epoch(groups, group)
    if not group.members:
        # The next member gets a target at once.
        group.assignment_epoch, group.assignment_ms = group.epoch, 0
        groups.records.append(streams_records.target_epoch_record(group))


def due(groups: Any, group: StreamsGroup, key: tuple[Any, ...]) -> None:
    """Handle an expired timer of the group."""
    if key[0] == DELAY:
        if group.members and group.assignment_epoch < group.epoch:
            _assign(groups, group, groups.clock.wall_ms())
        return
    member = group.members.get(key[2])
    if member is None or key[0] == REBALANCE and member.state != UNREVOKED:
        return
    groups.events["member_expired"] += 1
    groups.rebalances.because(group, CAUSES[key[0]], member)
    _fence(groups, group, member)


def loaded(groups: Any, group: StreamsGroup) -> None:
    """Start the sessions of all members after a load."""
    for member_id in group.targets.keys() - group.members.keys():
        del group.targets[member_id]
    now_ms = groups.clock.now_ms()
    for member in group.members.values():
        _expect(groups, group, member)
        if member.state == UNREVOKED:
            groups.timers.set((REBALANCE, group.id, member.id), now_ms + member.rebalance_ms)


# ---- describe -----------------------------------------------------------------------------------

def described(groups: Any, group_id: str, members_max: int) -> Iterable[Any]:
    """Yield a DescribedGroup with at most members_max members, then more for the rest."""
    group = groups.find(group_id)
    if not isinstance(group, StreamsGroup):
        return iter((streams_describe.undescribed(group_id, ErrorCode.GROUP_ID_NOT_FOUND),))
    return streams_describe.described(group, members_max)


# ---- time ---------------------------------------------------------------------------------------

def setting(groups: Any, group_id: str, name: str) -> int:
    """Return a group setting, or the broker's default."""
    return int(groups.limits.consumer.of_group(
        groups.image().configs.get((GROUP_RESOURCE, group_id)), name))


def values(groups: Any, group_id: str, name: str) -> list[str]:
    """Return a group setting that is a list, or the broker's default."""
    found: list[str] = groups.limits.consumer.list_of_group(
        groups.image().configs.get((GROUP_RESOURCE, group_id)), name)
    return found


def _expect(groups: Any, group: StreamsGroup, member: StreamsMember) -> None:
    """Restart the member's session."""
    groups.timers.set((SESSION, group.id, member.id), groups.clock.now_ms() + setting(
        groups, group.id, "streams.session.timeout.ms"))

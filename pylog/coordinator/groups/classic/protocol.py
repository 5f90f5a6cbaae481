"""The classic group protocol, as functions on the GroupStore of a partition. No I/O.

Owns: nothing.
Invariants: a waiting JoinGroup or SyncGroup is answered once; members of one generation get the
  assignment of one leader; a generation is never reused while its group exists; a generation's
  assignment is sent after its record is durable.
Source: Kafka's group protocol: KIP-62, KIP-134 (initial delay), KIP-345 (static members), KIP-394
  (member ids), KIP-559 (protocol in SyncGroup), KIP-814 (skip assignment).

The caller chooses what a token is; this module only stores it and returns it with the response.
"""

from typing import Any

from pylog.coordinator.groups.state import rebalance_tracker
from pylog.coordinator.groups.state.classic_group import (
    COMPLETING,
    EMPTY,
    PREPARING,
    STABLE,
    Group,
    Member,
)
from pylog.coordinator.groups.state.group_store import GroupStore
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode

MEMBER_ID_SINCE = 4  # The JoinGroup version with MEMBER_ID_REQUIRED (KIP-394).
SKIP_ASSIGNMENT_SINCE = 9   # KIP-814.
NEW_MEMBER_JOIN_MS = 5 * 60_000
ABSENT_JOIN_MS_MIN = 1000
PROTOCOLS_MAX = 1000
NAME_IN_ID_MAX = 1000
JOIN_BYTES_MAX = 512 << 10
ASSIGNMENT_BYTES_MAX = 8 << 20
MEMBER, JOIN, SYNC = "member", "join", "sync"  # Timer types.


class SentResponse:
    """A journal token that follows a member's response: sending the response starts the session.

    Until then the client cannot send heartbeats, because it does not have its member id or
    generation. The member must not expire, however long the flush before the response takes.
    """

    is_request = False
    __slots__ = ("_group", "_member", "_store")

    def __init__(self, store: GroupStore, group: Group, member: Member):
        self._store, self._group, self._member = store, group, member
        member.unsent += 1

    def respond(self, message: None) -> None:
        self._member.unsent -= 1
        response_sent(self._store, self._group, self._member)

    def refuse(self, error: int) -> None:
        """Do nothing: this member's state machine is no longer serving."""


def loaded(store: GroupStore, group: Group) -> None:
    """Start the sessions of all members after a load."""
    for member in group.members.values():
        _expect(store, group, member)
    if len(group.members) > store.limits.members_max:
        _rebalance(store, group, rebalance_tracker.TOO_MANY)
    elif group.state == COMPLETING:
        _rebalance(store, group, rebalance_tracker.LOADED)


# ---- JoinGroup ----------------------------------------------------------------------------------

def join(store: GroupStore, known, request, version: int, client_id: str, host: str,
         token) -> None:
    """Handle JoinGroup. Responds immediately or at the end of the join phase.

    known: the group, or None if the store has no group of that name.
    """
    error = join_fault(store, request)
    if error != ErrorCode.NONE:
        _refuse_join(store, token, request.member_id, error)
        return
    new = not request.member_id
    group = store.make(request.group_id) if new and known is None else known
    if group is None:
        _refuse_join(store, token, request.member_id, ErrorCode.UNKNOWN_MEMBER_ID)
    elif not _has_room(store, group, request.member_id):
        group.pending.discard(request.member_id)
        _refuse_join(store, token, "", ErrorCode.GROUP_MAX_SIZE_REACHED)
    elif not group.supports(request.protocol_type, [row.name for row in request.protocols]):
        _refuse_join(store, token, request.member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    elif new:
        _join_new(store, group, request, version, client_id, host, token)
    else:
        _join_known(store, group, request, client_id, host, token)
    if known is None and group is not None:
        # As in Kafka, even a rejected join creates an empty group that can be described.
        store.record_group(group)


def join_fault(store: GroupStore, request) -> int:
    """Return the error if the request is invalid for any group, or NONE."""
    limits = store.limits
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if not limits.session_ms_min <= request.session_timeout_ms <= limits.session_ms_max:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    if len(request.protocols) > PROTOCOLS_MAX:
        return ErrorCode.INVALID_REQUEST
    if request.group_id in store.deleting:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if sum(len(row.name) + len(row.metadata) for row in request.protocols) > JOIN_BYTES_MAX:
        return ErrorCode.MESSAGE_TOO_LARGE
    return ErrorCode.NONE


def _has_room(store: GroupStore, group: Group, member_id: str) -> bool:
    if group.state == EMPTY:
        return True
    member = group.members.get(member_id)
    if group.state == PREPARING:
        return (member is not None and member.join_token is not None
                or group.awaiting < store.limits.members_max)
    return member is not None or len(group.members) < store.limits.members_max


def _join_new(store: GroupStore, group, request, version, client_id, host, token) -> None:
    instance_id = request.group_instance_id
    name = client_id if instance_id is None else instance_id
    # Records and responses hold at most 32,767 bytes.
    member_id = f"{name[:NAME_IN_ID_MAX]}-{store.new_id()}"
    if instance_id is None and version >= MEMBER_ID_SINCE:
        group.pending.add(member_id)
        store.timers.set((MEMBER, group.id, member_id),
                         store.clock.now_ms() + request.session_timeout_ms)
        _refuse_join(store, token, member_id, ErrorCode.MEMBER_ID_REQUIRED)
    elif instance_id is not None and instance_id in group.statics:
        _replace_static(store, group, member_id, request, version, token)
    else:
        _add_member(store, group, member_id, request, client_id, host, token)


def _join_known(store: GroupStore, group, request, client_id, host, token) -> None:
    member_id = request.member_id
    if member_id in group.pending:
        _add_member(store, group, member_id, request, client_id, host, token)
        return
    error = _member_fault(group, member_id, request.group_instance_id)
    if error != ErrorCode.NONE:
        _refuse_join(store, token, member_id, error)
        return
    member = group.members[member_id]
    same = member.protocols == _protocols(request)
    leads = group.leader == member_id
    if group.state == COMPLETING and same or group.state == STABLE and same and not leads:
        # The previous response was lost: repeat it.
        _respond(store, group, member, token, _joined(group, member))
    elif group.state in (PREPARING, COMPLETING, STABLE):
        if group.state != PREPARING:
            store.rebalances.because(group, rebalance_tracker.REJOINED, member, _reason(request))
        _update_member(store, group, member, request, token)
        _rebalance_or_complete(store, group)
    else:
        _refuse_join(store, token, member_id, ErrorCode.UNKNOWN_MEMBER_ID)


def _add_member(store: GroupStore, group, member_id, request, client_id, host, token) -> None:
    member = Member(
        member_id, request.group_instance_id, client_id, host, _rebalance_ms(request),
        request.session_timeout_ms, _protocols(request))
    member.is_new = True
    store.events["member_joined"] += 1
    if group.state == PREPARING and group.previous == EMPTY:
        group.grown = True
    group.add(member, request.protocol_type)
    store.rebalances.because(group, rebalance_tracker.JOINED, member, _reason(request))
    _await_join(store, group, member, token)
    # The client does not have its member id yet, so it cannot send heartbeats.
    store.timers.set((MEMBER, group.id, member_id), store.clock.now_ms() + NEW_MEMBER_JOIN_MS)
    _rebalance_or_complete(store, group)


def _update_member(store: GroupStore, group, member, request, token) -> None:
    group.set_protocols(member, _protocols(request))
    member.rebalance_ms = _rebalance_ms(request)
    member.session_ms = request.session_timeout_ms
    _await_join(store, group, member, token)


def _await_join(store: GroupStore, group, member, token) -> None:
    if member.join_token is not None:
        # Reject the earlier request: the client retried, probably on a new connection.
        _refuse_join(store, member.join_token, member.id, ErrorCode.REBALANCE_IN_PROGRESS)
    else:
        group.awaiting += 1
    member.join_token = token
    store.rebalances.stops(group, member)


def _replace_static(store: GroupStore, group, member_id, request, version, token) -> None:
    """Replace a static member that rejoins under a new member id.

    Rebalances only if the selected protocol changes.
    """
    old = group.members[group.statics[request.group_instance_id]]
    leader = group.leader
    _respond_to_join(store, group, old, messages.JoinGroupResponse(
        error_code=ErrorCode.FENCED_INSTANCE_ID, member_id=old.id, protocol_name=None))
    _respond_to_sync(store, group, old, ErrorCode.FENCED_INSTANCE_ID)
    store.timers.cancel((MEMBER, group.id, old.id))
    store.rebalances.works(group, old.id)
    member = group.replace(old, member_id)
    _expect(store, group, member)
    _update_member(store, group, member, request, token)
    if group.state == STABLE and group.select_protocol() == group.protocol:
        store.record_group(group)
        response = _joined(group, member)
        if version >= SKIP_ASSIGNMENT_SINCE:
            response.skip_assignment = group.leader == member.id
        else:
            # Return the old leader, so that this client does not compute an assignment.
            response.leader, response.members = leader, []
        _respond_to_join(store, group, member, response)
        return
    store.rebalances.because(group, rebalance_tracker.REPLACED, member, _reason(request))
    store.rebalances.stops(group, member)
    _rebalance_or_complete(store, group)


def _refuse_join(store: GroupStore, token, member_id: str, error: int) -> None:
    store.responses.append((token, messages.JoinGroupResponse(
        error_code=error, member_id=member_id, protocol_name=None)))


def _respond_to_join(store: GroupStore, group, member, response) -> bool:
    if member.join_token is None:
        return False
    assert group.awaiting > 0, group.id
    _respond(store, group, member, member.join_token, response)
    member.join_token = None
    group.awaiting -= 1
    return True


# ---- the join phase -----------------------------------------------------------------------------

def rebalance(store: GroupStore, group: Group) -> None:
    """Make the members rejoin, unless a rebalance is already preparing."""
    if group.state in (COMPLETING, STABLE):
        _rebalance(store, group, rebalance_tracker.DOWNGRADED)


def _rebalance_or_complete(store: GroupStore, group) -> None:
    if group.state == PREPARING:
        _complete_if_all_joined(store, group)
    else:
        _rebalance(store, group)


def _rebalance(store: GroupStore, group, cause: str = "", member=None) -> None:
    """Start the join phase: all members must rejoin. cause: empty if already reported."""
    store.events["rebalance"] += 1
    if cause:
        store.rebalances.because(group, cause, member)
    if group.state == COMPLETING:
        for member in group.members.values():
            member.assignment = b""
            if _respond_to_sync(store, group, member, ErrorCode.REBALANCE_IN_PROGRESS):
                _expect(store, group, member)
    store.timers.cancel((SYNC, group.id))
    first = group.state == EMPTY
    group.move(PREPARING, store.clock.wall_ms())
    if first:
        delay_ms = store.limits.initial_delay_ms
        group.grown = False
        store.initial_left_ms[group.id] = max(group.rebalance_ms - delay_ms, 0)
        store.timers.set((JOIN, group.id), store.clock.now_ms() + delay_ms)
    elif group.all_joined():
        _complete_join(store, group)
    else:
        store.timers.set((JOIN, group.id), store.clock.now_ms() + group.rebalance_ms)


def _complete_if_all_joined(store: GroupStore, group) -> None:
    if group.state == PREPARING and group.all_joined() and group.previous != EMPTY:
        _complete_join(store, group)


def _join_is_due(store: GroupStore, group) -> None:
    left_ms = store.initial_left_ms.get(group.id, 0)
    if group.previous == EMPTY and group.grown and left_ms:
        # A member joined during the initial delay: extend it, more may follow.
        group.grown = False
        delay_ms = min(store.limits.initial_delay_ms, left_ms)
        store.initial_left_ms[group.id] = max(left_ms - delay_ms, 0)
        store.timers.set((JOIN, group.id), store.clock.now_ms() + delay_ms)
    else:
        _complete_join(store, group)


def _complete_join(store: GroupStore, group) -> None:
    """End the join phase with the members that joined."""
    store.timers.cancel((JOIN, group.id))
    store.initial_left_ms.pop(group.id, None)
    for member in list(group.members.values()):
        if member.join_token is None and member.instance_id is None:
            store.rebalances.because(group, rebalance_tracker.NOT_REJOINED, member)
            _remove(store, group, member)
    if not group.elect() and group.members:
        # Only absent static members are left: wait for their sessions to expire.
        store.timers.set((JOIN, group.id), store.clock.now_ms() + max(
            group.rebalance_ms, ABSENT_JOIN_MS_MIN))
        return
    group.next_generation(store.clock.wall_ms())
    store.events["generation"] += 1
    if group.state == EMPTY:
        store.record_group(group)
        store.rebalances.finish(group)
        return
    for member in group.members.values():
        _respond_to_join(store, group, member, _joined(group, member))
        _expect(store, group, member)
        member.is_new = False
        group.unsynced.add(member.id)
    store.timers.set((SYNC, group.id), store.clock.now_ms() + group.rebalance_ms)


# ---- SyncGroup ----------------------------------------------------------------------------------

def sync(store: GroupStore, request, token) -> None:
    """Handle SyncGroup. Followers get their response when the leader has synced."""
    group = store.find(request.group_id)
    error = _sync_fault(store, group, request)
    if group is None or error != ErrorCode.NONE:
        store.responses.append((token, messages.SyncGroupResponse(error_code=error)))
        return
    member = group.members[request.member_id]
    group.unsynced.discard(member.id)
    if not group.unsynced:
        store.timers.cancel((SYNC, group.id))
    _respond_to_sync(store, group, member, ErrorCode.REBALANCE_IN_PROGRESS)
    member.sync_token = token
    if group.state == STABLE:
        _respond_with_assignment(store, group, member)
    elif group.leader == member.id:
        _assign(store, group, {row.member_id: bytes(row.assignment)
                               for row in request.assignments})


def _sync_fault(store: GroupStore, group, request) -> int:
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if group is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    error = _member_fault(group, request.member_id, request.group_instance_id)
    if error != ErrorCode.NONE:
        return error
    if request.generation_id != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if request.protocol_type not in (None, group.protocol_type) \
            or request.protocol_name not in (None, group.protocol):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state == PREPARING:
        return ErrorCode.REBALANCE_IN_PROGRESS
    if sum(len(row.assignment) for row in request.assignments) > ASSIGNMENT_BYTES_MAX:
        return ErrorCode.MESSAGE_TOO_LARGE
    return ErrorCode.NONE


def _assign(store: GroupStore, group, assignments: dict) -> None:
    # Write the record before the responses.
    for member in group.members.values():
        member.assignment = assignments.get(member.id, b"")
    group.move(STABLE, store.clock.wall_ms())
    store.record_group(group)
    for member in group.members.values():
        if member.sync_token is not None:
            _respond_with_assignment(store, group, member)


def _respond_with_assignment(store: GroupStore, group, member) -> None:
    _respond(store, group, member, member.sync_token, messages.SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol,
        assignment=member.assignment))
    member.sync_token = None
    _expect(store, group, member)
    store.rebalances.works(group, member.id)
    if not group.unsynced:
        store.rebalances.finish(group)


def _respond_to_sync(store: GroupStore, group, member, error: int) -> bool:
    if member.sync_token is None:
        return False
    _respond(store, group, member, member.sync_token,
            messages.SyncGroupResponse(error_code=error))
    member.sync_token = None
    return True


# ---- Heartbeat, LeaveGroup ----------------------------------------------------------------------

def heartbeat(store: GroupStore, request) -> int:
    """Handle Heartbeat and return its error code."""
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    group = store.find(request.group_id)
    if group is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    error = _member_fault(group, request.member_id, request.group_instance_id)
    if error != ErrorCode.NONE:
        return error
    if request.generation_id != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    _expect(store, group, group.members[request.member_id])
    return ErrorCode.REBALANCE_IN_PROGRESS if group.state == PREPARING else ErrorCode.NONE


def leave(store: GroupStore, group_id: str, members) -> list | int:
    """Handle LeaveGroup. Return an error code per member, or one for the request.

    members: (member id, instance id or None, optionally the reason).
    """
    if not group_id:
        return ErrorCode.INVALID_GROUP_ID
    group = store.find(group_id)
    if group is None:
        return [ErrorCode.UNKNOWN_MEMBER_ID] * len(members)
    return [_leave(store, group, *member) for member in members]


def _leave(store: GroupStore, group, member_id, instance_id, reason: str | None = "") -> int:
    if not member_id:
        # An administrator removes a static member by instance id, without its member id.
        member_id = group.statics.get(instance_id)
        if member_id is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
    elif member_id in group.pending:
        _remove_pending(store, group, member_id)
        return ErrorCode.NONE
    else:
        error = _member_fault(group, member_id, instance_id)
        if error != ErrorCode.NONE:
            return error
    store.events["member_left"] += 1
    _lose(store, group, group.members[member_id], rebalance_tracker.LEFT, reason)
    return ErrorCode.NONE


def _lose(store: GroupStore, group, member, cause: str, reason: str | None = "") -> None:
    """Remove a member and rebalance its partitions."""
    store.rebalances.because(group, cause, member, reason)
    _remove(store, group, member)
    _rebalance_or_complete(store, group)


def _remove(store: GroupStore, group, member) -> None:
    store.timers.cancel((MEMBER, group.id, member.id))
    # Answer the waiting requests. If the client still runs, it rejoins.
    _respond_to_join(store, group, member, messages.JoinGroupResponse(
        error_code=ErrorCode.UNKNOWN_MEMBER_ID, member_id="", protocol_name=None))
    _respond_to_sync(store, group, member, ErrorCode.UNKNOWN_MEMBER_ID)
    store.rebalances.works(group, member.id)
    group.remove(member.id)


def _remove_pending(store: GroupStore, group, member_id) -> None:
    group.pending.discard(member_id)
    store.timers.cancel((MEMBER, group.id, member_id))
    _complete_if_all_joined(store, group)


def _respond(store: GroupStore, group, member, token, message) -> None:
    store.responses.append((token, message))
    store.responses.append((SentResponse(store, group, member), None))


# ---- time ---------------------------------------------------------------------------------------

def response_sent(store: GroupStore, group: Group, member: Member) -> None:
    """Start the member's session: a response to it was sent."""
    if store.groups.get(group.id) is group and group.members.get(member.id) is member:
        # The timer is already in the heap, so the runtime does not have to rearm it.
        store.timers.prolong((MEMBER, group.id, member.id),
                             store.clock.now_ms() + member.session_ms)


def expect(store: GroupStore, group: Group, member_id: str) -> None:
    """Restart the session of a member after a request other than Heartbeat."""
    _expect(store, group, group.members[member_id])


def _expect(store: GroupStore, group, member) -> None:
    store.timers.set((MEMBER, group.id, member.id), store.clock.now_ms() + member.session_ms)


def expire_session(store: GroupStore, group: Group, member_id: str) -> None:
    """Expire a member as if its session had timed out."""
    _lose(store, group, group.members[member_id], rebalance_tracker.EXPIRED)


def due(store: GroupStore, group: Group, key: tuple[Any, ...]) -> None:
    """Handle an expired timer of the group."""
    if key[0] == MEMBER:
        _member_is_due(store, group, key[2])
    elif key[0] == JOIN:
        _join_is_due(store, group)
    else:
        _sync_is_due(store, group)


def _member_is_due(store: GroupStore, group, member_id) -> None:
    if member_id in group.pending:
        _remove_pending(store, group, member_id)
        return
    member = group.members.get(member_id)
    if member is None:
        return
    if member.unsent and not member.is_new:
        _expect(store, group, member)
    elif member.may_expire():
        store.events["member_expired"] += 1
        _lose(store, group, member, rebalance_tracker.EXPIRED)


def _sync_is_due(store: GroupStore, group) -> None:
    """Remove members that joined but did not sync in time, because the others wait for them."""
    if group.state in (COMPLETING, STABLE) and group.unsynced:
        for member_id in list(group.unsynced):
            member = group.members[member_id]
            store.rebalances.because(group, rebalance_tracker.NOT_SYNCED, member)
            _remove(store, group, member)
        _rebalance(store, group)


def dissolve(store: GroupStore, group: Group) -> None:
    """Reject waiting requests and cancel timers before the group changes its type."""
    for member in group.members.values():
        _respond_to_join(store, group, member, messages.JoinGroupResponse(
            error_code=ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.id,
            protocol_name=None))
        _respond_to_sync(store, group, member, ErrorCode.REBALANCE_IN_PROGRESS)
    for member_id in (*group.members, *group.pending):
        store.timers.cancel((MEMBER, group.id, member_id))
    for kind in (JOIN, SYNC):
        store.timers.cancel((kind, group.id))
    store.initial_left_ms.pop(group.id, None)
    store.record_gone(group)


def _member_fault(group, member_id, instance_id) -> int:
    fault = group.fault_of(member_id, instance_id)
    if fault is None:
        return ErrorCode.NONE
    return ErrorCode.FENCED_INSTANCE_ID if fault == "fenced" else ErrorCode.UNKNOWN_MEMBER_ID


def _protocols(request) -> list:
    return [(row.name, bytes(row.metadata)) for row in request.protocols]


def _reason(request) -> str | None:
    return request.reason   # KIP-800.


def _rebalance_ms(request) -> int:
    # Version 0 has no rebalance timeout.
    return request.rebalance_timeout_ms if request.rebalance_timeout_ms >= 0 \
        else request.session_timeout_ms


def _joined(group, member):
    """Return the JoinGroup response for the current generation; the leader gets all members."""
    new = messages.JoinGroupResponse
    rows = [] if group.leader != member.id else [
        new.JoinGroupResponseMember(
            member_id=other.id, group_instance_id=other.instance_id,
            metadata=other.metadata(group.protocol))
        for other in group.members.values()]
    return new(generation_id=group.generation, protocol_type=group.protocol_type,
               protocol_name=group.protocol, leader=group.leader, member_id=member.id,
               members=rows)

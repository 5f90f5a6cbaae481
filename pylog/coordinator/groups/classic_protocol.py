"""Classic groups as a pure state machine: takes requests and a clock, produces records and replies.

Owns: nothing; the groups belong to the state machine.
Invariants: a waiting JoinGroup or SyncGroup is answered once; members of one generation get the
  assignment of one leader; a generation is never reused while its group exists; a generation's
  assignment is sent after its record is durable.
Source: Kafka's group protocol: KIP-62, KIP-134 (initial delay), KIP-345 (static members), KIP-394
  (member ids), KIP-559 (protocol in SyncGroup), KIP-814 (skip assignment).

The caller chooses what a token is; this module only stores it and returns it with the reply.
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


class SentAnswer:
    """A journal token that follows a member's reply: sending the reply starts the session.

    Until then the client cannot send heartbeats, because it does not have its member id or
    generation. The member must not expire, however long the flush before the reply takes.
    """

    is_request = False
    __slots__ = ("_group", "_groups", "_member")

    def __init__(self, groups: "ClassicGroups", group: Group, member: Member):
        self._groups, self._group, self._member = groups, group, member
        member.unsent += 1

    def answer(self, message: None) -> None:
        self._member.unsent -= 1
        self._groups.answer_sent(self._group, self._member)

    def refuse(self, error: int) -> None:
        """Do nothing: this member's state machine is no longer serving."""


class ClassicGroups(GroupStore):
    """Handles requests of classic groups."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self._initial_left_ms: dict[str, int] = {}  # Rest of the initial rebalance delay.

    def loaded_classic(self, group: Group) -> None:
        """Start the sessions of all members after a load."""
        for member in group.members.values():
            self._expect(group, member)
        if len(group.members) > self.limits.members_max:
            self._rebalance(group, rebalance_tracker.TOO_MANY)
        elif group.state == COMPLETING:
            self._rebalance(group, rebalance_tracker.LOADED)

    # ---- JoinGroup ------------------------------------------------------------------------------

    def join(self, request, version: int, client_id: str, host: str, token) -> None:
        """Handle JoinGroup. Replies immediately or at the end of the join phase."""
        error = self.join_fault(request)
        if error != ErrorCode.NONE:
            self._refuse_join(token, request.member_id, error)
            return
        new = not request.member_id
        known = self.find(request.group_id)
        group = self.find_or_make(request.group_id) if new else known
        if group is None:
            self._refuse_join(token, request.member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        elif not self._has_room(group, request.member_id):
            group.pending.discard(request.member_id)
            self._refuse_join(token, "", ErrorCode.GROUP_MAX_SIZE_REACHED)
        elif not group.supports(request.protocol_type, [row.name for row in request.protocols]):
            self._refuse_join(token, request.member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        elif new:
            self._join_new(group, request, version, client_id, host, token)
        else:
            self._join_known(group, request, client_id, host, token)
        if known is None and group is not None:
            # As in Kafka, even a rejected join creates an empty group that can be described.
            self.record_group(group)

    def join_fault(self, request) -> int:
        """Return the error if the request is invalid for any group, or NONE."""
        limits = self.limits
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        if not limits.session_ms_min <= request.session_timeout_ms <= limits.session_ms_max:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if len(request.protocols) > PROTOCOLS_MAX:
            return ErrorCode.INVALID_REQUEST
        if request.group_id in self.deleting:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if sum(len(row.name) + len(row.metadata) for row in request.protocols) > JOIN_BYTES_MAX:
            return ErrorCode.MESSAGE_TOO_LARGE
        return ErrorCode.NONE

    def _has_room(self, group: Group, member_id: str) -> bool:
        if group.state == EMPTY:
            return True
        member = group.members.get(member_id)
        if group.state == PREPARING:
            return (member is not None and member.join_token is not None
                    or group.awaiting < self.limits.members_max)
        return member is not None or len(group.members) < self.limits.members_max

    def _join_new(self, group, request, version, client_id, host, token) -> None:
        instance_id = request.group_instance_id
        name = client_id if instance_id is None else instance_id
        # Records and responses hold at most 32,767 bytes.
        member_id = f"{name[:NAME_IN_ID_MAX]}-{self._new_id()}"
        if instance_id is None and version >= MEMBER_ID_SINCE:
            group.pending.add(member_id)
            self.timers.set((MEMBER, group.id, member_id),
                            self.clock.now_ms() + request.session_timeout_ms)
            self._refuse_join(token, member_id, ErrorCode.MEMBER_ID_REQUIRED)
        elif instance_id is not None and instance_id in group.statics:
            self._replace_static(group, member_id, request, version, token)
        else:
            self._add_member(group, member_id, request, client_id, host, token)

    def _join_known(self, group, request, client_id, host, token) -> None:
        member_id = request.member_id
        if member_id in group.pending:
            self._add_member(group, member_id, request, client_id, host, token)
            return
        error = _member_fault(group, member_id, request.group_instance_id)
        if error != ErrorCode.NONE:
            self._refuse_join(token, member_id, error)
            return
        member = group.members[member_id]
        same = member.protocols == _protocols(request)
        leads = group.leader == member_id
        if group.state == COMPLETING and same or group.state == STABLE and same and not leads:
            # The previous response was lost: repeat it.
            self._answer(group, member, token, _joined(group, member))
        elif group.state in (PREPARING, COMPLETING, STABLE):
            if group.state != PREPARING:
                self.rebalances.because(group, rebalance_tracker.REJOINED, member, _reason(request))
            self._update_member(group, member, request, token)
            self._rebalance_or_complete(group)
        else:
            self._refuse_join(token, member_id, ErrorCode.UNKNOWN_MEMBER_ID)

    def _add_member(self, group, member_id, request, client_id, host, token) -> None:
        member = Member(
            member_id, request.group_instance_id, client_id, host, _rebalance_ms(request),
            request.session_timeout_ms, _protocols(request))
        member.is_new = True
        self.events["member_joined"] += 1
        if group.state == PREPARING and group.previous == EMPTY:
            group.grown = True
        group.add(member, request.protocol_type)
        self.rebalances.because(group, rebalance_tracker.JOINED, member, _reason(request))
        self._await_join(group, member, token)
        # The client does not have its member id yet, so it cannot send heartbeats.
        self.timers.set((MEMBER, group.id, member_id), self.clock.now_ms() + NEW_MEMBER_JOIN_MS)
        self._rebalance_or_complete(group)

    def _update_member(self, group, member, request, token) -> None:
        group.set_protocols(member, _protocols(request))
        member.rebalance_ms = _rebalance_ms(request)
        member.session_ms = request.session_timeout_ms
        self._await_join(group, member, token)

    def _await_join(self, group, member, token) -> None:
        if member.join_token is not None:
            # Reject the earlier request: the client retried, probably on a new connection.
            self._refuse_join(member.join_token, member.id, ErrorCode.REBALANCE_IN_PROGRESS)
        else:
            group.awaiting += 1
        member.join_token = token
        self.rebalances.stops(group, member)

    def _replace_static(self, group, member_id, request, version, token) -> None:
        """Replace a static member that rejoins under a new member id.

        Rebalances only if the selected protocol changes.
        """
        old = group.members[group.statics[request.group_instance_id]]
        leader = group.leader
        self._answer_join(group, old, messages.JoinGroupResponse(
            error_code=ErrorCode.FENCED_INSTANCE_ID, member_id=old.id, protocol_name=None))
        self._answer_sync(group, old, ErrorCode.FENCED_INSTANCE_ID)
        self.timers.cancel((MEMBER, group.id, old.id))
        self.rebalances.works(group, old.id)
        member = group.replace(old, member_id)
        self._expect(group, member)
        self._update_member(group, member, request, token)
        if group.state == STABLE and group.select_protocol() == group.protocol:
            self.record_group(group)
            answer = _joined(group, member)
            if version >= SKIP_ASSIGNMENT_SINCE:
                answer.skip_assignment = group.leader == member.id
            else:
                # Return the old leader, so that this client does not compute an assignment.
                answer.leader, answer.members = leader, []
            self._answer_join(group, member, answer)
            return
        self.rebalances.because(group, rebalance_tracker.REPLACED, member, _reason(request))
        self.rebalances.stops(group, member)
        self._rebalance_or_complete(group)

    def _refuse_join(self, token, member_id: str, error: int) -> None:
        self.replies.append((token, messages.JoinGroupResponse(
            error_code=error, member_id=member_id, protocol_name=None)))

    def _answer_join(self, group, member, answer) -> bool:
        if member.join_token is None:
            return False
        assert group.awaiting > 0, group.id
        self._answer(group, member, member.join_token, answer)
        member.join_token = None
        group.awaiting -= 1
        return True

    # ---- the join phase -------------------------------------------------------------------------

    def rebalance(self, group: Group) -> None:
        """Make the members rejoin, unless a rebalance is already preparing."""
        if group.state in (COMPLETING, STABLE):
            self._rebalance(group, rebalance_tracker.DOWNGRADED)

    def _rebalance_or_complete(self, group) -> None:
        if group.state == PREPARING:
            self._complete_if_all_joined(group)
        else:
            self._rebalance(group)

    def _rebalance(self, group, cause: str = "", member=None) -> None:
        """Start the join phase: all members must rejoin. cause: empty if already reported."""
        self.events["rebalance"] += 1
        if cause:
            self.rebalances.because(group, cause, member)
        if group.state == COMPLETING:
            for member in group.members.values():
                member.assignment = b""
                if self._answer_sync(group, member, ErrorCode.REBALANCE_IN_PROGRESS):
                    self._expect(group, member)
        self.timers.cancel((SYNC, group.id))
        first = group.state == EMPTY
        group.move(PREPARING, self.clock.wall_ms())
        if first:
            delay_ms = self.limits.initial_delay_ms
            group.grown = False
            self._initial_left_ms[group.id] = max(group.rebalance_ms - delay_ms, 0)
            self.timers.set((JOIN, group.id), self.clock.now_ms() + delay_ms)
        elif group.all_joined():
            self._complete_join(group)
        else:
            self.timers.set((JOIN, group.id), self.clock.now_ms() + group.rebalance_ms)

    def _complete_if_all_joined(self, group) -> None:
        if group.state == PREPARING and group.all_joined() and group.previous != EMPTY:
            self._complete_join(group)

    def _join_is_due(self, group) -> None:
        left_ms = self._initial_left_ms.get(group.id, 0)
        if group.previous == EMPTY and group.grown and left_ms:
            # A member joined during the initial delay: extend it, more may follow.
            group.grown = False
            delay_ms = min(self.limits.initial_delay_ms, left_ms)
            self._initial_left_ms[group.id] = max(left_ms - delay_ms, 0)
            self.timers.set((JOIN, group.id), self.clock.now_ms() + delay_ms)
        else:
            self._complete_join(group)

    def _complete_join(self, group) -> None:
        """End the join phase with the members that joined."""
        self.timers.cancel((JOIN, group.id))
        self._initial_left_ms.pop(group.id, None)
        for member in list(group.members.values()):
            if member.join_token is None and member.instance_id is None:
                self.rebalances.because(group, rebalance_tracker.NOT_REJOINED, member)
                self._remove(group, member)
        if not group.elect() and group.members:
            # Only absent static members are left: wait for their sessions to expire.
            self.timers.set((JOIN, group.id), self.clock.now_ms() + max(
                group.rebalance_ms, ABSENT_JOIN_MS_MIN))
            return
        group.next_generation(self.clock.wall_ms())
        self.events["generation"] += 1
        if group.state == EMPTY:
            self.record_group(group)
            self.rebalances.ends(group)
            return
        for member in group.members.values():
            self._answer_join(group, member, _joined(group, member))
            self._expect(group, member)
            member.is_new = False
            group.unsynced.add(member.id)
        self.timers.set((SYNC, group.id), self.clock.now_ms() + group.rebalance_ms)

    # ---- SyncGroup ------------------------------------------------------------------------------

    def sync(self, request, token) -> None:
        """Handle SyncGroup. Followers get their reply when the leader has synced."""
        group = self.find(request.group_id)
        error = self._sync_fault(group, request)
        if group is None or error != ErrorCode.NONE:
            self.replies.append((token, messages.SyncGroupResponse(error_code=error)))
            return
        member = group.members[request.member_id]
        group.unsynced.discard(member.id)
        if not group.unsynced:
            self.timers.cancel((SYNC, group.id))
        self._answer_sync(group, member, ErrorCode.REBALANCE_IN_PROGRESS)
        member.sync_token = token
        if group.state == STABLE:
            self._answer_assignment(group, member)
        elif group.leader == member.id:
            self._assign(group, {row.member_id: bytes(row.assignment)
                                 for row in request.assignments})

    def _sync_fault(self, group, request) -> int:
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

    def _assign(self, group, assignments: dict) -> None:
        # Write the record before the replies.
        for member in group.members.values():
            member.assignment = assignments.get(member.id, b"")
        group.move(STABLE, self.clock.wall_ms())
        self.record_group(group)
        for member in group.members.values():
            if member.sync_token is not None:
                self._answer_assignment(group, member)

    def _answer_assignment(self, group, member) -> None:
        self._answer(group, member, member.sync_token, messages.SyncGroupResponse(
            protocol_type=group.protocol_type, protocol_name=group.protocol,
            assignment=member.assignment))
        member.sync_token = None
        self._expect(group, member)
        self.rebalances.works(group, member.id)
        if not group.unsynced:
            self.rebalances.ends(group)

    def _answer_sync(self, group, member, error: int) -> bool:
        if member.sync_token is None:
            return False
        self._answer(group, member, member.sync_token,
                     messages.SyncGroupResponse(error_code=error))
        member.sync_token = None
        return True

    # ---- Heartbeat, LeaveGroup ------------------------------------------------------------------

    def heartbeat(self, request) -> int:
        """Handle Heartbeat and return its error code."""
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self.find(request.group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = _member_fault(group, request.member_id, request.group_instance_id)
        if error != ErrorCode.NONE:
            return error
        if request.generation_id != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        self._expect(group, group.members[request.member_id])
        return ErrorCode.REBALANCE_IN_PROGRESS if group.state == PREPARING else ErrorCode.NONE

    def leave(self, group_id: str, members) -> list | int:
        """Handle LeaveGroup. Return an error code per member, or one for the request.

        members: (member id, instance id or None, optionally the reason).
        """
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self.find(group_id)
        if group is None:
            return [ErrorCode.UNKNOWN_MEMBER_ID] * len(members)
        return [self._leave(group, *member) for member in members]

    def _leave(self, group, member_id, instance_id, reason: str | None = "") -> int:
        if not member_id:
            # An administrator removes a static member by instance id, without its member id.
            member_id = group.statics.get(instance_id)
            if member_id is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
        elif member_id in group.pending:
            self._remove_pending(group, member_id)
            return ErrorCode.NONE
        else:
            error = _member_fault(group, member_id, instance_id)
            if error != ErrorCode.NONE:
                return error
        self.events["member_left"] += 1
        self._lose(group, group.members[member_id], rebalance_tracker.LEFT, reason)
        return ErrorCode.NONE

    def _lose(self, group, member, cause: str, reason: str | None = "") -> None:
        """Remove a member and rebalance its partitions."""
        self.rebalances.because(group, cause, member, reason)
        self._remove(group, member)
        self._rebalance_or_complete(group)

    def _remove(self, group, member) -> None:
        self.timers.cancel((MEMBER, group.id, member.id))
        # Answer the waiting requests. If the client still runs, it rejoins.
        self._answer_join(group, member, messages.JoinGroupResponse(
            error_code=ErrorCode.UNKNOWN_MEMBER_ID, member_id="", protocol_name=None))
        self._answer_sync(group, member, ErrorCode.UNKNOWN_MEMBER_ID)
        self.rebalances.works(group, member.id)
        group.remove(member.id)

    def _remove_pending(self, group, member_id) -> None:
        group.pending.discard(member_id)
        self.timers.cancel((MEMBER, group.id, member_id))
        self._complete_if_all_joined(group)

    def _answer(self, group, member, token, message) -> None:
        self.replies.append((token, message))
        self.replies.append((SentAnswer(self, group, member), None))

    # ---- time -----------------------------------------------------------------------------------

    def answer_sent(self, group: Group, member: Member) -> None:
        """Start the member's session: a reply to it was sent."""
        if self.groups.get(group.id) is group and group.members.get(member.id) is member:
            # The timer is already in the heap, so the runtime does not have to rearm it.
            self.timers.prolong((MEMBER, group.id, member.id),
                                self.clock.now_ms() + member.session_ms)

    def expect(self, group: Group, member_id: str) -> None:
        """Restart the session of a member after a request other than Heartbeat."""
        self._expect(group, group.members[member_id])

    def _expect(self, group, member) -> None:
        self.timers.set((MEMBER, group.id, member.id), self.clock.now_ms() + member.session_ms)

    def expire_session(self, group: Group, member_id: str) -> None:
        """Expire a member as if its session had timed out."""
        self._lose(group, group.members[member_id], rebalance_tracker.EXPIRED)

    def is_due(self, group: Group, key: tuple[Any, ...]) -> None:
        """Handle an expired timer of the group."""
        if key[0] == MEMBER:
            self._member_is_due(group, key[2])
        elif key[0] == JOIN:
            self._join_is_due(group)
        else:
            self._sync_is_due(group)

    def _member_is_due(self, group, member_id) -> None:
        if member_id in group.pending:
            self._remove_pending(group, member_id)
            return
        member = group.members.get(member_id)
        if member is None:
            return
        if member.unsent and not member.is_new:
            self._expect(group, member)
        elif member.may_expire():
            self.events["member_expired"] += 1
            self._lose(group, member, rebalance_tracker.EXPIRED)

    def _sync_is_due(self, group) -> None:
        """Remove members that joined but did not sync in time, because the others wait for them."""
        if group.state in (COMPLETING, STABLE) and group.unsynced:
            for member_id in list(group.unsynced):
                member = group.members[member_id]
                self.rebalances.because(group, rebalance_tracker.NOT_SYNCED, member)
                self._remove(group, member)
            self._rebalance(group)

    def dissolve(self, group: Group) -> None:
        """Reject waiting requests and cancel timers before the group changes its type."""
        for member in group.members.values():
            self._answer_join(group, member, messages.JoinGroupResponse(
                error_code=ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.id,
                protocol_name=None))
            self._answer_sync(group, member, ErrorCode.REBALANCE_IN_PROGRESS)
        for member_id in (*group.members, *group.pending):
            self.timers.cancel((MEMBER, group.id, member_id))
        for kind in (JOIN, SYNC):
            self.timers.cancel((kind, group.id))
        self._initial_left_ms.pop(group.id, None)
        self.record_gone(group)



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

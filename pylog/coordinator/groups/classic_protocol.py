"""Groups of the classic protocol as a pure state machine: requests and a clock in, records and
replies out.

Owns: nothing; the groups are the machine's.
Invariants: (1) an open JoinGroup or SyncGroup is answered once; (2) members of one generation get
  the assignment of one leader; (3) a generation is never used again while its group lives; (4)
  whoever learns of a generation's assignment does so after its record.
Source: Kafka's group protocol: KIP-62, KIP-134 (initial delay), KIP-345 (static members), KIP-394
  (member ids), KIP-559 (protocol in SyncGroup), KIP-814 (skip assignment).

A token stands for an unanswered request; what it is, is the caller's affair.
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
from pylog.coordinator.groups.state.group_store import GroupMachine
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode

MEMBER_ID_SINCE = 4         # The JoinGroup version whose clients know MEMBER_ID_REQUIRED (KIP-394).
SKIP_ASSIGNMENT_SINCE = 9   # KIP-814.
NEW_MEMBER_JOIN_MS = 5 * 60_000
ABSENT_JOIN_MS_MIN = 1000
PROTOCOLS_MAX = 1000
NAME_IN_ID_MAX = 1000
JOIN_BYTES_MAX = 512 << 10
ASSIGNMENT_BYTES_MAX = 8 << 20
MEMBER, JOIN, SYNC = "member", "join", "sync"    # Kinds of timers.


class SentAnswer:
    """A journal token that follows a member's answer: the member's session starts when it leaves.

    Until then the client cannot send heartbeats, because it does not have its member id or
    generation: the member must not expire, however long the flush before the answer takes.
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
        """Do nothing: the machine of this member serves no more."""


class ClassicGroups(GroupMachine):
    """See the module's head; only for groups of the kind."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self._initial_left_ms: dict[str, int] = {}   # Left of a group's first rebalance.

    def loaded_classic(self, group: Group) -> None:
        """After a start: members have a session's time to show up again."""
        for member in group.members.values():
            self._expect(group, member)
        if len(group.members) > self.limits.members_max:
            self._rebalance(group, rebalance_tracker.TOO_MANY)
        elif group.state == COMPLETING:
            self._rebalance(group, rebalance_tracker.LOADED)

    # ---- JoinGroup ------------------------------------------------------------------------------

    def join(self, request, version: int, client_id: str, host: str, token) -> None:
        """A JoinGroup request; answered at once or when the join phase is over."""
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
            # Even a refused join leaves an empty group, as in Kafka: others may describe it.
            self.record_group(group)

    def join_fault(self, request) -> int:
        """Why no group takes the request, or NONE."""
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
        # A record and an answer have place for 32,767 bytes.
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
            # The answer was lost on the way: it is given again.
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
        # The client does not know its id yet and cannot send heartbeats.
        self.timers.set((MEMBER, group.id, member_id), self.clock.now_ms() + NEW_MEMBER_JOIN_MS)
        self._rebalance_or_complete(group)

    def _update_member(self, group, member, request, token) -> None:
        group.set_protocols(member, _protocols(request))
        member.rebalance_ms = _rebalance_ms(request)
        member.session_ms = request.session_timeout_ms
        self._await_join(group, member, token)

    def _await_join(self, group, member, token) -> None:
        if member.join_token is not None:
            # Keeps (1): the client asked again, most likely over another connection.
            self._refuse_join(member.join_token, member.id, ErrorCode.REBALANCE_IN_PROGRESS)
        else:
            group.awaiting += 1
        member.join_token = token
        self.rebalances.stops(group, member)

    def _replace_static(self, group, member_id, request, version, token) -> None:
        """An instance is back under a new member id: no rebalance unless the protocol changes."""
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
                # The old leader's name, so that this member does not compute an assignment.
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
        """Has the members join again, unless they are about to."""
        if group.state in (COMPLETING, STABLE):
            self._rebalance(group, rebalance_tracker.DOWNGRADED)

    def _rebalance_or_complete(self, group) -> None:
        if group.state == PREPARING:
            self._complete_if_all_joined(group)
        else:
            self._rebalance(group)

    def _rebalance(self, group, cause: str = "", member=None) -> None:
        """Everybody is to join again. cause: unless it was told before."""
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
            # Somebody came while we waited for others: they may come in a row.
            group.grown = False
            delay_ms = min(self.limits.initial_delay_ms, left_ms)
            self._initial_left_ms[group.id] = max(left_ms - delay_ms, 0)
            self.timers.set((JOIN, group.id), self.clock.now_ms() + delay_ms)
        else:
            self._complete_join(group)

    def _complete_join(self, group) -> None:
        """Ends the join phase with those who joined."""
        self.timers.cancel((JOIN, group.id))
        self._initial_left_ms.pop(group.id, None)
        for member in list(group.members.values()):
            if member.join_token is None and member.instance_id is None:
                self.rebalances.because(group, rebalance_tracker.NOT_REJOINED, member)
                self._remove(group, member)
        if not group.elect() and group.members:
            # Static members only, none of which is here: their sessions decide.
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
        """A SyncGroup request; a follower's is answered when the leader's is here."""
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
        # Keeps (4): the record comes before the replies.
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
        """The error code that answers it."""
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
        """members: (member id, instance id or None, and perhaps why) each. Returns their error
        codes, or that of the request.
        """
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self.find(group_id)
        if group is None:
            return [ErrorCode.UNKNOWN_MEMBER_ID] * len(members)
        return [self._leave(group, *member) for member in members]

    def _leave(self, group, member_id, instance_id, reason: str | None = "") -> int:
        if not member_id:
            # An administrator names the instance; only the group knows the member id.
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
        """A member is gone: the others share its partitions anew."""
        self.rebalances.because(group, cause, member, reason)
        self._remove(group, member)
        self._rebalance_or_complete(group)

    def _remove(self, group, member) -> None:
        self.timers.cancel((MEMBER, group.id, member.id))
        # Keeps (1). A client that is there after all joins again.
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
        """Start the member's session: an answer to it has left."""
        if self.groups.get(group.id) is group and group.members.get(member.id) is member:
            # The timer is in the heap already, so that this needs no step of the runtime.
            self.timers.prolong((MEMBER, group.id, member.id),
                                self.clock.now_ms() + member.session_ms)

    def expect(self, group: Group, member_id: str) -> None:
        """A sign of life that is not a heartbeat."""
        self._expect(group, group.members[member_id])

    def _expect(self, group, member) -> None:
        self.timers.set((MEMBER, group.id, member.id), self.clock.now_ms() + member.session_ms)

    def expire_session(self, group: Group, member_id: str) -> None:
        """The member is taken for dead, as by its session's timer."""
        self._lose(group, group.members[member_id], rebalance_tracker.EXPIRED)

    def is_due(self, group: Group, key: tuple[Any, ...]) -> None:
        """A timer of the group has come."""
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
        """Whoever joined but never synced holds the others up."""
        if group.state in (COMPLETING, STABLE) and group.unsynced:
            for member_id in list(group.unsynced):
                member = group.members[member_id]
                self.rebalances.because(group, rebalance_tracker.NOT_SYNCED, member)
                self._remove(group, member)
            self._rebalance(group)

    def dissolve(self, group: Group) -> None:
        """The group is to be of another kind: whoever waits asks again."""
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
    # Version 0 had one timeout for both.
    return request.rebalance_timeout_ms if request.rebalance_timeout_ms >= 0 \
        else request.session_timeout_ms


def _joined(group, member):
    """The answer that names a member's generation; the leader's lists every member."""
    new = messages.JoinGroupResponse
    rows = [] if group.leader != member.id else [
        new.JoinGroupResponseMember(
            member_id=other.id, group_instance_id=other.instance_id,
            metadata=other.metadata(group.protocol))
        for other in group.members.values()]
    return new(generation_id=group.generation, protocol_type=group.protocol_type,
               protocol_name=group.protocol, leader=group.leader, member_id=member.id,
               members=rows)

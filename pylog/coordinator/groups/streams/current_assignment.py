"""Move a Streams group member from its current to its target tasks: revoke, then assign.

Owns: nothing.
Invariants: an active task is assigned only when no process runs it, and any task only when the
  member's process has no other copy of its state; a member's epoch advances to the target's once it
  has revoked everything it must; active tasks are assigned in that epoch.
Source: KIP-1071; Kafka's CurrentAssignmentBuilder.
"""

from pylog.coordinator.groups.assignors.tasks import Assignment, Tasks
from pylog.coordinator.groups.streams.group import (
    MEMBER_STABLE,
    NOTHING_HELD,
    UNRELEASED,
    UNREVOKED,
    Dated,
    Held,
    StreamsGroup,
    StreamsMember,
)


def reconciled(group: StreamsGroup, member: StreamsMember, epoch: int, target: Assignment,
               owned: Assignment | None) -> StreamsMember:
    """Return the member after its next step towards the target of `epoch`, or the same object.

    owned: the tasks that the member reports; None: not reported.
    """
    at = member.epoch
    if member.state == MEMBER_STABLE:
        if at == epoch:
            return member
    elif member.state == UNREVOKED:
        if owned is None or member.revoking.shares(owned):
            return member
        at += 1
    elif member.state != UNRELEASED:
        at = epoch
    return _next(group, member, at, epoch, target, owned)


def _next(group: StreamsGroup, member: StreamsMember, at: int, epoch: int, target: Assignment,
          owned: Assignment | None) -> StreamsMember:
    had, process = member.assigned, member.process_id
    retained_active, free, waits = _active_step(group, process, had.active, target.active)
    retained, revoked, after = [], [], []
    for mine, wanted in ((had.standby, target.standby), (had.warmup, target.warmup)):
        stays, goes, comes, others = _copies_step(group, process, mine, wanted)
        retained.append(stays)
        revoked.append(goes)
        after.append(_merged(stays, comes))
        waits |= others
    gone = {id_: left for id_, held in had.active.items()
            if (left := {index: when for index, when in held.items()
                         if index not in retained_active.get(id_, {})})}
    revoking = Held(gone, *revoked)
    if not revoking.is_empty() and (owned is None or revoking.shares(owned)):
        # The epoch advances after the revocation.
        return _moved(member, UNREVOKED, at, Held(retained_active, *retained), revoking)
    for id_, indexes in free.items():
        # New tasks get the target's epoch.
        retained_active[id_] = {**retained_active.get(id_, {}),
                                **dict.fromkeys(sorted(indexes), epoch)}
    return _moved(member, UNRELEASED if waits else MEMBER_STABLE, epoch,
                  Held(retained_active, *after), NOTHING_HELD)


def _active_step(group: StreamsGroup, process: str, had: Dated,
                 target: Tasks) -> tuple[Dated, Tasks, bool]:
    """Return (tasks to keep, tasks that can be assigned, True if others still have to be released).

    An active task can be assigned when no process runs it.
    """
    retained: Dated = {}
    free: Tasks = {}
    waits = False
    for id_, wanted in target.items():
        mine = {index: when for index, when in had.get(id_, {}).items() if index in wanted}
        if mine:
            retained[id_] = mine
        new = wanted - mine.keys()
        can = frozenset(index for index in new if (id_, index) not in group.runs
                        and not group.holds_state(process, (id_, index)))
        waits |= can != new
        if can:
            free[id_] = can
    return retained, free, waits


def _copies_step(group: StreamsGroup, process: str, had: Tasks,
                 target: Tasks) -> tuple[Tasks, Tasks, Tasks, bool]:
    """Return (tasks to keep, to revoke, that can be assigned, True if the process must release one
    first), for standby or warm-up tasks.
    """
    retained: Tasks = {}
    gone: Tasks = {}
    free: Tasks = {}
    waits = False
    for id_ in {**target, **had}:
        wanted, has = target.get(id_, frozenset()), had.get(id_, frozenset())
        new = wanted - has
        can = frozenset(index for index in new if group.runs.get((id_, index)) != process
                        and not group.holds_state(process, (id_, index)))
        waits |= can != new
        for found, part in ((retained, has & wanted), (gone, has - wanted), (free, can)):
            if part:
                found[id_] = part
    return retained, gone, free, waits


def _merged(retained: Tasks, given: Tasks) -> Tasks:
    return {id_: retained.get(id_, frozenset()) | given.get(id_, frozenset())
            for id_ in {**retained, **given}}


def _moved(member: StreamsMember, state: int, epoch: int, assigned: Held,
           revoking: Held) -> StreamsMember:
    made = member.copy()
    made.state = state
    made.previous_epoch, made.epoch = member.epoch, epoch
    made.assigned, made.revoking = assigned, revoking
    return made

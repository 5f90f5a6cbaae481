"""Move a Streams group member from its current to its target tasks: revoke, then assign.

Owns: nothing.
Invariants: an active task is assigned only when no process runs it, and any task only when no other
  member of the process has a copy of its state; a member's epoch advances to the target's once it
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
    tasks_of,
)

Task = tuple[str, int]  # Subtopology and partition.


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
    active, standby, warmup = (set(tasks_of(tasks)) for tasks in member.assigned)
    to_active, to_standby, to_warmup = (set(tasks_of(tasks)) for tasks in target)

    def runs(task: Task) -> bool:
        return group.runs.get(task) == member.process_id

    def holds(task: Task) -> bool:
        return group.holds_state(member.process_id, task)

    copies = standby | warmup
    free_active = {task for task in to_active - active
                   if task not in group.runs and (task in copies or not holds(task))}
    free_standby = {task for task in to_standby - standby if (task in active or not runs(task))
                    and (task in warmup or not holds(task))}
    free_warmup = {task for task in to_warmup - warmup
                   if not runs(task) and (task in standby or not holds(task))}
    waits = (free_active, free_standby, free_warmup) != (
        to_active - active, to_standby - standby, to_warmup - warmup)
    # The member keeps the state of a task whose role changes, so it need not revoke it first.
    kept_standby = standby & to_standby | free_standby & (active | warmup)
    kept_warmup = warmup & to_warmup | free_warmup & standby
    revoking = Held(_dated(member, active - to_active),
                    _tasks(standby - to_standby - free_warmup - to_active),
                    _tasks(warmup - to_warmup - free_standby - to_active))
    revokes = not revoking.is_empty() and (owned is None or revoking.shares(owned))
    granted = set() if revokes else free_active
    kept_standby |= standby & to_active - granted
    kept_warmup |= warmup & to_active - granted
    retained = _dated(member, active & to_active)
    if revokes:
        # The epoch advances after the revocation.
        return _moved(member, UNREVOKED, at,
                      Held(retained, _tasks(kept_standby), _tasks(kept_warmup)), revoking)
    for id_, index in sorted(granted):
        # New tasks get the target's epoch.
        retained.setdefault(id_, {})[index] = epoch
    return _moved(member, UNRELEASED if waits else MEMBER_STABLE, epoch,
                  Held(retained, _tasks(kept_standby | free_standby),
                       _tasks(kept_warmup | free_warmup)), NOTHING_HELD)


def _dated(member: StreamsMember, tasks: set[Task]) -> Dated:
    """Return some of the member's active tasks, with the epoch of each."""
    found = {id_: {index: when for index, when in held.items() if (id_, index) in tasks}
             for id_, held in member.assigned.active.items()}
    return {id_: held for id_, held in found.items() if held}


def _tasks(tasks: set[Task]) -> Tasks:
    found: dict[str, set[int]] = {}
    for id_, index in tasks:
        found.setdefault(id_, set()).add(index)
    return {id_: frozenset(indexes) for id_, indexes in found.items()}


def _moved(member: StreamsMember, state: int, epoch: int, assigned: Held,
           revoking: Held) -> StreamsMember:
    made = member.copy()
    made.state = state
    made.previous_epoch, made.epoch = member.epoch, epoch
    made.assigned, made.revoking = assigned, revoking
    return made

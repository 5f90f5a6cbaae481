"""Move a consumer group member from its current to its target assignment: revoke, then assign.

Owns: nothing.
Invariants: a partition is assigned only when no other member owns it; a member's epoch advances to
  the target's once it has revoked everything it must; new partitions are assigned in that epoch.
Source: KIP-848; Kafka's CurrentAssignmentBuilder.
"""

from collections.abc import Mapping

from pylog.coordinator.groups.assignors.partitions import Assignment
from pylog.coordinator.groups.consumer.group import (
    MEMBER_STABLE,
    NOTHING,
    UNRELEASED,
    UNREVOKED,
    ConsumerGroup,
    ConsumerMember,
    Held,
)

# Topic id -> partitions that the member reports as owned; None: not reported.
Owned = Mapping[bytes, frozenset[int]] | None


def reconciled(group: ConsumerGroup, member: ConsumerMember, epoch: int, target: Assignment,
               subscribed: frozenset[bytes], changed: bool, owned: Owned) -> ConsumerMember:
    """Return the member after its next step towards the target of `epoch`, or the same object.

    subscribed: ids of its topics. changed: True if its subscription changed.
    """
    if member.state == MEMBER_STABLE and member.epoch == epoch or \
            member.state == UNREVOKED and _owns(owned, member.revoking):
        return _shrunk(member, subscribed, owned) if changed else member
    return _next(group, member, epoch, target, subscribed, owned)


def owned_from(rows: list) -> Owned:
    """Parse the owned partitions in a request. rows: its TopicPartitions, or None."""
    if rows is None:
        return None
    found: dict[bytes, frozenset[int]] = {}
    for row in rows:
        topic_id = bytes(row.topic_id)
        found[topic_id] = found.get(topic_id, frozenset()) | frozenset(row.partitions)
    return found


def is_within(owned: Owned, held: Held) -> bool:
    """Return True if the member reports its partitions, and all of them are in `held`."""
    return owned is not None and all(
        topic_id in held and partitions <= held[topic_id].keys()
        for topic_id, partitions in owned.items())


def _owns(owned: Owned, revoking: Held) -> bool:
    """Return True if the member may still own partitions of `revoking`.

    A member that does not report its partitions may still own them.
    """
    return owned is None or any(
        not partitions.isdisjoint(revoking.get(topic_id, ()))
        for topic_id, partitions in owned.items())


def _shrunk(member: ConsumerMember, subscribed: frozenset[bytes], owned: Owned) -> ConsumerMember:
    """Revoke topics that the member no longer subscribes to. The next target brings the rest."""
    subscribed_only = {topic_id: held for topic_id,
                       held in member.assigned.items() if topic_id in subscribed}
    if len(subscribed_only) == len(member.assigned):
        return member
    revoking = dict(member.revoking)
    for topic_id, held in member.assigned.items():
        if topic_id not in subscribed:
            revoking[topic_id] = {**revoking.get(topic_id, {}), **held}
    if _owns(owned, revoking):
        return _moved(member, UNREVOKED, member.epoch, subscribed_only, revoking)
    return _moved(member, member.state, member.epoch, subscribed_only, member.revoking)


def _next(group: ConsumerGroup, member: ConsumerMember, epoch: int, target: Assignment,
          subscribed: frozenset[bytes], owned: Owned) -> ConsumerMember:
    retained: Held = {}
    revoking: Held = {}
    given: Held = {}
    waits = False
    for topic_id in {**target, **member.assigned}:
        wanted = target.get(topic_id, frozenset()) if topic_id in subscribed else frozenset()
        has = member.assigned.get(topic_id, {})
        mine = {index: at for index, at in has.items() if index in wanted}
        if mine:
            retained[topic_id] = mine
        if len(mine) < len(has):
            revoking[topic_id] = {index: at for index, at in has.items() if index not in wanted}
        for index in wanted - mine.keys():
            # Another member may still own the partition.
            if group.owner(topic_id, index) in (None, member.id):
                given.setdefault(topic_id, {})[index] = epoch
            else:
                waits = True
    if revoking and _owns(owned, revoking):
        # The epoch advances after the revocation.
        return _moved(member, UNREVOKED, member.epoch, retained, revoking)
    for topic_id, partitions in given.items():
        retained[topic_id] = {**retained.get(topic_id, {}), **partitions}
    return _moved(member, UNRELEASED if waits else MEMBER_STABLE, epoch, retained, {})


def _moved(member: ConsumerMember, state: int, epoch: int, assigned: Held,
           revoking: Held) -> ConsumerMember:
    made = member.copy()
    made.state = state
    made.previous_epoch, made.epoch = member.epoch, epoch
    made.assigned, made.revoking = assigned, revoking
    return made


def target_of(group: ConsumerGroup, member_id: str) -> Assignment:
    return group.targets.get(member_id, NOTHING)

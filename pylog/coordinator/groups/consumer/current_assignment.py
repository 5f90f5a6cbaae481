"""From what a member of a consumer group has to what it is to have: revoke first, then be given.

Owns: nothing.
Invariants: (1) a member is given a partition only when nobody has it; (2) its epoch rises to the
  target's once it owns nothing that it is to give up; (3) what it gets, it gets in that epoch.
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

# Topic id -> partitions that the member says it owns; None: it does not say.
Owned = Mapping[bytes, frozenset[int]] | None


def reconciled(group: ConsumerGroup, member: ConsumerMember, epoch: int, target: Assignment,
               subscribed: frozenset[bytes], changed: bool, owned: Owned) -> ConsumerMember:
    """The member after its next step towards the target of `epoch`; itself when there is none.

    subscribed: ids of its topics. changed: whether it subscribes to others than before.
    """
    if member.state == MEMBER_STABLE and member.epoch == epoch or \
            member.state == UNREVOKED and _owns(owned, member.revoking):
        return _shrunk(member, subscribed, owned) if changed else member
    return _next(group, member, epoch, target, subscribed, owned)


def owned_from(rows: list) -> Owned:
    """What a request says of the member's partitions. rows: its TopicPartitions, or None."""
    if rows is None:
        return None
    found: dict[bytes, frozenset[int]] = {}
    for row in rows:
        topic_id = bytes(row.topic_id)
        found[topic_id] = found.get(topic_id, frozenset()) | frozenset(row.partitions)
    return found


def is_within(owned: Owned, held: Held) -> bool:
    """Whether the member says what it owns, and has it all."""
    return owned is not None and all(
        topic_id in held and partitions <= held[topic_id].keys()
        for topic_id, partitions in owned.items())


def _owns(owned: Owned, revoking: Held) -> bool:
    """Whether the member may still own some of these; it may, as long as it does not say."""
    return owned is None or any(
        not partitions.isdisjoint(revoking.get(topic_id, ()))
        for topic_id, partitions in owned.items())


def _shrunk(member: ConsumerMember, subscribed: frozenset[bytes], owned: Owned) -> ConsumerMember:
    """Without the topics that it subscribes to no more; the rest comes with the next target."""
    kept = {topic_id: held for topic_id, held in member.assigned.items() if topic_id in subscribed}
    if len(kept) == len(member.assigned):
        return member
    revoking = dict(member.revoking)
    for topic_id, held in member.assigned.items():
        if topic_id not in subscribed:
            revoking[topic_id] = {**revoking.get(topic_id, {}), **held}
    if _owns(owned, revoking):
        return _moved(member, UNREVOKED, member.epoch, kept, revoking)
    return _moved(member, member.state, member.epoch, kept, member.revoking)


def _next(group: ConsumerGroup, member: ConsumerMember, epoch: int, target: Assignment,
          subscribed: frozenset[bytes], owned: Owned) -> ConsumerMember:
    kept: Held = {}
    revoking: Held = {}
    given: Held = {}
    waits = False
    for topic_id in {**target, **member.assigned}:
        wanted = target.get(topic_id, frozenset()) if topic_id in subscribed else frozenset()
        has = member.assigned.get(topic_id, {})
        mine = {index: at for index, at in has.items() if index in wanted}
        if mine:
            kept[topic_id] = mine
        if len(mine) < len(has):
            revoking[topic_id] = {index: at for index, at in has.items() if index not in wanted}
        for index in wanted - mine.keys():
            # Keeps (1).
            if group.owner(topic_id, index) in (None, member.id):
                given.setdefault(topic_id, {})[index] = epoch
            else:
                waits = True
    if revoking and _owns(owned, revoking):
        # Keeps (2).
        return _moved(member, UNREVOKED, member.epoch, kept, revoking)
    for topic_id, partitions in given.items():
        kept[topic_id] = {**kept.get(topic_id, {}), **partitions}
    return _moved(member, UNRELEASED if waits else MEMBER_STABLE, epoch, kept, {})


def _moved(member: ConsumerMember, state: int, epoch: int, assigned: Held,
           revoking: Held) -> ConsumerMember:
    made = member.copy()
    made.state = state
    made.previous_epoch, made.epoch = member.epoch, epoch
    made.assigned, made.revoking = assigned, revoking
    return made


def target_of(group: ConsumerGroup, member_id: str) -> Assignment:
    return group.targets.get(member_id, NOTHING)

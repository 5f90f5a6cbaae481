"""Online migration: a classic group becomes a consumer group when its first member with the new
protocol joins, and a classic group again when the last one leaves.

Owns: nothing.
Invariants: the group keeps its offsets; partitions do not move, because generation and epoch,
  assignments and targets stay the same; the records of the old type are removed before those of the
  new type are written.
Source: KIP-848 (migration); Kafka's GroupMetadataManager.
"""

from collections.abc import Container
from typing import Any

from pylog.coordinator.groups.classic import protocol
from pylog.coordinator.groups.consumer import records as consumer_records, sessions
from pylog.coordinator.groups.consumer.group import ClassicMember, ConsumerGroup, ConsumerMember
from pylog.coordinator.groups.state import consumer_protocol, subscribed_topics
from pylog.coordinator.groups.state.classic_group import CONSUMER, STABLE, Group, Member
from pylog.protocol.api_error import Refusal
from pylog.protocol.errors import ErrorCode, ProtocolError


# ---- to a consumer group ------------------------------------------------------------------------

def upgraded(groups: Any, classic: Group) -> ConsumerGroup:
    """Return the consumer group for a classic group with members.

    Changes nothing. Raises Refusal if the group cannot be converted.
    """
    limits = groups.limits.consumer
    reason = None
    if not limits.may_upgrade:
        reason = "the migration policy does not allow it"
    elif classic.protocol_type != CONSUMER:
        reason = "its members are not consumers"
    elif len(classic.members) > limits.members_max:
        reason = "it has too many members"
    if reason is None:
        try:
            return _upgraded(groups, classic)
        except ProtocolError as error:
            reason = f"its members' metadata cannot be parsed: {error}"
    raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND,
                  f"the classic group {classic.id} cannot become a consumer group: {reason}")


def _upgraded(groups: Any, classic: Group) -> ConsumerGroup:
    image = groups.image()
    given_out: dict[bytes, set[int]] = {}
    group = ConsumerGroup(classic.id)
    group.epoch = group.assignment_epoch = classic.generation
    for old in classic.members.values():
        given = consumer_protocol.assignment(old.assignment)
        if given.user_data:
            raise ProtocolError("a client-side assignor stores data in the assignment")
        subscription = consumer_protocol.subscription(
            old.metadata(classic.protocol) or old.protocols[0][1])
        member = ConsumerMember(old.id)
        member.instance_id, member.rack_id = old.instance_id, getattr(subscription, "rack_id", None)
        member.client_id, member.client_host = old.client_id, old.client_host
        member.topics, member.rebalance_ms = frozenset(subscription.topics), old.rebalance_ms
        member.classic = ClassicMember(old.session_ms, tuple(old.protocols))
        member.epoch = member.previous_epoch = classic.generation
        target = consumer_protocol.by_id(image, given.assigned_partitions)
        for topic_id, partitions in target.items():
            others = given_out.setdefault(topic_id, set())
            if not others.isdisjoint(partitions):
                raise ProtocolError("two members have the same partition")
            others |= partitions
        member.assigned = {topic_id: dict.fromkeys(partitions, classic.generation)
                           for topic_id, partitions in target.items()}
        group.targets[member.id] = target
        group.put(member)
    group.hash = subscribed_topics.metadata_hash(image, group.names)
    return group


def install(groups: Any, classic: Group, group: ConsumerGroup) -> None:
    """Replace the classic group with the consumer group."""
    protocol.dissolve(groups, classic)
    group.take_offsets(classic)
    groups.groups[group.id] = group
    if group.members:
        groups.records += consumer_records.created(group)
        for member in group.members.values():
            sessions.expect(groups, group, member)
        groups.changed.update((group.id, (member_id,)) for member_id in group.members)


# ---- to a classic group -------------------------------------------------------------------------

def may_downgrade(groups: Any, group: ConsumerGroup, gone: Container[str],
                  coming: int = 0) -> bool:
    """Return True if the remaining and joining members all use the classic protocol and the
    settings allow a classic group.
    """
    limits = groups.limits
    if not limits.consumer.may_downgrade or not coming and not group.classics:
        return False
    stay = [member for member in group.members.values() if member.id not in gone]
    return 0 < len(stay) + coming <= limits.members_max and all(
        member.classic is not None for member in stay)


def downgrade(groups: Any, group: ConsumerGroup, gone: Container[str],
              rebalance: bool = True) -> Group:
    """Replace the consumer group with a classic group of the remaining members.

    Cannot fail: the members' metadata was parsed when they joined.
    """
    image = groups.image()
    classic = Group(group.id, groups.clock.wall_ms())
    classic.generation = group.epoch
    for member in group.members.values():
        if member.id not in gone:
            assert member.classic is not None, member.id
            classic.add(Member(
                member.id, member.instance_id, member.client_id, member.client_host,
                member.rebalance_ms, member.classic.session_ms, list(member.classic.protocols)),
                CONSUMER)
    classic.protocol = classic.select_protocol()
    for old in classic.members.values():
        old.assignment = consumer_protocol.assignment_bytes(
            image, group.targets.get(old.id, {}), old.metadata(classic.protocol))
    classic.state = classic.previous = STABLE
    for member_id in group.members:
        sessions.cancel(groups, group.id, member_id)
    groups.record_gone(group)
    classic.take_offsets(group)
    groups.groups[group.id] = classic
    groups.record_group(classic)
    for member_id in classic.members:
        protocol.expect(groups, classic, member_id)
    if rebalance:
        protocol.rebalance(groups, classic)
    return classic

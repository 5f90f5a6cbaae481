"""Subscriptions of a consumer group's members, and the target assignment that follows from them.

Owns: nothing; the state belongs to the group.
Invariants: the group epoch increases when its subscriptions, the topics behind them, or the
  preferred assignor change; a target is computed for the group epoch, at most once per assignment
  interval; regular expressions are matched in steps of MATCHES_STEP topics, to bound the time per
  step; a regular expression is matched with the permissions of a member that uses it.
Source: KIP-848, KIP-1101 (metadata hash), KIP-1263 (assignment interval); Kafka's
  TargetAssignmentBuilder and TopicRegexResolver.
"""

import logging
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from pylog.coordinator.groups.assignors import partitions as partition_assignors
from pylog.coordinator.groups.assignors.partitions import Assignment, Subscriber
from pylog.coordinator.groups.consumer import records as consumer_records
from pylog.coordinator.groups.consumer.group import (
    LEAVE_STATIC,
    NOTHING,
    ConsumerGroup,
    ConsumerMember,
    Resolved,
)
from pylog.coordinator.groups.state import (
    rebalance_tracker,
    topic_regex,
)
from pylog.coordinator.groups.state import (
    subscribed_topics,
)
from pylog.coordinator.groups.state.classic_group import CONSUMER, STREAMS
from pylog.coordinator.groups.state.group_config import GROUP_RESOURCE
from pylog.coordinator.groups.state.modern_group import retarget
from pylog.protocol.api_error import Refusal
from pylog.protocol.errors import ErrorCode

RESOLVE = "expressions"  # The timer type for resolving them.
NEVER_MS = 2**31 - 1  # Kafka's interval for refreshes without a cause,
PAUSE_MS = 10_000  # and between two matchings.
MATCHES_STEP = 5000

Sees = Callable[[str], bool] | None

log = logging.getLogger("pylog.coordinator")


# ---- subscriptions ------------------------------------------------------------------------------

def check_expression(group: ConsumerGroup, before: ConsumerMember, member: ConsumerMember) -> None:
    """Raise Refusal if the member's regular expression is new to the group and invalid."""
    text = member.regex
    if text and text != before.regex and text not in group.regexes:
        fault = topic_regex.fault(text)
        if fault is not None:
            raise Refusal(ErrorCode.INVALID_REGULAR_EXPRESSION, fault)


def subscribe(groups: Any, group: ConsumerGroup, before: ConsumerMember, member: ConsumerMember,
              sees: Sees) -> bool:
    """Update the member in its group; return True if its subscription changed.

    Increases the group epoch if the change affects the assignment.
    """
    known = before.regex in group.regexes
    is_new = member.id not in group.members
    assignor_before = _assignor_name(groups, group)
    if before.subscription() != member.subscription() or is_new:
        if is_new:
            groups.events["member_joined"] += 1
            groups.rebalances.because(group, rebalance_tracker.JOINED, member)
        groups.records.append(consumer_records.member_record(group, member))
        groups.changed.add((group.id, (member.id,)))
    group.put(member)
    if known and before.regex not in group.regexes:
        forget_expressions(groups, group)
    other_expression = before.regex != member.regex
    bump = before.topics != member.topics or other_expression and (
        member.regex in group.resolved if member.regex else bool(before.regex)) \
        or _assignor_name(groups, group) != assignor_before
    if bump and not is_new:
        groups.rebalances.because(group, rebalance_tracker.SUBSCRIBED, member)
    if member.regex:
        group.viewers[member.regex] = sees
        _resolve_if_due(groups, group, member.regex)
    if bump or groups.clock.now_ms() >= group.refresh_ms:
        _refresh(groups, group, bump)
    return before.topics != member.topics or other_expression


def _refresh(groups: Any, group: ConsumerGroup, bump: bool) -> None:
    found = subscribed_topics.metadata_hash(groups.image(), group.topics())
    group.refresh_ms = groups.clock.now_ms() + NEVER_MS
    if group.had_old_metadata:
        group.had_old_metadata = False
        groups.records.append(consumer_records.old_metadata_gone(group.id))
    if bump or found != group.hash:
        if not bump:
            groups.rebalances.because(group, rebalance_tracker.TOPICS)
        _move_to_epoch(groups, group, found)


def next_epoch(groups: Any, group: ConsumerGroup) -> None:
    """Increase the group epoch after members left."""
    _move_to_epoch(groups, group, subscribed_topics.metadata_hash(groups.image(), group.topics()))


def _move_to_epoch(groups: Any, group: ConsumerGroup, hash_: int) -> None:
    group.epoch += 1
    group.hash = hash_
    groups.events["rebalance"] += 1
    groups.records.append(consumer_records.group_record(group))
    groups.changed.add((group.id, None))
    # A static member that is temporarily gone cannot reach the new epoch.
    groups.rebalances.waits_for(group, lambda: (
        member.id for member in group.members.values() if member.epoch != LEAVE_STATIC))


def topics_changed(groups: Any, names: set[str]) -> None:
    """Refresh the groups that subscribe to new, deleted or resized topics."""
    groups.topics_version = max(groups.topics_version, groups.image().offset)
    for group in groups.groups.values():
        if group.kind == STREAMS and group.needs(names) or group.kind == CONSUMER \
                and not names.isdisjoint(group.topics()):
            group.refresh_ms = 0
            groups.repeats.void(group.id)


def topic_ids_of(groups: Any, group: ConsumerGroup, member: ConsumerMember) -> frozenset[bytes]:
    return subscribed_topics.topic_ids(groups.image(), group.subscribed_by(member))


# ---- regular expressions ------------------------------------------------------------------------

def _resolve_if_due(groups: Any, group: ConsumerGroup, text: str) -> None:
    """Start matching all of the group's regular expressions, so that only one rebalance follows.

    text: the regular expression of the member that sent the heartbeat.
    """
    if group.resolving is not None:
        return
    now_ms = groups.clock.wall_ms()
    # Do not wait if the clock was set back.
    if group.matched_ms <= now_ms <= group.matched_ms + PAUSE_MS:
        return
    known = group.resolved.get(text)
    if known is None or known.version < groups.topics_version \
            or not known.ms <= now_ms <= known.ms + groups.limits.consumer.refresh_ms:
        group.matched_ms = now_ms
        group.resolving = _resolving(groups, group)
        groups.timers.set((RESOLVE, group.id), groups.clock.now_ms())


def resolve_some(groups: Any, group: ConsumerGroup) -> None:
    """Run the next step of the matching, at most MATCHES_STEP topics."""
    if group.resolving is None:
        return
    found = next(group.resolving)
    if found is None:
        groups.timers.set((RESOLVE, group.id), groups.clock.now_ms())
        return
    group.resolving = None
    bump = False
    for text, resolved in found.items():
        if text not in group.regexes:
            continue  # No member uses it any more.
        before = group.resolved.get(text)
        if resolved.topics != (frozenset() if before is None else before.topics):
            bump = True
            groups.rebalances.because(group, rebalance_tracker.TOPICS)
        group.resolved[text] = resolved
        groups.records.append(consumer_records.expression_record(group, text))
        groups.changed.add((group.id, None))
    if group.members:
        # A new expression that matches nothing needs a new target, too. Kafka keeps the old one.
        _refresh(groups, group, bump or any(
            not group.targets.get(member.id, NOTHING).keys() <= topic_ids_of(groups, group, member)
            for member in group.members.values() if member.regex in found))


def _resolving(groups: Any, group: ConsumerGroup) -> Iterator[dict[str, Resolved] | None]:
    """Yield None after each step, then the matches of all current regular expressions.

    Matches only topics that a user of the expression may describe.
    """
    image, now_ms = groups.image(), groups.clock.wall_ms()
    found: dict[str, Resolved] = {}
    for text in list(group.regexes):
        if text not in group.viewers:
            continue  # Its members have sent no heartbeat since the load.
        sees = group.viewers[text]
        matched: set[str] = set()
        names = iter(image.topics)
        while some := list(islice(names, MATCHES_STEP)):
            matched.update(name for name in topic_regex.matches(text, some)
                           if sees is None or sees(name))
            if len(some) == MATCHES_STEP or len(group.regexes) > 1:
                yield None
        found[text] = Resolved(frozenset(matched), image.offset, now_ms)
    yield found


def forget_expressions(groups: Any, group: ConsumerGroup) -> None:
    """Remove regular expressions that no member uses any more."""
    for text in group.viewers.keys() - group.regexes.keys():
        del group.viewers[text]
    for text in group.resolved.keys() - group.regexes.keys():
        del group.resolved[text]
        groups.records.append(consumer_records.expression_gone(group.id, text))
        groups.changed.add((group.id, None))


# ---- target assignment --------------------------------------------------------------------------

def assign_if_due(groups: Any, group: ConsumerGroup) -> bool:
    """Compute the target of the group epoch, unless it exists or the interval has not passed.

    Returns False if the assignor failed.
    """
    if group.assignment_epoch >= group.epoch:
        return True
    interval_ms = groups.limits.consumer.of_group(
        groups.image().configs.get((GROUP_RESOURCE, group.id)), "consumer.assignment.interval.ms")
    now_ms = groups.clock.wall_ms()
    # Ignore timestamps in the future: clocks differ between leaders and can be set back.
    if 0 < group.assignment_ms <= now_ms < group.assignment_ms + interval_ms:
        return True
    made = _made(groups, group)
    if made is None:
        group.assignment_ms = now_ms  # Retry after the interval.
        return False
    retarget(groups, group, made, NOTHING, consumer_records.target_record,
             consumer_records.target_epoch_record, now_ms)
    return True


def _assignor_name(groups: Any, group: ConsumerGroup) -> str:
    """Return the preferred assignor's name, or the first configured one."""
    known: dict[str, Any] = groups.limits.consumer.assignors
    name = group.preferred_assignor()
    return name if name in known else next(iter(known))


def _made(groups: Any, group: ConsumerGroup) -> dict[str, Assignment] | None:
    """Compute a new target with the preferred assignor; None if the assignor failed."""
    image, known = groups.image(), groups.limits.consumer.assignors
    ids: dict[frozenset[str], frozenset[bytes]] = {}
    members = []
    for member in group.members.values():
        names = group.subscribed_by(member)
        if names not in ids:
            ids[names] = subscribed_topics.topic_ids(image, names)
        members.append(Subscriber(member.id, member.instance_id, member.rack_id, ids[names],
                                  group.targets.get(member.id, NOTHING)))
    topics = subscribed_topics.shapes(image, frozenset().union(*ids.values()))
    assignor = known[_assignor_name(groups, group)]
    if assignor in partition_assignors.BUILT_IN.values():
        return assignor(members, topics)
    try:
        return partition_assignors.checked(assignor(members, topics), members, topics)
    except Exception as error:
        # Custom code failed: the group keeps its current target.
        log.exception("an assignor failed", extra={"group": group.id, "reason": repr(error)})
        return None

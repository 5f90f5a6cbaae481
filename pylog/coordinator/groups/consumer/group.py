"""One consumer group (KIP-848): its members, epochs, target and current assignments.

Owns: the state of the group.
Invariants: counters and reverse indexes (subscriptions, regular expressions, assignors, static
  members, owners, classic members) depend only on the members, not on the order of changes; a
  partition has one owner, the member that has it assigned or has not revoked it yet; only members
  have a target.
Source: KIP-848; Kafka's ConsumerGroup and ConsumerGroupMember.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from pylog.coordinator.groups.assignors.partitions import Assignment
from pylog.coordinator.groups.state.classic_group import CONSUMER
from pylog.coordinator.groups.state.modern_records import Kind
from pylog.coordinator.groups.state.modern_group import AssignedGroup
from pylog.coordinator.runtime.journal import Record

# Member states, with the values of Kafka's records.
MEMBER_STABLE, UNREVOKED, UNRELEASED, UNKNOWN = 0, 1, 2, 127
LEAVE, LEAVE_STATIC = -1, -2    # Member epochs.
NO_TIMEOUT = -1
NEVER_MATCHED_MS = -(1 << 63)
NOBODY: dict[int, str] = {}
NOTHING: Assignment = {}

# Topic id -> {partition: epoch in which it was assigned}.
Held = dict[bytes, dict[int, int]]


class ClassicMember(NamedTuple):
    """Join data of a classic-protocol member. protocols: [(name, metadata)]."""

    session_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class Resolved(NamedTuple):
    """The topics that a regular expression matched. version: of the image; ms: wall clock."""

    topics: frozenset[str]
    version: int
    ms: int


class ConsumerMember:
    """One member. Immutable once it is in a group: changes replace it with a copy."""

    __slots__ = ("assigned", "assignor", "classic", "client_host", "client_id", "epoch", "id",
                 "instance_id", "previous_epoch", "rack_id", "rebalance_ms", "regex", "revoking",
                 "state", "topics")

    def __init__(self, id_: str) -> None:
        self.id = id_
        self.instance_id: str | None = None
        self.rack_id: str | None = None
        self.client_id = ""
        self.client_host = ""
        self.topics: frozenset[str] = frozenset()
        self.regex = ""
        self.rebalance_ms = NO_TIMEOUT
        self.assignor: str | None = None
        self.classic: ClassicMember | None = None
        self.epoch = 0
        self.previous_epoch = -1
        self.state = MEMBER_STABLE
        self.assigned: Held = {}
        self.revoking: Held = {}

    def copy(self, id_: str | None = None) -> "ConsumerMember":
        made = ConsumerMember(self.id if id_ is None else id_)
        for field in COPIED:
            setattr(made, field, getattr(self, field))
        return made

    def subscription(self) -> tuple[Any, ...]:
        """Return the fields of the member's metadata record."""
        return (self.instance_id, self.rack_id, self.client_id, self.client_host, self.topics,
                self.regex, self.rebalance_ms, self.assignor, self.classic)

    def progress(self) -> tuple[Any, ...]:
        """Return the fields of the member's current assignment record."""
        return self.epoch, self.previous_epoch, self.state, self.assigned, self.revoking

    def is_at(self, epoch: int) -> bool:
        return self.state == MEMBER_STABLE and self.epoch == epoch

    def epoch_of(self, topic_id: bytes, partition: int) -> int | None:
        """Return the epoch in which a partition was assigned, or None if the member does not own
        it.
        """
        for held in (self.assigned, self.revoking):
            epoch = held.get(topic_id, {}).get(partition)
            if epoch is not None:
                return epoch
        return None


COPIED = tuple(name for name in ConsumerMember.__slots__ if name != "id")


KIND = Kind("ConsumerGroup", ConsumerMember, dict)  # Of the group's records.


class ConsumerGroup(AssignedGroup):
    """A consumer group. Its topics are the subscribed ones."""

    __slots__ = ("assignors", "classic_protocols", "classics", "had_old_metadata", "names",
                 "matched_ms", "owners", "regexes", "resolved", "resolving", "statics",
                 "viewers")
    members: dict[str, ConsumerMember]
    targets: dict[str, Assignment]
    kind = CONSUMER
    protocol_type = CONSUMER

    def __init__(self, id_: str) -> None:
        super().__init__(id_)
        self.had_old_metadata = False
        self.resolved: dict[str, Resolved] = {}
        self.resolving: Iterator[dict[str, Resolved] | None] | None = None  # See target_assignment.
        # Wall clock of the last matching; far in the past after a load.
        self.matched_ms = NEVER_MATCHED_MS
        # Regular expression -> filter for topics that its last sender may describe; None: all
        # topics.
        self.viewers: dict[str, Callable[[str], bool] | None] = {}
        self.statics: dict[str, str] = {}            # Instance id -> member id.
        self.names: dict[str, int] = {}  # Topic -> number of subscribers,
        self.regexes: dict[str, int] = {}  # regular expression -> its users,
        self.assignors: dict[str, int] = {}  # assignor -> its votes.
        self.classics = 0  # Number of classic-protocol members,
        self.classic_protocols: dict[str, int] = {}  # protocol -> how many support it.
        self.owners: dict[bytes, dict[int, str]] = {}   # Topic id -> partition -> member id.

    def tombstones(self) -> list[Record]:
        """Return the records that delete the group, in Kafka's order; see Kind.member_gone()."""
        members = list(self.members)
        keys = [*(KIND.assignment_key(self.id, member_id) for member_id in members),
                *(KIND.target_key(self.id, member_id) for member_id in members),
                KIND.target_epoch_key(self.id),
                *(KIND.member_key(self.id, member_id) for member_id in members),
                *(KIND.key("RegularExpression", group_id=self.id, regular_expression=text)
                  for text in self.resolved),
                KIND.key("PartitionMetadata", group_id=self.id),
                KIND.group_key(self.id)]
        return [(key, None) for key in keys]

    # ---- state ----------------------------------------------------------------------------------

    def topics(self) -> set[str]:
        """Return all topics that members subscribe to by name or by regular expression."""
        found = set(self.names)
        for resolved in self.resolved.values():
            found |= resolved.topics
        return found

    def is_subscribed(self, topic: str) -> bool:
        return topic in self.names or any(
            topic in resolved.topics for resolved in self.resolved.values())

    def subscribed_by(self, member: ConsumerMember) -> frozenset[str]:
        """Return the member's topics. An unresolved regular expression matches nothing."""
        resolved = self.resolved.get(member.regex) if member.regex else None
        return member.topics if resolved is None else member.topics | resolved.topics

    def epoch_of(self, member: ConsumerMember, topic: str, topic_id: bytes,
                 partition: int) -> int | None:
        """Return the epoch in which a partition was assigned, or None if the member does not own
        it.
        """
        return member.epoch_of(topic_id, partition)

    def owner(self, topic_id: bytes, partition: int) -> str | None:
        return self.owners.get(topic_id, NOBODY).get(partition)

    def preferred_assignor(self) -> str | None:
        """Return the assignor with the most votes; ties go to the first name."""
        if not self.assignors:
            return None
        return min(self.assignors, key=lambda name: (-self.assignors[name], name))

    def supports(self, names: Iterable[str]) -> bool:
        """Return True if all classic members support one of these protocols."""
        return any(self.classic_protocols.get(name, 0) == self.classics for name in names)

    def waits_for_others(self, member: ConsumerMember) -> bool:
        """Return True if another member still owns a partition of the member's target."""
        return member.state == UNRELEASED and any(
            partition not in member.assigned.get(topic_id, {})
            and self.owner(topic_id, partition) is not None
            for topic_id, partitions in self.targets.get(member.id, NOTHING).items()
            for partition in partitions)

    # ---- members --------------------------------------------------------------------------------

    def put(self, member: ConsumerMember) -> None:
        """Add or replace a member, and update counters and indexes."""
        before = self.members.get(member.id)
        self.members[member.id] = member
        if before is None or before.subscription() != member.subscription():
            if before is not None:
                self._count(before, -1)
            self._count(member, 1)
        if before is not None:
            self._release(before)
        for held in (member.assigned, member.revoking):
            for topic_id, partitions in held.items():
                self.owners.setdefault(topic_id, {}).update(dict.fromkeys(partitions, member.id))

    def remove(self, member_id: str) -> ConsumerMember:
        member = self.members.pop(member_id)
        self._count(member, -1)
        self._release(member)
        self.targets.pop(member_id, None)
        return member

    def _count(self, member: ConsumerMember, by: int) -> None:
        for topic in member.topics:
            _add(self.names, topic, by)
        if member.regex:
            _add(self.regexes, member.regex, by)
        if member.assignor is not None:
            _add(self.assignors, member.assignor, by)
        if member.classic is not None:
            self.classics += by
            for name, _ in member.classic.protocols:
                _add(self.classic_protocols, name, by)
        if member.instance_id is not None:
            if by > 0:
                self.statics[member.instance_id] = member.id
            elif self.statics.get(member.instance_id) == member.id:
                del self.statics[member.instance_id]

    def _release(self, member: ConsumerMember) -> None:
        """Remove the member as owner. Keeps partitions that another member owns by now."""
        for held in (member.assigned, member.revoking):
            for topic_id, partitions in held.items():
                owners = self.owners.get(topic_id)
                if owners is None:
                    continue
                for partition in partitions:
                    if owners.get(partition) == member.id:
                        del owners[partition]
                if not owners:
                    del self.owners[topic_id]

    def check(self) -> None:
        """Assert that counters and indexes match the members. Slow, for tests only."""
        other = ConsumerGroup(self.id)
        held: set[tuple[bytes, int]] = set()
        for member in self.members.values():
            other.put(member)
            for mine in (member.assigned, member.revoking):
                for topic_id, partitions in mine.items():
                    assert held.isdisjoint((topic_id, index) for index in partitions), member.id
                    held.update((topic_id, index) for index in partitions)
        for field in ("names", "regexes", "assignors", "classics", "classic_protocols", "owners",
                      "statics"):
            assert getattr(self, field) == getattr(other, field), field
        assert self.targets.keys() <= self.members.keys()


def _add(counts: dict[str, int], name: str, by: int) -> None:
    count = counts.get(name, 0) + by
    assert count >= 0, (name, count)
    if count:
        counts[name] = count
    else:
        del counts[name]

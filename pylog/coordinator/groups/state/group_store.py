"""The groups of one partition of `__consumer_offsets`: their lookup, creation, removal and records.

Owns: the groups, their timers, and the output of a step for the runtime.
Invariants: a group is in memory, in the snapshot, or nowhere: a dropped group is not loaded from
  the snapshot again.
Source: Kafka's GroupMetadataManager.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from pylog.coordinator.groups.state import classic_records
from pylog.coordinator.groups.state.classic_group import (
    CLASSIC, CONSUMER, DEAD, STREAMS, Committed, Group, group_key,
)
from pylog.coordinator.groups.state.group_config import Limits
from pylog.coordinator.groups.state.heartbeat_cache import GroupHeartbeats
from pylog.coordinator.groups.state.rebalance_tracker import Rebalances
from pylog.coordinator.runtime.journal import Written
from pylog.coordinator.runtime.timers import Time, Timers
from pylog.metadata.image.image import Image

EVENTS = ("member_joined", "member_left", "member_expired", "rebalance", "rebalance_ms",
          "member_stopped_ms", "generation", "offset_committed", "offset_expired", "record_written")
# The changed part of a group: a topic's offsets, the group itself (None), or one member.
Part = str | None | tuple[str]
Changes = set[tuple[str, Part]]


class Name(NamedTuple):
    """A group without members that is only in the snapshot."""

    id: str
    protocol_type: str
    kind: str


class GroupStore:
    """The groups of one partition. See runtime.shard.StateMachine for the other attributes.

    clock: see timers.Time. new_id: returns unique strings. cold: group id -> the group in the
    snapshot, or None. names: returns all groups in the snapshot. events: counters, shared by all
    state machines of a coordinator. image: returns the current metadata image. over: receives each
    finished rebalance. The caller empties `records` [(key, value or None)], `responses` [(token,
    message)] and `changed` {(group id, Part)}.
    """

    def __init__(self, limits: Limits, clock: Time, new_id: Callable[[], str],
                 cold: Callable[[str], Committed | None] | None = None,
                 names: Callable[[], Iterable[Name]] | None = None,
                 events: dict[str, int] | None = None,
                 image: Callable[[], Image] = Image,
                 over: Callable[[dict[str, Any]], None] = lambda rebalance: None):
        self.limits = limits
        self.clock = clock
        self.image = image
        self.topics_version = -1  # Image offset of the last topic change.
        self.groups: dict[str, Any] = {}  # Committed, of all types but share.
        self.shares: dict[str, Any] = {}  # ShareGroup, which have no committed offsets.
        self.timers = Timers()
        self.repeats = GroupHeartbeats(self.timers)
        self.rebalances = Rebalances(clock, over)
        self.records: list[Written] = []
        self.responses: list[tuple[Any, Any]] = []
        self.cleanups = 0
        self.changed: Changes = set()
        # Open transactions: producer id -> (group id, topic, partition) of their offsets.
        self.open_offsets: dict[int, set[tuple[str, str, int]]] = {}
        self.written = 0  # Sequence of transactional offset commits.
        self.gone: set[str] = set()  # Dropped; may still be in the snapshot.
        self.deleting: set[str] = set()  # Hidden; tombstones are still being written.
        self.events = dict.fromkeys(EVENTS, 0) if events is None else events
        self.is_loading = True  # Until loaded() is called.
        self.new_id = new_id
        self.initial_left_ms: dict[str, int] = {}  # Rest of the initial rebalance delay.
        self._cold = cold or (lambda group_id: None)
        self._names = names or (lambda: ())

    def find(self, group_id: str) -> Any:
        """Return the group, or None. Loads it from the snapshot. Does not find share groups."""
        group = self.groups.get(group_id)
        if group is None and group_id not in self.gone:
            group = self._cold(group_id)
            if group is not None:
                self.groups[group_id] = group
        return group

    def elsewhere(self) -> list[Name]:
        """Return the groups that are only in the snapshot."""
        return [row for row in self._names()
                if row.id not in self.groups and row.id not in self.gone]

    def find_or_make(self, group_id: str) -> Any:
        """Return the group, or create a classic group."""
        group = self.find(group_id)
        return self.make(group_id) if group is None else group

    def make(self, group_id: str) -> Any:
        """Create a classic group with a name that find() does not find."""
        group = self.groups[group_id] = Group(group_id, self.clock.wall_ms())
        return group

    def drop(self, group: Committed) -> None:
        """Remove a group without members and write its tombstones."""
        self.hide(group)
        self.record_gone(group)

    def hide(self, group: Any) -> None:
        """Remove a group without members from memory, so that requests do not find it."""
        assert not group.members, group.id
        if group.kind == CLASSIC:
            group.move(DEAD, self.clock.wall_ms())
            for member_id in group.pending:
                self.timers.cancel(("member", group.id, member_id))
        elif group.kind == STREAMS:
            self.timers.cancel(group.delay)
        self.rebalances.forget(group.id)
        self.groups.pop(group.id, None)
        self.gone.add(group.id)

    def record_group(self, group: Group) -> None:
        """Record a classic group."""
        self.records.append((group_key(group.id), classic_records.group_value(group)))
        self.changed.add((group.id, None))

    def record_gone(self, group: Any) -> None:
        """Record the tombstones of a group."""
        self.records += group.tombstones()
        if group.kind == CONSUMER:
            self.changed.update((group.id, (member_id,)) for member_id in group.members)
        self.changed.add((group.id, None))

    def saved(self, changed: Changes) -> None:
        """Note that the snapshot has `changed`, and so no longer the groups dropped before."""
        assert not self.deleting & self.groups.keys(), self.deleting
        self.gone -= {group_id for group_id, _ in changed} - {
            group_id for group_id, _ in self.changed} - self.deleting

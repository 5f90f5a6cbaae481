"""The groups of one partition of `__consumer_offsets`: what every kind of them goes through.

Owns: the groups, their timers, and what a step leaves for the runtime.
Invariants: (1) a group is in memory, in the snapshot or nowhere: what was dropped here is not found
  in the snapshot again.
Source: Kafka's GroupMetadataManager.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from pylog.coordinator.groups.consumer import records as consumer_records
from pylog.coordinator.groups.consumer.group import ConsumerGroup
from pylog.coordinator.groups.share.group import ShareGroup
from pylog.coordinator.groups.state import classic_records as records
from pylog.coordinator.groups.state.classic_group import CLASSIC, DEAD, STREAMS, Committed, Group
from pylog.coordinator.groups.state.group_config import Limits, Time
from pylog.coordinator.groups.state.heartbeat_cache import GroupRepeats
from pylog.coordinator.groups.state.rebalance_tracker import Rebalances
from pylog.coordinator.runtime.journal import Written
from pylog.coordinator.runtime.timers import Timers
from pylog.metadata.image.image import Image

EVENTS = ("member_joined", "member_left", "member_expired", "rebalance", "rebalance_ms",
          "member_stopped_ms", "generation", "offset_committed", "offset_expired", "record_written")
# What of a group changed: a topic's offsets, the group itself (None), or one member.
Part = str | None | tuple[str]
Changes = set[tuple[str, Part]]


class Name(NamedTuple):
    """A group that is in the snapshot only, and has no members."""

    id: str
    protocol_type: str
    kind: str


class GroupMachine:
    """clock: has now_ms(), which never goes back, and wall_ms(). new_id: a function, gives unique
    texts.

    cold: group id -> the group that is in the snapshot, or None; names: all of those, as
    elsewhere() has them. events: counters, for all machines of a coordinator. image: gives the
    metadata in force. over: takes each rebalance that is over. `records` are [(key, value or
    None)], `replies` [(token, message)], `changed` {(group id, Part)}; the caller empties them.
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
        self.topics_version = -1     # The image's offset when topics last changed.
        self.groups: dict[str, Any] = {}     # Committed, each of its kind.
        self.shares: dict[str, ShareGroup] = {}     # Share groups, which commit no offsets.
        self.timers = Timers()
        self.repeats = GroupRepeats(self.timers)
        self.rebalances = Rebalances(clock, over)
        self.records: list[Written] = []
        self.replies: list[tuple[Any, Any]] = []
        self.cleanups = 0
        self.changed: Changes = set()
        # Of open transactions: producer id -> (group id, topic, partition) of its offsets.
        self.open_offsets: dict[int, set[tuple[str, str, int]]] = {}
        self.written = 0   # Offsets of transactions, in their order.
        self.gone: set[str] = set()       # Dropped here, perhaps still in the snapshot.
        self.deleting: set[str] = set()   # Hidden already, with records yet to come.
        self.events = dict.fromkeys(EVENTS, 0) if events is None else events
        self.is_loading = True       # Until loaded().
        self._new_id = new_id
        self._cold = cold or (lambda group_id: None)
        self._names = names or (lambda: ())

    def find(self, group_id: str) -> Any:
        """The group, of whatever kind, or None."""
        group = self.groups.get(group_id)
        if group is None and group_id not in self.gone:
            group = self._cold(group_id)
            if group is not None:
                self.groups[group_id] = group
        return group

    def elsewhere(self) -> list[Name]:
        """The groups in the snapshot only."""
        return [row for row in self._names()
                if row.id not in self.groups and row.id not in self.gone]

    def find_or_make(self, group_id: str) -> Any:
        """A classic group, when there is none of another kind."""
        group = self.find(group_id)
        if group is None:
            group = self.groups[group_id] = Group(group_id, self.clock.wall_ms())
        return group

    def drop(self, group: Committed) -> None:
        """Forgets a group without members, with tombstones if it may have records."""
        self.hide(group)
        self.record_gone(group)

    def hide(self, group: Any) -> None:
        """Takes a group without members out: nobody finds it any more."""
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
        """The record of a classic group."""
        self.records.append((records.group_key(group.id), records.group_value(group)))
        self.changed.add((group.id, None))

    def record_gone(self, group: Any) -> None:
        """The tombstones of a group."""
        if isinstance(group, ConsumerGroup):
            self.records += consumer_records.group_gone(group)
            self.changed.update((group.id, (member_id,)) for member_id in group.members)
        elif group.kind == STREAMS:
            # Imported here: few brokers have Streams groups.
            from pylog.coordinator.groups.streams import records as streams_records

            self.records += streams_records.group_gone(group)
        else:
            self.records.append((records.group_key(group.id), None))
        self.changed.add((group.id, None))

    def saved(self, changed: Changes) -> None:
        """What was in `changed` is in the snapshot: what was dropped before is no more there."""
        assert not self.deleting & self.groups.keys(), self.deleting
        self.gone -= {group_id for group_id, _ in changed} - {
            group_id for group_id, _ in self.changed} - self.deleting

"""One Streams group (KIP-1071): its topology, members, epochs, target and current tasks.

Owns: the state of the group.
Invariants: reverse indexes (processes of active tasks, processes with state) depend only on the
  members, not on the order of changes; an active task belongs to one process, the one of the member
  that has it assigned or has not revoked it yet; a process holds the state of a task once.
Source: KIP-1071; Kafka's StreamsGroup and StreamsGroupMember.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from pylog.coordinator.groups.assignors.tasks import Assignment, Tasks
from pylog.coordinator.groups.state.classic_group import STREAMS
from pylog.coordinator.groups.state.modern_records import Kind
from pylog.coordinator.groups.state.modern_group import AssignedGroup
from pylog.coordinator.runtime.journal import Record
from pylog.coordinator.groups.streams.topology import Configured, Topology

NOT_READY = "NotReady"
# Member states, with the values of Kafka's records.
MEMBER_STABLE, UNREVOKED, UNRELEASED, UNKNOWN = 0, 1, 2, 127
NO_EPOCH = -1  # Epoch of a missing or invalid topology.
NO_TIMEOUT = -1
DELAY = "streams delay"  # A timer type.

Dated = dict[str, dict[int, int]]  # Tasks, with the epoch of each assignment.


class Held(NamedTuple):
    """The tasks assigned to a member."""

    active: Dated = {}
    standby: Tasks = {}
    warmup: Tasks = {}

    def is_empty(self) -> bool:
        return not (self.active or self.standby or self.warmup)

    def equals(self, owned: Assignment) -> bool:
        """Return True if the tasks are exactly those in `owned`."""
        return Assignment({id_: frozenset(held) for id_, held in self.active.items()},
                          self.standby, self.warmup) == owned

    def shares(self, owned: Assignment) -> bool:
        """Return True if `owned` contains any of these tasks in the same role."""
        return any(
            not partitions.isdisjoint(there.get(subtopology, ()))
            for mine, there in self._beside(owned)
            for subtopology, partitions in mine.items())

    def has(self, owned: Assignment) -> bool:
        """Return True if these tasks include all of `owned`."""
        return all(
            subtopology in there and partitions <= set(there[subtopology])
            for mine, there in self._beside(owned)
            for subtopology, partitions in mine.items())

    def _beside(self, owned: Assignment) -> "list[tuple[Tasks, Mapping[str, Collection[int]]]]":
        return [(owned.active, self.active), (owned.standby, self.standby),
                (owned.warmup, self.warmup)]


NOTHING = Assignment()
NOTHING_HELD = Held()


class StreamsMember:
    """One member. Immutable once it is in a group: changes replace it with a copy."""

    __slots__ = ("assigned", "client_host", "client_id", "endpoint", "epoch", "id", "instance_id",
                 "previous_epoch", "process_id", "rack_id", "rebalance_ms", "revoking", "state",
                 "tags", "topology_epoch")
    classic = None  # The consumer protocol has separate groups.

    def __init__(self, id_: str) -> None:
        self.id = id_
        self.instance_id: str | None = None
        self.rack_id: str | None = None
        self.client_id = ""
        self.client_host = ""
        self.rebalance_ms = NO_TIMEOUT
        self.topology_epoch = NO_EPOCH
        self.process_id = ""
        self.endpoint: tuple[str, int] | None = None
        self.tags: dict[str, str] = {}
        self.epoch = 0
        self.previous_epoch = 0
        self.state = MEMBER_STABLE
        self.assigned = NOTHING_HELD
        self.revoking = NOTHING_HELD

    def copy(self, member_id: str | None = None) -> "StreamsMember":
        made = StreamsMember(self.id if member_id is None else member_id)
        for field in COPIED:
            setattr(made, field, getattr(self, field))
        return made

    def description(self) -> tuple[Any, ...]:
        """Return the fields of the member's metadata record."""
        return (self.instance_id, self.rack_id, self.client_id, self.client_host,
                self.rebalance_ms, self.topology_epoch, self.process_id, self.endpoint, self.tags)

    def placement(self) -> tuple[Any, ...]:
        """Return the fields that the assignment depends on."""
        return self.topology_epoch, self.rack_id, self.tags, self.process_id

    def progress(self) -> tuple[Any, ...]:
        """Return the fields of the member's current assignment record."""
        return self.epoch, self.previous_epoch, self.state, self.assigned, self.revoking

    def is_at(self, epoch: int) -> bool:
        return self.state == MEMBER_STABLE and self.epoch == epoch


COPIED = tuple(name for name in StreamsMember.__slots__ if name != "id")


KIND = Kind("StreamsGroup", StreamsMember, lambda: NOTHING_HELD)  # Of the group's records.


class StreamsGroup(AssignedGroup):
    """A Streams group.

    validated: epoch of the topology whose topics all exist, or NO_EPOCH. configs: settings of the
    last assignment. shutdown: the member that requested a shutdown of the application.
    endpoint_epoch: version of the endpoints for interactive queries. The last two and refresh_ms
    are not recorded.
    """

    __slots__ = ("configs", "configured", "endpoint_epoch", "runs", "shutdown", "states", "statics",
                 "topology", "validated")
    members: dict[str, StreamsMember]
    targets: dict[str, Assignment]
    kind = STREAMS
    protocol_type = STREAMS

    def __init__(self, id_: str) -> None:
        super().__init__(id_)
        self.validated = NO_EPOCH
        self.configs: dict[str, str] = {}
        self.topology: Topology | None = None
        self.configured: Configured | None = None
        self.shutdown: str | None = None
        self.endpoint_epoch = 0
        self.statics: dict[str, str] = {}  # Instance id -> member id.
        self.runs: dict[tuple[str, int], str] = {}  # Active task -> its process.
        # Standby or warm-up task -> {process: how many of its members have the task}.
        self.states: dict[tuple[str, int], dict[str, int]] = {}

    def tombstones(self) -> list[Record]:
        """Return the records that delete the group, in Kafka's order; see Kind.member_gone()."""
        assert not self.members, self.id
        return [(KIND.target_epoch_key(self.id), None), (KIND.group_key(self.id), None),
                (KIND.key("Topology", group_id=self.id), None)]

    # ---- state ----------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        is_valid = self.topology is not None and self.topology.epoch == self.validated
        return NOT_READY if self.members and not is_valid else super().state

    @property
    def delay(self) -> tuple[str, str]:
        """Return the timer key of the initial rebalance delay."""
        return DELAY, self.id

    def topics(self) -> set[str]:
        """Return the topics whose offsets members commit."""
        if self.topology is None or not self.members:
            return set()
        return set(self.topology.sources())

    def needs(self, names: set[str]) -> bool:
        """Return True if the topology uses any of these topics."""
        return self.topology is not None and not names.isdisjoint(self.topology.required())

    def epoch_of(self, member: StreamsMember, topic: str, topic_id: bytes,
                 partition: int) -> int | None:
        """Return the epoch in which the task that reads a partition was assigned, or None."""
        subtopology = None if self.topology is None else self.topology.sources().get(topic)
        if subtopology is None:
            return None
        for held in (member.assigned, member.revoking):
            epoch = held.active.get(subtopology, {}).get(partition)
            if epoch is not None:
                return epoch
        return None

    # ---- members --------------------------------------------------------------------------------

    def put(self, member: StreamsMember) -> None:
        """Add or replace a member, and update the indexes."""
        before = self.members.get(member.id)
        if before is not None:
            self._release(before)
            self._forget_instance(before)
        self.members[member.id] = member
        if member.instance_id is not None:
            self.statics[member.instance_id] = member.id
        for held in (member.assigned, member.revoking):
            for task in tasks_of(held.active):
                self.runs[task] = member.process_id
            for task in (*tasks_of(held.standby), *tasks_of(held.warmup)):
                processes = self.states.setdefault(task, {})
                processes[member.process_id] = processes.get(member.process_id, 0) + 1

    def remove(self, member_id: str) -> StreamsMember:
        member = self.members.pop(member_id)
        self._release(member)
        self._forget_instance(member)
        self.targets.pop(member_id, None)
        if not self.members:
            self.shutdown = None
        return member

    def _forget_instance(self, member: StreamsMember) -> None:
        if member.instance_id is not None and self.statics.get(member.instance_id) == member.id:
            del self.statics[member.instance_id]

    def _release(self, member: StreamsMember) -> None:
        """Remove the member's tasks from the indexes, except tasks that another process has."""
        process = member.process_id
        for held in (member.assigned, member.revoking):
            for task in tasks_of(held.active):
                if self.runs.get(task) == process:
                    del self.runs[task]
            for task in (*tasks_of(held.standby), *tasks_of(held.warmup)):
                processes = self.states[task]
                processes[process] -= 1
                if not processes[process]:
                    del processes[process]
                if not processes:
                    del self.states[task]

    def holds_state(self, process: str, task: tuple[str, int]) -> bool:
        return process in self.states.get(task, ())

    def check(self) -> None:
        """Assert that the indexes match the members. Slow, for tests only."""
        other = StreamsGroup(self.id)
        active: set[tuple[str, int]] = set()
        for member in self.members.values():
            other.put(member)
            for held in (member.assigned, member.revoking):
                mine = set(tasks_of(held.active))
                assert active.isdisjoint(mine), (member.id, active & mine)
                active |= mine
        assert other.statics == self.statics, (other.statics, self.statics)
        assert other.runs == self.runs, (other.runs, self.runs)
        assert other.states == self.states, (other.states, self.states)
        assert self.targets.keys() <= self.members.keys()


def tasks_of(tasks: Any) -> list[tuple[str, int]]:
    """Yield (subtopology, partition) of Tasks or Dated tasks."""
    return [(subtopology, partition) for subtopology, partitions in tasks.items()
            for partition in partitions]

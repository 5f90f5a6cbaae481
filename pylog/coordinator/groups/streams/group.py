"""One Streams group of KIP-1071: its topology, members, epochs, target and current tasks.

Owns: the state of the group.
Invariants: (1) what is counted (who runs a task, who holds its state) follows from the members
  alone, whatever the order in which they came; (2) an active task has one process: of whoever has
  it assigned or has yet to revoke it; (3) a process holds the state of a task once.
Source: KIP-1071; Kafka's StreamsGroup and StreamsGroupMember.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from pylog.coordinator.groups.state.classic_group import STREAMS
from pylog.coordinator.groups.state.modern_group import AssignedGroup
from pylog.coordinator.groups.streams.topology import Configured, Topology

NOT_READY = "NotReady"
# States of a member, as Kafka's records have them.
MEMBER_STABLE, UNREVOKED, UNRELEASED, UNKNOWN = 0, 1, 2, 127
NO_EPOCH = -1      # Of a topology that nobody has named, or that is not valid.
NO_TIMEOUT = -1
DELAY = "streams delay"     # A kind of timer.

Tasks = dict[str, frozenset[int]]       # Subtopology -> partitions.
Dated = dict[str, dict[int, int]]       # The same with the epochs in which they were given.


class Assignment(NamedTuple):
    """What a member is to have, or says that it has."""

    active: Tasks = {}
    standby: Tasks = {}
    warmup: Tasks = {}


class Held(NamedTuple):
    """What a member was given."""

    active: Dated = {}
    standby: Tasks = {}
    warmup: Tasks = {}

    def is_empty(self) -> bool:
        return not (self.active or self.standby or self.warmup)

    def equals(self, owned: Assignment) -> bool:
        """Whether that is what is owned."""
        return Assignment({id_: frozenset(held) for id_, held in self.active.items()},
                          self.standby, self.warmup) == owned

    def shares(self, owned: Assignment) -> bool:
        """Whether some of it is among what is owned, each task in its role."""
        return any(
            not partitions.isdisjoint(there.get(subtopology, ()))
            for mine, there in self._beside(owned)
            for subtopology, partitions in mine.items())

    def has(self, owned: Assignment) -> bool:
        """Whether all of what is owned is among it."""
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
    """One member; never changed once its group has it: a changed copy takes its place."""

    __slots__ = ("assigned", "client_host", "client_id", "endpoint", "epoch", "id", "instance_id",
                 "previous_epoch", "process_id", "rack_id", "rebalance_ms", "revoking", "state",
                 "tags", "topology_epoch")
    classic = None      # Members of the other protocol are in other groups.

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

    def copy(self) -> "StreamsMember":
        made = StreamsMember(self.id)
        for field in COPIED:
            setattr(made, field, getattr(self, field))
        return made

    def description(self) -> tuple[Any, ...]:
        """What the member said of itself: what its record holds."""
        return (self.instance_id, self.rack_id, self.client_id, self.client_host,
                self.rebalance_ms, self.topology_epoch, self.process_id, self.endpoint, self.tags)

    def progress(self) -> tuple[Any, ...]:
        """How far it is with its assignment: what that record holds."""
        return self.epoch, self.previous_epoch, self.state, self.assigned, self.revoking

    def is_at(self, epoch: int) -> bool:
        return self.state == MEMBER_STABLE and self.epoch == epoch


COPIED = tuple(name for name in StreamsMember.__slots__ if name != "id")


class StreamsGroup(AssignedGroup):
    """See the module's head. validated: the epoch of the topology whose topics are all there, or
    NO_EPOCH. configs: with what the last assignment was asked for. shutdown: the member that asked
    everybody to stop. endpoint_epoch: of who answers queries where. The last two and refresh_ms are
    not recorded."""

    __slots__ = ("configs", "configured", "endpoint_epoch", "runs", "shutdown", "states",
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
        self.runs: dict[tuple[str, int], str] = {}      # Active task -> its process,
        # standby or warm-up task -> processes, and how many of their members have it.
        self.states: dict[tuple[str, int], dict[str, int]] = {}

    # ---- state ----------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        is_valid = self.topology is not None and self.topology.epoch == self.validated
        return NOT_READY if self.members and not is_valid else super().state

    @property
    def delay(self) -> tuple[str, str]:
        """The key of the timer before whose end there is no first assignment."""
        return DELAY, self.id

    def topics(self) -> set[str]:
        """The topics whose offsets members commit."""
        if self.topology is None or not self.members:
            return set()
        return set(self.topology.sources())

    def needs(self, names: set[str]) -> bool:
        """Whether its topology has one of these topics."""
        return self.topology is not None and not names.isdisjoint(self.topology.required())

    def epoch_of(self, member: StreamsMember, topic: str, topic_id: bytes,
                 partition: int) -> int | None:
        """The epoch in which a member got the task that reads a partition, if it answers for it."""
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
        """Adds a member, or takes one in place of its former self. Keeps (1)."""
        before = self.members.get(member.id)
        if before is not None:
            self._release(before)
        self.members[member.id] = member
        for held in (member.assigned, member.revoking):
            for task in tasks_of(held.active):
                self.runs[task] = member.process_id
            for task in (*tasks_of(held.standby), *tasks_of(held.warmup)):
                processes = self.states.setdefault(task, {})
                processes[member.process_id] = processes.get(member.process_id, 0) + 1

    def remove(self, member_id: str) -> StreamsMember:
        member = self.members.pop(member_id)
        self._release(member)
        self.targets.pop(member_id, None)
        if not self.members:
            self.shutdown = None
        return member

    def _release(self, member: StreamsMember) -> None:
        """Keeps (2): what another process has by now stays theirs."""
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
        """Asserts what the members say against what was counted. For tests: it takes long."""
        other = StreamsGroup(self.id)
        active: set[tuple[str, int]] = set()
        for member in self.members.values():
            other.put(member)
            for held in (member.assigned, member.revoking):
                mine = set(tasks_of(held.active))
                assert active.isdisjoint(mine), (member.id, active & mine)
                active |= mine
        assert other.runs == self.runs, (other.runs, self.runs)
        assert other.states == self.states, (other.states, self.states)
        assert self.targets.keys() <= self.members.keys()


def tasks_of(tasks: Any) -> list[tuple[str, int]]:
    """(subtopology, partition) of Tasks, or of Dated ones."""
    return [(subtopology, partition) for subtopology, partitions in tasks.items()
            for partition in partitions]

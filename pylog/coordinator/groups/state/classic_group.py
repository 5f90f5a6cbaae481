"""One classic group: its members, generation and committed offsets, and the changes within it.

Owns: the state of the group.
Invariants: a group without members is Empty, or PreparingRebalance while its first member joins;
  the leader is a member; an instance id belongs to one static member; `awaiting` is the number of
  members with a waiting JoinGroup.
Source: Kafka's group protocol: KIP-62, KIP-134, KIP-345, KIP-394, KIP-559.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from pylog.coordinator.runtime.journal import Record
from pylog.protocol import messages, records

EMPTY = "Empty"
PREPARING = "PreparingRebalance"
COMPLETING = "CompletingRebalance"
STABLE = "Stable"
DEAD = "Dead"
CLASSIC = "classic"
CONSUMER = "consumer"
STREAMS = "streams"
NO_TIME = -1


def group_key(group_id: str) -> bytes:
    return records.encode_key(messages.GroupMetadataKey(group=group_id))


class Offset(NamedTuple):
    """A committed offset.

    commit_ms, expire_ms: wall clock. expire_ms: NO_TIME uses the group's retention time.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expire_ms: int
    topic_id: bytes


class Member:
    """One member. protocols: [(name, metadata)] by preference. Tokens identify waiting requests."""

    __slots__ = ("assignment", "client_host", "client_id", "id", "instance_id", "is_new",
                 "join_token", "protocols", "rebalance_ms", "session_ms", "sync_token",
                 "unsent")

    def __init__(self, id_: str, instance_id: str | None, client_id: str, client_host: str,
                 rebalance_ms: int, session_ms: int, protocols: list[tuple[str, bytes]],
                 assignment: bytes = b""):
        self.id = id_
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_ms = rebalance_ms
        self.session_ms = session_ms
        self.protocols = protocols
        self.assignment = assignment
        self.is_new = False
        self.join_token: Any = None
        self.sync_token: Any = None
        self.unsent = 0  # Replies that wait for a flush.

    def metadata(self, protocol: str | None) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""

    def may_expire(self) -> bool:
        """Return True if the end of its session removes the member.

        A member that waits for a response cannot send heartbeats. It stays a member until its
        session, which starts when the response is sent, has timed out.
        """
        return self.is_new or (
            self.join_token is None and self.sync_token is None and not self.unsent)


class Committed:
    """The common part of all group types: id and committed offsets. kind: Kafka's type name."""

    __slots__ = ("id", "offset_keys", "offsets", "unstable")
    kind: str

    def __init__(self, id_: str):
        self.id = id_
        self.offsets: dict[tuple[str, int], Offset] = {}
        # Open transactions: (topic, partition) -> producer id -> (sequence, Offset or None).
        self.unstable: dict[tuple[str, int], dict[int, tuple[int, Offset | None]]] = {}
        self.offset_keys: dict[str, bytes] = {}  # topic -> records.offset_keys()

    def take_offsets(self, other: "Committed") -> None:
        """Take over the offsets of the same group in another type, or of its previous version."""
        self.offsets, self.unstable = other.offsets, other.unstable
        self.offset_keys = other.offset_keys

    def tombstones(self) -> list[Record]:
        """Return the records that delete the group, but not its offsets."""
        raise AssertionError(self.kind)


class Group(Committed):
    """A classic group.

    pending: member ids handed out for KIP-394. unsynced: members that have not synced yet.
    """

    __slots__ = ("awaiting", "generation", "grown", "leader", "members", "pending", "previous",
                 "protocol", "protocol_type", "state", "state_ms", "statics", "supported",
                 "unsynced")
    kind = CLASSIC

    def __init__(self, id_: str, now_ms: int):
        super().__init__(id_)
        self.state = self.previous = EMPTY
        self.state_ms = now_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.statics: dict[str, str] = {}        # instance id -> member id
        self.pending: set[str] = set()
        self.unsynced: set[str] = set()
        self.supported: dict[str, int] = {}  # protocol -> number of members that support it
        self.awaiting = 0
        self.grown = False

    def tombstones(self) -> list[Record]:
        return [(group_key(self.id), None)]

    # ---- state ----------------------------------------------------------------------------------

    def move(self, state: str, wall_ms: int) -> None:
        # Only these states are possible without members.
        assert self.members or state in (EMPTY, PREPARING, DEAD), (self.id, state)
        self.previous = self.state
        self.state = state
        self.state_ms = wall_ms

    def next_generation(self, wall_ms: int) -> None:
        """End the join phase: start a new generation with the current members."""
        self.generation = 0 if self.generation == 2**31 - 1 else self.generation + 1
        self.unsynced.clear()
        if self.members:
            self.protocol = self.select_protocol()
            self.move(COMPLETING, wall_ms)
        else:
            self.protocol = None
            self.move(EMPTY, wall_ms)

    @property
    def rebalance_ms(self) -> int:
        """Return the rebalance timeout: the longest one of all members."""
        return max((member.rebalance_ms for member in self.members.values()), default=0)

    @property
    def is_spent(self) -> bool:
        """Return True if the group holds nothing that is worth a record or memory."""
        return self.state == EMPTY and not (
            self.members or self.pending or self.offsets or self.unstable)

    def all_joined(self) -> bool:
        # `awaiting` counts waiting JoinGroups.
        assert 0 <= self.awaiting <= len(self.members), (self.id, self.awaiting)
        return self.awaiting == len(self.members) and not self.pending

    # ---- members --------------------------------------------------------------------------------

    def fault_of(self, member_id: str, instance_id: str | None) -> str | None:
        """Return None if the member id and instance id are valid, else "unknown" or "fenced"
        (KIP-345).
        """
        if instance_id is not None:
            current = self.statics.get(instance_id)
            if current is None:
                return "unknown"
            if current != member_id:
                return "fenced"
        return None if member_id in self.members else "unknown"

    def add(self, member: Member, protocol_type: str | None) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader is None:
            self.leader = member.id
        self.members[member.id] = member
        self.pending.discard(member.id)
        if member.instance_id is not None:
            assert member.instance_id not in self.statics, member.instance_id
            self.statics[member.instance_id] = member.id
        self._count(member, 1)

    def remove(self, member_id: str) -> Member:
        """Remove a member. Its waiting requests must have been answered."""
        member = self.members.pop(member_id)
        assert member.join_token is None and member.sync_token is None, member_id
        self._count(member, -1)
        self.unsynced.discard(member_id)
        if member.instance_id is not None:
            del self.statics[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        # The leader is a member.
        assert self.leader in self.members if self.members else self.leader is None, self.id
        return member

    def replace(self, old: Member, member_id: str) -> Member:
        """Give a static member a new member id. It keeps its assignment and role."""
        assert old.join_token is None and old.sync_token is None, old.id
        led = self.leader == old.id
        unsynced = old.id in self.unsynced
        self.remove(old.id)
        member = Member(member_id, old.instance_id, old.client_id, old.client_host,
                        old.rebalance_ms, old.session_ms, old.protocols, old.assignment)
        self.add(member, self.protocol_type)
        if led:
            self.leader = member_id
        if unsynced:
            self.unsynced.add(member_id)
        return member

    def set_protocols(self, member: Member, protocols: list[tuple[str, bytes]]) -> None:
        self._count(member, -1)
        member.protocols = protocols
        self._count(member, 1)

    def _count(self, member: Member, by: int) -> None:
        for name in {name for name, _ in member.protocols}:
            count = self.supported.get(name, 0) + by
            if count:
                self.supported[name] = count
            else:
                del self.supported[name]

    def elect(self) -> bool:
        """Elect a leader that has joined this rebalance; return False if no member has joined."""
        if self.leader is None:
            return False
        if self.members[self.leader].join_token is None:
            joined = next((member.id for member in self.members.values()
                           if member.join_token is not None), None)
            if joined is None:
                return False
            self.leader = joined
        return True

    # ---- protocols ------------------------------------------------------------------------------

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Return True if a member with these protocols can join the group."""
        if self.state == EMPTY:
            return bool(protocol_type) and bool(names)
        if protocol_type != self.protocol_type:
            return False
        count = len(self.members)
        if not count:
            return bool(names)
        return any(self.supported.get(name) == count for name in names)

    def select_protocol(self) -> str:
        """Return the protocol with the most votes among those that all members support.

        Each member votes for its first choice. Ties go to the current protocol.
        """
        count = len(self.members)
        shared = {name for name, known in self.supported.items() if known == count}
        votes: dict[str, int] = {}
        for member in self.members.values():
            for name, _ in member.protocols:
                if name in shared:
                    votes[name] = votes.get(name, 0) + 1
                    break
        return max(votes, key=lambda name: (votes[name], name == self.protocol))

"""Assign partitions to group members: range, roundrobin, sticky and cooperative-sticky.

Owns: nothing. Pure functions of the members' subscriptions.
Invariants: each partition of a subscribed topic goes to exactly one member that subscribed to it
  (cooperative: or to none until its owner has released it); the same input gives the same output;
  sticky: with equal subscriptions, loads differ by at most 1 and no partition moves unnecessarily.
Source: KIP-54 (sticky), KIP-429 (cooperative), KIP-792 (generations); Kafka's names of assignors.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

Partition = tuple[str, int]
Assignment = dict[str, list[Partition]]


@dataclass(frozen=True)
class Member:
    """A member's subscription. owned: its current partitions; generation: when it received them."""

    topics: frozenset[str]
    owned: tuple[Partition, ...] = ()
    generation: int = -1
    instance_id: str | None = None


Members = Mapping[str, Member]
Counts = Mapping[str, int]  # topic -> number of partitions


@dataclass(frozen=True)
class Assignor:
    """cooperative: members keep their partitions while they join. keeps: it uses `owned`."""

    name: str
    assign: Callable[[Counts, Members], Assignment]
    cooperative: bool = False
    keeps: bool = False


def in_order(members: Members) -> list[str]:
    """Return member ids, static members first, by instance id, so that their order never changes.
    """
    return sorted(members, key=lambda id_: (
        members[id_].instance_id is None, members[id_].instance_id or id_, id_))


def assign_range(counts: Counts, members: Members) -> Assignment:
    """Assign a contiguous range of each topic to each member; the first members get one more."""
    made: Assignment = {id_: [] for id_ in members}
    order = in_order(members)
    for topic in sorted(counts):
        takers = [id_ for id_ in order if topic in members[id_].topics]
        if not takers:
            continue
        share, more = divmod(counts[topic], len(takers))
        at = 0
        for index, id_ in enumerate(takers):
            count = share + (index < more)
            made[id_] += [(topic, number) for number in range(at, at + count)]
            at += count
    return made


def assign_roundrobin(counts: Counts, members: Members) -> Assignment:
    """Assign all partitions in turn, skipping members that did not subscribe to the topic."""
    made: Assignment = {id_: [] for id_ in members}
    order = in_order(members)
    at = 0
    for topic, number in _partitions(counts):
        for step in range(len(order)):
            id_ = order[(at + step) % len(order)]
            if topic in members[id_].topics:
                made[id_].append((topic, number))
                at = (at + step + 1) % len(order)
                break
    return made


def assign_sticky(counts: Counts, members: Members) -> Assignment:
    """Balance the load and keep as many partitions as possible with their owners."""
    retained = _retained(counts, members)
    if len({member.topics for member in members.values()}) == 1:
        made = _equal(counts, members, retained)
    else:
        made = _unequal(counts, members, retained)
    return {id_: sorted(parts) for id_, parts in made.items()}


def assign_cooperative(counts: Counts, members: Members) -> Assignment:
    """Assign as sticky does, but hold back partitions that another member owns until the next
    round.
    """
    made = assign_sticky(counts, members)
    owner = {part: id_ for id_, parts in _retained(counts, members).items() for part in parts}
    return {id_: [part for part in parts if owner.get(part, id_) == id_]
            for id_, parts in made.items()}


ASSIGNORS = {assignor.name: assignor for assignor in (
    Assignor("range", assign_range),
    Assignor("roundrobin", assign_roundrobin),
    Assignor("sticky", assign_sticky, keeps=True),
    Assignor("cooperative-sticky", assign_cooperative, cooperative=True, keeps=True),
)}


def pack_sticky(owned: Iterable[Partition], generation: int) -> bytes:
    """Encode the user data that reports an eager sticky member's previous partitions."""
    topics = defaultdict(list)
    for topic, number in owned:
        topics[topic].append(number)
    parts = [struct.pack(">i", len(topics))]
    for topic, numbers in topics.items():
        name = topic.encode()
        parts.append(struct.pack(f">h{len(name)}si{len(numbers)}i", len(name), name, len(numbers),
                                 *numbers))
    parts.append(struct.pack(">i", generation))
    return b"".join(parts)


def unpack_sticky(data: bytes) -> tuple[tuple[Partition, ...], int]:
    """Decode (owned, generation) from sticky user data. Raises ValueError."""
    owned: list[Partition] = []
    at = 4
    try:
        (topics,) = struct.unpack_from(">i", data)
        for _ in range(topics):
            (size,) = struct.unpack_from(">h", data, at)
            topic = bytes(data[at + 2:at + 2 + size]).decode()
            (count,) = struct.unpack_from(">i", data, at + 2 + size)
            at += 6 + size
            owned += [(topic, number) for number in struct.unpack_from(f">{count}i", data, at)]
            at += 4 * count
        generation = struct.unpack_from(">i", data, at)[0] if at + 4 <= len(data) else -1
    except (struct.error, UnicodeDecodeError) as broken:
        raise ValueError(f"no sticky user data: {broken}") from None
    return tuple(owned), generation


def _partitions(counts: Counts) -> list[Partition]:
    return [(topic, number) for topic in sorted(counts) for number in range(counts[topic])]


def _retained(counts: Counts, members: Members) -> Assignment:
    """Return the partitions that each member may keep: they exist, their topic is subscribed to,
    and no other member owned them in a later generation.
    """
    claims: dict[Partition, list[tuple[int, str]]] = defaultdict(list)
    for id_, member in members.items():
        for topic, number in dict.fromkeys(member.owned):
            if topic in member.topics and number < counts.get(topic, 0):
                claims[topic, number].append((member.generation, id_))
    retained: Assignment = {id_: [] for id_ in members}
    for part in sorted(claims):
        newest = max(claims[part])[0]
        owners = [id_ for generation, id_ in claims[part] if generation == newest]
        if len(owners) == 1:  # Two owners in the same generation: the owner is ambiguous.
            retained[owners[0]].append(part)
    return retained


def _equal(counts: Counts, members: Members, retained: Assignment) -> Assignment:
    """Assign each member the floor or one partition more. All have the same topics."""
    topics = next(iter(members.values())).topics
    wanted = [part for part in _partitions(counts) if part[0] in topics]
    floor, more = divmod(len(wanted), len(members))
    made: Assignment = {}
    # Members with the most partitions keep one above the floor, so that the fewest move.
    by_load = sorted(in_order(members), key=lambda id_: -len(retained[id_]))
    for id_ in by_load:
        limit = floor
        if more and len(retained[id_]) > floor:
            limit, more = floor + 1, more - 1
        made[id_] = retained[id_][:limit]
    assigned = {part for parts in made.values() for part in parts}
    free = iter([part for part in wanted if part not in assigned])
    for id_ in in_order(members):
        while len(made[id_]) < floor:
            made[id_].append(next(free))
    short = iter([id_ for id_ in in_order(members) if len(made[id_]) == floor])
    for part in free:
        made[next(short)].append(part)
    return made


def _unequal(counts: Counts, members: Members, retained: Assignment) -> Assignment:
    made = {id_: list(parts) for id_, parts in retained.items()}
    owner = {part: id_ for id_, parts in made.items() for part in parts}
    order = in_order(members)
    takers = {topic: [id_ for id_ in order if topic in members[id_].topics] for topic in counts}
    # Assign partitions with few possible owners first.
    free = [part for part in _partitions(counts) if part not in owner and takers[part[0]]]
    for part in sorted(free, key=lambda part: (len(takers[part[0]]), part)):
        least = min(takers[part[0]], key=lambda id_: len(made[id_]))
        made[least].append(part)
        owner[part] = least
    # Every move lowers the sum of squares of the loads, so this terminates.
    moved = True
    while moved:
        moved = False
        for part in sorted(owner):
            least = min(takers[part[0]], key=lambda id_: len(made[id_]))
            if len(made[owner[part]]) > len(made[least]) + 1:
                made[owner[part]].remove(part)
                made[least].append(part)
                owner[part] = least
                moved = True
    return made

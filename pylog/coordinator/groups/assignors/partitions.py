"""Server-side partition assignment for consumer groups.

Owns: the assignors that settings refer to by name.
Invariants: each partition of an existing, subscribed topic goes to exactly one subscriber; the same
  input gives the same assignment; a member keeps its partitions as far as a fair share allows
  (uniform).
Source: KIP-848 (uniform, range); KIP-1101 (racks are an input; Kafka's own assignors ignore them).

An assignor is a function of ([Subscriber], {topic id: TopicShape}) -> {member id: Assignment}.
"""

from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop, heappush
from importlib import import_module
from itertools import islice
from typing import Any, NamedTuple

from pylog.config.errors import ConfigError

Assignment = Mapping[bytes, frozenset[int]]    # Topic id -> partitions.
UNIFORM, RANGE = "uniform", "range"
ROUNDS_MAX = 16  # When members have different subscriptions.
NOTHING: frozenset[int] = frozenset()


class Subscriber(NamedTuple):
    """A member, as input for assignors.

    topics: ids of existing topics. assigned: its current assignment.
    """

    id: str
    instance_id: str | None
    rack_id: str | None
    topics: frozenset[bytes]
    assigned: Assignment


class TopicShape(NamedTuple):
    """A topic, as input for assignors. racks: known racks of the replicas, by partition."""

    partitions: int
    racks: tuple[frozenset[str], ...] = ()


Assignor = Callable[[list[Subscriber], Mapping[bytes, TopicShape]], dict[str, Assignment]]


def assign_range(members: list[Subscriber],
                 topics: Mapping[bytes, TopicShape]) -> dict[str, Assignment]:
    """Assign consecutive partitions of each topic, ordered by instance id, then by member id.

    If the shares are uneven, the first members get one more partition.
    """
    ordered = sorted(members, key=lambda member: (
        member.instance_id is None, member.instance_id or member.id))
    left = dict.fromkeys(topics, 0)  # Subscribers without a share yet,
    begin = dict.fromkeys(topics, 0)  # and the start of the next share.
    for member in ordered:
        for topic in member.topics:
            left[topic] += 1
    found: dict[str, Assignment] = {}
    for member in ordered:
        assigned: dict[bytes, frozenset[int]] = {}
        for topic in member.topics:
            first = begin[topic]
            count = -(-(topics[topic].partitions - first) // left[topic])
            begin[topic] = first + count
            left[topic] -= 1
            if count:
                assigned[topic] = frozenset(range(first, first + count))
        found[member.id] = assigned
    return found


def assign_uniform(members: list[Subscriber],
                   topics: Mapping[bytes, TopicShape]) -> dict[str, Assignment]:
    """Balance the number of partitions per member to within one, with as few moves as possible.

    Members with different subscriptions are balanced as far as those allow.
    """
    if not members or not topics:
        return {member.id: {} for member in members}
    first = members[0].topics
    if all(member.topics == first for member in members):
        return _Shares(members, topics).assign()
    return _Balance(members, topics).assign()


class _Shares:
    """Assignment for identical subscriptions: balances members around the fair share."""

    def __init__(self, members: list[Subscriber], topics: Mapping[bytes, TopicShape]):
        self._members = sorted(members, key=lambda member: member.id)
        self._topics = {topic: topics[topic].partitions for topic in sorted(members[0].topics)}
        total = sum(self._topics.values())
        self._quota, self._extra = divmod(total, len(members))

    def assign(self) -> dict[str, Assignment]:
        held = {member.id: _retained(member, self._topics) for member in self._members}
        counts = {id_: sum(map(len, by_topic.values())) for id_, by_topic in held.items()}
        # Members that already have more keep the extra partitions.
        rich = sorted(self._members, key=lambda member: -counts[member.id])
        wanted = {member.id: self._quota + (position < self._extra)
                  for position, member in enumerate(rich)}
        free = self._free(held)
        for member in self._members:
            over = counts[member.id] - wanted[member.id]
            if over > 0:
                free += _give(held[member.id], over)
        spare = iter(free)
        for member in self._members:
            missing = wanted[member.id] - counts[member.id]
            for topic, partition in islice(spare, max(0, missing)):
                held[member.id].setdefault(topic, set()).add(partition)
        # Every partition is assigned.
        assert next(spare, None) is None, len(free)
        return _frozen(held)

    def _free(self, held: dict[str, dict[bytes, set[int]]]) -> list[tuple[bytes, int]]:
        assigned: dict[bytes, set[int]] = {topic: set() for topic in self._topics}
        for by_topic in held.values():
            for topic, partitions in by_topic.items():
                assigned[topic] |= partitions
        return [(topic, partition) for topic, count in self._topics.items()
                for partition in range(count) if partition not in assigned[topic]]


class _Balance:
    """Assignment for different subscriptions.

    Free partitions go to the least loaded subscribers. Then, topic by topic, the most loaded
    members give to the least loaded ones, until nothing improves.
    """

    def __init__(self, members: list[Subscriber], topics: Mapping[bytes, TopicShape]):
        self._subscribers: dict[bytes, list[str]] = {}
        ordered = sorted(members, key=lambda member: member.id)
        for member in ordered:
            for topic in member.topics:
                self._subscribers.setdefault(topic, []).append(member.id)
        self._topics = {topic: topics[topic].partitions for topic in self._subscribers}
        self._held = {member.id: _retained(member, self._topics) for member in ordered}
        self._counts = {id_: sum(map(len, by_topic.values()))
                        for id_, by_topic in self._held.items()}

    def assign(self) -> dict[str, Assignment]:
        # Start with the topics that have the fewest subscribers; later topics even out the load.
        order = sorted(self._subscribers, key=lambda topic: (
            -self._topics[topic] / len(self._subscribers[topic]),
            len(self._subscribers[topic]), topic))
        for topic in order:
            self._fill(topic)
        for _ in range(ROUNDS_MAX):
            if not any([self._level(topic) for topic in order]):
                break
        return _frozen(self._held)

    def _fill(self, topic: bytes) -> None:
        members = self._subscribers[topic]
        assigned = set().union(*(self._held[id_].get(topic, NOTHING) for id_ in members))
        free = [index for index in range(self._topics[topic]) if index not in assigned]
        for id_, count in _poured([self._counts[id_] for id_ in members], members, len(free)):
            for partition in free[:count]:
                self._held[id_].setdefault(topic, set()).add(partition)
            self._counts[id_] += count
            free = free[count:]
        assert not free, (topic, len(free))

    def _level(self, topic: bytes) -> bool:
        """Move partitions of a topic from the most to the least loaded; return True if any."""
        counts = self._counts
        takers = [(counts[id_], id_) for id_ in self._subscribers[topic]]
        givers = [(-count, id_) for count, id_ in takers if self._held[id_].get(topic)]
        heapify(takers)
        heapify(givers)
        moved = False
        while givers:
            most, giver = heappop(givers)
            if -most != counts[giver]:
                continue  # Outdated heap entry.
            while takers[0][0] != counts[takers[0][1]]:
                heappop(takers)
            least, taker = takers[0]
            if -most - least < 2:
                break
            (_, partition), = _give(self._held[giver], 1, topic)
            self._held[taker].setdefault(topic, set()).add(partition)
            counts[giver] -= 1
            counts[taker] += 1
            for id_ in (giver, taker):
                heappush(takers, (counts[id_], id_))
                if self._held[id_].get(topic):
                    heappush(givers, (-counts[id_], id_))
            moved = True
        return moved


def _poured(levels: list[int], members: list[str], count: int) -> list[tuple[str, int]]:
    """Return [(member, how many it gets)] that fills the lowest levels evenly with `count`."""
    order = sorted(range(len(members)), key=lambda at: (levels[at], at))
    filled, cost = 0, 0
    # Number of members that can be raised to a common level.
    while filled < len(order):
        step = levels[order[filled]]
        need = step * filled - cost
        if need > count:
            break
        cost += step
        filled += 1
    level, extra = divmod(count + cost, filled)
    return [(members[position], level - levels[position] + (index < extra))
            for index, position in enumerate(order[:filled])]


def _retained(member: Subscriber, topics: Mapping[bytes, int]) -> dict[bytes, set[int]]:
    """Return the member's partitions of topics that still exist and that it still subscribes to."""
    return {topic: retained for topic, partitions in member.assigned.items()
            if topic in topics and topic in member.topics
            and (retained := {index for index in partitions if index < topics[topic]})}


def _give(by_topic: dict[bytes, set[int]], count: int,
          only: bytes | None = None) -> list[tuple[bytes, int]]:
    """Remove `count` partitions from a member, highest first, and return them."""
    found: list[tuple[bytes, int]] = []
    for topic in sorted(by_topic, reverse=True) if only is None else [only]:
        for partition in sorted(by_topic[topic], reverse=True)[:count - len(found)]:
            by_topic[topic].discard(partition)
            found.append((topic, partition))
        if not by_topic[topic]:
            del by_topic[topic]
        if len(found) == count:
            break
    assert len(found) == count, (len(found), count)
    return found


def _frozen(held: dict[str, dict[bytes, set[int]]]) -> dict[str, Assignment]:
    return {id_: {topic: frozenset(partitions) for topic, partitions in by_topic.items()}
            for id_, by_topic in held.items()}


# ---- by name ------------------------------------------------------------------------------------

BUILT_IN: dict[str, Assignor] = {UNIFORM: assign_uniform, RANGE: assign_range}


def load(names: Iterable[str]) -> dict[str, Assignor]:
    """Return {name: assignor}, in the order of `names`.

    A name with a colon is module:function; members refer to it by the function's name. Raises
    ConfigError.
    """
    found: dict[str, Assignor] = {}
    for name in names:
        module, colon, function = name.partition(":")
        if not colon:
            if name not in BUILT_IN:
                raise ConfigError(f"group.consumer.assignors: {name} is neither of "
                                  f"{', '.join(BUILT_IN)} nor module:function")
            found[name] = BUILT_IN[name]
            continue
        try:
            assignor: Any = getattr(import_module(module), function)
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"group.consumer.assignors: {name}: {error}") from error
        if not callable(assignor):
            raise ConfigError(f"group.consumer.assignors: {name} is not a function")
        found[function] = assignor
    return found


def checked(assigned: Mapping[str, Mapping[bytes, Iterable[int]]], members: list[Subscriber],
            topics: Mapping[bytes, TopicShape]) -> dict[str, Assignment]:
    """Validate and convert the result of a custom assignor.

    Raises ValueError if a partition is assigned twice, does not exist, or goes to a member that
    does not subscribe to it.
    """
    seen: set[tuple[bytes, int]] = set()
    known = {member.id: member for member in members}
    if not known.keys() >= assigned.keys():
        raise ValueError("the assignor returned an unknown member")
    for id_, by_topic in assigned.items():
        for topic, partitions in by_topic.items():
            if topic not in known[id_].topics:
                raise ValueError(f"{id_} does not subscribe to a topic that it was given")
            for index in partitions:
                if not 0 <= index < topics[topic].partitions or (topic, index) in seen:
                    raise ValueError(f"partition {index} is not there, or was given twice")
                seen.add((topic, index))
    return {member.id: {topic: frozenset(by_topic)
                        for topic, by_topic in assigned.get(member.id, {}).items() if by_topic}
            for member in members}

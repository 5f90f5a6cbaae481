"""The topology of a Streams group, and what it needs in the current cluster: number of tasks,
missing internal topics, reasons why it cannot run.

Owns: nothing.
Invariants: configure() depends only on the topology and the partition counts of topics;
  copartitioned topics have the same number of partitions, otherwise the topology is invalid.
Source: KIP-1071; Kafka's InternalTopicManager (response behaviour).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, NamedTuple

from pylog.protocol.api_error import Refusal
from pylog.protocol.errors import ErrorCode

# Status codes of heartbeat responses, as in Kafka.
(STALE_TOPOLOGY, MISSING_SOURCES, WRONG_PARTITIONS, MISSING_INTERNAL, SHUTDOWN, DELAYED,
 MISSING_CLIENT_TAGS) = range(7)
SHOWN_MAX = 3  # Topics listed in a status.
SUBTOPOLOGIES_MAX = 1000
TASKS_MAX = 100_000

Count = Callable[[str], int | None]  # Topic -> its partition count, or None.


class Internal(NamedTuple):
    """An internal topic, as described by the client.

    partitions, factor: 0 lets the broker choose.
    """

    name: str
    partitions: int
    factor: int
    configs: tuple[tuple[str, str], ...]


class Copartition(NamedTuple):
    """Indexes of copartitioned topics."""

    sources: tuple[int, ...]
    patterns: tuple[int, ...]
    repartitions: tuple[int, ...]


class Subtopology(NamedTuple):
    """A connected part of the topology, with one task per partition.

    sinks: repartition topics that it writes. repartitions: repartition topics that it reads.
    """

    id: str
    sources: tuple[str, ...]
    patterns: tuple[str, ...]
    changelogs: tuple[Internal, ...]
    sinks: tuple[str, ...]
    repartitions: tuple[Internal, ...]
    copartitions: tuple[Copartition, ...]

    def read(self) -> list[str]:
        return [*self.sources, *(topic.name for topic in self.repartitions)]


class Missing(NamedTuple):
    """An internal topic that must be created."""

    name: str
    partitions: int
    factor: int
    configs: tuple[tuple[str, str], ...]


class Configured(NamedTuple):
    """A topology, resolved in the cluster.

    tasks: subtopology -> number of tasks, sorted by name; None if unknown. internal: topic ->
    partitions. status: (code, text) if it cannot run, or None.
    """

    tasks: dict[str, int] | None
    internal: dict[str, int]
    missing: tuple[Missing, ...] = ()
    status: tuple[int, str] | None = None


class Unfit(Exception):
    """Raised if a topology cannot run with the existing topics."""

    def __init__(self, code: int, text: str):
        super().__init__(text)
        self.code = code


class Topology:
    """An immutable topology. subtopologies: by id."""

    def __init__(self, epoch: int, subtopologies: Iterable[Subtopology]):
        self.epoch = epoch
        self.subtopologies = {row.id: row for row in subtopologies}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Topology) and self.epoch == other.epoch \
            and self.subtopologies == other.subtopologies

    __hash__ = None     # type: ignore[assignment]

    @cached_property
    def _sources(self) -> dict[str, str]:
        return {topic: row.id for row in self.subtopologies.values() for topic in row.read()}

    @cached_property
    def _required(self) -> frozenset[str]:
        return frozenset(self._sources) | {
            topic.name for row in self.subtopologies.values() for topic in row.changelogs}

    def sources(self) -> dict[str, str]:
        """Return {source topic: its subtopology}."""
        return self._sources

    def required(self) -> frozenset[str]:
        """Return all topics that it needs."""
        return self._required


def topics_of(message: Any) -> list[str]:
    """Return the topics in a request's topology, each once."""
    return list(dict.fromkeys(
        name for row in message.subtopologies
        for name in (*row.source_topics, *row.repartition_sink_topics,
                     *(topic.name for topic in row.repartition_source_topics),
                     *(topic.name for topic in row.state_changelog_topics))))


def topology_from(message: Any) -> Topology:
    """Parse the topology of a request or record."""
    def internal(rows: Iterable[Any]) -> tuple[Internal, ...]:
        return tuple(Internal(row.name, row.partitions, row.replication_factor, tuple(
            (config.key, config.value) for config in row.topic_configs)) for row in rows)

    return Topology(message.epoch, [Subtopology(
        row.subtopology_id, tuple(row.source_topics), tuple(row.source_topic_regex),
        internal(row.state_changelog_topics), tuple(row.repartition_sink_topics),
        internal(row.repartition_source_topics), tuple(
            Copartition(tuple(group.source_topics), tuple(group.source_topic_regex),
                        tuple(group.repartition_source_topics))
            for group in row.copartition_groups)) for row in message.subtopologies])


def fault(topology: Topology) -> str | None:
    """Return why the topology cannot run in any cluster, or None."""
    if len(topology.subtopologies) > SUBTOPOLOGIES_MAX:
        return f"The topology has more than {SUBTOPOLOGIES_MAX} subtopologies"
    for row in topology.subtopologies.values():
        if not row.sources and not row.repartitions:
            return f"No source topics found for subtopology {row.id}"
        for group in row.copartitions:
            if not all(0 <= index < len(row.sources) for index in group.sources) or not all(
                    0 <= index < len(row.repartitions) for index in group.repartitions):
                return f"A copartition group of subtopology {row.id} names a topic that it has not"
        for topic in (*row.repartitions, *row.changelogs):
            if topic.partitions < 0:
                return f"Topic {topic.name} cannot have {topic.partitions} partitions"
    return None


# ---- in the cluster -----------------------------------------------------------------------------

def configure(topology: Topology, count: Count) -> Configured:
    """Resolve the topology with the current topics.

    Raises Refusal if it cannot run in any cluster.
    """
    rows = topology.subtopologies
    missing = sorted({name for row in rows.values() for name in row.sources
                      if count(name) is None})
    if missing:
        return Configured(None, {}, (), (
            MISSING_SOURCES, f"Source topics {_some(missing)} are missing."))
    try:
        decided = _repartition_counts(topology, count)
        for row in rows.values():
            for group in row.copartitions:
                _copartition(row, group, decided, count)
        tasks = {id_: max(_count(name, count, decided) for name in rows[id_].read())
                 for id_ in sorted(rows)}
        if sum(tasks.values()) > TASKS_MAX:
            raise Refusal(ErrorCode.STREAMS_INVALID_TOPOLOGY,
                          f"The topology has more than {TASKS_MAX} tasks")
        for row in rows.values():
            decided |= {topic.name: tasks[row.id] for topic in row.changelogs}
        wanted = _missing(topology, decided, count)
    except Unfit as unfit:
        return Configured(None, {}, (), (unfit.code, str(unfit)))
    status = None
    if wanted:
        names = [topic.name for topic in wanted]
        status = MISSING_INTERNAL, f"Internal topics are missing: {_some(names)}"
    return Configured(tasks, decided, wanted, status)


def _repartition_counts(topology: Topology, count: Count) -> dict[str, int]:
    """Return {repartition topic: partitions}.

    The count is the client's, or the highest count among the topics read by a subtopology that
    writes it.
    """
    rows = topology.subtopologies.values()
    found = {topic.name: topic.partitions for row in rows for topic in row.repartitions
             if topic.partitions}
    open_ = {sink for row in rows for sink in row.sinks} - found.keys()
    while open_:
        before = len(open_)
        for row in rows:
            for sink in row.sinks:
                if sink in open_:
                    known = [found[topic.name] for topic in row.repartitions
                             if topic.name in found]
                    known += [counted for name in row.sources
                              if (counted := count(name)) is not None]
                    if known:
                        found[sink] = max(known)
                        open_.discard(sink)
        if len(open_) == before:
            raise Refusal(ErrorCode.STREAMS_INVALID_TOPOLOGY,
                          "Failed to compute number of partitions for all repartition topics. "
                          "There may be loops in the topology that cannot be resolved.")
    if any(topic.name not in found for row in rows for topic in row.repartitions):
        raise Refusal(ErrorCode.STREAMS_INVALID_TOPOLOGY,
                      "Failed to compute number of partitions for all repartition topics, because "
                      "a repartition source topic is never used as a sink topic.")
    return found


def _copartition(row: Subtopology, group: Copartition, decided: dict[str, int],
                 count: Count) -> None:
    """Set the partitions of repartition topics to the count of their copartition group.

    Raises Unfit if the counts of the group differ.
    """
    internal = [row.repartitions[index] for index in group.repartitions]
    names = {topic.name for topic in internal}
    external = {name: _count(name, count, decided)
                for name in (row.sources[index] for index in group.sources) if name not in names}
    fixed = {topic.name: topic.partitions for topic in internal if topic.partitions}
    given = external or fixed
    if not given:
        partitions = max((_count(name, count, decided) for name in names), default=0)
    else:
        partitions = next(iter(given.values()))
        if any(other != partitions for other in given.values()):
            shown = ", ".join(f"{name}={given[name]}" for name in sorted(given))
            raise Unfit(WRONG_PARTITIONS, "Following topics do not have the same number of "
                        f"partitions: [{{{shown}}}]")
    for topic in internal:
        if topic.partitions not in (0, partitions):
            raise Unfit(WRONG_PARTITIONS, f"Number of partitions [{topic.partitions}] of "
                        f"repartition topic [{topic.name}] doesn't match number of partitions "
                        f"[{partitions}] of the source topic.")
        decided[topic.name] = partitions


def _count(name: str, count: Count, decided: dict[str, int]) -> int:
    """Return the count of an existing topic, or the decided count."""
    found = count(name)
    return decided[name] if found is None else found


def _missing(topology: Topology, decided: dict[str, int], count: Count) -> tuple[Missing, ...]:
    """Return the internal topics to create.

    Raises Unfit if one exists with another number of partitions.
    """
    found = []
    seen: set[str] = set()
    for row in topology.subtopologies.values():
        for topic in (*row.repartitions, *row.changelogs):
            if topic.name in seen:
                continue
            seen.add(topic.name)
            wanted = topic.partitions or decided[topic.name]
            there = count(topic.name)
            if there is None:
                found.append(Missing(topic.name, wanted, topic.factor or -1, topic.configs))
            elif there != wanted:
                raise Unfit(WRONG_PARTITIONS, f"Existing topic {topic.name} has different number "
                            f"of partitions: expected {wanted}, found {there}")
    return tuple(found)


def _some(names: list[str]) -> str:
    more = len(names) - SHOWN_MAX
    return ", ".join(names[:SHOWN_MAX]) + (f" and {more} additional topics" if more > 0 else "")

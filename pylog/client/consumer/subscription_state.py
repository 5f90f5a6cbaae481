"""What a consumer is subscribed to, which partitions it has, and where it stands in each.

Owns: the subscription and the state of each assigned partition.
Invariants: (1) position <= fetch_position: what lies between is queued or under way; (2) whatever
  moves a position other than taking records raises `epoch`: answers and queued records of an
  earlier epoch are void; (3) a partition that is revoked is gone from `states` and its epoch is
  raised, so that nothing more is taken of it.
Source: Kafka's consumer; KIP-320 (leader epochs), KIP-392 (preferred replica).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from pylog.client.arguments import several
from pylog.client.errors import IllegalStateError
from pylog.client.network.cluster_metadata import Metadata
from pylog.client.types import OffsetAndMetadata, TopicPartition


class PartitionState:
    """One assigned partition. position None: not known yet, `reset` says how it becomes known."""

    __slots__ = (
        "before", "before_epoch", "checked_epoch", "epoch", "error", "fetch_position",
        "high_watermark", "kept", "last_stable_offset", "log_start_offset", "not_before_s",
        "partition", "paused", "poll", "position", "preferred", "preferred_until_s",
        "record_epoch", "reset", "revoking", "source", "stored", "stored_done", "topic", "tp",
        "validate",
    )

    def __init__(self, tp: TopicPartition, source: int):
        self.tp = tp
        self.topic, self.partition = tp
        self.source = source
        self.epoch = 0
        self.position: int | None = None
        # Where an aborted transaction goes back to; None while the position is not known.
        self.kept: int | None = None
        # Where it stood before the poll of that number, the last one that took records of it.
        self.poll, self.before, self.before_epoch = -1, 0, -1
        self.fetch_position = -1
        self.paused = False
        self.revoking = False
        # None: from the committed offset; else "earliest", "latest" or a time in ms.
        self.reset: str | int | None = None
        self.record_epoch = -1
        self.validate = -1
        self.checked_epoch = -1
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.preferred = -1
        self.preferred_until_s = 0.0
        self.not_before_s = 0.0
        self.error: Exception | None = None
        # What store_offsets() stored last, and the stored offset that was committed last.
        self.stored: OffsetAndMetadata | None = None
        self.stored_done: OffsetAndMetadata | None = None

    def move_to(self, offset: int, record_epoch: int = -1) -> None:
        """Go on at an offset. Keeps (2)."""
        self.epoch += 1
        self.poll = -1
        self.fetch_position = offset
        self.record_epoch = record_epoch
        self.position = self.kept = offset
        self.reset = None
        self.error = None
        self.preferred = -1

    def handed_on(self, poll: int) -> None:
        """The poll of that number is about to move the position on."""
        if self.poll != poll:
            assert self.position is not None, self.tp
            self.before, self.before_epoch = self.position, self.record_epoch
            self.poll = poll

    def stood(self, poll: int) -> tuple[int | None, int]:
        """(position, epoch of the record before) without what that poll or a later one took. From
        any thread: who moves the position on calls handed_on() first."""
        found = self.position, self.record_epoch
        return (self.before, self.before_epoch) if self.poll >= poll else found

    def go_back(self) -> None:
        """What was fetched behind the position is fetched again. Keeps (2)."""
        if self.position is not None:
            self.epoch += 1
            self.fetch_position = self.position

    def forget_position(self, reset: str | int | None) -> None:
        """Have the position looked up. Keeps (2)."""
        self.epoch += 1
        self.position = self.kept = None
        self.reset = reset
        self.error = None


class Subscription:
    """Topics, a pattern or partitions by hand; and the states of what is assigned."""

    def __init__(self, exclude_internal: bool):
        self.exclude_internal = exclude_internal
        self.topics: frozenset[str] = frozenset()
        self.pattern: re.Pattern[str] | None = None
        self.by_hand = False
        self.losses = 0     # Partitions that were assigned and are not any more.
        self.listener: Any = None
        self.states: dict[TopicPartition, PartitionState] = {}
        # A partition keeps its number when it comes back: the column reader knows it by that.
        self.sources: dict[TopicPartition, int] = {}
        self.known: list[TopicPartition] = []

    @property
    def by_group(self) -> bool:
        return bool(self.topics) or self.pattern is not None

    def subscribe(self, topics: Iterable[str] | None, pattern: Any, listener: Any) -> None:
        if self.by_hand:
            raise IllegalStateError("partitions were assigned by hand: unsubscribe first")
        if isinstance(topics, str):
            if not topics.startswith("^"):
                topics = [topics]
            else:  # As confluent-kafka and librdkafka have it.
                topics, pattern = None, topics
        names = list(topics or ())
        if len(names) == 1 and names[0].startswith("^"):
            names, pattern = [], names[0]
        if bool(names) == (pattern is not None):
            raise ValueError("subscribe takes topics or a pattern")
        if not all(isinstance(name, str) and name for name in names):
            raise ValueError("a topic is a string that is not empty")
        self.topics = frozenset(names)
        self.pattern = re.compile(pattern) if isinstance(pattern, str) else pattern
        self.listener = listener

    def assign(self, partitions: Iterable[TopicPartition]) -> list[PartitionState]:
        """By hand; the new states. What is assigned already stays as it is."""
        if self.by_group:
            raise IllegalStateError("the consumer is subscribed: unsubscribe first")
        wanted = dict.fromkeys(TopicPartition.of(tp) for tp in several(
            "assign", partitions, "subscribe takes topics"))
        self.by_hand = True
        self.drop([tp for tp in self.states if tp not in wanted])
        return self.add([tp for tp in wanted if tp not in self.states])

    def unsubscribe(self) -> None:
        self.topics, self.pattern, self.listener = frozenset(), None, None
        self.by_hand = False
        self.drop(list(self.states))

    def match(self, metadata: Metadata) -> bool:
        """Brings `topics` of a pattern up to date; True when they changed."""
        if self.pattern is None:
            return False
        found = frozenset(
            name for name, topic in metadata.topics.items()
            if self.pattern.match(name) and not (topic.is_internal and self.exclude_internal)
            and not topic.error_code)
        changed = found != self.topics
        self.topics = found
        return changed

    def add(self, partitions: Iterable[TopicPartition]) -> list[PartitionState]:
        made = []
        for tp in partitions:
            source = self.sources.get(tp)
            if source is None:
                source = self.sources[tp] = len(self.known)
                self.known.append(tp)
            state = self.states[tp] = PartitionState(tp, source)
            made.append(state)
        return made

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Keeps (3)."""
        for tp in list(partitions):
            state = self.states.pop(tp, None)
            if state is not None:
                self.losses += 1
                state.forget_position(None)
                state.revoking = True

    def state(self, tp: TopicPartition) -> PartitionState:
        found = self.states.get(tp)
        if found is None:
            raise IllegalStateError(f"{tp[0]}-{tp[1]} is not assigned to this consumer")
        return found

"""A consumer's subscription, its partitions and its position in each.

Owns: the subscription and the state of each assigned partition.
Invariants: a position is used only for the topic that it belongs to, not for one of the same name
  that was created later; position <= fetch_position, and records between them are queued or in
  flight; every change of position except reading records raises `epoch`, which invalidates
  responses and queued records of earlier epochs; a revoked partition is removed from `states` and
  its epoch raised, so that none of its records are returned.
Source: Kafka's consumer; KIP-320 (leader epochs), KIP-392 (preferred replica).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any

from pylog.client.arguments import several
from pylog.client.errors import IllegalStateError
from pylog.client.network.cluster_metadata import Metadata
from pylog.client.types import OffsetAndMetadata, TopicPartition
from pylog.protocol import topic_names
from pylog.protocol.codec import ZERO_UUID

NO_POLL = sys.maxsize  # Above the number of every poll.


def check_topic(name: Any, remedy: str) -> None:
    """Raise TypeError or ValueError for a name that no topic can have."""
    if not isinstance(name, str):
        raise TypeError(f"a topic name must be a str, not {name!r}")
    if not name:
        raise ValueError("a topic name must not be empty")
    if not topic_names.LEGAL.fullmatch(name):
        raise ValueError(f"{name!r} is not a topic name: allowed are letters, digits, '.', '_' and "
                         f"'-'. {remedy}")


def _pattern_of(name: str) -> str:
    """Return a regular expression for a name with shell wildcards, or for one without "^"."""
    return "^" + re.sub(r"(?<![.\])])\*", ".*", name).removeprefix("^")


class PartitionState:
    """One assigned partition. position None: unknown, to be looked up according to `reset`."""

    __slots__ = (
        "before", "before_epoch", "checked_epoch", "epoch", "error", "fetch_position",
        "high_watermark", "last_stable_offset", "log_start_offset", "not_before_s", "partition",
        "paused", "poll", "position", "preferred", "preferred_until_s", "record_epoch", "reset",
        "revoking", "rewind_position", "source", "stored", "stored_committed", "topic", "topic_id",
        "tp", "validate",
    )

    def __init__(self, tp: TopicPartition, source: int):
        self.tp = tp
        self.topic, self.partition = tp
        self.source = source
        self.epoch = 0
        self.position: int | None = None
        # Position to return to when a transaction aborts; None while it is unknown.
        self.rewind_position: int | None = None
        # Position before the last poll that read this partition, and the number of that poll.
        self.poll, self.before, self.before_epoch = -1, 0, -1
        self.fetch_position = -1
        # Id of the topic that the position belongs to; zero until the first fetch from there.
        self.topic_id = ZERO_UUID
        self.paused = False
        self.revoking = False
        # None: use the committed offset; otherwise "earliest", "latest" or a time in ms.
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
        # Last offset from store_offsets(), and the last one of them that was committed.
        self.stored: OffsetAndMetadata | None = None
        self.stored_committed: OffsetAndMetadata | None = None

    def move_to(self, offset: int, record_epoch: int = -1) -> None:
        """Set the position, and raise the epoch."""
        self.epoch += 1
        self.poll = -1
        self.fetch_position = offset
        self.topic_id = ZERO_UUID
        self.record_epoch = record_epoch
        self.position = self.rewind_position = offset
        self.reset = None
        self.error = None
        self.preferred = -1

    def belongs_to(self, topic_id: bytes) -> bool:
        """Return False if the position belongs to an earlier topic of the same name.

        topic_id: of the current topic, zero if unknown. A new position belongs to that topic.
        """
        if self.topic_id == ZERO_UUID:
            self.topic_id = topic_id
        return topic_id in (self.topic_id, ZERO_UUID)

    def save_position(self, poll: int) -> None:
        """Save the position before the poll of that number moves it."""
        if self.poll != poll:
            assert self.position is not None, self.tp
            self.before, self.before_epoch = self.position, self.record_epoch
            self.poll = poll

    def position_before(self, poll: int) -> tuple[int | None, int]:
        """Return (position, epoch of the record before it) without records of that poll or later
        ones.

        Callable from any thread, because save_position() is called before the position moves.
        """
        found = self.position, self.record_epoch
        return (self.before, self.before_epoch) if self.poll >= poll else found

    def refetch(self) -> None:
        """Fetch records after the position again, and raise the epoch."""
        if self.position is not None:
            self.epoch += 1
            self.fetch_position = self.position

    def forget_position(self, reset: str | int | None) -> None:
        """Look up the position again, and raise the epoch."""
        self.epoch += 1
        self.poll = -1
        self.position = self.rewind_position = None
        self.reset = reset
        self.error = None


class Subscription:
    """Topics, a pattern or manual partitions, and the states of assigned partitions."""

    def __init__(self, exclude_internal: bool):
        self.exclude_internal = exclude_internal
        self.topics: frozenset[str] = frozenset()
        self.pattern: re.Pattern[str] | None = None
        self.is_manual = False
        self.losses = 0  # Partitions that were assigned and no longer are.
        self.listener: Any = None
        self.states: dict[TopicPartition, PartitionState] = {}
        # A partition keeps its number when it is assigned again: the column reader identifies it by
        # that.
        self.sources: dict[TopicPartition, int] = {}
        self.known: list[TopicPartition] = []

    @property
    def by_group(self) -> bool:
        return bool(self.topics) or self.pattern is not None

    def subscribe(self, topics: Iterable[str] | None, pattern: Any, listener: Any) -> None:
        if self.is_manual:
            raise IllegalStateError("partitions were assigned by hand", remedy="unsubscribe first")
        if isinstance(topics, str):
            if not topics.startswith("^"):
                topics = [topics]
            else:  # As in confluent-kafka and librdkafka.
                topics, pattern = None, topics
        names = list(topics or ())
        if len(names) == 1 and names[0].startswith("^"):
            names, pattern = [], names[0]
        if bool(names) == (pattern is not None):
            raise ValueError("subscribe takes topics or a pattern")
        for name in names:
            check_topic(name, "To subscribe to all topics that match, pass a regular expression: "
                        f"subscribe(pattern={_pattern_of(str(name))!r})")
        self.topics = frozenset(names)
        self.pattern = re.compile(pattern) if isinstance(pattern, str) else pattern
        self.listener = listener

    def assign(self, partitions: Iterable[TopicPartition]) -> list[PartitionState]:
        """Assign manually. Returns the new states; partitions already assigned keep theirs."""
        if self.by_group:
            raise IllegalStateError("the consumer is subscribed", remedy="unsubscribe first")
        wanted = dict.fromkeys(TopicPartition.of(tp) for tp in several(
            "assign", partitions, "subscribe takes topics"))
        self.is_manual = True
        self.drop([tp for tp in self.states if tp not in wanted])
        return self.add([tp for tp in wanted if tp not in self.states])

    def unsubscribe(self) -> None:
        self.topics, self.pattern, self.listener = frozenset(), None, None
        self.is_manual = False
        self.drop(list(self.states))

    def match(self, metadata: Metadata) -> bool:
        """Update `topics` from the pattern. Returns True if they changed."""
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
        """Remove partitions and invalidate their records."""
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

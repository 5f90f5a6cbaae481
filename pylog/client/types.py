"""Small values that every part of the client passes around: partitions, offsets, times.

Owns: nothing.
Invariants: (1) all are tuples: hashable, comparable, unpackable.
Source: Kafka's Java client, for names and fields.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

EARLIEST = -2  # The offsets that a time query uses for the two ends of a log.
LATEST = -1


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @classmethod
    def of(cls, given: Any) -> TopicPartition:
        """What an application gave for a partition: one of these, or a pair. Raises TypeError."""
        if isinstance(given, (tuple, list)) and len(given) == 2 \
                and isinstance(given[0], str) and hasattr(given[1], "__index__"):
            return cls(given[0], operator.index(given[1]))
        hint = f", such as TopicPartition({given!r}, 0)" if isinstance(given, str) else ""
        raise TypeError(f"{given!r} is no partition: expected TopicPartition(topic, partition)"
                        f"{hint}")


class OffsetAndMetadata(NamedTuple):
    """A committed offset: the next record to read, and a note of the committer."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1

    @classmethod
    def of(cls, given: Any) -> OffsetAndMetadata:
        """What an application gave for an offset: a number, one of these, or its parts. Raises
        TypeError."""
        if isinstance(given, (tuple, list)):
            offset, *rest = given
            made = cls(operator.index(offset), *rest)
            return made._replace(leader_epoch=operator.index(made.leader_epoch))
        if hasattr(given, "__index__"):
            return cls(operator.index(given))
        raise TypeError(f"{given!r} is no offset: expected a whole number or OffsetAndMetadata")


class OffsetAndTimestamp(NamedTuple):
    """The first record at or after a time, with its own timestamp in ms."""

    offset: int
    timestamp: int
    leader_epoch: int = -1


class GroupMetadata(NamedTuple):
    """Who a consumer is in its group: what a transaction needs to commit its offsets."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None

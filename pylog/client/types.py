"""Value types used by every part of the client: partitions, offsets, times.

Owns: nothing.
Invariants: all are tuples: hashable, comparable, unpackable.
Source: Kafka's Java client, for names and fields.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, NamedTuple

EARLIEST = -2  # Special timestamps of ListOffsets for the start and end of a log.
LATEST = -1


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @classmethod
    def of(cls, given: Any) -> TopicPartition:
        """Convert an application's argument: a TopicPartition or a pair. Raises TypeError."""
        if isinstance(given, (tuple, list)) and len(given) == 2 \
                and isinstance(given[0], str) and hasattr(given[1], "__index__"):
            return cls(given[0], operator.index(given[1]))
        hint = f", such as TopicPartition({given!r}, 0)" if isinstance(given, str) else ""
        raise TypeError(f"{given!r} is not a partition: expected TopicPartition(topic, partition)"
                        f"{hint}")


class OffsetAndMetadata(NamedTuple):
    """A committed offset: the next record to read, and the committer's metadata."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1

    @classmethod
    def of(cls, given: Any) -> OffsetAndMetadata:
        """Convert an application's argument: a number, an OffsetAndMetadata, or its parts. Raises
        TypeError.
        """
        if isinstance(given, (tuple, list)):
            offset, *rest = given
            made = cls(operator.index(offset), *rest)
            return made._replace(leader_epoch=operator.index(made.leader_epoch))
        if hasattr(given, "__index__"):
            return cls(operator.index(given))
        raise TypeError(f"{given!r} is not an offset: expected a whole number or OffsetAndMetadata")


class OffsetAndTimestamp(NamedTuple):
    """The first record at or after a time, with its timestamp in ms."""

    offset: int
    timestamp: int
    leader_epoch: int = -1


Offsets = Mapping[TopicPartition, int | OffsetAndMetadata]


class RecordMetadata(NamedTuple):
    """A record's position. offset: -1 if unknown (acks=0, or a duplicate of an earlier attempt)."""

    topic: str
    partition: int
    offset: int
    timestamp: int


class GroupMetadata(NamedTuple):
    """A consumer's group and member ids, required to commit its offsets in a transaction."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None

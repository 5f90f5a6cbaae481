"""The positions of a streaming query, as Spark's checkpoint stores them.

Owns: the JSON format: the connector's {topic: {partition: next offset}}, plus one entry "topicId"
  per topic.
Invariants: an offset is only compared with offsets of the same topic id; checkpoints without topic
  ids can be read.
Source: Structured Streaming + Kafka Integration Guide (offsets); KIP-516 (topic ids).
"""

from __future__ import annotations

import base64
from typing import Any, NamedTuple

from pylog.client.types import TopicPartition
from pylog.protocol.codec import ZERO_UUID

_TOPIC_ID = "topicId"

Offsets = dict[TopicPartition, int]


class Positions(NamedTuple):
    """The next offset of each partition. A topic is absent from topic_ids if its id is unknown:
    in a checkpoint of an older version, and with brokers that have no topic ids."""

    offsets: Offsets
    topic_ids: dict[str, bytes]

    @classmethod
    def of(cls, offsets: Offsets, topic_ids: dict[str, bytes]) -> Positions:
        """Keep only the known ids of topics that have an offset."""
        return cls(offsets, {tp.topic: topic_ids[tp.topic] for tp in offsets
                             if topic_ids.get(tp.topic, ZERO_UUID) != ZERO_UUID})

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Positions:
        offsets, topic_ids = {}, {}
        for topic, entries in stored.items():
            for name, value in entries.items():
                if name == _TOPIC_ID:
                    topic_ids[topic] = base64.urlsafe_b64decode(value + "==")
                else:
                    offsets[TopicPartition(topic, int(name))] = int(value)
        return cls(offsets, topic_ids)

    def to_json(self) -> dict[str, Any]:
        made: dict[str, dict[str, Any]] = {}
        for tp, offset in sorted(self.offsets.items()):
            made.setdefault(tp.topic, {})[str(tp.partition)] = offset
        for topic, topic_id in self.topic_ids.items():
            made[topic][_TOPIC_ID] = base64.urlsafe_b64encode(topic_id).decode().rstrip("=")
        return made

    def topics(self) -> set[str]:
        return {tp.topic for tp in self.offsets}

    def recreated_topics(self, later: Positions) -> set[str]:
        """Return the topics that were re-created between these positions and `later`.

        Without ids, an end offset below the position is the only sign of a new topic.
        """
        return {topic for topic in self.topics() & later.topics()
                if self._is_recreated(topic, later)}

    def _is_recreated(self, topic: str, later: Positions) -> bool:
        before, after = self.topic_ids.get(topic), later.topic_ids.get(topic)
        if before is not None and after is not None:
            return before != after
        return any(later.offsets.get(tp, offset) < offset
                   for tp, offset in self.offsets.items() if tp.topic == topic)

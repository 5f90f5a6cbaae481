"""Requests that the jobs send to the cluster directly, before and after Spark: topics, ends, gaps.

Owns: nothing.
Invariants: ClusterErrors have one line; a request takes at most a few seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

QUESTION_MS = 10_000
_SHARED = ("bootstrap.servers", "client.id", "security.protocol", "isolation.level")


class ClusterError(Exception):
    """The cluster or topic cannot be used. The message has a single line."""


def _settings(given: Mapping[str, Any]) -> dict[str, Any]:
    chosen = {name: value for name, value in given.items()
            if name in _SHARED or name.startswith(("ssl.", "sasl.", "https."))}
    return {**chosen, "default.api.timeout.ms": QUESTION_MS, "request.timeout.ms": QUESTION_MS}


def _asked(given: Mapping[str, Any], question: Any) -> Any:
    from pylog.client import Consumer, KafkaError

    try:
        with Consumer.from_settings({**_settings(given), "enable.auto.commit": False,
                                     "allow.auto.create.topics": False}) as consumer:
            return question(consumer)
    except KafkaError as failure:
        raise ClusterError(
            f"no answer from {given['bootstrap.servers']}: {first_line(failure)}") from None


def _places(consumer: Any, topic: str) -> list[Any]:
    from pylog.client import TopicPartition

    topics = consumer.list_topics()
    if topic not in topics:
        raise ClusterError(f"no such topic: {topic!r} (--create makes one)")
    return [TopicPartition(topic, number) for number in topics[topic]]


def ends(given: Mapping[str, Any], topic: str) -> dict[int, int]:
    """Return the end offset of each partition: the last stable offset with isolation.level
    read_committed. Raises ClusterError.
    """
    return _asked(given, lambda consumer: {
        place.partition: offset for place, offset in
        consumer.end_offsets(_places(consumer, topic)).items()})


def starts(given: Mapping[str, Any], topic: str) -> dict[int, int]:
    """Return the first offset of each partition. Raises ClusterError."""
    return _asked(given, lambda consumer: {
        place.partition: offset for place, offset in
        consumer.beginning_offsets(_places(consumer, topic)).items()})


def create_topic(given: Mapping[str, Any], topic: str, partitions: int,
                 configs: Mapping[str, str] | None = None) -> None:
    """Create the topic unless it exists. Raises ClusterError."""
    from pylog.client import Admin, KafkaError, NewTopic

    try:
        with Admin.from_settings(_settings(given)) as admin:
            if topic not in admin.list_topics():
                admin.create_topics([NewTopic(topic, partitions, configs=dict(configs or {}))])
    except KafkaError as failure:
        raise ClusterError(
            f"topic {topic!r} at {given['bootstrap.servers']}: {first_line(failure)}") from None


def is_compacted(given: Mapping[str, Any], topic: str) -> bool:
    """Return True if the topic's settings allow removing records between others (compaction)."""
    from pylog.client import Admin, ConfigResource, KafkaError, ResourceType

    resource = ConfigResource(ResourceType.TOPIC, topic)
    try:
        with Admin.from_settings(_settings(given)) as admin:
            entries = admin.describe_configs([resource])[resource]
    except KafkaError as failure:
        raise ClusterError(f"settings of {topic!r}: {first_line(failure)}") from None
    rows = entries.values() if isinstance(entries, dict) else entries
    return any(row.name == "cleanup.policy" and "compact" in (row.value or "") for row in rows)


def explained(given: Mapping[str, Any], topic: str, gaps: Iterable[tuple[int, int, int]]
              ) -> set[tuple[int, int, int]]:
    """Return the gaps (partition, first, end) that contain transaction markers or aborted records.
    """
    from pylog._native.records.batch import CONTROL, TRANSACTIONAL, walk
    from pylog.client import KafkaError
    from pylog.client.spark.ranges import OffsetRange, RangeReader

    found = set()
    for gap in gaps:
        partition, first, end = gap
        covered = 0
        try:
            for piece in RangeReader({**_settings(given), "fetch.max.wait.ms": 100},
                                     OffsetRange(topic, partition, first, end), True):
                for _, head in walk(piece.records):
                    last = head.base_offset + head.last_offset_delta
                    if head.attributes & (CONTROL | TRANSACTIONAL):
                        covered += max(0, min(last + 1, end) - max(head.base_offset, first))
        except KafkaError:
            continue
        if covered == end - first:
            found.add(gap)
    return found


def first_line(failure: BaseException) -> str:
    """Return the relevant part of an exception that Spark wrapped."""
    text = str(failure)
    causes = re.findall(r"^(?:: |Caused by: )?(?:\w+\.)*(\w*(?:Error|Exception)): (.+)$", text,
                        re.MULTILINE)
    telling = [message for kind, message in causes
               if kind not in ("PythonException", "SparkException", "Py4JJavaError")]
    line = telling[-1] if telling else (text.strip().splitlines() or [type(failure).__name__])[0]
    return line.strip()

"""Plan a read: topics to partitions, options to offsets, offset ranges to tasks.

Owns: the consumer used for planning.
Invariants: splits of a partition's range are disjoint and cover it; a range never begins before the
  log start unless data loss is an error, which the task then raises.
Source: KIP-79 (offsets by time), KIP-113 (sizes of logs), KIP-516 (topic ids).
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable

from pylog.client.admin.blocking import Admin
from pylog.client.consumer import list_offsets
from pylog.client.consumer.consumer import Consumer
from pylog.client.errors import ConfigError, KafkaError, UnknownTopicOrPartitionError
from pylog.client.network.cluster_metadata import TopicInfo
from pylog.client.spark.checkpoint import Offsets, Positions
from pylog.client.spark.options import Bound, ReadOptions
from pylog.client.spark.ranges import OffsetRange
from pylog.client.types import EARLIEST, LATEST, TopicPartition

_ADMIN = ("bootstrap.servers", "client.id", "security.protocol", "request.timeout.ms",
          "default.api.timeout.ms")


class Planner:
    """Look up offsets: `with Planner(options) as planner: planner.offset_ranges()`."""

    def __init__(self, options: ReadOptions):
        self.options = options
        self.consumer = Consumer.from_settings(
            {"allow.auto.create.topics": False, **options.settings})

    def __enter__(self) -> Planner:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self.consumer.close()

    def partitions(self, optional: Container[str] = ()) -> dict[TopicPartition, bytes]:
        """Return the currently selected partitions, each with its topic id.

        optional: topics that may be missing. Raises UnknownTopicOrPartitionError for others.
        """
        options, topics = self.options, self._topics()
        if options.pattern:
            wanted = re.compile(options.pattern)
            return {TopicPartition(name, number): topic.id for name, topic in sorted(topics.items())
                    if wanted.fullmatch(name) for number in topic.partitions}
        known = {TopicPartition(name, number): topics[name].id
                 for name in options.topics or {tp.topic for tp in options.assigned}
                 if _is_listed(name, topics, optional) for number in topics[name].partitions}
        if not options.assigned:
            return known
        for tp in options.assigned:
            if tp not in known and tp.topic not in optional:
                raise UnknownTopicOrPartitionError(f"no such partition: {tp}")
        return {tp: known[tp] for tp in options.assigned if tp in known}

    def _topics(self) -> dict[str, TopicInfo]:
        """Return every topic of the cluster that a consumer may read."""
        core = self.consumer._core
        metadata = self.consumer._run(core.cluster.retry(core.cluster.every_topic))
        return {name: topic for name, topic in metadata.topics.items()
                if not (topic.is_internal and core.settings["exclude.internal.topics"])}

    def starts(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return self._at(self.options.starting, list(partitions))

    def ends(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return self._at(self.options.ending, list(partitions))

    def start_positions(self) -> Positions:
        """Return the start positions of a new query."""
        partitions = self.partitions()
        return Positions.of(self.starts(partitions), _topic_ids(partitions))

    def end_positions(self, optional: Container[str]) -> Positions:
        """Return the current end positions. optional: topics that may be missing."""
        partitions = self.partitions(optional)
        return Positions.of(self.latest(partitions), _topic_ids(partitions))

    def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return self.consumer.beginning_offsets(list(partitions))

    def latest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return self.consumer.end_offsets(list(partitions))

    def high_watermarks(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Return end offsets that include open transactions, regardless of the isolation level."""
        found = self.consumer._run(list_offsets.list_offsets(
            self.consumer._core.cluster, dict.fromkeys(partitions, LATEST)))
        return {tp: at.offset for tp, at in found.items() if at is not None}

    def _at(self, bound: Bound, partitions: list[TopicPartition]) -> Offsets:
        if bound.kind == "earliest":
            return self.earliest(partitions)
        if bound.kind == "latest":
            return self.latest(partitions)
        if bound.kind == "times":
            return self._at_times(bound, partitions)
        if set(bound.given) != set(partitions):
            raise ConfigError(
                "offsets are needed for exactly the partitions read: they are given for "
                f"{_listed(bound.given)}, but {_listed(partitions)} are read")
        earliest = self.earliest([tp for tp, at in bound.given.items() if at == EARLIEST])
        latest = self.latest([tp for tp, at in bound.given.items() if at == LATEST])
        return {**bound.given, **earliest, **latest}

    def _at_times(self, bound: Bound, partitions: list[TopicPartition]) -> Offsets:
        times = dict.fromkeys(partitions, bound.time_ms) if bound.time_ms >= 0 else bound.given
        if set(times) != set(partitions):
            raise ConfigError(f"times are needed for exactly the partitions read: they are given "
                              f"for {_listed(times)}, but {_listed(partitions)} are read")
        found = self.consumer.offsets_for_times(times)
        later = [partition for partition, at in found.items() if at is None]
        if (later and bound is self.options.starting and self.options.none_at_time == "error"
                and bound.given):
            raise ConfigError(
                f"{later[0]} has no record at or after {times[later[0]]}; "
                f"startingOffsetsByTimestampStrategy=latest then starts at the end")
        ends = self.latest(later)
        return {partition: ends[partition] if at is None else at.offset
                for partition, at in found.items()}

    def offset_ranges(self) -> list[OffsetRange]:
        """Return the offset ranges of a batch query."""
        partitions = self.partitions()
        starts, ends = self.starts(partitions), self.ends(partitions)
        return [OffsetRange(*tp, starts[tp], ends[tp], topic_id=topic_id)
                for tp, topic_id in partitions.items() if starts[tp] < ends[tp]]

    def split(self, offset_ranges: list[OffsetRange]) -> list[OffsetRange]:
        """Split ranges by splitBytes, minPartitions and maxRecordsPerPartition. Splits are disjoint
        and cover their range.
        """
        options = self.options
        total = sum(offset_range.end - offset_range.start for offset_range in offset_ranges)
        weights = self._record_bytes(offset_ranges) if total else {}
        made = []
        for offset_range in offset_ranges:
            count = offset_range.end - offset_range.start
            parts = max(1, -(-count * weights.get((offset_range.topic, offset_range.partition), 0)
                             // options.split_bytes))
            if options.partition_records_max:
                parts = max(parts, -(-count // options.partition_records_max))
            if options.partitions_min > len(offset_ranges):
                parts = max(parts, round(options.partitions_min * count / total))
            parts = min(int(parts), count)
            size = int(count * weights.get((offset_range.topic, offset_range.partition), 0))
            made += [offset_range._replace(start=offset_range.start + count * part // parts,
                                  end=offset_range.start + count * (part + 1) // parts,
                                  size=size // parts)
                     for part in range(parts)]
        return made

    def _record_bytes(self, offset_ranges: list[OffsetRange]) -> dict[tuple[str, int], float]:
        """Return the bytes on disk per offset, as the leaders report them; {} if they do not."""
        listed = self._topics()
        # The tasks report partitions that no longer exist.
        partitions = [TopicPartition(offset_range.topic, offset_range.partition)
                      for offset_range in offset_ranges if offset_range.topic in listed
                      and offset_range.partition in listed[offset_range.topic].partitions]
        sizes: dict[tuple[str, int], int] = {}
        try:
            with Admin.from_settings({name: value for name, value in self.options.settings.items()
                        if name in _ADMIN
                        or name.startswith(("ssl.", "sasl.", "https."))}) as admin:
                for directories in admin.describe_log_dirs().values():
                    for directory in directories.values():
                        for partition, replica in directory.replicas.items():
                            sizes[partition] = max(sizes.get(partition, 0), replica.size)
        except KafkaError:
            return {}
        earliest, latest = self.earliest(partitions), self.latest(partitions)
        return {partition: sizes[partition] / max(1, latest[partition] - earliest[partition])
                for partition in partitions if partition in sizes}


def _is_listed(name: str, topics: dict[str, TopicInfo], optional: Container[str]) -> bool:
    if name not in topics and name not in optional:
        raise UnknownTopicOrPartitionError(f"no such topic: {name!r}")
    return name in topics


def _topic_ids(partitions: dict[TopicPartition, bytes]) -> dict[str, bytes]:
    return {tp.topic: topic_id for tp, topic_id in partitions.items()}


def _listed(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(str(partition) for partition in sorted(partitions)[:10]) or "none"

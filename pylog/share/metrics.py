"""Counters of share groups since the start of this broker.

Owns: the counters.
Invariants: at most GROUPS_MAX groups are counted by name, and at most PARTITIONS_MAX share
  partitions are listed; other groups are counted without a name, other partitions are omitted.
Source: Kafka's ShareGroupMetrics and SharePartitionMetrics, for the metrics.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pylog.share.dead_letters import DeadLetters
from pylog.share.sessions import Sessions
from pylog.share.acknowledgement_types import ACCEPT, GAP, REJECT, RELEASE, RENEW

GROUPS_MAX = 1000
PARTITIONS_MAX = 10_000
KINDS = {GAP: "gap", ACCEPT: "accept", RELEASE: "release", REJECT: "reject", RENEW: "renew"}
Sample = tuple[tuple[str, ...], int]


class GroupMetrics:
    """The counters of one group. kinds: records by acknowledgement type."""

    __slots__ = ("acquired", "expired", "kinds", "out_bytes")

    def __init__(self) -> None:
        self.acquired = self.expired = self.out_bytes = 0
        self.kinds = [0] * len(KINDS)

    def acknowledged(self, rows: Iterable[tuple[int, int, Sequence[int]]]) -> None:
        """Count acknowledgements. rows: see share_partition.Acknowledgements."""
        for first, last, types in rows:
            if len(types) == 1:
                self.kinds[types[0]] += last - first + 1
            else:
                for kind in KINDS:
                    self.kinds[kind] += types.count(kind)


class ShareMetrics:
    """The counters of all groups."""

    def __init__(self) -> None:
        self._groups: dict[str, GroupMetrics] = {}

    def of(self, group_id: str) -> GroupMetrics:
        """Return the counters of a group, shared by all groups beyond GROUPS_MAX."""
        found = self._groups.get(group_id)
        if found is None:
            if len(self._groups) >= GROUPS_MAX:
                group_id = ""
            found = self._groups.setdefault(group_id, GroupMetrics())
        return found

    def samples(self, partitions: Sequence[Any], sessions: Sessions, letters: DeadLetters,
                topic_name: Callable[[bytes], str]) -> list[tuple[str, list[Sample]]]:
        """Return [(family, [(label values, number)])], the format of Collector.sources.

        partitions: each SharePartition of this broker.
        """
        groups = list(self._groups.items())
        return [
            ("pylog_share_sessions", [((), len(sessions))]),
            ("pylog_share_session_partitions", [((), sessions.partition_count)]),
            ("pylog_share_partitions", [((), len(partitions))]),
            ("pylog_share_acquired_records", [((name,), row.acquired) for name, row in groups]),
            ("pylog_share_out_bytes", [((name,), row.out_bytes) for name, row in groups]),
            ("pylog_share_acknowledged_records", [
                ((name, KINDS[kind]), row.kinds[kind]) for name, row in groups for kind in KINDS]),
            ("pylog_share_expired_records", [((name,), row.expired) for name, row in groups]),
            ("pylog_share_dead_letters", _each(letters.records)),
            ("pylog_share_dead_letter_batches", _each(letters.requests)),
            ("pylog_share_dead_letter_failures", _each(letters.failures)),
            *_in_flight(partitions, topic_name)]


def _each(counts: dict[str, int]) -> list[Sample]:
    return [((name,), count) for name, count in list(counts.items())[:GROUPS_MAX]]


def _in_flight(partitions: Sequence[Any], topic_name: Callable[[bytes], str]) -> Any:
    records: list[Sample] = []
    ranges: list[Sample] = []
    archiving: list[Sample] = []
    for partition in partitions[:PARTITIONS_MAX]:
        in_flight = partition.in_flight
        if in_flight is not None:
            key = partition.key
            labels = key.group_id, topic_name(key.topic_id), str(key.partition)
            records.append((labels, in_flight.count - in_flight.done_count))
            ranges.append((labels, in_flight.range_count))
            archiving.append((labels, in_flight.archiving_count))
    yield "pylog_share_in_flight_records", records
    yield "pylog_share_in_flight_ranges", ranges
    yield "pylog_share_archiving_records", archiving

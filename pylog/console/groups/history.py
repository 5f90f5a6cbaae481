"""The lag of all groups of a cluster over the last minutes.

Owns: the samples of each group and topic, and two readings of all offsets for rates.
Invariants: series, samples, and partitions are bounded in number; a lag that could not be read is
  None, never 0; a caller gets only the groups and topics that it names, because readings use the
  console's own rights; reading takes at most DUTY of the time.
Source: none.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping
from typing import NamedTuple

from pylog.client.admin.admin import Admin
from pylog.client.errors import KafkaError
from pylog.client.types import TopicPartition
from pylog.console.groups import lag as group_lag
from pylog.console.groups.samples import LagSample

SAMPLES_MAX = 60
SERIES_MAX = 30_000
COMMITTED_MAX = 200_000  # Committed partitions of all groups.
GROUPS_AT_ONCE = 500
DUTY = 0.02
RATE_MS_MIN, RATE_MS_MAX = 30_000, 300_000
AGE_MS_MIN = 5000  # A shorter time would show the rhythm of commits instead of their rate.
UNKNOWN = -1


class GroupLag(NamedTuple):
    """The newest lag of a group. records: of the partitions that could be read, None if none could.
    is_complete: all could. change: since `since_ms`, None if one of the two is unknown.
    """

    group: str
    records: int | None
    is_complete: bool
    change: int | None = None
    since_ms: int | None = None


class _Snapshot:
    """All offsets of one reading. committed: by group, in the order of its partitions."""

    def __init__(self, time_ms: int):
        self.time_ms = time_ms
        self.count = 0  # Partitions that were read, also those without a committed offset.
        self.partitions: dict[str, tuple[TopicPartition, ...]] = {}
        self.committed: dict[str, array[int]] = {}
        self.ends: dict[TopicPartition, int] = {}


class LagHistory:
    """Samples of one cluster. now_ms: the wall clock. period_ms: between two readings."""

    def __init__(self, now_ms: Callable[[], int], period_ms: int = 0):
        self._now_ms = now_ms
        self.period_ms = period_ms
        self._times: deque[int] = deque(maxlen=SAMPLES_MAX)
        self._count = 0  # Readings so far; the place of the newest is (_count - 1) % SAMPLES_MAX.
        self._series: dict[str, dict[str, array[int]]] = {}  # Group -> topic -> lags.
        self._known_parts: dict[TopicPartition, TopicPartition] = {}
        self._older: _Snapshot | None = None
        self._newer: _Snapshot | None = None
        self.left_out = 0  # Groups of the last reading that are beyond a limit.
        self.error = ""  # Why the last reading failed.

    @property
    def read_ms(self) -> int | None:
        """Return the time of the newest reading, None before the first one."""
        return self._times[-1] if self._times else None

    @property
    def has_lags(self) -> bool:
        """Return True if the newest reading has a lag that is known."""
        newest = self._place(len(self._times) - 1)
        return any(samples[newest] != UNKNOWN for topics in self._series.values()
                   for samples in topics.values())

    async def read(self, admin: Admin) -> None:
        """Add a reading of all groups. After a failure, its lags are unknown."""
        time_ms = self._now_ms()
        found: dict[str, dict[str, int]] = {}
        taken = _Snapshot(time_ms)
        self.left_out = 0
        failed = ""
        try:
            groups, missing = await group_lag.listed(admin)
            if missing:
                broker, reason = next(iter(missing.items()))
                failed = f"broker {broker} did not list its groups: {reason}"
            kinds = {one.group_id: one.type.lower() or group_lag.CLASSIC for one in groups}
            names = sorted(kinds)
            for first in range(0, len(names), GROUPS_AT_ONCE):
                some = {name: kinds[name] for name in names[first:first + GROUPS_AT_ONCE]}
                await self._read_some(admin, some, found, taken)
                await asyncio.sleep(0)  # Pages wait for one chunk at most.
            gone = set() if missing else self._series.keys() - kinds.keys()
        except KafkaError as failure:
            found, gone, failed = {}, set(), group_lag.error_text(failure)
        self.error = failed
        for name in gone:
            del self._series[name]
        self._append(time_ms, found)
        self._keep(taken)

    def fail(self, reason: str) -> None:
        """Add a reading of which nothing is known."""
        self.error = reason
        self._append(self._now_ms(), {})

    async def _read_some(self, admin: Admin, groups: Mapping[str, str],
                         found: dict[str, dict[str, int]], taken: _Snapshot) -> None:
        """Read the offsets of some groups. found: {group: {topic: lag or UNKNOWN}}."""
        for name, rows in (await group_lag.offsets_and_ends(admin, groups)).items():
            if taken.count + len(rows) > COMMITTED_MAX:
                self.left_out += 1
                continue
            taken.count += len(rows)
            lags: dict[str, int] = {}
            for part, row in rows.items():
                before = lags.get(part.topic, 0)
                lags[part.topic] = UNKNOWN if row.lag is None or before == UNKNOWN \
                    else before + row.lag
            found[name] = lags
            self._remember(name, rows, taken)

    def _remember(self, name: str, rows: Mapping[TopicPartition, group_lag.Offsets],
                  taken: _Snapshot) -> None:
        committed = {self._known_parts.setdefault(part, part): (row.committed, row.end)
                     for part, row in rows.items()
                     if row.committed is not None and row.end is not None}
        if not committed:
            return
        parts = tuple(sorted(committed))
        same = self._newer.partitions.get(name) if self._newer is not None else None
        taken.partitions[name] = same if same == parts else parts
        taken.committed[name] = array("q", [committed[part][0] for part in parts])
        taken.ends.update((part, committed[part][1]) for part in parts)

    def _append(self, time_ms: int, found: Mapping[str, Mapping[str, int]]) -> None:
        place = self._count % SAMPLES_MAX
        self._count += 1
        self._times.append(time_ms)
        total = sum(map(len, self._series.values()))
        for name, lags in found.items():
            topics = self._series.setdefault(name, {})
            for topic in topics.keys() - lags.keys():
                del topics[topic]  # Its offsets were deleted.
                total -= 1
            fresh = lags.keys() - topics.keys()
            if total + len(fresh) > SERIES_MAX:
                # A part of its topics would show less lag than the group has.
                total -= len(self._series.pop(name))
                self.left_out += 1
                continue
            total += len(fresh)
            topics.update((topic, array("q", [UNKNOWN]) * SAMPLES_MAX) for topic in fresh)
        for name, topics in self._series.items():
            lags = found.get(name, {})
            for topic, samples in topics.items():
                samples[place] = lags.get(topic, UNKNOWN)

    def _keep(self, taken: _Snapshot) -> None:
        """Keep a snapshot, so that one of the two is at least RATE_MS_MIN older than the newest
        reading as soon as there are that many.
        """
        if not taken.committed:
            return
        if self._newer is None or taken.time_ms - self._newer.time_ms >= RATE_MS_MIN:
            self._older, self._newer = self._newer, taken
            self._known_parts = {part: part for snapshot in (self._older, self._newer)
                                 if snapshot is not None for part in snapshot.ends}

    # Callers name the groups and topics that the user may see.

    def samples(self, group: str, topics: Container[str]) -> list[LagSample]:
        """Return a group's lag in each reading. Empty if it has offsets in other topics."""
        series = self._series.get(group, {})
        if not series or any(topic not in topics for topic in series):
            return []
        found = []
        for number, time_ms in enumerate(self._times):
            values = [one[self._place(number)] for one in series.values()]
            found.append(LagSample(time_ms, None if UNKNOWN in values else sum(values)))
        return found

    def _place(self, number: int) -> int:
        return (self._count - len(self._times) + number) % SAMPLES_MAX

    def before(self, group: str) -> tuple[int, dict[TopicPartition, dict[str, int]]] | None:
        """Return the time and the offsets of an earlier reading of a group, None if there is none
        of the last RATE_MS_MAX.
        """
        now_ms = self._now_ms()
        for snapshot in (self._older, self._newer):
            if snapshot is None or group not in snapshot.committed \
                    or not AGE_MS_MIN <= now_ms - snapshot.time_ms <= RATE_MS_MAX:
                continue
            return snapshot.time_ms, {
                part: {"committed_offset": committed, "end_offset": snapshot.ends[part]}
                for part, committed in zip(snapshot.partitions[group],
                                           snapshot.committed[group], strict=True)}
        return None

    def worst(self, groups: Container[str] | None) -> dict[str, GroupLag]:
        """Return the group with the largest lag in each topic. groups: those that count, None for
        all.
        """
        found: dict[str, GroupLag] = {}
        incomplete: set[str] = set()
        for name, topics in self._series.items():
            if groups is not None and name not in groups:
                continue
            for topic, samples in topics.items():
                lag = samples[self._place(len(self._times) - 1)]
                if lag == UNKNOWN:
                    incomplete.add(topic)
                    found.setdefault(topic, GroupLag(name, None, False))
                elif (old := found.get(topic)) is None or old.records is None \
                        or lag > old.records:
                    found[topic] = GroupLag(name, lag, True)
        return {topic: row._replace(is_complete=topic not in incomplete)
                for topic, row in found.items()}

    def top(self, count: int, groups: Container[str] | None, topics: Container[str]
            ) -> tuple[list[GroupLag], int]:
        """Return the groups with the largest lag in these topics and how it has changed, and the
        number of groups whose lag is unknown.
        """
        newest = self._place(len(self._times) - 1)
        rows: list[tuple[int, bool, str, list[array[int]]]] = []
        unknown = 0
        for name, series in self._series.items():
            if groups is not None and name not in groups:
                continue
            some = [samples for topic, samples in series.items() if topic in topics]
            lags = [samples[newest] for samples in some]
            known = [lag for lag in lags if lag != UNKNOWN]
            unknown += len(known) < len(lags)
            if sum(known):
                rows.append((sum(known), len(known) == len(lags), name, some))
        rows.sort(key=lambda row: (-row[0], row[2]))
        return [self._with_change(*row) for row in rows[:count]], unknown

    def _with_change(self, records: int, is_complete: bool, name: str,
                     series: Iterable[array[int]]) -> GroupLag:
        """Add the change since the oldest reading whose lags are all known."""
        if is_complete:
            for number, time_ms in enumerate(list(self._times)[:-1]):
                values = [samples[self._place(number)] for samples in series]
                # A clock that was set back makes older samples seem newer.
                if UNKNOWN not in values and time_ms < self._times[-1]:
                    return GroupLag(name, records, True, records - sum(values), time_ms)
        return GroupLag(name, records, is_complete)

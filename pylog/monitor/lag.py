"""The lag of consumer groups: in records, in seconds, and over the last minutes.

Owns: the offsets of groups that are not in memory; cached timestamps of records; samples.
Invariants: at most GROUPS_MAX groups and OFFSETS_MAX offsets are kept, and NAME_CHARACTERS_MAX
  characters of group names; a summary has at most SUMMARY_BYTES_MAX; a scrape spends at most
  LOOKUP_NS_MAX on timestamps of records, and the remaining partitions keep their last timestamp, if
  any.
Source: lag as in kafka-consumer-groups; its age is that of the first uncommitted record.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import threading
from array import array
from collections import Counter, deque, namedtuple

from pylog._native.server import metrics as native_metrics
from pylog.coordinator.groups import metrics as group_metrics
from pylog.monitor import explain
from pylog.monitor.page import labels

TYPE_CHECKING = False  # typing.TYPE_CHECKING would cost the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Callable

    from pylog.config.client_quotas import ClientQuotas
    from pylog.coordinator.groups.service import GroupCoordinator
    from pylog.log.manager import LogManager

GROUPS_MAX = 10_000
OFFSETS_MAX = 20_000
# A group name has up to 32 KiB, and a scrape contains it several times for each offset.
NAME_CHARACTERS_MAX = 2 << 20
SUMMARY_BYTES_MAX = 4 << 20
LOOKUP_NS_MAX = 25_000_000
STORED_GROUPS_SECONDS = 30.0  # How often groups without members are read from state.lmdb.
LOOP_SECONDS_MAX = 2.0  # Timeout of the event loop; after it, the previous result is used.
SAMPLE_SECONDS = 10.0  # between two samples of a group
FIRST_SAMPLE_SECONDS = 2.0  # before the first sample of a new group
SAMPLING_SHARE_MAX = 0.01  # unless sampling takes more than this share of the time
SAMPLES_MAX = 31  # of each group: five minutes
HISTORY_MAX = 20  # reported rebalances of a group
# Of the names that clients choose, up to 32 KiB each: a page repeats them for each partition.
MEMBER_CHARACTERS_MAX = 400
RATE_SECONDS = 60.0  # the period of a rate
RATE_SECONDS_MIN = 0.5  # its minimum

Sample = namedtuple("Sample", ("seconds", "generation", "keys", "numbers"))
Sample.__doc__ = """A group at a moment. keys: [(topic, partition)]; numbers: for each of them the
committed offset, the high watermark and the number of cold reads.
"""


class Part:
    """A group's committed partition, kept between scrapes."""

    __slots__ = ("commit_ms", "committed", "group", "key", "label", "timed", "timestamp")

    def __init__(self, group: str, key: tuple):
        self.group = group
        self.key = key
        self.label = labels("pylog_group_lag_records", group, *key)
        self.committed = self.commit_ms = 0
        self.timed = self.timestamp = -1  # an offset and its timestamp


class Lags:
    """The committed partitions of some groups, in columns.

    ages_ms: of the first uncommitted record, 0 without one, -1 if unknown.
    """

    def __init__(self, parts: list, logs: list):
        self.parts = parts
        self.logs = logs
        self.figures = native_metrics.Figures(logs)
        self.committed = array("q", [part.committed for part in parts])
        self.records, self.first = self.figures.lags(self.committed)
        self.ages_ms = array("q", bytes(8 * len(parts)))


class GroupLags:
    """loop: the event loop that owns `coordinator`. seconds: a monotonic clock."""

    def __init__(self, coordinator: GroupCoordinator, logs: LogManager, quotas: ClientQuotas,
                 now_ms: Callable[[], int], seconds: Callable[[], float],
                 loop: asyncio.AbstractEventLoop):
        self._coordinator = coordinator
        self._logs = logs
        self._quotas = quotas
        self._now_ms = now_ms
        self._loop = loop
        self._seconds = seconds
        self._lock = threading.Lock()
        # The event loop's last result; see group_metrics.rows.
        self._newest: tuple[list, set, list, set] = ([], set(), [], set())
        self._events: dict[str, int] = {}
        self._stored: dict = {}  # group id -> Row, for groups that are only in state.lmdb
        self._stored_due = 0.0
        self._left_out = [0, 0]  # groups in memory, and groups in state.lmdb
        self._parts: dict = {}   # group id -> {(topic, partition): Part}
        self._samples: dict = {} # group id -> deque of Samples

    # ---- reading --------------------------------------------------------------------------------

    def _call_on_loop(self, make, *arguments):
        """Return the result of a coroutine on the event loop, None if that is busy or gone."""
        coroutine = make(self._coordinator, *arguments)
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:
            coroutine.close()
            return None
        try:
            return future.result(LOOP_SECONDS_MAX)
        except (TimeoutError, concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
            future.cancel()
            return None

    def _rows(self) -> list:
        """Return all groups within the limits; those in memory first."""
        room = group_metrics.Room(GROUPS_MAX, OFFSETS_MAX, NAME_CHARACTERS_MAX)
        found = self._call_on_loop(group_metrics.rows, room)
        if found is not None:
            self._newest = found
        rows, ids, shards, gone = self._newest
        self._left_out[0] = room.left_out
        elsewhere = ids | gone
        now = self._seconds()
        if now >= self._stored_due:
            self._stored_due = now + STORED_GROUPS_SECONDS
            self._stored = group_metrics.stored_rows(shards, self._stored, elsewhere, room)
            self._left_out[1] = room.left_out - self._left_out[0]
        for group_id in self._stored.keys() & elsewhere:
            del self._stored[group_id]
        return [*rows, *self._stored.values()]

    def _lags(self, rows) -> Lags:
        logs_of = dict(self._logs.by_topic())
        parts, logs, stored = [], [], {}
        for row in rows:
            before, now = self._parts.get(row.id, {}), {}
            for key, entry in row.offsets.items():
                topic_logs = logs_of.get(key[0], ())
                partition_log = topic_logs[key[1]] if key[1] < len(topic_logs) else None
                if partition_log is not None:
                    part = now[key] = before.get(key) or Part(row.id, key)
                    part.committed, part.commit_ms = entry.offset, entry.commit_ms
                    parts.append(part)
                    logs.append(partition_log)
            stored[row.id] = now
        # A query for one group keeps the partitions of the others.
        self._parts = stored if len(rows) != 1 else {**self._parts, **stored}
        return Lags(parts, logs)

    def _aged(self, lags: Lags) -> Lags:
        """Set the ages, within the time limit for timestamps."""
        now_ms = self._now_ms()
        behind = [at for at, count in enumerate(lags.records) if count]
        wanted = [at for at in behind if lags.parts[at].timed != lags.first[at]]
        if wanted:
            found = array("q", bytes(8 * len(wanted)))
            done = native_metrics.times([lags.logs[at] for at in wanted],
                                        array("q", [lags.first[at] for at in wanted]), found,
                                        LOOKUP_NS_MAX)
            for at, timestamp in zip(wanted[:done], found, strict=False):
                lags.parts[at].timed, lags.parts[at].timestamp = lags.first[at], timestamp
        for at in behind:
            timestamp = lags.parts[at].timestamp
            lags.ages_ms[at] = -1 if timestamp < 0 else max(0, now_ms - timestamp)
        return lags

    # ---- a scrape -------------------------------------------------------------------------------

    def write(self, page) -> None:
        """Write the metric families of groups."""
        with self._lock:
            rows = self._rows()
            lags = self._aged(self._lags(rows))
            self._events = self._call_on_loop(group_metrics.events) or self._events
        states = Counter(row.state for row in rows)
        page.family("pylog_groups", [((state,), count) for state, count in sorted(states.items())])
        page.single("pylog_groups_omitted", sum(self._left_out))
        page.family("pylog_group_members", [((row.id,), row.members) for row in rows])
        page.family("pylog_group_state", [((row.id, row.state), 1) for row in rows])
        page.family("pylog_group_generations", [((row.id,), row.generation) for row in rows])
        shared = native_metrics.Rows([part.label for part in lags.parts])
        page.integers("pylog_group_committed_offset", shared, lags.committed)
        page.integers("pylog_group_lag_records", shared, lags.records)
        page.integers("pylog_group_lag_seconds", shared, lags.ages_ms, thousandths=True)
        page.family("pylog_coordinator_events", [
            ((name,), count) for name, count in self._events.items()])

    # ---- over time ------------------------------------------------------------------------------

    def sample(self) -> float:
        """Sample all groups, new ones immediately, so that their rate is available in the first
        minute. Returns the seconds until the next call.
        """
        with self._lock:
            now = self._seconds()
            rows = self._rows()
            lags = self._lags(rows)
            high, cold = lags.figures.columns("high_watermark", "cold_reads")
            keys: dict[str, list] = {row.id: [] for row in rows}
            numbers = {row.id: array("q") for row in rows}
            for part, *three in zip(lags.parts, lags.committed, high, cold, strict=True):
                keys[part.group].append(part.key)
                numbers[part.group].extend(three)
            self._samples = {row.id: self._samples.get(row.id) or deque(maxlen=SAMPLES_MAX)
                             for row in rows}
            for row in rows:
                samples, mine = self._samples[row.id], keys[row.id]
                if samples and (now - samples[-1].seconds
                                < SAMPLE_SECONDS - FIRST_SAMPLE_SECONDS / 2):
                    continue
                # The keys seldom change, so samples share one list of them.
                same = samples and samples[-1].keys == mine
                samples.append(Sample(now, row.generation, samples[-1].keys if same else mine,
                                      numbers[row.id]))
            spent = self._seconds() - now
        return min(SAMPLE_SECONDS, max(FIRST_SAMPLE_SECONDS, spent / SAMPLING_SHARE_MAX))

    # ---- explanation ----------------------------------------------------------------------------

    def summary(self) -> dict:
        """Return {groups: [{group, state, members, lag_records, lag_seconds}], left_out, truncated}
        with the largest lag first. left_out: number of groups above the limits.
        """
        with self._lock:
            rows = self._rows()
            lags = self._aged(self._lags(rows))
            left_out = sum(self._left_out)
        found = {row.id: {"group": row.id, "state": row.state, "members": row.members,
                          "lag_records": 0, "lag_seconds": 0.0} for row in rows}
        for part, records, age_ms in zip(lags.parts, lags.records, lags.ages_ms, strict=True):
            group = found[part.group]
            group["lag_records"] += records
            group["lag_seconds"] = max(group["lag_seconds"], age_ms / 1000)
        groups, size = [], 0
        for group in sorted(found.values(), key=lambda group: -group["lag_records"])[:GROUPS_MAX]:
            size += len(json.dumps(group, indent=1))
            if size > SUMMARY_BYTES_MAX:
                break
            groups.append(group)
        left_out += len(found) - len(groups)
        return {"groups": groups, "left_out": left_out, "truncated": left_out > 0}

    def explain(self, group_id: str) -> dict | None:
        """Return the data for explaining a group's lag, None for an unknown group."""
        members = [
            {**member, "throttled_ms": self._throttled(member["client_id"]), **{
                name: _without_middle(member[name])
                for name in ("member_id", "client_id", "instance_id")}}
            for member in self._call_on_loop(group_metrics.members, group_id) or []]
        with self._lock:
            row = next((row for row in self._rows() if row.id == group_id), None)
            if row is None:
                return None
            lags = self._aged(self._lags([row]))
            samples = list(self._samples.get(group_id, ()))
        now = self._seconds()
        recent = next(
            (sample for sample in samples if now - sample.seconds <= RATE_SECONDS), None)
        parts = self._described(lags, members, recent, now)
        missing = row.offsets.keys() - {part.key for part in lags.parts}
        view = {
            "group": row.id, "state": row.state, "generation": row.generation,
            "members": [{**member, "partitions": len(member["partitions"])}
                        for member in members],
            "rebalances": {
                "count": row.generation - samples[0].generation if samples else 0,
                "seconds": round(now - samples[0].seconds, 1) if samples else 0.0},
            "rate_seconds": round(now - recent.seconds, 1) if recent else 0.0,
            "history": self._coordinator.history(group_id, HISTORY_MAX),
            "lag_records": sum(part["lag_records"] for part in parts),
            "missing_partitions": [
                {"topic": topic, "partition": partition, "error": "no replica on this broker"}
                for topic, partition in sorted(missing)],
            "lag_seconds": max((part["lag_seconds"] for part in parts), default=0.0),
            "partitions": parts}
        view["reasons"] = explain.reasons(view)
        return view

    def _throttled(self, client_id: str) -> int:
        return self._quotas.throttled_ms(client_id, int(RATE_SECONDS * 1000))

    def _described(self, lags: Lags, members, recent, now: float) -> list:
        member_of = {part: member["member_id"]
                     for member in members for part in member["partitions"]}
        seconds = now - recent.seconds if recent else 0.0
        before = {} if seconds < RATE_SECONDS_MIN else {
            key: recent.numbers[3 * at:3 * at + 3] for at, key in enumerate(recent.keys)}
        rows = []
        for at, part in enumerate(lags.parts):
            values = lags.figures.row(at)
            row = {
                "topic": part.key[0], "partition": part.key[1],
                "member_id": member_of.get(part.key), "committed_offset": part.committed,
                **{name: values[name] for name in (
                    "start_offset", "high_watermark", "last_stable_offset")},
                "lag_records": lags.records[at], "lag_seconds": max(0, lags.ages_ms[at]) / 1000,
                "commit_age_seconds": max(0, self._now_ms() - part.commit_ms) / 1000,
                "consume_rate": None, "produce_rate": None, "cold_reads": None}
            if part.key in before:
                committed, high, cold = before[part.key]
                row["consume_rate"] = round((part.committed - committed) / seconds, 3)
                row["produce_rate"] = round((values["high_watermark"] - high) / seconds, 3)
                row["cold_reads"] = values["cold_reads"] - cold
            rows.append(row)
        return rows


def _without_middle(name: str | None) -> str | None:
    """Return the name, cut to MEMBER_CHARACTERS_MAX. The end of a member id is unique."""
    if name is None or len(name) <= MEMBER_CHARACTERS_MAX:
        return name
    half = MEMBER_CHARACTERS_MAX // 2
    return f"{name[:half]}...({len(name) - MEMBER_CHARACTERS_MAX} more)...{name[-half:]}"

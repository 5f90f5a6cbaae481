"""How far consumer groups are behind: in records, in seconds, and over the last minutes.

Owns: what was read of groups that are not in memory; times of records that were looked up; samples.
Called by: monitor.collect (write), monitor.server (sample, explain); one of them at a time.
Invariants: (1) what is kept is about at most GROUPS_MAX groups; (2) a scrape spends at most
  LOOKUP_NS_MAX on times of records: what is left over keeps its last one, or has none.
Source: lag as kafka-consumer-groups has it; its age by the first record that is not committed.
"""

import asyncio
import concurrent.futures
import threading
from array import array
from collections import Counter, deque, namedtuple

from pylog._native import metrics as native
from pylog.coordinator import figures
from pylog.monitor import explain
from pylog.monitor.page import labels

GROUPS_MAX = 10_000
LOOKUP_NS_MAX = 25_000_000
KEPT_SECONDS = 30.0       # How often state.lmdb is looked at for groups without members.
LOOP_SECONDS_MAX = 2.0    # For the event loop to tell; what it told last is used then.
SAMPLE_SECONDS = 10.0
SAMPLES_MAX = 31          # Of each group: five minutes.
RATE_SECONDS = 60.0       # Over which rates are told.

# One partition of a group. age_ms: of the first uncommitted record, -1 unknown.
Lag = namedtuple("Lag", (
    "group", "topic", "partition", "committed", "commit_ms", "start_offset", "high_watermark",
    "last_stable_offset", "cold_reads", "records", "age_ms"))
Sample = namedtuple("Sample", ("seconds", "generation", "parts"))


class GroupLags:
    """broker: what cli runs, with its event loop `loop`. seconds: a clock that never goes back."""

    def __init__(self, broker, loop, seconds):
        self._broker = broker
        self._loop = loop
        self._seconds = seconds
        self._lock = threading.Lock()
        self._told = ([], [], set())
        self._events = {}
        self._kept = {}          # group id -> Row, of groups that are in state.lmdb only
        self._kept_due = 0.0
        self._left_out = 0
        self._times = {}         # (group, topic, partition) -> (offset, timestamp)
        self._labels = {}        # likewise -> bytes
        self._samples = {}       # group id -> deque of Samples
        self.throttled_ms = None  # client id -> ms throttled lately; set by whoever throttles

    # ---- reading --------------------------------------------------------------------------------

    def _ask(self, make):
        """What a coroutine on the event loop gives; None when that is too busy or gone."""
        coroutine = make(self._broker.groups)
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
        """All groups, at most GROUPS_MAX."""
        told = self._ask(figures.rows)
        if told is not None:
            self._told = told
        rows, shards, gone = self._told
        known = {row.id for row in rows} | gone
        now = self._seconds()
        if now >= self._kept_due:
            self._kept_due = now + KEPT_SECONDS
            for row in figures.kept_rows(shards, known | self._kept.keys(),
                                         GROUPS_MAX - len(self._kept)):
                self._kept[row.id] = row
        for group_id in self._kept.keys() & known:
            del self._kept[group_id]
        every = [*rows, *self._kept.values()]
        self._left_out = max(0, len(every) - GROUPS_MAX)
        return every[:GROUPS_MAX]

    def _lags(self, rows, timed: bool) -> list:
        """A Lag for each committed partition that is here. timed: with ages."""
        logs_of = dict(self._broker.logs.by_topic())
        found, logs = [], []
        for row in rows:
            for (topic, partition), entry in row.offsets.items():
                topic_logs = logs_of.get(topic, ())
                one = topic_logs[partition] if partition < len(topic_logs) else None
                if one is not None:
                    found.append((row.id, topic, partition, entry.offset, entry.commit_ms))
                    logs.append(one)
        columns = native.Figures(logs).columns(
            "start_offset", "high_watermark", "last_stable_offset", "cold_reads")
        lags = []
        for key, start, high, stable, cold in zip(found, *columns, strict=True):
            records = max(0, high - max(key[3], start))
            lags.append(Lag(*key, start, high, stable, cold, records, -1 if records else 0))
        return self._aged(lags, logs) if timed else lags

    def _aged(self, lags, logs) -> list:
        """The same with ages. Keeps (2)."""
        now_ms = self._broker.now_ms()
        times, wanted = {}, []
        for at, lag in enumerate(lags):
            if lag.records:
                key, offset = lag[:3], max(lag.committed, lag.start_offset)
                known = self._times.get(key)
                if known is not None:
                    times[key] = known
                if known is None or known[0] != offset:
                    wanted.append((at, key, offset))
        found = array("q", bytes(8 * len(wanted)))
        done = native.times([logs[at] for at, _, _ in wanted],
                            array("q", [offset for _, _, offset in wanted]), found, LOOKUP_NS_MAX)
        for (_, key, offset), timestamp in zip(wanted[:done], found, strict=False):
            times[key] = offset, timestamp
        self._times = times
        return [lag._replace(age_ms=max(0, now_ms - times[lag[:3]][1]))
                if lag.records and times.get(lag[:3], (0, -1))[1] >= 0 else lag for lag in lags]

    # ---- a scrape -------------------------------------------------------------------------------

    def write(self, page) -> None:
        """The families of groups."""
        with self._lock:
            rows = self._rows()
            lags = self._lags(rows, timed=True)
            self._events = self._ask(figures.events) or self._events
        states = Counter(row.state for row in rows)
        page.family("pylog_groups", [((state,), count) for state, count in sorted(states.items())])
        page.one("pylog_groups_left_out", self._left_out)
        page.family("pylog_group_members", [((row.id,), row.members) for row in rows])
        page.family("pylog_group_state", [((row.id, row.state), 1) for row in rows])
        page.family("pylog_group_generations", [((row.id,), row.generation) for row in rows])
        shared = self._rows_of(lags)
        page.integers("pylog_group_committed_offset", shared,
                      array("q", [lag.committed for lag in lags]))
        page.integers("pylog_group_lag_records", shared, array("q", [lag.records for lag in lags]))
        page.integers("pylog_group_lag_seconds", shared, array("q", [lag.age_ms for lag in lags]),
                      thousandths=True)
        page.family("pylog_coordinator_events", [
            ((name,), count) for name, count in self._events.items()])

    def _rows_of(self, lags):
        kept = self._labels
        self._labels = {lag[:3]: kept.get(lag[:3]) or labels("pylog_group_lag_records", *lag[:3])
                        for lag in lags}
        return native.Rows(list(self._labels.values()))

    # ---- over time ------------------------------------------------------------------------------

    def sample(self) -> None:
        """Takes down where every group is; every SAMPLE_SECONDS."""
        with self._lock:
            now = self._seconds()
            rows = self._rows()
            parts = {row.id: {} for row in rows}
            for lag in self._lags(rows, timed=False):
                parts[lag.group][lag.topic, lag.partition] = (
                    lag.committed, lag.high_watermark, lag.cold_reads)
            self._samples = {row.id: self._samples.get(row.id) or deque(maxlen=SAMPLES_MAX)
                             for row in rows}
            for row in rows:
                samples = self._samples[row.id]
                before = samples[-1].parts if samples else None
                # A group at rest has one set of numbers for all of its samples.
                same = before is not None and before == parts[row.id]
                samples.append(Sample(now, row.generation, before if same else parts[row.id]))

    # ---- why ------------------------------------------------------------------------------------

    def summary(self) -> list:
        """[{group, state, members, lag_records, lag_seconds}], the largest lag first."""
        with self._lock:
            rows = self._rows()
            lags = self._lags(rows, timed=True)
        found = {row.id: {"group": row.id, "state": row.state, "members": row.members,
                          "lag_records": 0, "lag_seconds": 0.0} for row in rows}
        for lag in lags:
            group = found[lag.group]
            group["lag_records"] += lag.records
            group["lag_seconds"] = max(group["lag_seconds"], lag.age_ms / 1000)
        return sorted(found.values(), key=lambda group: -group["lag_records"])

    def explain(self, group_id: str) -> dict | None:
        """All that tells why a group lags; None of a group that is not known here."""
        members = self._ask(lambda groups: figures.members(groups, group_id)) or []
        with self._lock:
            row = next((row for row in self._rows() if row.id == group_id), None)
            if row is None:
                return None
            lags = self._lags([row], timed=True)
            samples = list(self._samples.get(group_id, ()))
        now = self._seconds()
        member_of = {tuple(part): member["member_id"]
                     for member in members for part in member["partitions"]}
        recent = next((one for one in samples if now - one.seconds <= RATE_SECONDS), None)
        view = {
            "group": row.id, "state": row.state, "generation": row.generation,
            "members": [{**member, "partitions": len(member["partitions"]),
                         "throttled_ms": self._throttled(member["client_id"])}
                        for member in members],
            "rebalances": {
                "count": row.generation - samples[0].generation if samples else 0,
                "seconds": round(now - samples[0].seconds, 1) if samples else 0.0},
            "rate_seconds": round(now - recent.seconds, 1) if recent else 0.0,
            "lag_records": sum(lag.records for lag in lags),
            "lag_seconds": max((lag.age_ms / 1000 for lag in lags), default=0.0),
            "partitions": [self._part(lag, member_of, recent, now) for lag in lags]}
        view["reasons"] = explain.reasons(view)
        return view

    def _throttled(self, client_id: str) -> int:
        return 0 if self.throttled_ms is None else self.throttled_ms(client_id)

    def _part(self, lag: Lag, member_of: dict, recent, now: float) -> dict:
        key = lag.topic, lag.partition
        part = {
            "topic": lag.topic, "partition": lag.partition, "member_id": member_of.get(key),
            "committed_offset": lag.committed, "start_offset": lag.start_offset,
            "high_watermark": lag.high_watermark, "last_stable_offset": lag.last_stable_offset,
            "lag_records": lag.records, "lag_seconds": max(0, lag.age_ms) / 1000,
            "commit_age_seconds": max(0, self._broker.now_ms() - lag.commit_ms) / 1000,
            "consume_rate": None, "produce_rate": None, "cold_reads": None}
        seconds = now - recent.seconds if recent else 0.0
        before = recent.parts.get(key) if seconds > 0.5 else None
        if before is not None:
            part["consume_rate"] = round((lag.committed - before[0]) / seconds, 3)
            part["produce_rate"] = round((lag.high_watermark - before[1]) / seconds, 3)
            part["cold_reads"] = lag.cold_reads - before[2]
        return part

"""Searches: which offsets they read, in which order, and what they have found and not yet read.

Owns: the progress of each Search; the number of searches that run.
Invariants: a search is complete only if it has compared every record of its ranges; `left` has the
  offsets that it has not compared, and a search of exactly those continues it; matches are bounded
  in number and bytes; a search that is closed reads nothing more.
Source: KIP-79 (offsets by time).
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pylog._native.client.batch_builder import murmur2
from pylog._native.client.columns import ColumnReader, Columns, Fetched, RecordsError
from pylog.client.columns.rows import Row, rows_of
from pylog.client.consumer.range_reader import (
    FETCH_BYTES, FETCH_SHARE_BYTES, Chunk, RangeReader, Ranges, current_ranges,
)
from pylog.client.network.cluster import Cluster
from pylog.console.records.comparison import Comparison
from pylog.console.records.filters import NEWEST, Filter, joined
from pylog.console.pages import PageError
from pylog.console.values.row_decoding import RowDecoder

# Why a search ended.
COMPLETE, LIMIT, STOPPED, TIME, BYTES = REASONS = (
    "complete", "limit reached", "stopped", "time-out", "bytes limit reached")
FIRST_ROUND_BYTES, ROUND_BYTES_MAX = 4 << 20, 256 << 20
ROUND_SHARE_BYTES_MIN = 64 << 10
RECORD_BYTES_GUESS = 1024
STEP_BYTES = 32 << 20  # Compared between two looks at the clock.
KEPT_BYTES_MAX = 64 << 20  # Of matches that wait for a page.
COLUMN_BYTES_MAX = 32 << 20
INFLATED_BYTES_MAX = 256 << 20
ERRORS_MAX = 20


@dataclass
class Progress:
    """Figures of a search. offsets: of the ranges, read and in total."""

    records: int = 0
    fetched_bytes: int = 0
    offsets: int = 0
    offsets_total: int = 0
    matches: int = 0
    seconds: float = 0.0
    decoded: int = 0  # Records that were decoded to be compared.
    undecoded: int = 0  # Those that could not be decoded: their bytes were compared.
    undecoded_reason: str = ""

    @property
    def share(self) -> float:
        return self.offsets / self.offsets_total if self.offsets_total else 1.0

    @property
    def mb_per_s(self) -> float:
        return self.fetched_bytes / 1e6 / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Return an estimate from the offsets read so far; None before there are any."""
        return self.seconds * (1 - self.share) / self.share if self.offsets else None


@dataclass(frozen=True, slots=True)
class Found:
    """Matches of one partition: rows [start, stop) of the columns."""

    partition: int
    columns: Columns
    stretches: list[tuple[int, int]]

    @property
    def count(self) -> int:
        return sum(stop - start for start, stop in self.stretches)

    def rows(self) -> Iterator[Row]:
        chosen = iter(self.stretches)
        start, stop = next(chosen, (0, 0))
        for number, row in enumerate(rows_of(self.columns)):
            while number >= stop:
                start, stop = next(chosen, (2**63, 2**63))
            if number >= start:
                yield row


@dataclass(frozen=True, slots=True)
class RowsFound:
    """Matches of several partitions, as rows."""

    matches: list[Row]

    @property
    def count(self) -> int:
        return len(self.matches)

    def rows(self) -> Iterator[Row]:
        return iter(self.matches)


@dataclass(frozen=True)
class Limits:
    """0: none. matches: found; seconds: of the whole search; bytes: fetched."""

    matches: int = 0
    seconds: float = 0.0
    bytes: int = 0


class Searches:
    """Limits how many searches run at a time, for all users together."""

    def __init__(self, concurrent_max: int):
        self._concurrent_max = concurrent_max
        self.running = 0

    def check(self) -> None:
        """Raise PageError if too many searches run."""
        if self.running >= self._concurrent_max:
            raise PageError(429, "Too many searches are running", str(self.running),
                            "Wait until one ends. console.search.concurrent.max sets the number.")

    @contextlib.contextmanager
    def slot(self) -> Iterator[None]:
        """Count a search. Raises PageError if too many run."""
        self.check()
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1


async def plan(cluster: Cluster, topic: str, chosen: Filter) -> tuple[dict[int, list[
        tuple[int, int]]], int | None]:
    """Return the ranges to search by partition, and the partition of the key shortcut or None.

    Raises KafkaError, and PageError for a partition that the topic does not have.
    """
    info = await cluster.topic(topic)
    known = sorted(info.partitions)
    if chosen.left is not None:
        _check_partitions(known, list(chosen.left))
        # Offsets that do not exist yet would never be read: the search could not end.
        ends = await current_ranges(cluster, topic, sorted(chosen.left),
                                    isolation=int(chosen.committed))
        return {partition: clipped for partition, rows in chosen.left.items() if (clipped := [
            (start, min(end, ends[partition][1])) for start, end in rows
            if partition in ends and start < ends[partition][1]])}, None
    wanted, shortcut = known, None
    if chosen.partitions is not None:
        _check_partitions(known, chosen.partitions)
        wanted = chosen.partitions
    elif chosen.whole_key is not None and not chosen.all_partitions and len(known) > 1:
        shortcut = murmur2(chosen.whole_key) % len(known)
        wanted = [shortcut]
    found = await current_ranges(cluster, topic, wanted, isolation=int(chosen.committed),
                                 since_ms=chosen.since_ms, until_ms=chosen.until_ms)
    return {partition: [one] for partition, one in _clipped(found, chosen).items()}, shortcut


def _check_partitions(known: list[int], wanted: list[int]) -> None:
    unknown = sorted(set(wanted) - set(known))
    if unknown:
        raise PageError(404, "The topic has no such partition", ", ".join(map(str, unknown[:20])),
                        f"Its partitions are 0 to {len(known) - 1}.")


def _clipped(ranges: Ranges, chosen: Filter) -> Ranges:
    """Apply offset_from and offset_until."""
    made = {}
    for partition, (start, end) in ranges.items():
        start = max(start, chosen.offset_from or 0)
        end = end if chosen.offset_until is None else min(end, chosen.offset_until)
        if start < end:
            made[partition] = start, end
    return made


class RecordSearch:
    """One search of a topic. `found` yields matches; the other attributes are valid at any time.

    seconds: a monotonic clock. ranges: of plan(). left: the ranges that are not compared yet.
    decoder: decodes keys and values before they are compared; None compares their bytes.
    """

    def __init__(self, cluster: Cluster, topic: str, chosen: Filter,
                 ranges: dict[int, list[tuple[int, int]]], limits: Limits,
                 seconds: Callable[[], float], decoder: RowDecoder | None = None):
        self._cluster = cluster
        self._topic = topic
        self._filter = chosen
        self._limits = limits
        self._seconds = seconds
        self._comparison = Comparison(chosen, decoder)
        self._native = self._comparison.native()
        self._started_s = seconds()
        self._stopping = False
        self._reason = COMPLETE
        self.left = {partition: sorted(rows) for partition, rows in ranges.items() if rows}
        self.progress = Progress(offsets_total=_offset_count(self.left))
        self.errors: list[str] = []
        self.skipped: dict[int, list[tuple[int, int]]] = {}
        self.deleted: list[tuple[int, int, int]] = []

    @property
    def reason(self) -> str:
        """Return why the search ended, one of REASONS."""
        return self._reason

    @property
    def is_complete(self) -> bool:
        """Return True if every record of the ranges was compared."""
        return not self.left and not self.skipped

    @property
    def unread(self) -> dict[int, list[tuple[int, int]]]:
        """Return the ranges that were not compared: to continue, and those with damaged batches."""
        both = {partition: list(rows) for partition, rows in self.left.items()}
        for partition, rows in self.skipped.items():
            both.setdefault(partition, []).extend(rows)
        return both

    def stop(self) -> None:
        """End the search as soon as possible."""
        self._stopping = True

    async def found(self) -> AsyncGenerator[Found | RowsFound, None]:
        """Yield matches in the filter's order, and also empty results, so that the caller can show
        the progress. Raises KafkaError.
        """
        source: Any = self._newest() if self._filter.order == NEWEST else self._oldest()
        async with contextlib.aclosing(source) as matches:
            async for one in matches:
                self.progress.seconds = self._seconds() - self._started_s
                yield one
        self.progress.seconds = self._seconds() - self._started_s

    def _must_end(self) -> bool:
        """Return True if the search must end now, and set the reason."""
        limits, progress = self._limits, self.progress
        if not self.left:
            return False
        if self._stopping:
            self._reason = STOPPED
        elif limits.matches and progress.matches >= limits.matches:
            self._reason = LIMIT
        elif limits.seconds and self._seconds() - self._started_s >= limits.seconds:
            self._reason = TIME
        elif limits.bytes and progress.fetched_bytes >= limits.bytes:
            self._reason = BYTES
        else:
            return False
        return True

    # Oldest first

    async def _oldest(self) -> AsyncGenerator[Found, None]:
        """Read the first range of each partition until all are done."""
        while self.left and not self._must_end():
            first = {partition: rows[0] for partition, rows in self.left.items()}
            async with contextlib.aclosing(self._read(first, self._matches_left)) as matches:
                async for found in matches:
                    self.progress.matches += found.count
                    yield found

    def _matches_left(self) -> int:
        most = self._limits.matches
        return most - self.progress.matches if most else 2**62

    async def _read(self, ranges: Ranges, records_max: Callable[[], int],
                    partition_bytes: int = FETCH_SHARE_BYTES, fetch_bytes: int = FETCH_BYTES
                    ) -> AsyncGenerator[Found, None]:
        """Compare the records of ranges, which are parts of `left`, and remove them from it."""
        reader = RangeReader(self._cluster, self._topic, ranges,
                             isolation=int(self._filter.committed), partition_bytes=partition_bytes,
                             fetch_bytes=fetch_bytes)
        try:
            async with contextlib.aclosing(reader.chunks()) as chunks:
                async for chunk in chunks:
                    self.progress.fetched_bytes += len(chunk.records)
                    async with contextlib.aclosing(self._compare(chunk, records_max)) as matches:
                        async for found in matches:
                            yield found
                    if self._must_end():
                        return
        finally:
            for partition, start, stop in reader.deleted:
                self._done(partition, start, stop)
            self.deleted += reader.deleted

    async def _compare(self, chunk: Chunk, records_max: Callable[[], int]
                       ) -> AsyncGenerator[Found, None]:
        """Compare a chunk in steps, without blocking the event loop."""
        fetched = Fetched(chunk.records, source=chunk.partition, next_offset=chunk.start,
                          aborted=chunk.aborted, read_committed=self._filter.committed,
                          inflated_bytes_max=INFLATED_BYTES_MAX)
        reader = ColumnReader(bytes_max=COLUMN_BYTES_MAX)
        at = chunk.start
        while at < chunk.stop:
            try:
                found, stop = await asyncio.to_thread(
                    self._step, fetched, reader, chunk, records_max())
            except RecordsError as failure:
                self._skip(chunk, max(at, failure.offset), failure)
                return
            self._done(chunk.partition, at, stop)
            at = stop
            yield found
            if at < chunk.stop and self._must_end():
                return

    def _step(self, fetched: Fetched, reader: ColumnReader, chunk: Chunk, records_max: int
              ) -> tuple[Found, int]:
        """Compare about STEP_BYTES. Returns the matches and the first offset not compared."""
        before = self._native.records
        most = min(records_max, 100_000)
        try:
            self._native.append(fetched, reader, end_offset=chunk.end, records_max=most,
                                bytes_max=STEP_BYTES)
            if reader.full and not reader.count:
                # One record is longer than COLUMN_BYTES_MAX.
                alone = ColumnReader()
                self._native.append(fetched, alone, end_offset=chunk.end, records_max=1,
                                    bytes_max=STEP_BYTES)
                reader = alone
        finally:
            self.progress.records += self._native.records - before
        columns = reader.finish()
        stop = chunk.stop if fetched.exhausted else min(fetched.next_offset, chunk.stop)
        stretches = [(0, columns.count)] if columns.count else []
        if columns.count and self._comparison.is_needed:
            kept = self._comparison.kept(list(rows_of(columns)))
            stretches = [(number, number + 1) for number in kept]
            self.progress.decoded = self._comparison.decoded
            self.progress.undecoded = self._comparison.undecoded
            self.progress.undecoded_reason = self._comparison.reason
        return Found(chunk.partition, columns, stretches), stop

    def _skip(self, chunk: Chunk, offset: int, failure: RecordsError) -> None:
        """Leave out the rest of a chunk whose batch at `offset` is damaged."""
        if len(self.errors) < ERRORS_MAX:
            self.errors.append(f"partition {chunk.partition}, batch at offset {offset}: {failure}")
        self.skipped.setdefault(chunk.partition, []).append((offset, chunk.stop))
        for start, end in [row for row in self.left.get(chunk.partition, ()) if row[0] < chunk.stop
                           and row[1] > chunk.start]:
            self._done(chunk.partition, max(start, chunk.start), min(end, chunk.stop))

    def _done(self, partition: int, start: int, stop: int) -> None:
        """Remove offsets from `left`."""
        rows = []
        for low, high in self.left.get(partition, ()):
            rows += [part for part in ((low, min(high, start)), (max(low, stop), high))
                     if part[0] < part[1]] if low < stop and high > start else [(low, high)]
        if rows:
            self.left[partition] = rows
        else:
            self.left.pop(partition, None)
        self.progress.offsets = self.progress.offsets_total - _offset_count(self.left)

    # Newest first

    async def _newest(self) -> AsyncGenerator[RowsFound, None]:
        """Read windows from the ends of all partitions towards their starts."""
        window_bytes = FIRST_ROUND_BYTES
        sizes: dict[int, float] = {}  # Bytes by offset, measured in earlier windows.
        while self.left and not self._must_end():
            share = max(window_bytes // len(self.left), ROUND_SHARE_BYTES_MIN)
            windows: Ranges = {}
            for partition, rows in self.left.items():
                start, end = rows[-1]
                count = max(1, int(share / sizes.get(partition, RECORD_BYTES_GUESS)))
                if self._filter.is_empty and self._limits.matches:
                    count = min(count, self._limits.matches)
                windows[partition] = max(start, end - count), end
            before = self.progress.fetched_bytes
            kept: dict[int, _Newest] = {
                partition: _Newest(self._matches_left(), KEPT_BYTES_MAX // len(windows))
                for partition in windows}
            partition_bytes = min(FETCH_SHARE_BYTES, max(share, ROUND_SHARE_BYTES_MIN))
            async with contextlib.aclosing(self._read(
                    windows, lambda: 2**62, partition_bytes)) as matches:
                async for found in matches:
                    for row in found.rows():
                        kept[row.partition].add(row)
                    yield RowsFound([])
            yield RowsFound(self._newest_of(windows, kept))
            read = self.progress.fetched_bytes - before
            count = sum(end - start for start, end in windows.values())
            for partition in windows:
                # Grow by at most 16 times: the next offsets may be denser.
                sizes[partition] = max(read / count, sizes.get(
                    partition, RECORD_BYTES_GUESS) / 16, 1 / 64)
            window_bytes = min(window_bytes * 2, ROUND_BYTES_MAX)

    def _newest_of(self, windows: Ranges, kept: dict[int, _Newest]) -> list[Row]:
        """Return the newest matches of a round.

        The offsets of the others, and those before them, go back to `left`: a later search must not
        find a match again, nor miss one.
        """
        most = self._matches_left()
        newest: list[Row] = []
        again = {partition: window.cut for partition, window in kept.items() if window.cut}
        # The rows of a partition stay in the order of their offsets. Partitions take turns with
        # rows of the same time, so that none of them hides the others.
        for _, row in heapq.merge(*[enumerate(reversed(window.rows)) for window in kept.values()],
                                  key=lambda one: (-one[1].timestamp, one[0])):
            if len(newest) < most:
                newest.append(row)
            else:
                again[row.partition] = max(again.get(row.partition, 0), row.offset + 1)
        for partition, stop in again.items():
            self._restore(partition, windows[partition][0], stop)
        self.progress.matches += len(newest)
        return newest

    def _restore(self, partition: int, start: int, stop: int) -> None:
        """Add offsets to `left` again."""
        self.left[partition] = joined([*self.left.get(partition, ()), (start, stop)])
        self.progress.offsets = self.progress.offsets_total - _offset_count(self.left)


class _Newest:
    """The newest matches of a partition's window. cut: the offset after those that had no room."""

    def __init__(self, count_max: int, bytes_max: int):
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self.rows: deque[Row] = deque()
        self.cut = 0

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self._bytes += row.bytes
        while len(self.rows) > self._count_max or (self._bytes > self._bytes_max
                                                   and len(self.rows) > 1):
            oldest = self.rows.popleft()
            self._bytes -= oldest.bytes
            self.cut = oldest.offset + 1


def _offset_count(ranges: dict[int, list[tuple[int, int]]]) -> int:
    return sum(end - start for rows in ranges.values() for start, end in rows)

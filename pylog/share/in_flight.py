"""The in-flight records of a share partition, as offset ranges: acquired, released or finished.

Owns: the ranges and the start offset of one share partition.
Invariants: ranges ascend, do not overlap, and none starts below the start offset; the first range
  is not finished, unless its state is being written; a record is acquired by one member at a time,
  and not beyond its deadline, unless its new state is being written; a range whose state is being
  written neither changes nor splits until the write has succeeded or failed; a record is delivered
  at most deliveries_max times; if the group has a dead-letter topic, records that a member rejects
  or releases too often are ARCHIVING, and in flight, until their letters are written.
Source: KIP-932 (states, delivery count), KIP-1206 (record_limit), KIP-1222 (renewal), KIP-1191
  (archiving). Kafka's SharePartition tracks single offsets where this module tracks ranges.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pylog.protocol.errors import Error, ErrorCode
from pylog.share.acknowledgement_types import ACCEPT, GAP, REJECT, RELEASE, RENEW, Row, Span, spans
from pylog.share.offset_ranges import (
    ACKNOWLEDGED, ACQUIRED, ARCHIVED, ARCHIVING, AVAILABLE, DONE, NOBODY, Range, StateBatch,
)

THROTTLED_DELIVERIES_MIN = 2
Fault = tuple[Error, str] | None
_STATE_AFTER = {GAP: ARCHIVED, ACCEPT: ACKNOWLEDGED, RELEASE: AVAILABLE, REJECT: ARCHIVING}


class Limits(NamedTuple):
    """The settings of a group.

    lock_ms: the acquisition lock timeout. records_max: limit of records in flight. renews: members
    may renew locks. has_letters: there is a dead-letter topic.
    """

    lock_ms: int
    deliveries_max: int
    records_max: int
    renews: bool
    has_letters: bool = False


class Wanted(NamedTuple):
    """The limits of a fetch.

    exact: return at most records_max records (record_limit), otherwise whole batches. batch_size:
    records per batch of the response, where batch boundaries allow it.
    """

    member: str
    records_max: int
    batch_size: int
    exact: bool


class InFlight:
    """The in-flight records.

    limits may be replaced at any time. start: the first offset that is not finished.
    """

    def __init__(self, limits: Limits, start: int, stored: Iterable[StateBatch] = ()):
        """kept: the stored state. Raises ValueError if it is invalid."""
        self.limits = limits
        self.start = start
        self._ranges: list[Range] = []
        self._due_ms: int | None = None  # Lower bound of all deadlines.
        self._may_have_free = False
        self._may_archive = False
        self._has_gap = False  # Offsets between ranges may have no record.
        self._merged = 16  # Number of ranges after the last merge.
        next_offset = start
        for row in stored:
            if row.first < next_offset or row.last < row.first or row.deliveries < 0 or \
                    row.state not in (AVAILABLE, ACKNOWLEDGED, ARCHIVING, ARCHIVED):
                raise ValueError(f"{row} is below offset {next_offset}")
            if row.first > next_offset:
                # Acquired but never acknowledged before the state was lost.
                self._ranges.append(Range(next_offset, row.first - 1, AVAILABLE, 0))
            self._ranges.append(Range(*row))
            next_offset = row.last + 1
        self._may_have_free = self._may_archive = bool(self._ranges)
        self._advance()

    # ---- state ----------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """Return the last offset in flight, or the start if there is none."""
        return self._ranges[-1].last if self._ranges else self.start

    @property
    def count(self) -> int:
        """Return the number of offsets from the start to the end."""
        return self.end - self.start + 1 if self._ranges else 0

    @property
    def done_count(self) -> int:
        """Return how many of these offsets are finished."""
        return sum(row.last - row.first + 1 for row in self._ranges if row.state in DONE)

    @property
    def range_count(self) -> int:
        return len(self._ranges)

    @property
    def archiving_count(self) -> int:
        """Return the number of offsets whose dead letters are not written yet."""
        return sum(row.size for row in self._ranges if row.state == ARCHIVING)

    def next_offset(self) -> int:
        """Return the next offset to read: the first available one, or the one after the end."""
        if self._may_have_free:
            for row in self._ranges:
                if row.is_free:
                    return row.first
            self._may_have_free = False
        return self.end + 1 if self._ranges else self.start

    def can_acquire(self) -> bool:
        return self.count < self.limits.records_max \
            or self.next_offset() <= self.end

    @property
    def next_due_ms(self) -> int | None:
        """Return when to call expire() at the earliest, or None if nothing is acquired."""
        return self._due_ms

    def holds(self, member: str) -> bool:
        return any(row.member == member for row in self._ranges)

    # ---- acquire --------------------------------------------------------------------------------

    def acquire(self, wanted: Wanted, offset: int, batches: Sequence[tuple[int, int]],
                now_ms: int) -> list[StateBatch]:
        """Acquire records from batches [(base offset, last offset)] that were read at `offset`.

        Skips records that another member holds. Returns the acquired ranges.
        """
        low, high = batches[0][0], batches[-1][1]
        if high < self.start:
            return []
        room = min(wanted.records_max, self.limits.records_max - self.count)
        if room <= 0:
            # At the limit, only released records can be acquired.
            if not self._ranges or offset > self.end:
                return []
            room = min(wanted.records_max, self.end - offset + 1)
            high = min(high, self.end)
        if room <= 0:
            return []
        self._archive(offset, low - 1)
        low = max(low, self.start)
        found: list[StateBatch] = []
        room = self._acquire_again(wanted, low, high, room, now_ms, found)
        first = max(low, self.end + 1) if self._ranges else low
        if room > 0 and first <= high:
            found += self._acquire_new(wanted, batches, first, high, room, now_ms)
        return found

    def _acquire_again(self, wanted: Wanted, low: int, high: int, room: int, now_ms: int,
                       found: list[StateBatch]) -> int:
        """Acquire records that were released. Returns how many more the member may get."""
        acquired = 0
        for rows in self._batches_between(low, high):
            free = [row for row in rows if row.is_free]
            if acquired >= room:
                return 0
            if not free:
                continue
            slowed = max(row.count for row in free) >= self._slow_count
            if slowed and acquired:
                return 0
            whole = len(rows) == 1 and (free[0].first, free[0].last) == free[0].batch
            size = sum(row.size for row in free)
            if whole and not slowed and not (wanted.exact and size > room - acquired):
                got = self._take(free[0], wanted.member, now_ms)
                found.append(StateBatch(got.first, got.last, ACQUIRED, got.count))
                acquired += size
                continue
            some = self._acquire_some(wanted, free, room - acquired, now_ms, found)
            acquired += some
            if slowed and some:
                return 0
        return max(0, room - acquired)

    def _acquire_some(self, wanted: Wanted, free: list[Range], room: int, now_ms: int,
                      found: list[StateBatch]) -> int:
        """Acquire a part of one batch.

        The higher the delivery count, the fewer records are delivered together, so that a record
        that cannot be processed is finally delivered alone.
        """
        deliveries_max, slow_count = self.limits.deliveries_max, self._slow_count
        batch_first, batch_last = free[0].batch
        acquired, slow_max = 0, -1
        before = len(found)
        for row in free:
            is_last = deliveries_max > 2 and row.count == deliveries_max - 1
            if is_last and acquired:
                break
            if row.count >= slow_count and slow_max < 0:
                slow_max = max(
                    1, (batch_last - batch_first + 1) >> (row.count - slow_count + 1))
            size = 1 if is_last else row.size
            if wanted.exact:
                size = min(size, room - acquired)
            if slow_max > acquired:
                size = min(size, slow_max - acquired)
            got = self._take(self._head(row, size), wanted.member, now_ms)
            acquired += size
            last = found[-1] if len(found) > before else None
            if last is not None and last.last + 1 == got.first \
                    and last.deliveries == got.count:
                found[-1] = last._replace(last=got.last)
            else:
                found.append(StateBatch(got.first, got.last, ACQUIRED, got.count))
            if is_last or acquired == slow_max or wanted.exact and acquired >= room:
                break
        return acquired

    def _acquire_new(self, wanted: Wanted, batches: Sequence[tuple[int, int]], first: int,
                     high: int, room: int, now_ms: int) -> list[StateBatch]:
        """Acquire records that were never in flight. The whole batches become in flight."""
        last = high
        if room < high - first + 1:
            last = next(last for _, last in batches if last >= first + room - 1)
        if not self._ranges:
            self.start = first
        self._has_gap = bool(self._ranges) and (self._has_gap or first > self.end + 1)
        firsts = [first]
        if not wanted.exact and last - first + 1 > wanted.batch_size:
            for base, _ in batches:
                if base <= last and base - firsts[-1] >= wanted.batch_size:
                    firsts.append(base)
        deadline_ms = self._held_until(now_ms)
        made = [Range(at, end, ACQUIRED, 1, None, wanted.member, deadline_ms)
                for at, end in zip(firsts, [*(at - 1 for at in firsts[1:]), last], strict=True)]
        self._ranges += made
        if wanted.exact and last - first + 1 > room:
            rest = self._split(len(self._ranges) - 1, first + room)
            rest.state, rest.count, rest.member, rest.deadline_ms = AVAILABLE, 0, NOBODY, 0
            self._may_have_free = True
        return [StateBatch(row.first, row.last, ACQUIRED, 1) for row in made]

    @property
    def _slow_count(self) -> int:
        return max(THROTTLED_DELIVERIES_MIN, math.ceil(self.limits.deliveries_max / 2))

    def _take(self, row: Range, member: str, now_ms: int) -> Range:
        assert row.is_free, (row.first, row.state)
        row.state, row.member = ACQUIRED, member
        row.count += 1
        row.deadline_ms = self._held_until(now_ms)
        # At deliveries_max, a release archives the record instead of making it available.
        return row

    def _held_until(self, now_ms: int) -> int:
        due_ms = now_ms + self.limits.lock_ms
        self._due_ms = due_ms if self._due_ms is None else min(self._due_ms, due_ms)
        return due_ms

    def archive(self, first: int, last: int) -> None:
        """Archive records of aborted transactions that were just acquired and must not be
        delivered.
        """
        for row in self._between(first, last):
            if row.before is None:
                self._end(row, ARCHIVED)
        self._advance()

    def _archive(self, first: int, last: int) -> None:
        """Archive available offsets without a record, because the log was compacted."""
        if first <= last:
            for row in self._between(first, last):
                if row.is_free:
                    self._end(row, ARCHIVED)

    # ---- acknowledge ----------------------------------------------------------------------------

    def acknowledge(self, member: str, rows: Iterable[Row],
                    now_ms: int) -> tuple[Error, str, list[Range]]:
        """Acknowledge ascending rows. Return (NONE, "", ranges to write), or (error, reason, []).

        After an error nothing has changed except renewed deadlines.
        """
        rows = [row for row in rows if row[1] >= self.start]
        found = spans(rows)
        if self._has_gap or any(self._bounds_fault(span.first, span.last) for span in found):
            # Return the error of the first invalid row.
            found = [span for row in rows for span in spans([row])]
        moved: list[Range] = []
        for span in found:
            fault = self._bounds_fault(span.first, span.last) \
                or self._acknowledge(member, span, now_ms, moved)
            if fault is not None:
                self.settle(moved, False, now_ms)
                return *fault, []
        return ErrorCode.NONE, "", moved

    def _bounds_fault(self, first: int, last: int) -> Fault:
        at = self._at(first)
        if at < 0 and not first < self.start <= last:
            return ErrorCode.INVALID_RECORD_STATE, "No such records are in flight."
        upto = self._at(last)
        if upto < 0 or self._ranges[upto].last < last:
            return ErrorCode.INVALID_REQUEST, "The records are not all in flight."
        return None

    def _acknowledge(self, member: str, span: Span, now_ms: int, moved: list[Range]) -> Fault:
        """Apply the runs of a span in one pass over the ranges; splits ranges as needed."""
        start = self.start
        index = begin = max(0, self._at(max(span.first, start)))
        left: Range | None = self._ranges[begin]
        made: list[Range] = []
        fault: Fault = None
        for first, last, kind in span.runs:
            while left is not None and left.first <= last and fault is None:
                after = None
                if left.last >= first and last >= start:
                    fault = self._hold_fault(left, member, kind)
                    if fault is not None:
                        break
                    if left.first < first:
                        made.append(left)
                        left = left.cut(first)
                    if left.last > last:
                        after = left.cut(last + 1)
                    if kind == RENEW:
                        left.deadline_ms = self._held_until(now_ms)
                    else:
                        self._begin(left, _STATE_AFTER[kind], moved)
                made.append(left)
                if after is None:
                    index += 1
                    after = self._ranges[index] if index < len(self._ranges) else None
                left = after
        self._ranges[begin:index + 1] = made if left is None else [*made, left]
        return fault

    def _hold_fault(self, row: Range, member: str, kind: int) -> Fault:
        """Return the fault if the member cannot acknowledge the range this way, or None."""
        why = "The records' state is being written already." if row.before is not None \
            else "The records are not acquired." if row.state != ACQUIRED \
            else "The records are another member's." if row.member != member \
            else "The group allows no renewal." if kind == RENEW and not self.limits.renews \
            else None
        return None if why is None else (ErrorCode.INVALID_RECORD_STATE, why)

    def release(self, member: str) -> list[Range]:
        """Release the records that a member holds. Returns the ranges to write."""
        moved: list[Range] = []
        for row in self._ranges:
            if row.state == ACQUIRED and row.before is None and row.member == member:
                self._begin(row, AVAILABLE, moved)
        return moved

    def _begin(self, row: Range, state: int, moved: list[Range]) -> None:
        """Change the state of a range when its write starts; keeps the old one for a rollback."""
        assert row.state == ACQUIRED and row.before is None, (row.first, row.state)
        row.before = row.state, row.member
        row.is_rejected = state == ARCHIVING
        row.state = self._given_back(row) if state == AVAILABLE else \
            self._given_up if state == ARCHIVING else state
        row.member = NOBODY
        moved.append(row)

    def _given_back(self, row: Range) -> int:
        return self._given_up if row.count >= self.limits.deliveries_max else AVAILABLE

    @property
    def _given_up(self) -> int:
        """Return the state after giving up: ARCHIVING first if there is a dead-letter topic."""
        return ARCHIVING if self.limits.has_letters else ARCHIVED

    def settle(self, moved: Iterable[Range], written: bool, now_ms: int) -> bool:
        """Finish the write of `moved`. Returns True if there may be records to acquire."""
        changed = False
        for row in moved:
            assert row.before is not None, row.first
            if not written:
                state, member = row.before
                if state == ACQUIRED and row.deadline_ms <= now_ms:
                    state, member = self._given_back(row), NOBODY
                row.state, row.member = state, member
                row.is_rejected = row.is_rejected and state == ARCHIVING
            row.before = None
            if row.state != ACQUIRED:
                row.deadline_ms = 0
                changed = True
            else:
                self._due_ms = row.deadline_ms if self._due_ms is None \
                    else min(self._due_ms, row.deadline_ms)
            self._note(row)
        if changed:
            self._advance()
        return changed

    # ---- dead letters ---------------------------------------------------------------------------

    @property
    def is_archiving(self) -> bool:
        """Return True if begin_archiving() would return ranges."""
        self._may_archive = self._may_archive and any(
            row.state == ARCHIVING and row.before is None for row in self._ranges)
        return self._may_archive

    def begin_archiving(self, records_max: int) -> list[Range]:
        """Return ranges with about `records_max` records whose letters must be written now.

        They do not change until settle() is called for failed ranges, or archived() and then
        settle() for written ones.
        """
        found: list[Range] = []
        for row in list(self._ranges):
            if records_max <= 0:
                break
            if row.state == ARCHIVING and row.before is None:
                found.append(self._head(row, min(row.size, records_max)))
                row.before = ARCHIVING, NOBODY
                records_max -= row.size
        return found

    def archived(self, moved: Iterable[Range]) -> None:
        """Mark `moved` as archived after writing their letters; this state is written next."""
        for row in moved:
            assert row.before == (ARCHIVING, NOBODY), (row.first, row.before)
            row.state = ARCHIVED

    def deliveries_exceeded(self, row: Range) -> bool:
        """Return True if a range is archiving because of its delivery count, as far as is known.

        The stored state does not include the reason.
        """
        return not row.is_rejected and row.count >= self.limits.deliveries_max

    # ---- time, and the log's start --------------------------------------------------------------

    def expire(self, now_ms: int) -> list[StateBatch]:
        """Release records whose lock has timed out. Returns the states to write."""
        found: list[StateBatch] = []
        self._due_ms = None
        for row in self._ranges:
            if row.state != ACQUIRED or row.before is not None:
                continue
            if row.deadline_ms <= now_ms:
                self._end(row, self._given_back(row))
                found.append(StateBatch(row.first, row.last, row.state, row.count))
            elif self._due_ms is None or row.deadline_ms < self._due_ms:
                self._due_ms = row.deadline_ms
        if found:
            self._advance()
        return found

    def move_start(self, start: int) -> None:
        """Drop records below the new log start offset."""
        if start <= self.start:
            return
        self.start = start
        while self._ranges and self._ranges[0].last < start:
            self._ranges.pop(0)
        if self._ranges and self._ranges[0].first < start:
            if self._ranges[0].before is None:
                self._split(0, start)
                self._ranges.pop(0)
            else:
                # A range that is being written must not change, so another range replaces it. The
                # write of a letter may fail, so the letter is written again.
                old = self._ranges[0]
                self._ranges[0] = Range(
                    start, old.last, ARCHIVING if old.state == ARCHIVING else ARCHIVED, old.count,
                    old.batch)
                self._note(self._ranges[0])
        self._advance()

    # ---- ranges ---------------------------------------------------------------------------------

    def _end(self, row: Range, state: int) -> None:
        """Set a state without waiting for a write."""
        row.state, row.member, row.deadline_ms = state, NOBODY, 0
        self._note(row)

    def _note(self, row: Range) -> None:
        self._may_have_free |= row.state == AVAILABLE
        self._may_archive |= row.state == ARCHIVING

    def _advance(self) -> None:
        """Move the start behind finished ranges, and merge ranges when there are many."""
        done = 0
        for row in self._ranges:
            if row.state not in DONE or row.before is not None:
                break
            self.start = row.last + 1
            done += 1
        if done:
            del self._ranges[:done]
            if self._ranges:
                self.start = self._ranges[0].first
        if len(self._ranges) > 2 * self._merged:
            self._merge()
            self._merged = max(16, len(self._ranges))

    def _merge(self) -> None:
        merged = self._ranges[:1]
        for row in self._ranges[1:]:
            if merged[-1].joins(row):
                merged[-1].last = row.last
            else:
                merged.append(row)
        self._ranges = merged

    def _at(self, offset: int) -> int:
        """Return the index of the last range that starts at or before `offset`, or -1."""
        return bisect_right(self._ranges, offset, key=_first_of) - 1

    def _split(self, index: int, at: int) -> Range:
        """Split the range at `index` at offset `at`; return the second part."""
        row = self._ranges[index]
        rest = row.cut(at)
        self._ranges.insert(index + 1, rest)
        return rest

    def _head(self, row: Range, size: int) -> Range:
        """Split off and return the first `size` offsets of a range."""
        if size < row.size:
            self._split(self._at(row.first), row.first + size)
        return row

    def _between(self, first: int, last: int) -> list[Range]:
        """Return the ranges in [first, last], split at both ends unless they are being written."""
        at = max(0, self._at(first))
        for boundary in (first, last + 1):
            index = self._at(boundary)
            if index >= 0:
                row = self._ranges[index]
                if row.first < boundary <= row.last and row.before is None:
                    self._split(index, boundary)
        found = []
        for row in self._ranges[at:]:
            if row.first > last:
                break
            if row.last >= first:
                found.append(row)
        return found

    def _batches_between(self, low: int, high: int) -> list[list[Range]]:
        """Return the ranges in [low, high], grouped by batch."""
        found: list[list[Range]] = []
        index = max(0, self._at(low))
        while index < len(self._ranges) and self._ranges[index].first <= high:
            row = self._ranges[index]
            if row.last >= low:
                if row.is_free and row.first < low:
                    self._split(index, low)
                    index += 1
                    row = self._ranges[index]
                if row.is_free and row.last > high:
                    self._split(index, high + 1)
                if found and found[-1][0].batch == row.batch:
                    found[-1].append(row)
                else:
                    found.append([row])
            index += 1
        return found


def _first_of(row: Range) -> int:
    return row.first

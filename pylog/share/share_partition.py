"""One partition of a share group on its leader: in-flight records, and state at the share
coordinator.

Owns: the in-flight records of the share partition; writes in progress.
Invariants: an acknowledgement is answered after its state is durable; a fenced share partition
  writes nothing more; nothing is acquired before the state is loaded; a record in state ARCHIVING
  is archived after its letter is written; committed records only: nothing at or above the high
  watermark is acquired, or at or above the last stable offset for a group that reads committed
  transactions; no stale state: the state does not cover offsets that its log has lost since.
Source: KIP-932, KIP-1191; Kafka's SharePartition.
"""

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from pylog import supervisor
from pylog._native.log.log import BOUND_HIGH_WATERMARK, BOUND_LAST_STABLE, Log, LogError
from pylog._native.records import batch
from pylog.coordinator.share.partition_state import NO_EPOCH, NO_OFFSET, Batch, ShareKey, ShareState
from pylog.coordinator.share.shard import FINE, Fault
from pylog.protocol.errors import Error, ErrorCode
from pylog.share.dead_letters import (
    EXCEEDED, REJECTED, DeadLetterError, DeadLetters, GivenUp,
)
from pylog.share.group_config import EARLIEST, LATEST, GroupSettings
from pylog.share.in_flight import InFlight, Wanted
from pylog.share.metrics import GroupMetrics
from pylog.share.offset_ranges import DONE, Range, StateBatch, states_of
from pylog.share.persister import Persister

ABORT_KEY = b"\0\0\0\0"
READ_BYTES_MIN = 16 << 10
LETTERS_MAX = 500  # Records per archiving step.
READ_BYTES_MAX = 1 << 20  # Per partition and response; a first batch is always complete.
Acknowledgements = Sequence[tuple[int, int, Sequence[int]]]
Batches = list[tuple[int, int]]      # (base offset, last offset)
# The client error for each share coordinator error.
_CLIENT_ERRORS = {
    ErrorCode.NOT_COORDINATOR: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.GROUP_ID_NOT_FOUND: ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_STATE_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
}
_FENCES = frozenset((ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.GROUP_ID_NOT_FOUND,
                     ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))

log = logging.getLogger("pylog.sharing")


class Acquired(NamedTuple):
    """The result of acquire(). records: the batches that contain the acquired rows."""

    records: bytes
    rows: list[StateBatch]

    @property
    def offset_count(self) -> int:
        return sum(row.last - row.first + 1 for row in self.rows)


NOTHING = Acquired(b"", [])


class SharePartition:
    """A share partition.

    stir: called when records may be available or the partition was fenced. fenced: called when it
    is fenced. now_ms: monotonic clock. wall_ms: wall clock.
    """

    def __init__(self, key: ShareKey, partition_log: Log, leader_epoch: int, persister: Persister,
                 settings: GroupSettings, metrics: GroupMetrics,
                 stir: Callable[["SharePartition"], object],
                 fenced: Callable[["SharePartition"], object], now_ms: Callable[[], int],
                 wall_ms: Callable[[], int]):
        self.key = key
        self.log = partition_log
        self.leader_epoch = leader_epoch
        self.in_flight: InFlight | None = None  # None until loaded.
        self.error: Error = ErrorCode.NONE  # Set when it is fenced.
        self._loaded = asyncio.Event()  # loaded or fenced
        self.is_reading = False
        self.is_watched = False  # True while a slot watches its log.
        self._persister = persister
        self._settings = settings
        self._metrics = metrics
        self._stir = stir
        self._fenced = fenced
        self._now_ms = now_ms
        self._wall_ms = wall_ms
        self._state_epoch = 0
        self._record_bytes = 1024.0  # Average of the last read.
        self._writes: set[asyncio.Task[None]] = set()

    # ---- state ----------------------------------------------------------------------------------

    async def load(self) -> None:
        """Load the state; if that fails, fence the share partition with the error."""
        try:
            state = None
            fault, end = await self._reset_truncated()
            if fault[0] == ErrorCode.NONE:
                fault, state = await self._persister.read(self.key, self.leader_epoch)
            if state is None:
                self.fence(_CLIENT_ERRORS.get(fault[0], ErrorCode.UNKNOWN_SERVER_ERROR))
                return
            start = state.start_offset
            if start == NO_OFFSET:
                start = await asyncio.get_running_loop().run_in_executor(None, self._begin)
            self._state_epoch = state.state_epoch
            start, rows = _below(end, start, state.batches)
            in_flight = InFlight(
                self._settings.limits(self.key.group_id), start,
                [StateBatch(*row) for row in rows if row.last >= start])
            in_flight.move_start(self.log.start_offset)
        except (LogError, ValueError) as error:
            log.warning("a share partition could not be read", extra={
                "share_partition": self.key.text, "reason": str(error)})
            self.fence(ErrorCode.UNKNOWN_SERVER_ERROR)
            return
        except Exception:
            # Without an error, all members would wait for this share partition forever.
            log.exception("a share partition could not be read", extra={
                "share_partition": self.key.text})
            self.fence(ErrorCode.UNKNOWN_SERVER_ERROR)
            return
        if self.error == ErrorCode.NONE:
            self.in_flight = in_flight
            self._loaded.set()
        self._stir(self)

    def _begin(self) -> int:
        """Return the start offset according to the group's settings. May block on the disk."""
        begins = self._settings.begins(self.key.group_id)
        if begins == LATEST:
            return self.log.high_watermark
        if begins == EARLIEST:
            return self.log.start_offset
        assert isinstance(begins, int), begins
        found = self.log.offset_for_time(self._wall_ms() - begins)
        # offset_for_time() may find records above the high watermark.
        high_watermark = self.log.high_watermark
        return high_watermark if found is None else min(found[0], high_watermark)

    async def _reset_truncated(self) -> tuple[Fault, int | None]:
        """Remove records that the log has lost from the stored state.

        After an unclean leader election, or a power loss of all replicas, lost offsets are reused
        for other records. Returns (fault, end): the end of the records that an earlier leader can
        have delivered, or None if this leader epoch has read the state before.
        """
        if self.leader_epoch == 0:
            return FINE, None
        fault, summary = await self._persister.summary(self.key)
        if summary is None or not 0 <= summary.leader_epoch < self.leader_epoch:
            return fault, None
        _, end = await asyncio.get_running_loop().run_in_executor(
            None, self.log.end_for_epoch, summary.leader_epoch)
        # NO_EPOCH keeps the old leader epoch in the state: if this fails, the next attempt compares
        # the same epochs again.
        fault, state = await self._persister.read(self.key, NO_EPOCH)
        if end < 0 or state is None or state.start_offset == NO_OFFSET:
            return fault, None
        return await self._reset(state, end), end

    async def _reset(self, state: ShareState, end: int) -> Fault:
        start, rows = _below(end, state.start_offset, state.batches)
        if start == state.start_offset and rows == state.batches:
            return FINE
        log.warning("records that a share group has acquired are no longer in the log; the share "
                    "partition continues at the end of the remaining records", extra={
                        "share_partition": self.key.text, "start_offset": state.start_offset,
                        "end_offset": end, "leader_epoch": self.leader_epoch})
        state_epoch = state.state_epoch
        fault = await self._persister.initialize(self.key, state_epoch, start)
        if fault[0] != ErrorCode.NONE or not rows:
            return fault
        done_count = sum(row.last - row.first + 1 for row in rows if row.state in DONE)
        return await self._persister.write(
            self.key, state_epoch, self.leader_epoch, lambda: (start, done_count), rows)

    def fence(self, error: Error) -> None:
        """Stop serving. Later requests get a new share partition or an error."""
        if self.error == ErrorCode.NONE:
            self.error = error
            self.in_flight = None
            self._loaded.set()
            self._fenced(self)
            self._stir(self)

    # ---- acknowledgements -----------------------------------------------------------------------

    async def acknowledge(self, member: str, rows: Acknowledgements) -> tuple[Error, str | None]:
        """Acknowledge records; return (NONE, None) once it is durable, or (error, reason)."""
        if self.in_flight is None:
            await self._loaded.wait()
        in_flight = self.in_flight
        if in_flight is None:
            return self.error, None
        in_flight.limits = self._settings.limits(self.key.group_id)
        error, why, moved = in_flight.acknowledge(member, rows, self._now_ms())
        if error != ErrorCode.NONE:
            return error, why
        found = await self._settle(in_flight, moved)
        if found[0] == ErrorCode.NONE:
            self._metrics.acknowledged(rows)
        return found

    def release(self, member: str) -> Coroutine[Any, Any, tuple[Error, str | None]] | None:
        """Release the records that a member holds now, not those that it acquires later.

        Returns a coroutine to await until the new state is durable, or None if it holds none.
        """
        in_flight = self.in_flight
        moved = [] if in_flight is None else in_flight.release(member)
        return self._settle(in_flight, moved) if in_flight is not None and moved else None

    async def _settle(self, in_flight: InFlight, moved: list[Range]) -> tuple[Error, str | None]:
        if not moved:
            return ErrorCode.NONE, None
        fault: tuple[Error, str | None] = ErrorCode.UNKNOWN_SERVER_ERROR, None
        try:
            fault = await self._write(in_flight, [Batch(*row) for row in states_of(moved)])
        finally:
            # Also on cancellation or error: otherwise the records would stay locked. After a failed
            # write they are acquired again and need their timer.
            in_flight.settle(moved, fault[0] == ErrorCode.NONE, self._now_ms())
            self._stir(self)
        return fault

    def expire(self) -> None:
        """Release records whose lock has timed out, and write their state in the background."""
        in_flight = self.in_flight
        if in_flight is None:
            return
        in_flight.limits = self._settings.limits(self.key.group_id)
        found = in_flight.expire(self._now_ms())
        if found:
            self._metrics.expired += sum(row.last - row.first + 1 for row in found)
            task = asyncio.get_running_loop().create_task(supervisor.reporting(
                "share partition state",
                self._write(in_flight, [Batch(*row) for row in found]),
                share_partition=self.key.text))
            self._writes.add(task)
            task.add_done_callback(self._writes.discard)
            self._stir(self)

    async def archive(self, letters: DeadLetters) -> str | None:
        """Write letters of some ARCHIVING records, then archive them.

        Returns None, or the reason why some are still ARCHIVING. Raises any unexpected error.
        """
        in_flight = self.in_flight
        if in_flight is None:
            return None
        in_flight.limits = self._settings.limits(self.key.group_id)
        moved = in_flight.begin_archiving(LETTERS_MAX)
        done, why = 0, None
        try:
            for row in moved:
                await letters.write(self.key, self.log, GivenUp(
                    row.first, row.last, row.count,
                    EXCEEDED if in_flight.deliveries_exceeded(row) else REJECTED))
                done += 1
        except DeadLetterError as error:
            why = str(error)
        finally:
            in_flight.settle(moved[done:], False, self._now_ms())
        in_flight.archived(moved[:done])
        if self.in_flight is not in_flight:
            # Fenced: the new leader writes the letters again.
            in_flight.settle(moved[:done], False, self._now_ms())
            return None
        fault = await self._settle(in_flight, moved[:done])
        return why if fault[0] == ErrorCode.NONE else fault[0].name

    async def _write(self, in_flight: InFlight, batches: list[Batch]) -> tuple[Error, str | None]:
        fault = await self._persister.write(
            self.key, self._state_epoch, self.leader_epoch,
            lambda: (in_flight.start, in_flight.done_count), batches)
        if fault[0] == ErrorCode.NONE:
            return fault
        error = _CLIENT_ERRORS.get(fault[0], ErrorCode.UNKNOWN_SERVER_ERROR)
        if error in _FENCES:
            self.fence(error)
        return error, fault[1]

    # ---- fetches --------------------------------------------------------------------------------

    @property
    def readable_end(self) -> int:
        return self.log.last_stable_offset if self._is_committed else self.log.high_watermark

    @property
    def _is_committed(self) -> bool:
        return self._settings.is_committed(self.key.group_id)

    def bytes_to_read(self) -> int:
        """Estimate how many bytes a member could get now; 0 for none."""
        in_flight = self.in_flight
        if in_flight is None or self.is_reading or not in_flight.can_acquire():
            return 0
        offset = in_flight.next_offset()
        if offset >= self.readable_end:
            return 0
        return max(1, self.log.bytes_from(offset, self._bound))

    @property
    def _bound(self) -> int:
        return BOUND_LAST_STABLE if self._is_committed else BOUND_HIGH_WATERMARK

    async def acquire(self, wanted: Wanted, bytes_max: int,
                      has_ended: Callable[[], bool] = lambda: False) -> Acquired:
        """Acquire records for a member, unless its session ended while they were read.

        Raises LogError.
        """
        in_flight = self.in_flight
        if in_flight is None or not self.bytes_to_read():
            return NOTHING
        in_flight.limits = self._settings.limits(self.key.group_id)
        in_flight.move_start(self.log.start_offset)
        offset = in_flight.next_offset()
        data = await self._read(offset, self._bytes_of(wanted, bytes_max))
        if in_flight is not self.in_flight or not data or has_ended():
            return NOTHING
        return self._acquired(in_flight, wanted, offset, data)

    def _bytes_of(self, wanted: Wanted, bytes_max: int) -> int:
        estimate = int(2 * self._record_bytes * wanted.records_max)
        return max(1, min(bytes_max, READ_BYTES_MAX, max(READ_BYTES_MIN, estimate)))

    async def _read(self, offset: int, bytes_max: int) -> bytes:
        bound = self._bound
        found = self.log.read_range(offset, bytes_max, bound, nowait=True)
        if found is not None and found[4]:
            return self.log.read(offset, bytes_max, bound)
        self.is_reading = True
        try:
            return await asyncio.get_running_loop().run_in_executor(
                None, self.log.read, offset, bytes_max, bound)
        finally:
            self.is_reading = False
            # Other fetches may have skipped this partition during the read.
            self._stir(self)

    def _acquired(self, in_flight: InFlight, wanted: Wanted, offset: int,
                  data: bytes) -> Acquired:
        batches, positions = batch.edges(data)
        if not batches:
            return NOTHING
        aborted = self.log.aborted_between(batches[0][0], batches[-1][1] + 1) \
            if self._is_committed else []
        if offset < self.log.start_offset:
            # Checked last: records removed from the log also lose their aborted-transaction
            # entries.
            return NOTHING
        count = batches[-1][1] - batches[0][0] + 1
        self._record_bytes = max(1.0, len(data) / count)
        rows = in_flight.acquire(wanted, offset, batches, self._now_ms())
        had_rows = bool(rows)
        for first, last in _aborted(data, aborted) if rows and aborted else ():
            # Aborted records must not be delivered.
            in_flight.archive(first, last)
            rows = [part for row in rows for part in _less(row, first, last)]
        if not rows:
            if had_rows:
                # Deferred, so that a long range of aborted records does not block the event loop.
                asyncio.get_running_loop().call_soon(self._stir, self)
            return NOTHING
        found = Acquired(
            _slice(data, batches, positions, rows[0].first, rows[-1].last), rows)
        self._metrics.acquired += found.offset_count
        self._metrics.out_bytes += len(found.records)
        return found


def _below(end: int | None, start: int, rows: Sequence[Batch]) -> tuple[int, list[Batch]]:
    """Return a state's start offset and batches, limited to offsets below `end`."""
    if end is None:
        return start, list(rows)
    return min(start, end), [row if row.last < end else row._replace(last=end - 1)
                             for row in rows if row.first < end]


def _aborted(data: bytes, aborted: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return (first, last) of the batches of aborted transactions.

    aborted: (producer id, first offset).
    """
    begins = sorted(((first, producer) for producer, first in aborted), reverse=True)
    found, open_ = [], set()
    for position, header in batch.walk(data):
        base, last = header.base_offset, header.base_offset + header.last_offset_delta
        while begins and begins[-1][0] <= last:
            open_.add(begins.pop()[1])
        if header.producer_id not in open_:
            continue
        if header.attributes & batch.CONTROL:
            if batch.records(memoryview(data)[position:])[0][2] == ABORT_KEY:
                open_.discard(header.producer_id)
        elif header.attributes & batch.TRANSACTIONAL:
            found.append((base, last))
    return found


def _less(row: StateBatch, first: int, last: int) -> list[StateBatch]:
    """Return the parts of a row outside the offsets first to last."""
    if last < row.first or first > row.last:
        return [row]
    return [part for part in (row._replace(last=first - 1), row._replace(first=last + 1))
            if part.first <= part.last]


def _slice(data: bytes, batches: Batches, positions: list[int], first: int, last: int) -> bytes:
    """Return the batches that contain the offsets first to last."""
    begin = max(0, bisect_right(batches, first, key=_base) - 1)
    end = bisect_right(batches, last, key=_base)
    if begin == 0 and end == len(batches):
        return data
    return data[positions[begin]:positions[end] if end < len(positions) else len(data)]


def _base(boundaries: tuple[int, int]) -> int:
    return boundaries[0]

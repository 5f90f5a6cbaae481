"""Models of the native log: a partition's records as a list, and the metadata log's batches.

Owns: a log's contents on a simulated disk, and its role during the process.
Invariants: results match pylog._native.log.log.Log, which tests.sim.test_twins compares; flushed
  records survive a power loss, written records survive the process.
Source: csrc/log.
"""

from collections import namedtuple

from pylog._native.log.log import LogError, NotLeader, OffsetOutOfRange, Shortage, StorageError
from pylog._native.records import batch
from tests.sim.loop import Wrong
from tests.sim.producers import Part, Producers, parts_of, placed

NS = 1_000_000_000
NOT_REPLICA_CODE, NOT_LEADER_CODE, STORAGE_CODE = 75, 6, 56
BROKEN, FULL = 5, 28  # Values of errno.

Record = namedtuple("Record", ("epoch", "payload", "left"), defaults=(0,))
Record.__doc__ = """payload: (producer id or -1, sequence number), or a Part. left: how many records
of the same batch follow it."""


class Files:
    """A partition on disk: records, epochs [(epoch, start offset)], and checkpoints.

    place: the number of its log directory.
    """

    def __init__(self, place: int = 0):
        self.place = place
        self.records: list = []
        self.epochs: list = []
        self.flushed = 0
        self.counted_unflushed = 0  # End acknowledged by the only replica before its flush.
        self.high_watermark = 0  # From the newest checkpoint.

    def lose(self, end: int) -> None:
        """Lose unflushed records from `end` on in a power loss.

        The next start ignores a batch that is incomplete there.
        """
        end = max(end, self.flushed)
        while end > self.flushed and self.records[end - 1].left:
            end -= 1
        self.cut(end)

    def cut(self, end: int) -> None:
        del self.records[end:]
        cut_epochs(self.epochs, end)
        self.flushed = min(self.flushed, end)
        self.counted_unflushed = min(self.counted_unflushed, end)
        self.high_watermark = min(self.high_watermark, end)


def cut_epochs(epochs: list, end: int) -> None:
    while epochs and epochs[-1][1] >= end:
        epochs.pop()


def assign_epoch(epochs: list, epoch: int, offset: int) -> None:
    """Model of epochs_assign(): remove entries with a higher epoch or without records."""
    if epochs and epochs[-1][0] == epoch:
        return
    while epochs and (epochs[-1][0] > epoch or epochs[-1][1] >= offset):
        epochs.pop()
    if not epochs or epochs[-1][0] != epoch:
        epochs.append((epoch, offset))


def end_for_epoch(epochs: list, epoch: int, end: int) -> tuple:
    """Model of epochs_end_of()."""
    if epoch < 0 or not epochs or epoch > epochs[-1][0]:
        return -1, -1
    above = sum(1 for known, _ in epochs if known <= epoch)
    found = epoch if above == 0 else epochs[above - 1][0]
    return found, end if above == len(epochs) else epochs[above][1]


class Remote:
    """A leader's state for another replica."""

    __slots__ = ("broker", "epoch", "fetched_epoch", "end", "start", "fetched_ns", "caught_up_ns",
                 "leader_end_then", "told_high", "in_sync", "maximal", "eligible", "asked")

    def __init__(self, broker, now_ns):
        self.broker = broker
        self.end = self.start = self.leader_end_then = self.told_high = self.fetched_epoch = -1
        self.epoch = -1
        self.fetched_ns, self.caught_up_ns = 0, now_ns
        self.in_sync = self.maximal = self.eligible = self.asked = False

    @property
    def is_current(self) -> bool:
        return self.fetched_epoch < 0 or self.fetched_epoch == self.epoch


class Directory:
    """A log directory. disk: provides is_full."""

    def __init__(self, disk):
        self.offline = False
        self._disk = disk

    def check_room(self) -> None:
        """Check for free space. Raises Shortage."""
        if self._disk.is_full:
            raise Shortage(FULL, STORAGE_CODE, "no room")


class ModelLog:
    """A partition's log.

    files: its contents on disk. seen: receives its events (watcher.Seen). now_ns: the virtual
    clock. settings: lag_ns, min_isr, flush_first.
    """

    def __init__(self, files: Files, key, seen, now_ns, settings, directory):
        self.files, self.key = files, key
        self.topic, self.partition = key
        self.log_dir = directory
        self._seen, self._now_ns, self._settings = seen, now_ns, settings
        self.is_leader = self.closed = self.alone = False
        self.leader_epoch = self.partition_epoch = -1
        self.in_sync_count = self.in_sync_count_min = 1
        self.maximal_count = 1
        self.resignations = 0
        self.epoch_start = 0
        self.high_watermark = files.high_watermark
        self.remotes: dict | None = None
        self.waiters: list = []
        self.durable_waits: list = []    # (offset, future)
        self.producers: dict = {}
        self.written_by = Producers()
        for offset, record in enumerate(files.records):
            self._note(offset, record)

    # ---- boundaries -----------------------------------------------------------------------------

    start_offset = 0

    @property
    def end_offset(self) -> int:
        return len(self.files.records)

    @property
    def flushed_offset(self) -> int:
        return self.files.flushed

    def end_for_epoch(self, epoch: int) -> tuple:
        return end_for_epoch(self.files.epochs, epoch, self.end_offset)

    def epoch_of(self, offset: int) -> int:
        found = -1
        for epoch, start in self.files.epochs:
            if start <= offset:
                found = epoch
        return found

    def flush(self) -> None:
        """Flush all records. Raises StorageError."""
        if not self.closed:
            self._check_disk()
            self.files.flushed = self.end_offset
            self._move()
            self.wake()

    @property
    def offline(self) -> bool:
        return self.log_dir.offline

    @property
    def failed(self) -> int:
        """Return the error that prevents leadership, or 0."""
        return BROKEN if self.log_dir.offline or self.closed else 0 if self.is_leader else -1

    def _check_disk(self) -> None:
        if self.log_dir.offline:
            raise StorageError(BROKEN, STORAGE_CODE, "its directory failed")

    # ---- roles ----------------------------------------------------------------------------------

    def become_leader(self, epoch: int, in_sync_count: int = 1, *, replicated=False) -> None:
        self._usable()
        led = self.is_leader and self.leader_epoch == epoch
        if not led:
            self.epoch_start = self.end_offset
        self.leader_epoch = epoch
        self.in_sync_count = self.maximal_count = in_sync_count
        if not self.files.epochs or epoch > self.files.epochs[-1][0]:
            assign_epoch(self.files.epochs, epoch, self.end_offset)
        alone = in_sync_count == 1 and not replicated
        if not led or alone:
            self._forget()
        self.is_leader = True
        self.alone = alone
        if not led:
            self._seen.leads(self)
        if alone:
            self._raise_alone()
        self.wake()

    def become_follower(self, epoch: int, *, readable: bool = False) -> None:
        self._usable()
        self.leader_epoch = epoch
        if self.is_leader:
            self.resignations += 1
        self.is_leader = False
        self._forget()
        self.wake()

    def _forget(self) -> None:
        self.remotes = None
        self.in_sync_count_min = min(self._settings.min_isr, 1)

    def set_replicas(self, partition_epoch, self_id, replicas, in_sync_count, *, ineligible=()):
        self._usable()
        if not self.is_leader:
            raise NotLeader(0, NOT_LEADER_CODE, "it follows")
        if self.remotes is not None and self.partition_epoch > partition_epoch:
            return False
        before, self.remotes = self.remotes or {}, {}
        now_ns = self._now_ns()
        for broker, epoch, in_sync, maximal in replicas:
            if broker == self_id:
                continue
            known = before.get(broker)
            if known is None or known.epoch != epoch and (
                    epoch < 0 or known.fetched_epoch != epoch):
                known = Remote(broker, now_ns if in_sync else 0)
            known.epoch, known.in_sync, known.maximal = epoch, in_sync, in_sync or maximal
            known.eligible, known.asked = broker not in ineligible, False
            self.remotes[broker] = known
        self.partition_epoch = partition_epoch
        self.in_sync_count = in_sync_count
        self.maximal_count = 1 + sum(other.maximal for other in self.remotes.values())
        self.in_sync_count_min = min(self._settings.min_isr, len(self.remotes) + 1)
        self._move()
        self.wake()
        return True

    def followers(self) -> list:
        return [(other.broker, other.fetched_epoch, other.end, other.start, other.fetched_ns,
                 other.caught_up_ns) for other in (self.remotes or {}).values()]

    def follower_at(self, broker_id, broker_epoch, offset, start_offset, now_ns) -> bool:
        """Record a follower's fetch. Raises LogError."""
        self._usable()
        self._check_disk()
        if not self.is_leader:
            raise NotLeader(0, NOT_LEADER_CODE, "it follows")
        other = (self.remotes or {}).get(broker_id)
        if other is None:
            raise LogError(0, NOT_REPLICA_CODE, "no replica")
        if 0 <= broker_epoch < other.epoch:
            raise NotLeader(0, NOT_LEADER_CODE, "an older broker epoch")
        end = self.end_offset
        if not 0 <= offset <= end:
            raise OffsetOutOfRange(0, 1, "out of range")
        self._heard(other, broker_epoch, offset, start_offset, now_ns, end)
        may_join = (not other.maximal and not other.asked and other.eligible and other.is_current
                    and other.end >= max(self.high_watermark, self.epoch_start))
        other.asked = other.asked or may_join
        self._move()
        other.told_high = self.high_watermark
        self.wake()
        return may_join

    @staticmethod
    def _heard(other, broker_epoch, offset, start_offset, now_ns, end) -> None:
        if offset >= end:
            other.caught_up_ns = max(other.caught_up_ns, now_ns)
        elif offset >= other.leader_end_then and other.fetched_ns > other.caught_up_ns:
            other.caught_up_ns = other.fetched_ns
        other.leader_end_then = max(other.leader_end_then, end)
        other.fetched_ns, other.fetched_epoch = now_ns, broker_epoch
        other.end, other.start = offset, start_offset

    # ---- the high watermark ---------------------------------------------------------------------

    def _counts(self, other: Remote, now_ns: int) -> bool:
        if other.maximal:
            return True
        if not other.eligible or not other.fetched_ns or not other.caught_up_ns:
            return False
        return other.is_current and (now_ns - other.caught_up_ns) // 1_000_000 * 1_000_000 \
            <= self._settings.lag_ns

    def _move(self) -> None:
        if self.remotes is None or not self.is_leader:
            return
        now_ns = self._now_ns()
        flushes = self._settings.flush_first and self.remotes
        high = self.files.flushed if flushes else self.end_offset
        for other in self.remotes.values():
            if self._counts(other, now_ns):
                high = min(high, other.end)
        if self.in_sync_count >= self.in_sync_count_min and high > self.high_watermark:
            self._raise(high) if self.remotes else self._raise_alone()

    def _raise_alone(self) -> None:
        self.files.counted_unflushed = self.end_offset
        self._raise(self.end_offset)

    def _raise(self, high: int) -> None:
        before, self.high_watermark = self.high_watermark, max(high, self.high_watermark)
        if self.high_watermark > before:
            self._seen.committed(self, before)

    def advance_high_watermark(self, offset: int) -> None:
        to = min(offset, self.end_offset)
        if to > self.high_watermark:
            before, self.high_watermark = self.high_watermark, to
            self._seen.follows_to(self, before)
            self.wake()

    # ---- records --------------------------------------------------------------------------------

    def produce(self, payload, count: int = 1) -> int:
        """Append a client's batch as the leader and return its first offset.

        payload: of the first record; the other records have the following sequence numbers. A
        duplicate returns its original offset.
        """
        self._writable()
        producer, sequence = payload
        known = self.producers.get(producer)
        if producer >= 0 and known is not None and sequence <= known[0]:
            for offset, record in enumerate(self.files.records):
                if record.payload == payload:
                    return offset
            raise LogError(0, 46, "a duplicate of what is not known any more")
        if producer >= 0 and sequence != (known[0] + 1 if known else 0):
            raise LogError(0, 45, "out of sequence")
        return self._lead([(producer, sequence + number) for number in range(count)])

    def _writable(self) -> None:
        self._usable()
        self._check_disk()
        if not self.is_leader:
            raise NotLeader(0, NOT_LEADER_CODE, "it follows")
        self.log_dir.check_room()

    def _lead(self, payloads: list) -> int:
        """Append one batch and return its first offset."""
        base = self.end_offset
        for number, payload in enumerate(payloads):
            self._append(Record(self.leader_epoch, payload, len(payloads) - 1 - number))
        self._move()
        if self.alone and self.remotes is None:
            self._raise_alone()
        self.wake()
        return base

    def append_as_follower(self, records: list) -> None:
        """Append as a follower. Raises LogError, possibly after appending some of the batches."""
        self._usable()
        self._check_disk()
        for number, record in enumerate(records):
            assert record.epoch <= self.leader_epoch, (record, self.leader_epoch)
            if not number or not records[number - 1].left:
                self.log_dir.check_room()
            self._append(record)
        assert not records or not records[-1].left, (self.key, records[-1])

    def _append(self, record: Record) -> None:
        before = self.files.records[-1] if self.files.records else None
        if before is not None and before.left and before.left != record.left + 1:
            raise Wrong(f"{record} follows {before}: a batch is not whole")
        assign_epoch(self.files.epochs, record.epoch, self.end_offset)
        self.files.records.append(record)
        self._note(self.end_offset - 1, record)
        self._seen.appended(self, self.end_offset - 1, record)

    def append(self, data, now_ms: int, *, leader_epoch: int = -1, trusted=False) -> tuple:
        """Append a batch of the broker's own and return (first offset, last offset)."""
        self._writable()
        if leader_epoch not in (-1, self.leader_epoch):
            raise NotLeader(0, NOT_LEADER_CODE, "it leads in another epoch")
        base = self._lead(parts_of(bytes(data)))
        return base, self.end_offset - 1

    def append_in_transaction(self, data: bytes, guard) -> None:
        """Append a client's batch. guard: from producers.Producers. Raises LogError."""
        self._writable()
        parts = parts_of(data)
        if self.written_by.check(parts[0].header, guard):
            self._lead(parts)

    def read(self, offset: int, bytes_max: int) -> bytes:
        """Return whole batches as bytes."""
        found, size, records = [], 0, self.files.records
        while offset < len(records) and size < bytes_max:
            record = records[offset]
            base = offset - record.payload.index
            found.append(placed(record.payload, base, record.epoch))
            size += len(found[-1])
            offset += record.left + 1
        return b"".join(found)

    def is_durable(self, offset: int) -> bool:
        """Return True if acks=all may be acknowledged for a record."""
        return self.high_watermark > offset and (
            self.in_sync_count > 1 or self.flushed_offset > offset)

    def flush_if_well(self) -> None:
        if not self.log_dir.offline:
            self.flush()

    def _note(self, offset: int, record: Record) -> None:
        if isinstance(record.payload, Part):
            self.written_by.note(offset, record.payload)
            return
        producer, sequence = record.payload
        if producer >= 0:
            self.producers[producer] = sequence, offset

    def truncate(self, offset: int, leader_epoch: int = -1) -> None:
        self._usable()
        if leader_epoch >= 0 and (self.is_leader or self.leader_epoch != leader_epoch):
            raise NotLeader(0, NOT_LEADER_CODE, "it follows another")
        self._check_disk()
        files = self.files
        files.cut(min(offset, self.end_offset))
        if files.records and files.records[-1].left:
            raise Wrong(f"{self.key} is truncated to {offset}, amid a batch")
        self.high_watermark = min(self.high_watermark, self.end_offset)
        self.producers, self.written_by = {}, Producers()
        for at, record in enumerate(files.records):
            self._note(at, record)

    def restart_at(self, offset: int, leader_epoch: int = -1) -> None:
        raise AssertionError("no leader begins after 0 here")

    # ---- life -----------------------------------------------------------------------------------

    def wake(self) -> None:
        if self.durable_waits:
            self._wake_durable()
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _wake_durable(self) -> None:
        waits, self.durable_waits = self.durable_waits, []
        for offset, waiter in waits:
            if not (self.failed or self.is_durable(offset)):
                self.durable_waits.append((offset, waiter))
            elif not waiter.done():
                waiter.set_result(None)

    def close(self) -> None:
        self.closed = True
        self.is_leader = False
        self.wake()

    def _usable(self) -> None:
        if self.closed:
            raise NotLeader(0, NOT_LEADER_CODE, "it is closed")


Kept = namedtuple("Kept", ("base", "end", "epoch", "data"))


class MetadataFiles:
    """The metadata log on a disk. start: its first offset, after a snapshot."""

    def __init__(self):
        self.batches: list = []
        self.start = self.high_watermark = 0

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else self.start

    def lose(self, batch_count: int) -> None:
        """Lose the last batches in a power loss."""
        del self.batches[max(0, len(self.batches) - batch_count):]
        self.high_watermark = min(self.high_watermark, self.end)

    def begin_at(self, offset: int) -> None:
        """Empty the log and let it start at an offset."""
        self.batches.clear()
        self.start = self.high_watermark = offset


class MetadataCopy:
    """Model of the native log of `__cluster_metadata-0`.

    seen: receives (base offset, bytes) of retained batches. directory: see Directory.
    """

    def __init__(self, files: MetadataFiles, seen, directory):
        self._files, self._seen, self._directory = files, seen, directory
        self.high_watermark = min(files.high_watermark, files.end)

    def close(self, now_ms: int) -> None:
        """Close the log and keep its files."""

    @property
    def start_offset(self) -> int:
        return self._files.start

    @property
    def size_bytes(self) -> int:
        return sum(len(kept.data) for kept in self._files.batches)

    @property
    def end_offset(self) -> int:
        return self._files.end

    @property
    def last_epoch(self) -> int:
        return self._files.batches[-1].epoch if self._files.batches else -1

    def epoch_of(self, offset: int) -> int:
        return next(kept.epoch for kept in self._files.batches if kept.base <= offset < kept.end)

    def end_for_epoch(self, epoch: int) -> tuple:
        epochs = []
        for kept in self._files.batches:
            if not epochs or epochs[-1][0] < kept.epoch:
                epochs.append((kept.epoch, kept.base))
        return end_for_epoch(epochs, epoch, self.end_offset)

    def become_follower(self, epoch: int) -> None:
        pass

    def append_as_follower(self, data, now_ms: int) -> None:
        view = memoryview(data)
        for position, header in batch.walk(data):
            end = header.base_offset + header.last_offset_delta + 1
            if end <= self.end_offset:
                continue
            assert header.base_offset == self.end_offset, (header.base_offset, self.end_offset)
            self._directory.check_room()
            whole = bytes(view[position:position + 12 + header.batch_length])
            self._seen(header.base_offset, whole)
            self._files.batches.append(Kept(header.base_offset, end, header.leader_epoch, whole))

    def advance_high_watermark(self, offset: int) -> None:
        self.high_watermark = max(self.high_watermark, min(offset, self.end_offset))
        self._files.high_watermark = self.high_watermark

    def truncate(self, offset: int) -> None:
        while self._files.batches and self._files.batches[-1].end > offset:
            self._files.batches.pop()

    def move_start(self, offset: int, now_ms: int) -> int:
        """Drop the batches before the batch that contains the offset."""
        files = self._files
        while files.batches and files.batches[0].end <= offset:
            files.start = files.batches.pop(0).end
        return files.start

    def read(self, offset: int, bytes_max: int) -> bytes:
        batches, low, high = self._files.batches, 0, len(self._files.batches)
        while low < high:
            middle = (low + high) // 2
            if batches[middle].end <= offset:
                low = middle + 1
            else:
                high = middle
        found, size = [], 0
        for kept in batches[low:]:
            if found and size + len(kept.data) > bytes_max:
                break
            found.append(kept.data)
            size += len(kept.data)
        return b"".join(found)

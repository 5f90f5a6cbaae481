"""The partition log: append, read, look up, flush and keep one partition's segments.

Owns: a log directory's descriptors and flusher, one reference to each log.
Called by: log, metadata, coordinator, api (any thread); native modules take `Log.ptr`.
Invariants: csrc/log/log.h's. The GIL is released around every call that may touch a disk.
Source: KIP-98 (producer state), KIP-101 (leader epochs), KIP-74 (progress of a read).
"""

import errno as errno_names
import os

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, INT32_MIN, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from pylog._native cimport csrc
from pylog._native.iopool cimport IoPool

from pylog._native.iopool import IO_THREADS_DEFAULT
from pylog._native.log_errors import (
    BatchRefused, CorruptLog, LogDeleted, LogError, NotLeader, OffsetOutOfRange, SequenceError,
    Shortage, StorageError,
)
from pylog._native.log_settings import native_settings

END = csrc.LOG_BOUND_END
HIGH_WATERMARK = csrc.LOG_BOUND_HIGH_WATERMARK
LAST_STABLE = csrc.LOG_BOUND_LAST_STABLE
DISK_SYSTEM = csrc.DISK_SYSTEM
DISK_FULL = csrc.DISK_FULL
DISK_NO_SYNC = csrc.DISK_NO_SYNC
DISK_BROKEN = csrc.DISK_BROKEN

KINDS = {
    csrc.LOG_E_IO: (StorageError, "the disk failed"),
    csrc.LOG_E_OFFLINE: (StorageError, "the log directory is offline"),
    csrc.LOG_E_RANGE: (OffsetOutOfRange, "the offset is outside the log"),
    csrc.LOG_E_SEQUENCE: (SequenceError, "the producer's sequence is out of order"),
    csrc.LOG_E_EPOCH: (SequenceError, "the producer's epoch is older than the log's"),
    csrc.LOG_E_DUPLICATE: (SequenceError, "the producer's batch is an old duplicate"),
    csrc.LOG_E_NOT_LEADER: (NotLeader, "this replica does not lead the partition"),
    csrc.LOG_E_DELETED: (LogDeleted, "the log is deleted"),
    csrc.LOG_E_FULL: (Shortage, "no space is left"),
    csrc.LOG_E_MEMORY: (Shortage, "memory or descriptors are short"),
    csrc.LOG_E_CORRUPT: (CorruptLog, "the log's files do not hold what they should"),
    csrc.LOG_E_TXN_STATE: (LogError, "the transaction is in another state"),
}


def error_of(error: int, what: str) -> LogError:
    kind, text = KINDS.get(error, (LogError, f"error {error}"))
    if error > csrc.LOG_E_IO:
        kind, text = BatchRefused, csrc.batch_error_text(error).decode()
    return kind(error, csrc.log_error_code(error), f"{what}: {text}")


cdef int take_config(dict settings, csrc.log_config *out) except -1:
    values = native_settings(settings)
    memset(out, 0, sizeof(csrc.log_config))
    out.segment_ms = values["segment.ms"]
    out.segment_jitter_ms = values["segment.jitter.ms"]
    out.retention_ms = values["retention.ms"]
    out.retention_bytes = values["retention.bytes"]
    out.file_delete_delay_ms = values["file.delete.delay.ms"]
    out.flush_messages = values["flush.messages"]
    out.flush_ms = values["flush.ms"]
    out.timestamp_before_max_ms = values["message.timestamp.before.max.ms"]
    out.timestamp_after_max_ms = values["message.timestamp.after.max.ms"]
    out.producer_id_expiration_ms = values["producer.id.expiration.ms"]
    out.inflated_bytes_max = values["decompressed.batch.bytes.max"]
    out.segment_bytes = values["segment.bytes"]
    out.segment_index_bytes = values["segment.index.bytes"]
    out.index_interval_bytes = values["index.interval.bytes"]
    out.max_message_bytes = values["max.message.bytes"]
    out.min_insync_replicas = values["min.insync.replicas"]
    out.compression_codec = values["codec"]
    out.compression_level = INT32_MIN if values["level"] is None else values["level"]
    out.log_append_time = values["message.timestamp.type"] == "LogAppendTime"
    out.cleanup_delete = "delete" in values["cleanup.policy"]
    out.cleanup_compact = "compact" in values["cleanup.policy"]
    out.preallocate = values["preallocate"]
    out.walk_records = values["records.validate.enable"]
    out.acks_all_flush = values["log.flush.acks.all.enable"]
    return 0


# No GC here: clearing a cycle's fields in any order would free a directory before its logs.
@cython.no_gc
cdef class LogDir:
    """One log directory: its failure is sticky, its flusher commits for all its logs together."""

    def __cinit__(self, path, io_pool=None, *, open_files_max=None):
        cdef int error = 0
        cdef bytes name = os.fsencode(path)
        cdef const char *c_name = name
        if io_pool is None or isinstance(io_pool, int):
            io_pool = IoPool(io_pool or IO_THREADS_DEFAULT)
        self.io_pool = io_pool
        self.path = os.fsdecode(path)
        cdef csrc.iopool *pool = self.io_pool.pool
        with nogil:
            self.dir = csrc.log_dir_new(c_name, pool, &error)
        if self.dir == NULL:
            raise OSError(error, os.strerror(error), self.path)
        if open_files_max is not None:
            csrc.log_dir_set_open_files(self.dir, open_files_max)

    def __dealloc__(self):
        with nogil:
            csrc.log_dir_free(self.dir)

    @property
    def offline(self) -> bool:
        return csrc.log_dir_offline(self.dir)

    def fail(self, int error) -> bool:
        """A file beside the logs met errno `error`. True: offline; False: a mere shortage."""
        return csrc.log_dir_give_up(self.dir, error)

    @property
    def failure(self):
        """(errno, its name, the failing call) of what took the directory offline, or None."""
        cdef const char *call = NULL
        cdef int error = csrc.log_dir_failure(self.dir, &call)
        if error == 0:
            return None
        return error, errno_names.errorcode.get(error, ""), call.decode() if call != NULL else ""

    def look_at_space(self, reserve_bytes=None):
        """(free, total) in bytes; reserve_bytes: left free by clients. Once a second or so."""
        cdef int64_t free_bytes = 0, total_bytes = 0
        if reserve_bytes is not None:
            csrc.log_dir_set_reserve(self.dir, reserve_bytes)
        with nogil:
            csrc.log_dir_tend(self.dir, &free_bytes, &total_bytes)
        return free_bytes, total_bytes

    @property
    def short_of_space(self) -> bool:
        """Clients' appends are refused: less is free than the reserve."""
        return csrc.log_dir_short_of_space(self.dir)

    def set_disk(self, size_t disk) -> None:
        """For tests, another disk for the logs: a DISK_ kind, or the address of a `struct disk`."""
        if csrc.DISK_BROKEN < disk < 4096:
            raise ValueError(f"disk {disk}")
        csrc.log_dir_set_disk(self.dir, csrc.disk_of(<csrc.disk_kind>disk)
                              if disk <= csrc.DISK_BROKEN else <const csrc.disk *>disk)

    def flush(self) -> None:
        """Blocks until all that was appended here before is on disk; one sync for many logs."""
        cdef int error
        with nogil:
            error = csrc.log_dir_flush(self.dir)
        if error != 0:
            raise error_of(error, self.path)

    def settle(self) -> None:
        """As Log.settle for every log here, with one sync: theirs find nothing left to do."""
        cdef int error
        with nogil:
            error = csrc.log_dir_settle(self.dir)
        if error != 0:
            raise error_of(error, self.path)

    def stats(self) -> dict:
        """Open segment descriptors, group commits, and files synced by them."""
        cdef csrc.log_dir_figures figures
        csrc.log_dir_stats(self.dir, &figures)
        return figures


@cython.no_gc
cdef class Log:
    """One partition's log. Made by Log.open; `close` or the object's end lets its files go."""

    def __dealloc__(self):
        cdef csrc.log_t *ptr = self.ptr
        with nogil:
            csrc.log_release(ptr)

    cdef int refuse(self, int error) except -1:
        raise error_of(error, f"{self.topic}-{self.partition}")

    cdef int use(self) except -1:
        if self.ptr == NULL:
            raise error_of(csrc.LOG_E_DELETED, f"{self.topic}-{self.partition} is closed")
        return 0

    @staticmethod
    def open(LogDir log_dir not None, str topic not None, int32_t partition, topic_id,
             config=None, *, int64_t now_ms=0, int64_t recovery_point=0,
             int64_t log_start_offset=-1, int64_t high_watermark=-1, bint clean=False,
             const uint8_t[::1] segments=None, int64_t log_end_offset=0, int32_t last_epoch=-1,
             str directory=None):
        """Opens <dir>/<topic>-<partition>, or another `directory`; creates it when it is not there.

        topic_id: 16 bytes or a UUID. config: topic settings by Kafka's names. clean: trust
        `segments` (as `Log.segments` gave them), log_end_offset and last_epoch, and touch no file.
        Raises StorageError, CorruptLog.
        """
        cdef csrc.log_config c_config
        cdef csrc.log_checkpoint checkpoint
        cdef Log self = Log.__new__(Log)
        cdef bytes raw_id = topic_id if isinstance(topic_id, bytes) else topic_id.bytes
        cdef bytes name = (directory or f"{topic}-{partition}").encode()
        cdef const char *c_name = name
        cdef const uint8_t *c_id = raw_id
        cdef csrc.log_dir *c_dir = log_dir.dir
        cdef int error
        if len(raw_id) != 16:
            raise ValueError(f"a topic id of {len(raw_id)} bytes")
        self.log_dir = log_dir
        self.topic = topic
        self.partition = partition
        take_config(config or {}, &c_config)
        memset(&checkpoint, 0, sizeof(checkpoint))
        checkpoint.recovery_point = recovery_point
        checkpoint.log_start_offset = log_start_offset
        checkpoint.high_watermark = high_watermark
        checkpoint.clean = clean
        checkpoint.log_end_offset = log_end_offset
        checkpoint.last_epoch = last_epoch
        if segments is not None and segments.shape[0] > 0:
            checkpoint.segments = <const int64_t *>&segments[0]
            checkpoint.segment_count = <uint32_t>(segments.shape[0] // 24)
        with nogil:
            error = csrc.log_open_as(c_dir, c_name, c_id, &c_config, &checkpoint, now_ms, &self.ptr)
        if error != 0:
            self.refuse(error)
        return self

    def close(self, int64_t now_ms=0) -> None:
        """Flushes, writes what a clean start needs, and lets go. A log that is offline or deleted
        is let go too, and raises."""
        cdef csrc.log_t *ptr = self.ptr
        cdef int error
        if ptr == NULL:
            return
        self.ptr = NULL
        with nogil:
            error = csrc.log_close_clean(ptr, now_ms)
            csrc.log_abandon(ptr)
            csrc.log_release(ptr)
        if error != 0 and error != csrc.LOG_E_DELETED:
            self.refuse(error)

    def release(self) -> None:
        """Lets go without flushing or marking anything: the next open recovers."""
        cdef csrc.log_t *ptr = self.ptr
        self.ptr = NULL
        if ptr != NULL:
            with nogil:
                csrc.log_abandon(ptr)
                csrc.log_release(ptr)

    def settle(self, int64_t now_ms=0) -> None:
        """As close, but the log stays open: for reading `segments` after the last flush."""
        cdef int error
        self.use()
        with nogil:
            error = csrc.log_close_clean(self.ptr, now_ms)
        if error != 0:
            self.refuse(error)

    def delete(self, int64_t now_ms=0) -> None:
        """Renames the directory away at once; its files go after file.delete.delay.ms."""
        cdef int error
        self.use()
        with nogil:
            error = csrc.log_delete(self.ptr, now_ms)
        if error != 0:
            self.refuse(error)

    def set_config(self, dict config) -> None:
        """Takes topic settings by Kafka's names; those left out have Kafka's defaults."""
        cdef csrc.log_config c_config
        self.use()
        take_config(config, &c_config)
        with nogil: csrc.log_set_config(self.ptr, &c_config)

    def become_leader(self, int32_t epoch, int32_t in_sync_count=1) -> None:
        """Leads `epoch`. in_sync_count: with 1, its own, appends move the high watermark."""
        if epoch < 0 or in_sync_count < 1:
            raise ValueError(f"leader epoch {epoch}, {in_sync_count} in sync: at least 0 and 1")
        cdef int error
        self.use()
        with nogil: error = csrc.log_become_leader(self.ptr, epoch, in_sync_count)
        if error != 0:
            self.refuse(error)

    def become_follower(self, int32_t epoch) -> None:
        self.use()
        with nogil: csrc.log_become_follower(self.ptr, epoch)

    def advance_high_watermark(self, int64_t offset) -> None:
        self.use()
        with nogil:
            csrc.log_advance_high_watermark(self.ptr, offset)

    @property
    def in_sync_count(self) -> int:
        self.use()
        return csrc.log_in_sync_count(self.ptr)

    @property
    def is_leader(self) -> bool:
        self.use()
        return csrc.log_is_leader(self.ptr)

    @property
    def leader_epoch(self) -> int:
        self.use()
        return csrc.log_leader_epoch(self.ptr)

    @property
    def start_offset(self) -> int:
        self.use()
        return csrc.log_start_offset(self.ptr)

    @property
    def end_offset(self) -> int:
        self.use()
        return csrc.log_end_offset(self.ptr)

    @property
    def high_watermark(self) -> int:
        self.use()
        return csrc.log_high_watermark(self.ptr)

    @property
    def last_stable_offset(self) -> int:
        self.use()
        return csrc.log_last_stable_offset(self.ptr)

    @property
    def open_transaction(self) -> int:
        """First offset of the oldest open transaction, or -1."""
        self.use()
        return csrc.log_open_transaction(self.ptr)

    @property
    def flushed_offset(self) -> int:
        self.use()
        return csrc.log_flushed_offset(self.ptr)

    @property
    def recovery_point(self) -> int:
        self.use()
        return csrc.log_recovery_point(self.ptr)

    @property
    def size_bytes(self) -> int:
        self.use()
        return csrc.log_size_bytes(self.ptr)

    @property
    def failed(self) -> int:
        """0, or the log_error for which it cannot serve as leader."""
        self.use()
        return csrc.log_failed(self.ptr)

    def append(self, const uint8_t[::1] batch not None, int64_t now_ms, *, int32_t leader_epoch=-1,
               bint trusted=False) -> tuple:
        """(base offset, last offset) of one batch, appended as the leader; a producer's duplicate
        has the offsets of its first append. trusted: only the header is looked at. Raises LogError.
        """
        cdef csrc.log_config config
        cdef csrc.batch_rules rules
        cdef csrc.batch_summary summary
        cdef csrc.log_appended out
        cdef size_t size = <size_t>batch.shape[0]
        cdef uint8_t *copy
        cdef int error
        self.use()
        copy = <uint8_t *>malloc(size + 1)
        if copy == NULL:
            raise MemoryError
        with nogil:
            # Offsets and epoch are stamped into a copy: the caller's bytes may be immutable.
            if size > 0:
                memcpy(copy, &batch[0], size)
            if trusted:
                memset(&summary, 0, sizeof(summary))
                error = csrc.batch_parse(copy, size, &summary.header)
            else:
                csrc.log_config_get(self.ptr, &config)
                rules.now_ms = now_ms
                rules.timestamp_before_max_ms = config.timestamp_before_max_ms
                rules.timestamp_after_max_ms = config.timestamp_after_max_ms
                rules.inflated_bytes_max = config.inflated_bytes_max
                rules.batch_bytes_max = config.max_message_bytes
                rules.key_required = config.cleanup_compact
                rules.log_append_time = config.log_append_time
                rules.walk_records = False
                error = csrc.batch_check(copy, size, &rules, NULL, &summary)
            if error == 0:
                error = csrc.log_append(self.ptr, copy, size, &summary, leader_epoch, now_ms, &out)
            free(copy)
        if error != 0:
            self.refuse(error)
        return out.base_offset, out.last_offset

    def append_as_follower(self, const uint8_t[::1] batches not None, int64_t now_ms) -> int:
        """Whole batches that carry offsets and epochs, written as they are. Returns their bytes."""
        cdef size_t size = <size_t>batches.shape[0], taken
        cdef const uint8_t *p = &batches[0] if size > 0 else NULL
        cdef int error
        self.use()
        with nogil:
            error = csrc.log_append_as_follower(self.ptr, p, size, now_ms, &taken)
        if error != 0:
            self.refuse(error)
        return taken

    def read(self, int64_t offset, int32_t max_bytes=INT32_MAX,
             csrc.log_bound bound=csrc.LOG_BOUND_END, *, bint at_least_one=True) -> bytes:
        """Whole batches from the one that holds `offset`, below the bound, of one segment; b"" at
        the end. The first batch comes whole even when it is longer than max_bytes (KIP-74)."""
        cdef csrc.log_range found
        cdef ssize_t n = 0
        cdef int32_t error, at = 0
        cdef char *to
        self.use()
        with nogil:
            error = csrc.log_read(self.ptr, offset, bound, max_bytes, at_least_one, &found)
        if error != 0:
            self.refuse(error)
        try:
            out = PyBytes_FromStringAndSize(NULL, found.length)
            to = out
            with nogil:
                while at < found.length:
                    n = csrc.log_range_read(
                        &found, to + at, <size_t>(found.length - at), found.position + at)
                    if n <= 0:
                        break
                    at += <int32_t>n
            if at < found.length:
                self.refuse(csrc.LOG_E_IO if n < 0 else csrc.LOG_E_CORRUPT)
            return out
        finally:
            csrc.log_range_release(&found)

    def read_range(self, int64_t offset, int32_t max_bytes=INT32_MAX,
                   csrc.log_bound bound=csrc.LOG_BOUND_END, *, bint at_least_one=True,
                   bint nowait=False):
        """(position, length, first offset, next offset, in the page cache) of what read would give.
        nowait: None when finding it would wait for the disk."""
        cdef csrc.log_range found
        cdef int32_t error, cached, length
        self.use()
        with nogil:
            if nowait:
                error = csrc.log_read_nowait(self.ptr, offset, bound, max_bytes, at_least_one,
                                             &found)
            else:
                error = csrc.log_read(self.ptr, offset, bound, max_bytes, at_least_one, &found)
            cached = csrc.log_range_cached(&found) if nowait and error == 0 else 1
            length = found.length
            csrc.log_range_release(&found)
        if error == csrc.LOG_E_WOULD_BLOCK:
            return None
        if error != 0:
            self.refuse(error)
        return found.position, length, found.first_offset, found.next_offset, cached == 1

    def bytes_from(self, int64_t offset, csrc.log_bound bound=csrc.LOG_BOUND_END) -> int:
        self.use()
        return csrc.log_bytes_from(self.ptr, offset, bound)

    def aborted_between(self, int64_t offset, int64_t upper) -> list:
        """(producer id, first offset) of aborted transactions that overlap [offset, upper)."""
        cdef csrc.log_aborted found[1024]
        cdef uint32_t n, i
        self.use()
        with nogil:
            n = csrc.log_aborted_between(self.ptr, offset, upper, found, 1024)
        return [(found[i].producer_id, found[i].first_offset) for i in range(min(n, 1024))]

    def offset_for_time(self, int64_t target_ms):
        """(offset, timestamp, leader epoch) of the first record at or after target_ms, or None."""
        cdef int64_t offset, timestamp
        cdef int32_t epoch, found
        self.use()
        with nogil:
            found = csrc.log_offset_for_time(self.ptr, target_ms, &offset, &timestamp, &epoch)
        if found < 0:
            self.refuse(found)
        return (offset, timestamp, epoch) if found else None

    def offset_of_max_time(self):
        """(offset, timestamp, leader epoch) of the record with the greatest timestamp, or None."""
        cdef int64_t offset, timestamp
        cdef int32_t epoch, found
        self.use()
        with nogil:
            found = csrc.log_offset_of_max_time(self.ptr, &offset, &timestamp, &epoch)
        if found < 0:
            self.refuse(found)
        return (offset, timestamp, epoch) if found else None

    def end_for_epoch(self, int32_t epoch) -> tuple:
        """(largest known epoch <= `epoch`, its end offset), -1 and -1 without one (KIP-101)."""
        cdef int64_t end
        cdef int32_t found
        self.use()
        with nogil:
            csrc.log_end_for_epoch(self.ptr, epoch, &found, &end)
        return found, end

    def epoch_of(self, int64_t offset) -> int:
        """The leader epoch that wrote `offset`, -1 unknown."""
        cdef int32_t epoch
        self.use()
        with nogil:
            epoch = csrc.log_epoch_of(self.ptr, offset)
        return epoch

    @property
    def last_epoch(self) -> int:
        self.use()
        return csrc.log_last_epoch(self.ptr)

    def flush(self) -> None:
        """Blocks until everything appended before the call is on disk."""
        cdef int error
        self.use()
        with nogil:
            error = csrc.log_flush(self.ptr)
        if error != 0:
            self.refuse(error)

    def upkeep(self, int64_t now_ms) -> int:
        """Rolls and asks for flushes by time, expires producers, retains. Segments that went."""
        cdef int error
        self.use()
        with nogil:
            error = csrc.log_roll_if_due(self.ptr, now_ms)
            if error >= 0:
                csrc.log_expire_producers(self.ptr, now_ms)
                error = csrc.log_apply_retention(self.ptr, now_ms)
        if error < 0:
            self.refuse(error)
        return error

    def move_start(self, int64_t offset, int64_t now_ms=0) -> int:
        """DeleteRecords: the log starts at `offset`, at most the high watermark; the new start."""
        cdef int error
        self.use()
        with nogil:
            error = csrc.log_move_start(self.ptr, offset, now_ms)
        if error != 0:
            self.refuse(error)
        return csrc.log_start_offset(self.ptr)

    def truncate(self, int64_t offset) -> int:
        """Drops what is at and above `offset`, whole batches. Returns the end offset."""
        cdef int error
        self.use()
        with nogil:
            error = csrc.log_truncate(self.ptr, offset)
        if error != 0:
            self.refuse(error)
        return csrc.log_end_offset(self.ptr)

    def producers(self, int64_t now_ms) -> bytes:
        """The producers' state as a `.snapshot` file holds it. Raises LogError."""
        cdef size_t size = 0
        cdef uint8_t *copy
        self.use()
        with nogil:
            copy = csrc.log_copy_producers(self.ptr, now_ms, &size)
        if copy == NULL:
            self.refuse(csrc.LOG_E_MEMORY)
        try:
            return PyBytes_FromStringAndSize(<char *>copy, size)
        finally:
            free(copy)

    def segments(self) -> bytes:
        """Native int64 triples (base offset, bytes, largest timestamp), for `open(segments=)`."""
        cdef uint32_t count, room
        self.use()
        while True:
            room = csrc.log_segments(self.ptr, NULL, 0)
            out = PyBytes_FromStringAndSize(NULL, room * 24)
            count = csrc.log_segments(self.ptr, <int64_t *><char *>out, room)
            if count <= room:
                return out[:count * 24]

    def recovery_report(self) -> tuple:
        """(bytes cut from a torn tail, segments scanned) by open."""
        cdef int64_t cut
        cdef uint32_t scanned
        self.use()
        csrc.log_recovery_report(self.ptr, &cut, &scanned)
        return cut, scanned

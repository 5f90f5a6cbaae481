"""The partition log: append, read, look up, flush and retain one partition's segments.

Owns: one reference to each log, until the object is destroyed.
Invariants: csrc/log/log.h's. The GIL is released around every call that may touch a disk. Any
  thread may close a log while others use it: their calls raise LogDeleted.
Source: KIP-98 (producer state), KIP-101 (leader epochs), KIP-74 (progress of a read).
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, UINT32_MAX, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from pylog._native.log cimport csrc
from pylog._native.log.topic_config cimport take_config
from pylog._native.log.log_dir cimport LogDir

from pylog._native.log.log_dir import (
    DISK_BROKEN, DISK_FULL, DISK_NO_SYNC, DISK_SYSTEM, error_of,
)
from pylog._native.log.errors import (
    BatchRefused, CorruptLog, LogDeleted, LogError, NotLeader, OffsetOutOfRange, SequenceError,
    Shortage, StorageError,
)

# The `bound` argument of read(), read_range() and bytes_from().
BOUND_END = csrc.LOG_BOUND_END
BOUND_HIGH_WATERMARK = csrc.LOG_BOUND_HIGH_WATERMARK
BOUND_LAST_STABLE = csrc.LOG_BOUND_LAST_STABLE
# Re-export LogDir for modules that open logs; a cimported name is not a module attribute.
globals()["LogDir"] = LogDir
__all__ = [
    "DISK_BROKEN", "DISK_FULL", "DISK_NO_SYNC", "DISK_SYSTEM", "BatchRefused", "CorruptLog", "Log",
    "LogDeleted", "LogDir", "LogError", "NotLeader", "OffsetOutOfRange", "SequenceError",
    "Shortage", "StorageError",
]


cdef csrc.log_read_request _read_request(int64_t offset, csrc.log_bound bound, int32_t max_bytes,
                                         bint at_least_one, bint nowait) noexcept:
    cdef csrc.log_read_request request
    request.offset = offset
    request.bound = bound
    request.bytes_max = max_bytes
    request.at_least_one = at_least_one
    request.nowait = nowait
    request.locked = False
    return request


@cython.no_gc
cdef class Log:
    """One partition's log, created by Log.open. close(), release() or destroying the object closes
    its files.
    """

    def __dealloc__(self):
        cdef csrc.log_t *ptr = self.ptr
        with nogil:
            csrc.log_release(ptr)

    cdef int refuse(self, int error) except -1:
        raise error_of(error, f"{self.topic}-{self.partition}")

    cdef int use(self) except -1:
        if self.closed:
            raise error_of(csrc.LOG_E_DELETED, f"{self.topic}-{self.partition} is closed")
        return 0

    @staticmethod
    def open(LogDir log_dir not None, str topic not None, int32_t partition, topic_id,
             config=None, *, int64_t now_ms=0, int64_t recovery_point=0,
             int64_t log_start_offset=-1, int64_t high_watermark=-1, bint clean=False,
             const uint8_t[::1] segments=None, int64_t log_end_offset=0, int32_t last_epoch=-1,
             str directory=None):
        """Open <dir>/<topic>-<partition>, or another `directory`; create it if it does not exist.

        topic_id: 16 bytes or a UUID. config: topic settings with Kafka's names. clean: trust
        `segments` (from `Log.segments`), log_end_offset and last_epoch, and touch no file. Raises
        StorageError, CorruptLog.
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
        """Flush, write the state for a clean start, and close the files. If the log is offline or
        deleted, close it too, and raise.
        """
        cdef int error
        if self.closed:
            return
        self.closed = True
        with nogil:
            error = csrc.log_close_clean(self.ptr, now_ms)
            csrc.log_abandon(self.ptr)
        if error != 0 and error != csrc.LOG_E_DELETED:
            self.refuse(error)

    def release(self) -> None:
        """Close the files without flushing or marking as clean: the next open runs recovery."""
        if self.closed:
            return
        self.closed = True
        with nogil:
            csrc.log_abandon(self.ptr)

    def settle(self, int64_t now_ms=0) -> None:
        """Same as close, but the log stays open: for reading `segments` after the last flush."""
        cdef int error
        self.use()
        with nogil:
            error = csrc.log_close_clean(self.ptr, now_ms)
        if error != 0:
            self.refuse(error)

    def delete(self, int64_t now_ms=0) -> None:
        """Rename the directory immediately; delete its files after file.delete.delay.ms."""
        cdef int error
        self.use()
        with nogil:
            error = csrc.log_delete(self.ptr, now_ms)
        if error != 0:
            self.refuse(error)

    def set_config(self, dict config) -> None:
        """Set topic settings with Kafka's names; missing ones get Kafka's defaults."""
        cdef csrc.log_config c_config
        self.use()
        take_config(config, &c_config)
        with nogil: csrc.log_set_config(self.ptr, &c_config)

    def become_leader(self, int32_t epoch, int32_t in_sync_count=1, *,
                      bint replicated=False) -> None:
        """Become leader for `epoch`. in_sync_count: if 1, appends advance the high watermark.
        replicated: there are other replicas; the high watermark waits for set_replicas. Raises
        LogError.
        """
        if epoch < 0 or in_sync_count < 1:
            raise ValueError(f"leader epoch {epoch}, {in_sync_count} in sync: at least 0 and 1")
        cdef int error
        self.use()
        with nogil:
            error = csrc.log_lead_replicas(self.ptr, epoch, in_sync_count) if replicated \
                else csrc.log_become_leader(self.ptr, epoch, in_sync_count)
        if error != 0:
            self.refuse(error)

    def become_follower(self, int32_t epoch, *, bint readable=False) -> None:
        """Become follower for `epoch`. readable: consumers may read up to the high watermark
        (KIP-392).
        """
        self.use()
        with nogil:
            csrc.log_become_follower(self.ptr, epoch)
            csrc.log_set_readable(self.ptr, readable)

    def set_replicas(self, int32_t partition_epoch, int32_t self_id, list replicas,
                     int32_t in_sync_count, *, ineligible=()) -> bool:
        """Set the replicas of a partition that this log leads, from the metadata.

        replicas: [(broker id, broker epoch, in the ISR, in the maximal ISR)], with or without
        self_id. in_sync_count: size of the ISR, this replica included. ineligible: brokers that
        cannot join now, fenced or shutting down; the high watermark waits for them only if they are
        in the maximal ISR. Returns False if a newer partition epoch is already set. Raises
        NotLeader.
        """
        cdef csrc.log_replica named[csrc.LOG_REPLICAS_MAX]
        cdef uint32_t count = 0
        cdef int result
        if len(replicas) > csrc.LOG_REPLICAS_MAX or in_sync_count < 1:
            raise ValueError(f"{len(replicas)} replicas, {in_sync_count} in sync")
        self.use()
        for broker_id, broker_epoch, in_isr, in_maximal in replicas:
            if broker_id != self_id:
                named[count].broker, named[count].epoch = broker_id, broker_epoch
                named[count].in_sync, named[count].maximal = in_isr, in_isr or in_maximal
                named[count].eligible = broker_id not in ineligible
                count += 1
        with nogil:
            result = csrc.log_set_replicas(self.ptr, partition_epoch, named, count, in_sync_count)
        if result < 0:
            self.refuse(result)
        return result == 0

    def followers(self) -> list:
        """Return [(broker id, broker epoch, end offset, start offset, fetched_ns, caught_up_ns)]
        for the replicas given to set_replicas, as of their last fetch, on CLOCK_MONOTONIC.

        Epoch -1: not sent by the follower; offsets -1 and times 0: unknown. caught_up_ns: when the
        follower last reached the end of the log; initially, for ISR members, the time of
        set_replicas.
        """
        cdef csrc.log_follower found[csrc.LOG_REPLICAS_MAX]
        cdef uint32_t count, i
        self.use()
        with nogil:
            count = csrc.log_followers(self.ptr, found, csrc.LOG_REPLICAS_MAX)
        return [(found[i].broker, found[i].epoch, found[i].end, found[i].start,
                 found[i].fetched_ns, found[i].caught_up_ns) for i in range(count)]

    def set_throttled(self, bint leading, bint following) -> None:
        """Set whether this log's replication counts against the throttles, as leader and as
        follower.
        """
        self.use()
        csrc.log_set_throttled(self.ptr, leading, following)

    def follower_at(self, int32_t broker_id, int64_t broker_epoch, int64_t offset,
                    int64_t start_offset, int64_t now_ns) -> bool:
        """Record a follower's fetch, as the data plane does. Return True if it may join the ISR.
        Raises LogError.
        """
        cdef csrc.log_follower_fetch at
        cdef int result
        self.use()
        at.broker, at.epoch, at.offset, at.start_offset = \
            broker_id, broker_epoch, offset, start_offset
        at.now_ns, at.may_ask = now_ns, True
        at.leader_epoch = csrc.log_leader_epoch(self.ptr)
        with nogil:
            result = csrc.log_follower_at(self.ptr, &at)
        if result < 0:
            self.refuse(result)
        return result == 1

    @property
    def high_watermark_is_current(self) -> bool:
        """True if the high watermark has reached the leader's initial end offset: readers may see
        it.
        """
        self.use()
        return csrc.log_high_watermark_is_current(self.ptr)

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
    def offline(self) -> bool:
        """True if its directory failed, or if another program removed its files."""
        self.use()
        return csrc.log_offline(self.ptr)

    @property
    def failed(self) -> int:
        """0, or the log_error that prevents it from leading."""
        self.use()
        return csrc.log_failed(self.ptr)

    def append(self, const uint8_t[::1] batch not None, int64_t now_ms, *, int32_t leader_epoch=-1,
               bint trusted=False) -> tuple:
        """Append one batch as leader. Return (base offset, last offset); for a producer's
        duplicate, the offsets of its first append. trusted: checks only the header. Raises
        LogError.
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
            # Offsets and epoch are stamped into a copy, because the caller's bytes may be
            # immutable.
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
        """Append complete batches with offsets and epochs, unchanged. Return their bytes. Raises
        LogError.
        """
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
        """Return complete batches of one segment, from the one that contains `offset` up to the
        bound; b"" at the end. The first batch is complete even if it exceeds max_bytes (KIP-74).
        Raises LogError.
        """
        cdef csrc.log_read_request request = _read_request(offset, bound, max_bytes, at_least_one,
                                                           False)
        cdef csrc.log_range found
        cdef ssize_t n = 0
        cdef int32_t error, at = 0
        cdef char *to
        self.use()
        with nogil:
            error = csrc.log_read(self.ptr, &request, &found)
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
        """Return (position, length, first offset, next offset, in the page cache) of what read
        would return. nowait: return None if finding it would wait for the disk. Raises LogError.
        """
        cdef csrc.log_read_request request = _read_request(offset, bound, max_bytes, at_least_one,
                                                           nowait)
        cdef csrc.log_range found
        cdef int32_t error, cached, length
        self.use()
        with nogil:
            error = csrc.log_read(self.ptr, &request, &found)
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
        """Return [(producer id, first offset)] of aborted transactions that overlap [offset,
        upper), ordered by first offset. Raises LogError.
        """
        cdef csrc.log_aborted_list found
        cdef uint32_t i
        cdef int error
        self.use()
        with nogil:
            error = csrc.log_aborted_between(self.ptr, offset, upper, upper, UINT32_MAX, &found)
        if error != 0:
            self.refuse(error)
        try:
            return [(found.at[i].producer_id, found.at[i].first_offset)
                    for i in range(found.count)]
        finally:
            free(found.at)

    def offset_for_time(self, int64_t target_ms):
        """Return (offset, timestamp, leader epoch) of the first record at or after target_ms, or
        None.
        """
        cdef int64_t offset, timestamp
        cdef int32_t epoch, found
        self.use()
        with nogil:
            found = csrc.log_offset_for_time(self.ptr, target_ms, &offset, &timestamp, &epoch)
        if found < 0:
            self.refuse(found)
        return (offset, timestamp, epoch) if found else None

    def offset_of_max_time(self):
        """Return (offset, timestamp, leader epoch) of the record with the greatest timestamp, or
        None.
        """
        cdef int64_t offset, timestamp
        cdef int32_t epoch, found
        self.use()
        with nogil:
            found = csrc.log_offset_of_max_time(self.ptr, &offset, &timestamp, &epoch)
        if found < 0:
            self.refuse(found)
        return (offset, timestamp, epoch) if found else None

    def end_for_epoch(self, int32_t epoch) -> tuple:
        """Return (largest known epoch <= `epoch`, its end offset), or -1 and -1 (KIP-101)."""
        cdef int64_t end
        cdef int32_t found
        self.use()
        with nogil:
            csrc.log_end_for_epoch(self.ptr, epoch, &found, &end)
        return found, end

    def epoch_of(self, int64_t offset) -> int:
        """Return the leader epoch of `offset`, or -1 if unknown."""
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
        """Block until everything appended before this call is on disk. Raises LogError."""
        cdef int error
        self.use()
        with nogil:
            error = csrc.log_flush(self.ptr)
        if error != 0:
            self.refuse(error)

    def expire_producers(self, int64_t now_ms) -> None:
        """Drop the state of producers without a batch for producer.id.expiration.ms (KIP-854)."""
        self.use()
        with nogil:
            csrc.log_expire_producers(self.ptr, now_ms)

    def upkeep(self, int64_t now_ms) -> int:
        """Roll segments by time and apply retention. Return the number of deleted segments. Raises
        LogError.
        """
        cdef int error
        self.use()
        with nogil:
            error = csrc.log_roll_if_due(self.ptr, now_ms)
            if error >= 0:
                error = csrc.log_apply_retention(self.ptr, now_ms)
        if error < 0:
            self.refuse(error)
        return error

    def move_start(self, int64_t offset, int64_t now_ms=0) -> int:
        """DeleteRecords: advance the log start to `offset`, at most to the high watermark. Return
        the new log start. Raises LogError.
        """
        cdef int error
        self.use()
        with nogil:
            error = csrc.log_move_start(self.ptr, offset, now_ms)
        if error != 0:
            self.refuse(error)
        return csrc.log_start_offset(self.ptr)

    def truncate(self, int64_t offset, int32_t leader_epoch=-1) -> int:
        """Delete the batches at and above `offset`. Return the end offset.

        leader_epoch: raise NotLeader unless the log follows that leader.
        """
        cdef int error
        self.use()
        with nogil:
            error = csrc.log_truncate(self.ptr, offset, leader_epoch)
        if error != 0:
            self.refuse(error)
        return csrc.log_end_offset(self.ptr)

    def restart_at(self, int64_t offset, int32_t leader_epoch=-1) -> None:
        """Delete everything; a follower continues at `offset`, its leader's log start.
        leader_epoch: as for truncate().
        """
        cdef int error
        self.use()
        with nogil:
            error = csrc.log_restart_at(self.ptr, offset, leader_epoch)
        if error != 0:
            self.refuse(error)

    def producers(self, int64_t now_ms) -> bytes:
        """Return the producers' state in the format of a `.snapshot` file. Raises LogError."""
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
        """Return native int64 triples (base offset, bytes, largest timestamp), for
        `open(segments=)`.
        """
        cdef uint32_t count, room
        self.use()
        while True:
            room = csrc.log_segments(self.ptr, NULL, 0)
            out = PyBytes_FromStringAndSize(NULL, room * 24)
            count = csrc.log_segments(self.ptr, <int64_t *><char *>out, room)
            if count <= room:
                return out[:count * 24]

    def recovery_report(self) -> tuple:
        """Return (bytes cut from a torn tail, segments scanned) by open."""
        cdef int64_t cut
        cdef uint32_t scanned
        self.use()
        csrc.log_recovery_report(self.ptr, &cut, &scanned)
        return cut, scanned

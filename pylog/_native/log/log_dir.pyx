"""One log directory, the unit of disk failure, and the errors of its logs.

Owns: the directory's descriptors, its flusher and pool.
Invariants: csrc/log/log.h's. The GIL is released around every call that may touch a disk.
Source: KIP-112 (failed log directories).
"""

import errno as errno_names
import os

cimport cython
from libc.stdint cimport int64_t

from pylog._native.log cimport csrc
from pylog._native.log.io_pool cimport IoPool

from pylog._native.log.io_pool import IO_THREADS_DEFAULT
from pylog._native.log.errors import (
    BatchRefused, CorruptLog, LogDeleted, LogError, NotLeader, OffsetOutOfRange, SequenceError,
    Shortage, StorageError,
)

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
    csrc.LOG_E_CORRUPT: (CorruptLog, "the log's files are corrupt"),
    csrc.LOG_E_TXN_STATE: (LogError, "the transaction is in another state"),
    csrc.LOG_E_NOT_REPLICA: (LogError, "no such replica is known here"),
}


def error_of(error: int, what: str) -> LogError:
    kind, text = KINDS.get(error, (LogError, f"error {error}"))
    if error > csrc.LOG_E_IO:
        kind, text = BatchRefused, csrc.batch_error_text(error).decode()
    return kind(error, csrc.log_error_code(error), f"{what}: {text}")


# no_gc: clearing the fields of a cycle in any order would free a directory before its logs.
@cython.no_gc
cdef class LogDir:
    """One log directory. Its failure is permanent; its flusher commits for all its logs."""

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

    @property
    def lost_logs(self) -> int:
        """Number of logs that went offline so far because another program removed their files."""
        return csrc.log_dir_lost_logs(self.dir)

    def fail(self, int error) -> bool:
        """Report errno `error` of a file outside the logs. Return True if the directory is now
        offline, False for a shortage such as a full disk.
        """
        return csrc.log_dir_report_error(self.dir, error)

    @property
    def failure(self):
        """(errno, its name, the failed call) that took the directory offline, or None."""
        cdef const char *call = NULL
        cdef int error = csrc.log_dir_failure(self.dir, &call)
        if error == 0:
            return None
        return error, errno_names.errorcode.get(error, ""), call.decode() if call != NULL else ""

    def check_free_space(self, reserve_bytes=None):
        """Return (free, total) in bytes and update short_of_space; call it about once a second.
        reserve_bytes: free space that clients' appends must leave.
        """
        cdef int64_t free_bytes = 0, total_bytes = 0
        if reserve_bytes is not None:
            csrc.log_dir_set_reserve(self.dir, reserve_bytes)
        with nogil:
            csrc.log_dir_upkeep(self.dir, &free_bytes, &total_bytes)
        return free_bytes, total_bytes

    @property
    def short_of_space(self) -> bool:
        """True if clients' appends are rejected because less than the reserve is free."""
        return csrc.log_dir_short_of_space(self.dir)

    def set_disk(self, size_t disk) -> None:
        """For tests: use another disk, a DISK_ kind or the address of a `struct disk`."""
        if csrc.DISK_BROKEN < disk < 4096:
            raise ValueError(f"disk {disk}")
        csrc.log_dir_set_disk(self.dir, csrc.disk_of(<csrc.disk_kind>disk)
                              if disk <= csrc.DISK_BROKEN else <const csrc.disk *>disk)

    def flush(self) -> None:
        """Block until everything appended in this directory before is on disk: one sync for many
        logs.
        """
        cdef int error
        with nogil:
            error = csrc.log_dir_flush(self.dir)
        if error != 0:
            raise error_of(error, self.path)

    def settle(self) -> None:
        """Same as Log.settle for every log of the directory, with one sync. Settling them
        afterwards has nothing left to do.
        """
        cdef int error
        with nogil:
            error = csrc.log_dir_close_files(self.dir)
        if error != 0:
            raise error_of(error, self.path)

    def stats(self) -> dict:
        """Return open segment descriptors, group commits, and files synced by them."""
        cdef csrc.log_dir_stats figures
        csrc.log_dir_read_stats(self.dir, &figures)
        return figures

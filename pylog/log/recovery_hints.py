"""Partition checkpoints in Kafka's files, which identify a partition by directory and topic name
only.

Owns: recovery-point-, log-start- and replication-offset-checkpoint in each log directory.
Invariants: a row belongs to the topic whose partition is in that directory under that name; when
  the partition is deleted, its row is removed on disk before another topic can use the name; the
  log start that DeleteRecords returned is in the file of the partition's directory, because
  state.lmdb may be lost; a file is read and written with `lock` held.
Source: Kafka's files; Kafka's log manager rewrites them when it deletes logs.
"""

import errno
import logging
import os
import threading

from pylog._native.log.log import StorageError
from pylog.log import checkpoint_files, cleaner
from pylog.log import partition_logs
from pylog.log.errors import StartError
from pylog.log.partition_logs import NOTHING_KNOWN, Checkpoint
from pylog.protocol.errors import ErrorCode

FILES = (checkpoint_files.RECOVERY_POINT, checkpoint_files.LOG_START,
         checkpoint_files.HIGH_WATERMARK)
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Includes shortages of the process, not only of the disk.
SHORTAGES = (*NO_ROOM, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)

log = logging.getLogger("pylog.log")


class Hints:
    """disks: Directories. Keys are (topic, partition)."""

    def __init__(self, disks):
        self.lock = threading.RLock()
        self._disks = disks
        self._stale = {}  # directory number -> keys whose rows must be removed
        self._unread = {}  # (directory number, key) -> Checkpoint of a partition without a Log

    def take(self, number: int, here: set) -> dict:
        """Return key -> Checkpoint of the partitions in a directory, and remove all other rows.
        Call at startup, before other code uses the files. Raises StartError.

        The rows may be Kafka's, if it used the directory since.
        """
        try:
            points, starts, watermarks, _ = rows = [
                checkpoint_files.read_offsets(self._path(number, name))
                for name in (*FILES, cleaner.CHECKPOINT)]
            listed = points.keys() | starts.keys() | watermarks.keys()
            self._remove(number, set().union(*rows) - here, (*FILES, cleaner.CHECKPOINT))
        except OSError as error:
            reason = error.strerror or str(error)
            if number == 0 or error.errno in SHORTAGES:
                raise StartError(
                    f"the checkpoints in {self._disks.paths[number]}: {reason}") from error
            self._disks.fail(number, error)
            return {}
        return {key: NOTHING_KNOWN._replace(
            recovery_point=points.get(key, 0), log_start_offset=starts.get(key, -1),
            high_watermark=watermarks.get(key, -1)) for key in listed & here}

    def set_unread(self, number: int, key: tuple, checkpoint: Checkpoint) -> None:
        """Keep the rows of a log that could not be opened."""
        with self.lock:
            self._unread[number, key] = checkpoint

    def set_read(self, number: int, key: tuple) -> None:
        """The partition has a Log now, which provides its rows."""
        with self.lock:
            self._unread.pop((number, key), None)

    def unread(self, number: int) -> list:
        """Return [(topic, partition, Checkpoint)] of a directory's logs that could not be opened.
        """
        with self.lock:
            return [(*key, checkpoint) for (dir_index, key), checkpoint in self._unread.items()
                    if dir_index == number]

    def forget(self, rows) -> None:
        """Remove the rows of partitions with the next tend(), or before another partition uses the
        name. rows: (directory number, key).
        """
        with self.lock:
            for number, key in rows:
                self._unread.pop((number, key), None)
                self._stale.setdefault(number, set()).add(key)

    def forget_topic(self, name: str, dir_indexes) -> None:
        """As forget(), for a deleted topic. places: (directory number, partition) of its Logs."""
        with self.lock:
            rows = {(number, (name, index)) for number, index in dir_indexes}
            self.forget(rows | {row for row in self._unread if row[1][0] == name})

    def tend(self) -> None:
        """Remove the rows of forgotten partitions."""
        with self.lock:
            for number in list(self._stale):
                if not self._disks.online(number):
                    del self._stale[number]  # The next start removes rows without a partition.
                    continue
                try:
                    self._remove(number, self._stale[number])
                    del self._stale[number]
                except OSError as error:
                    if error.errno not in SHORTAGES:
                        self._disks.fail(number, error)
                    log.error("checkpoints of deleted partitions could not be removed", extra={
                        "directory": self._disks.paths[number],
                        "reason": error.strerror or str(error)})

    def is_free(self, number: int, key: tuple) -> bool:
        """Return True if another topic may use the name in this directory."""
        with self.lock:
            if key in self._stale.get(number, ()):
                self.tend()
            return key not in self._stale.get(number, ())

    def write(self, number: int, entries: dict) -> None:
        """Write Checkpoints by key to a directory's files, on disk. Raises OSError.

        Adds missing recovery points only: an existing one may be lower, but never higher.
        """
        with self.lock:
            if not all(self.is_free(number, key) for key in entries):
                raise OSError(errno.EAGAIN, "rows of a deleted topic have the name")
            starts = {key: entry.log_start_offset for key, entry in entries.items()}
            path = self._path(number, checkpoint_files.RECOVERY_POINT)
            points = checkpoint_files.read_offsets(path)
            missing = {key: entry.recovery_point for key, entry in entries.items()
                       if key not in points}
            if missing:
                _write(path, points | missing)
            path = self._path(number, checkpoint_files.LOG_START)
            before = checkpoint_files.read_offsets(path)
            if any(before.get(key, 0) != start for key, start in starts.items()):
                _write(path, before | starts)

    def write_start(self, number: int, key: tuple, partition_log, copy=None) -> None:
        """Write a Log's start offset to a directory's files, on disk. Raises StorageError.

        copy: the Log in that directory, if it is another one.
        """
        try:
            self.write(number, {key: partition_logs.flushed(partition_log)._replace(
                recovery_point=(copy or partition_log).recovery_point)})
        except OSError as error:
            if error.errno not in SHORTAGES:
                self._disks.fail(number, error)
            raise StorageError(error.errno or errno.EIO, ErrorCode.KAFKA_STORAGE_ERROR,
                               f"{key[0]}-{key[1]}: {error.strerror or error}") from error

    def write_branch(self, name: str, parts) -> None:
        """Write a branch's checkpoints, so that it is not recovered from its start if state.lmdb is
        lost.
        """
        for dir_index in {part.dir_index for part in parts}:
            try:
                self.write(dir_index, {(name, index): part.checkpoint
                                  for index,
                                  part in enumerate(parts) if part.dir_index == dir_index})
            except OSError as error:
                log.warning("a branch's checkpoints could not be written", extra={
                    "topic": name, "reason": error.strerror or str(error)})

    def _remove(self, number: int, keys: set, names=FILES) -> None:
        for name in names:
            path = self._path(number, name)
            rows = checkpoint_files.read_offsets(path)
            left = {key: offset for key, offset in rows.items() if key not in keys}
            if len(left) == len(rows):
                continue
            try:
                _write(path, left)
            except OSError as error:
                if error.errno not in NO_ROOM or name == checkpoint_files.LOG_START:
                    raise  # Without the log start, deleted records would reappear.
                # Deleting the file needs no space. The next checkpoint writes the other rows again.
                os.unlink(path)
                checkpoint_files.sync_directory(self._disks.paths[number])

    def _path(self, number: int, name: str) -> str:
        return os.path.join(self._disks.paths[number], name)


def _write(path: str, rows: dict) -> None:
    checkpoint_files.write_offsets(path, [(*key, offset) for key, offset in rows.items()])

"""Writes checkpoints of open logs: to state.lmdb, and to Kafka's checkpoint files.

Owns: the content of the last checkpoint, and the deleted partitions that the store still contains.
Invariants: a checkpoint never promises more than is on disk, not even while a log is being
  truncated; files are written under the lock of the recovery hints, so that they contain no row of
  a deleted partition.
Source: Kafka's recovery-point-offset-checkpoint and similar files.
"""

import logging
import threading

from pylog._native.log.log import LogError
from pylog.log import partition_logs

log = logging.getLogger("pylog.log")


class Checkpointer:
    """rows: yields (directory number, name, topic id, partition, Log) of each open partition.
    store: set when it is open.
    """

    def __init__(self, disks, hints, rows):
        self.gone = []  # keys of deleted partitions that the store still contains
        self.store = None
        self._disks = disks
        self._hints = hints
        self._rows = rows
        self._writing = threading.Lock()
        self._saved = {}  # (topic id, partition) -> last written Checkpoint
        self._unwritten = False  # a write failed for lack of space or descriptors: retry

    def forget(self, key: tuple) -> None:
        """Remove the deleted partition (topic id, index) from the store with the next checkpoint.
        """
        self._saved.pop(key, None)
        self.gone.append(key)

    def cut(self, topic_id: bytes, index: int, partition_log, cut, leader_epoch: int) -> None:
        """Truncate a log that follows the leader of this epoch, or restart it at an offset. Blocks.

        cut: truncate_to and restart_at, either may be None. Raises LogError: NotLeader if the log
        follows another leader.
        """
        offset = cut.restart_at if cut.truncate_to is None else cut.truncate_to
        if offset is None:
            return
        with self._writing:
            known = partition_logs.flushed(partition_log)
            point = min(known.recovery_point, offset) if cut.restart_at is None else 0
            # A crash may leave the log before or after truncation. Both contain at least this.
            entry = known._replace(recovery_point=point,
                                   high_watermark=min(known.high_watermark, offset))
            if self.store is not None:
                self.store.save(None, [((topic_id, index), entry)])
                self._saved[topic_id, index] = entry
            if cut.truncate_to is not None:
                partition_log.truncate(cut.truncate_to, leader_epoch)
            if cut.restart_at is not None:
                partition_log.restart_at(cut.restart_at, leader_epoch)

    def write(self, store) -> None:
        """Flush dirty logs, so that recovery after a crash reads little, and write a checkpoint."""
        with self._writing:
            self._write(store)

    def _write(self, store) -> None:
        changed = []
        for number, _ in self._disks.usable():
            try:
                self._disks.natives[number].flush()
            except LogError as error:
                log.error("a flush failed", extra={"reason": str(error)})
        for _, _, topic_id, index, partition_log in self._rows():
            # Read the recovery point after the flush, so that it is on disk.
            entry = partition_logs.flushed(partition_log)
            if entry.recovery_point and self._saved.get((topic_id, index)) != entry:
                changed.append(((topic_id, index), entry))
        if changed or self.gone or self._unwritten:
            gone = list(self.gone)
            store.save(None, changed, gone)
            del self.gone[:len(gone)]
            self._saved.update(changed)
            self.write_files()

    def write_files(self) -> None:
        """Write Kafka's checkpoint files, for Kafka's tools and for a Kafka broker that uses the
        directory later.
        """
        with self._hints.lock:  # Excludes rows of partitions that are being deleted.
            self._unwritten = False
            for number, path in self._disks.usable():
                rows = [(name, index, partition_logs.flushed(partition_log))
                        for at, name, _, index, partition_log in self._rows() if at == number]
                try:
                    partition_logs.write_checkpoint_files(path, rows + self._hints.unread(number))
                except OSError as error:
                    self._unwritten |= not self._disks.fail(number, error)
                    log.error("a checkpoint could not be written", extra={
                        "directory": path, "reason": error.strerror})

"""Checkpoints of the logs that are open: in state.lmdb, and in Kafka's own files.

Owns: what the last checkpoint said, and which deleted partitions the store still has.
Invariants: (1) a checkpoint never promises more than is on disk, also while a log is cut; (2) a
  file is written under the lock of the hints, so that no row stays behind of a name that was freed.
Source: Kafka's recovery-point-offset-checkpoint and its like.
"""

import logging
import threading

from pylog._native.log import LogError
from pylog.log import partition_log as partitions

log = logging.getLogger("pylog.log")


class Checkpointer:
    """rows: gives (directory's number, name, topic id, partition, Log) of every open partition.
    store: once there is one."""

    def __init__(self, disks, hints, rows):
        self.gone = []           # keys of deleted partitions that the store still has
        self.store = None
        self._disks = disks
        self._hints = hints
        self._rows = rows
        self._writing = threading.Lock()
        self._saved = {}         # (topic id, partition) -> Checkpoint, of the last checkpoint
        self._unwritten = False  # files found no room or descriptor: again next time

    def forget(self, key: tuple) -> None:
        """The partition (topic id, index) is deleted."""
        self._saved.pop(key, None)
        self.gone.append(key)

    def cut(self, topic_id: bytes, index: int, partition_log, cut, leader_epoch: int) -> None:
        """Truncates a log that follows the leader of this epoch, or lets it begin anew. Blocks.

        cut: truncate_to and restart_at, either may be None. Raises LogError: NotLeader when it
        follows another.
        """
        offset = cut.restart_at if cut.truncate_to is None else cut.truncate_to
        if offset is None:
            return
        with self._writing:
            known = partitions.flushed(partition_log)
            point = min(known.recovery_point, offset) if cut.restart_at is None else 0
            # Keeps (1): a start that finds either log relies on no more than this.
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
        """Flushes what is dirty, so that a start after a crash has little to read, and says so."""
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
            # Keeps (1): the recovery point is read after the flush that moved it.
            entry = partitions.flushed(partition_log)
            if entry.recovery_point and self._saved.get((topic_id, index)) != entry:
                changed.append(((topic_id, index), entry))
        if changed or self.gone or self._unwritten:
            gone = list(self.gone)
            store.save(None, changed, gone)
            del self.gone[:len(gone)]
            self._saved.update(changed)
            self.write_files()

    def write_files(self) -> None:
        """Kafka's own files, for its tools and for a Kafka that takes the directory over."""
        with self._hints.lock:     # Keeps (2).
            self._unwritten = False
            for number, path in self._disks.usable():
                rows = [(name, index, partitions.flushed(partition_log))
                        for at, name, _, index, partition_log in self._rows() if at == number]
                try:
                    partitions.write_checkpoint_files(path, rows + self._hints.unread(number))
                except OSError as error:
                    self._unwritten |= not self._disks.fail(number, error)
                    log.error("a checkpoint could not be written", extra={
                        "directory": path, "reason": error.strerror})

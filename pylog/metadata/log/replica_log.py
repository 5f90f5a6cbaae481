"""This node's copy of the active controller's metadata log.

Owns: the files of `__cluster_metadata-0` (through LocalLog).
Invariants: bytes are stored unchanged, including offsets, epochs and control records; only whole
  batches are stored, in offset order; a snapshot has its name only if it is complete and readable,
  and the log begins at or below the end of the newest one.
Source: KIP-595 (observers), KIP-630 (snapshots).
"""

import logging
import os

from pylog._native.log.log import LogError
from pylog.log import partition_logs
from pylog.log.checkpoint_files import sync_directory, whole_file
from pylog.metadata.image import snapshot
from pylog.metadata.image.image import Image, MetadataError
from pylog.metadata.image.state_store import METADATA_LOG_ID
from pylog.metadata.log.local_log import TOPIC, LocalLog

log = logging.getLogger("pylog.metadata")


class ObservedLog(LocalLog):
    """The log of another node's decisions. Arguments as for LocalLog."""

    READS_FORMATTED = False

    def __init__(self, directory, checkpoint, now_ms, **limits):
        super().__init__(directory, checkpoint, now_ms, **limits)
        self._directory = directory
        self._try_offset = 0  # no local snapshot is attempted before this offset
        self._log.become_follower(self._epoch)
        if self.snapshot_end > self._log.end_offset:
            # The node crashed after storing a snapshot, before starting the log at its end.
            self._begin_at(self.snapshot_end)

    @property
    def end_offset(self) -> int:
        return self._log.end_offset

    @property
    def last_epoch(self) -> int:
        """Return the epoch of the last record, 0 without records (KIP-595's empty log)."""
        if self._log.end_offset > self._log.start_offset:
            return self._log.epoch_of(self._log.end_offset - 1)
        return self._snapshot[2] if self._snapshot else 0

    @property
    def committed(self) -> int:
        """Return the highest known committed end offset."""
        return max(self._log.high_watermark, self.snapshot_end)

    def commit(self, high_watermark: int) -> int:
        """Advance the high watermark to the controller's. Returns `committed`."""
        self._log.advance_high_watermark(high_watermark)
        return self.committed

    def follow(self, data) -> None:
        """Append the controller's batches. Ignores a partial batch at the end, which is sent again.
        Raises LogError's kinds.
        """
        self._log.append_as_follower(data, self._now_ms())

    def diverged(self, epoch: int, end_offset: int) -> None:
        """Truncate to the controller's end of `epoch`, or of the last common epoch. Raises
        MetadataError if that would remove committed records: the responding controller is then not
        up to date. Raises LogError's kinds.
        """
        mine, my_end = self._log.end_for_epoch(epoch)
        to = min(end_offset, self._log.end_offset)
        if mine >= 0:
            to = min(my_end, to)
        if to < self.committed:
            raise MetadataError(f"it ends epoch {epoch} at {end_offset}, below the committed "
                                f"offset {self.committed}")
        self._log.truncate(max(to, self._log.start_offset))

    def take_snapshot(self, data, end_offset: int, epoch: int) -> None:
        """Store a complete snapshot of the controller's; the log begins at its end. Raises
        ValueError if it is damaged, LogError's kinds, OSError.
        """
        name = f"{end_offset:020d}-{epoch:010d}.checkpoint"
        with whole_file(os.path.join(self._folder, name)) as file:
            file.write(data)
            file.flush()
            snapshot.read(file.name)
        self._snapshot = snapshot.newest(self._folder)
        self._snapshot_ms = self._now_ms()
        self._begin_at(end_offset)

    def snapshot_is_due(self, offset: int) -> bool:
        return offset >= self._try_offset and super().snapshot_is_due(offset)

    def shorten(self, image: Image) -> None:
        """Save a snapshot of the newest image; retry after a failure some records later."""
        try:
            self.save_own_snapshot(snapshot.records_of(image), image.offset, image.epoch)
        except (LogError, OSError) as error:
            self._try_offset = image.offset + self.records_between_snapshots
            log.error("a snapshot could not be written", extra={"reason": str(error)})

    def save_own_snapshot(self, records: list, offset: int, epoch: int) -> None:
        """Save the state after all records up to `offset`, which are committed; the log then begins
        after it. Raises LogError's kinds, OSError.
        """
        assert offset < self.committed, (offset, self.committed)
        LocalLog.snapshot(self, records, offset, epoch)
        LocalLog.trim(self, offset + 1)

    def _begin_at(self, offset: int) -> None:
        """Replace the log with an empty one that begins at `offset`, the newest snapshot's end."""
        self._log.close(self._now_ms())
        for name in os.listdir(self._folder):
            if not name.endswith((".checkpoint", ".metadata")):
                os.unlink(os.path.join(self._folder, name))
        sync_directory(self._folder)
        known = partition_logs.NOTHING_KNOWN._replace(
            log_start_offset=offset, recovery_point=offset, high_watermark=offset)
        self._log = partition_logs.open_log(
            self._directory, TOPIC, 0, METADATA_LOG_ID, self._config, known, False,
            self._now_ms())
        self._log.become_follower(self._epoch)
        assert self._log.start_offset == self._log.end_offset == offset, (
            self._log.start_offset, self._log.end_offset, offset)

    def read_committed(self, offset: int):
        """Yield a MetadataBatch for each committed batch from `offset` on."""
        end = self.committed
        for found in self.read(offset):
            if found.last_offset >= end:
                return
            yield found


"""This node's copy of the metadata log, as the active controller sends it.

Owns: the files of `__cluster_metadata-0` (through LocalLog).
Invariants: (1) bytes are kept as they came: offsets, epochs and control records too; (2) only whole
  batches are kept, in the order of their offsets; (3) a snapshot is complete and readable before
  its name is there, and the log begins where the newest one ends, or below.
Source: KIP-595 (observers), KIP-630 (snapshots).
"""

import logging
import os

from pylog._native.log import LogError
from pylog.log import partition_log
from pylog.log.checkpoint_files import sync_directory, whole_file
from pylog.metadata.image import snapshot
from pylog.metadata.image.image import Image, MetadataError
from pylog.metadata.image.state_store import METADATA_LOG_ID
from pylog.metadata.log.local_log import TOPIC, LocalLog

log = logging.getLogger("pylog.metadata")


class ObservedLog(LocalLog):
    """The log of another node's decisions. Arguments as LocalLog's."""

    def __init__(self, directory, checkpoint, now_ms, **limits):
        super().__init__(directory, checkpoint, now_ms, **limits)
        self._directory = directory
        self._try_offset = 0         # before which no own snapshot is tried again
        self._log.become_follower(self._epoch)
        if self.snapshot_end > self._log.end_offset:
            # The crash came between a snapshot and the log that begins there.
            self._begin_at(self.snapshot_end)

    @property
    def end_offset(self) -> int:
        return self._log.end_offset

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record, 0 when there is none (KIP-595's empty log)."""
        if self._log.end_offset > self._log.start_offset:
            return self._log.epoch_of(self._log.end_offset - 1)
        return self._snapshot[2] if self._snapshot else 0

    @property
    def committed(self) -> int:
        """The offset below which records count, as far as this node ever heard."""
        return max(self._log.high_watermark, self.snapshot_end)

    def commit(self, high_watermark: int) -> int:
        """The controller's high watermark is known. Returns `committed`."""
        self._log.advance_high_watermark(high_watermark)
        return self.committed

    def follow(self, data) -> None:
        """Appends what the controller sent; a cut batch at its end comes again. Keeps (2). Raises
        LogError's kinds."""
        self._log.append_as_follower(data, self._now_ms())

    def diverged(self, epoch: int, end_offset: int) -> None:
        """The controller's last record of `epoch` is before `end_offset`, and there is no later one
        that both have. Raises MetadataError when that would cut away what is committed, as who
        answers has then not heard yet, and LogError's kinds."""
        mine, my_end = self._log.end_for_epoch(epoch)
        to = min(end_offset, self._log.end_offset)
        if mine >= 0:
            to = min(my_end, to)
        if to < self.committed:
            raise MetadataError(f"it ends epoch {epoch} at {end_offset}, and what is below "
                                f"{self.committed} is committed")
        self._log.truncate(max(to, self._log.start_offset))

    def take_snapshot(self, data, end_offset: int, epoch: int) -> None:
        """Keeps a whole snapshot of the controller's; the log begins at its end. Keeps (3). Raises
        ValueError for a damaged one, LogError's kinds, OSError."""
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
        """save_own_snapshot() of the newest image; what fails is tried again some records later.
        """
        try:
            self.save_own_snapshot(snapshot.records_of(image), image.offset, image.epoch)
        except (LogError, OSError) as error:
            self._try_offset = image.offset + self.records_between_snapshots
            log.error("a snapshot could not be written", extra={"reason": str(error)})

    def save_own_snapshot(self, records: list, offset: int, epoch: int) -> None:
        """Saves the state after all records up to `offset`, which are committed; the log here
        begins there. Raises LogError's kinds, OSError."""
        assert offset < self.committed, (offset, self.committed)
        LocalLog.snapshot(self, records, offset, epoch)
        LocalLog.trim(self, offset + 1)

    def _begin_at(self, offset: int) -> None:
        """An empty log that begins at `offset`, where the newest snapshot ends."""
        self._log.close(self._now_ms())
        for name in os.listdir(self._folder):
            if not name.endswith((".checkpoint", ".metadata")):
                os.unlink(os.path.join(self._folder, name))
        sync_directory(self._folder)
        known = partition_log.NOTHING_KNOWN._replace(
            log_start_offset=offset, recovery_point=offset, high_watermark=offset)
        self._log = partition_log.open_log(
            self._directory, TOPIC, 0, METADATA_LOG_ID, self._config, known, False,
            self._now_ms())
        self._log.become_follower(self._epoch)
        assert self._log.start_offset == self._log.end_offset == offset, (
            self._log.start_offset, self._log.end_offset, offset)

    def read_committed(self, offset: int):
        """Yields a MetadataBatch for each batch from `offset` on whose records count."""
        end = self.committed
        for found in self.read(offset):
            if found.last_offset >= end:
                return
            yield found


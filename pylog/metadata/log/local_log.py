"""The metadata log on a local log: `__cluster_metadata-0` in the first log directory.

Owns: that partition's log.
Invariants: an append is on disk when it returns, and truncated when it raises, so that no record
  follows records that were never read; one process has the directory (its lock), so that an
  election only increments the epoch; each start that appends uses its own epoch.
Source: KIP-595, KIP-631 (record frame).
"""

import logging
import os

from pylog._native.log.log import LogError
from pylog._native.records import batch
from pylog.log import partition_logs
from pylog.metadata.image import snapshot
from pylog.metadata.image.state_store import METADATA_LOG_ID
from pylog.metadata.log.metadata_log import Conflict, MetadataBatch, MetadataLog

TOPIC = "__cluster_metadata"
READ_BYTES_MAX = 8 << 20
FORMATTED = "bootstrap.checkpoint"

log = logging.getLogger("pylog.metadata")

# Records are deleted only if a snapshot covers them, never by age or size.
CONFIG = {"retention.ms": -1, "retention.bytes": -1, "log.flush.acks.all.enable": False}


def limits_of(settings) -> dict:
    """Return LocalLog's arguments from Kafka's settings."""
    return {"snapshot_bytes": settings["metadata.log.max.record.bytes.between.snapshots"],
            "snapshot_ms": settings["metadata.log.max.snapshot.interval.ms"],
            "segments": {"segment.bytes": settings["metadata.log.segment.bytes"],
                         "segment.ms": settings["metadata.log.segment.ms"]}}


class LocalLog(MetadataLog):
    """checkpoint: of the last clean stop, or None to scan the files. snapshot_bytes, snapshot_ms:
    maximum size and age of records that no snapshot covers. segments: topic configs for rolling
    segments.
    """

    KEY = (METADATA_LOG_ID, 0)
    # Kafka's nodes that follow another controller ignore the file of the tool.
    READS_FORMATTED = True

    def __init__(self, directory, checkpoint, now_ms, *, snapshot_bytes: int = 20 << 20,
                 snapshot_ms: int = 0, segments: dict | None = None):
        self._now_ms = now_ms
        self._config = {**CONFIG, **(segments or {})}
        self._snapshot_bytes = snapshot_bytes
        self._snapshot_interval_ms = snapshot_ms  # 0: no maximum age
        self._snapshot_ms = now_ms()
        self._failure: LogError | None = None  # nothing can be appended after it
        self._folder = os.path.join(directory.path, f"{TOPIC}-0")
        if not os.path.isdir(self._folder):
            checkpoint = None
        self._log = partition_logs.open_log(
            directory, TOPIC, 0, METADATA_LOG_ID, self._config,
            checkpoint or partition_logs.NOTHING_KNOWN, checkpoint is not None, now_ms())
        self._snapshot = snapshot.newest(self._folder)
        # A snapshot's epoch counts too: the records that it covers may be deleted from the log.
        self._epoch = max(self._log.last_epoch, self._snapshot[2] if self._snapshot else 0, 0)

    @property
    def is_offline(self) -> bool:
        """Return True if its files were deleted or its log directory has failed."""
        return self._log.offline

    @property
    def snapshot_end(self) -> int:
        """Return the offset after the newest snapshot."""
        return self._snapshot[1] if self._snapshot else 0

    def snapshot_is_due(self, offset: int) -> bool:
        if offset < self.snapshot_end:
            return False
        age_ms = self._now_ms() - self._snapshot_ms
        # The log begins where the newest snapshot ends.
        return super().snapshot_is_due(offset) or self._log.size_bytes >= self._snapshot_bytes \
            or 0 < self._snapshot_interval_ms <= age_ms

    def holds(self, offset: int, epoch: int) -> bool:
        """Return True if the record at `offset` is here with `epoch`; -1 is before all records."""
        within = self._log.start_offset <= offset < self._log.end_offset
        return offset == -1 or within and self._log.epoch_of(offset) == epoch

    def close(self) -> partition_logs.Checkpoint:
        """Flush everything; return the checkpoint for the next start. Raises LogError's kinds."""
        self._log.settle(self._now_ms())
        return partition_logs.at_rest(self._log)

    def append(self, new: list, epoch: int, expected_end: int) -> int:
        if self._failure is not None:
            raise type(self._failure)(
                self._failure.error, self._failure.code, str(self._failure)) from self._failure
        if epoch != self._epoch:
            raise Conflict(f"epoch {epoch} is not the newest, {self._epoch} is")
        if expected_end != self._log.end_offset:
            raise Conflict(f"the log ends at {self._log.end_offset}, not at {expected_end}")
        now_ms = self._now_ms()
        data = batch.build([
            (None, value, now_ms, ()) for value in self.values_of(new)])
        try:
            _, last_offset = self._log.append(data, now_ms, leader_epoch=epoch, trusted=True)
            self._log.flush()
        except LogError as error:
            self._take_back(expected_end, error)
            raise
        assert last_offset == expected_end + len(new) - 1, (last_offset, expected_end, len(new))
        return last_offset

    def values_of(self, new: list) -> list[bytes]:
        """Return the records as encoded in the log, in the cluster's metadata.version."""
        return [snapshot.encoded(record, self.metadata_version) for record in new]

    def _take_back(self, end: int, error: LogError) -> None:
        """Truncate a failed append."""
        if self._log.end_offset == end:
            return
        try:
            self._log.truncate(end)
        except LogError:
            self._failure = error
            return
        assert self._log.end_offset == end, (self._log.end_offset, end)

    def read(self, offset: int):
        first = self._first_snapshot() if offset == 0 else None
        if first is not None:
            path, end, epoch = first
            records = self._snapshot_records(path)
            if records is not None:
                yield MetadataBatch(end - 1, epoch, records)
                offset = end
        assert offset >= self._log.start_offset, (offset, self._log.start_offset)
        while offset < self._log.end_offset:
            data = self._log.read(offset, READ_BYTES_MAX)
            for position, header in batch.walk(data):
                last_offset = header.base_offset + header.last_offset_delta
                if last_offset >= offset:
                    yield MetadataBatch(last_offset, header.leader_epoch, snapshot.decoded(
                        memoryview(data)[position:], header))
                offset = last_offset + 1

    def _first_snapshot(self) -> tuple | None:
        """Return (path, end offset, epoch) of the snapshot to read before the log, None without.

        Kafka's tool formats a directory with a snapshot that ends at offset 0 (4.4), or with a file
        of the same form beside the partitions (before 4.4), which counts until the log has records.
        """
        if self._snapshot is not None or self._log.end_offset > 0 or not self.READS_FORMATTED:
            return self._snapshot
        formatted = os.path.join(os.path.dirname(self._folder), FORMATTED)
        return (formatted, 0, 0) if os.path.exists(formatted) else None

    def _snapshot_records(self, path: str):
        """Return a snapshot's records, None if it is damaged and the log can be read instead."""
        try:
            return snapshot.read(path)
        except ValueError:
            # Includes BatchError and ProtocolError.
            if self._log.start_offset > 0 or self._log.end_offset == 0:
                raise  # No log has these records.
            log.warning("a snapshot cannot be read; reading the log instead",
                        extra={"snapshot": path})
            return None

    # ---- reads for observers --------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        """Return the first offset in the log; earlier records are only in a snapshot."""
        return self._log.start_offset

    @property
    def snapshot_id(self) -> tuple | None:
        """Return (end offset, epoch) of the newest snapshot."""
        return self._snapshot[1:] if self._snapshot else None

    def end_for_epoch(self, epoch: int) -> tuple:
        """Return (the newest epoch <= `epoch` with records, the offset after its last record)."""
        return self._log.end_for_epoch(epoch)

    def read_range(self, offset: int, end: int, bytes_max: int) -> bytes:
        """Return whole batches, at least one, from the batch with `offset`, with records below
        `end`.

        Raises LogError's kinds.
        """
        data = self._log.read(offset, bytes_max)
        if self._log.end_offset <= end:
            return data
        size = 0
        for position, header in batch.walk(data):
            if header.base_offset + header.last_offset_delta >= end:
                break
            size = position + batch.LOG_OVERHEAD + header.batch_length
        return data[:size]

    def snapshot_part(self, snapshot_id: tuple, position: int, bytes_max: int) -> tuple | None:
        """Return (the snapshot's size, its bytes from `position` on), None if it is not the newest
        one. Raises OSError.
        """
        known = self._snapshot
        if known is None or known[1:] != snapshot_id:
            return None
        with open(known[0], "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(position)
            return size, file.read(bytes_max)

    def elect(self, node_id: int) -> int:
        self._epoch += 1
        self._log.become_leader(self._epoch)
        return self._epoch

    def snapshot(self, records: list, offset: int, epoch: int) -> None:
        snapshot.write(self._folder, records, offset + 1, epoch, self._now_ms())
        self._snapshot = snapshot.newest(self._folder)
        self._snapshot_ms = self._now_ms()

    def trim(self, offset: int) -> None:
        assert offset <= self.snapshot_end, (offset, self.snapshot_end)
        self._log.move_start(offset, self._now_ms())

"""The metadata log of several controllers: committed by the quorum, copied to this node's disk.

Owns: the copy, `__cluster_metadata-0`, through ObservedLog.
Invariants: the copy is a prefix of the quorum's committed log, so its end is the high watermark; a
  start proves it with compared_to(), because the directory may have been used elsewhere; one thread
  at a time changes the copy: catch_up() without a term, append() within a term; a term ends with a
  failed append, because only the next epoch can determine the log's end.
Source: KIP-595 (a log replicated to observers), KIP-630 (snapshots).
"""

import os
import shutil

from pylog._native.log.log import LogError
from pylog._native.records import batch
from pylog.log.checkpoint_files import free_name
from pylog.metadata.image import snapshot
from pylog.metadata.log.metadata_log import Conflict, MetadataBatch
from pylog.metadata.log.replica_log import ObservedLog
from pylog.metadata.quorum.quorum_state import Quorum, Term, TooLong

PREFIX, UNKNOWN, DIVERGED = "prefix", "unknown", "diverged"


class QuorumLog(ObservedLog):
    """Like LocalLog, on a Quorum."""

    # The maximum number of batches that a new node reads in addition to the snapshot.
    records_between_snapshots = 20_000
    # The response to an append may be lost, so other nodes can have records before this one.
    is_whole = False

    def __init__(self, directory, checkpoint, now_ms, quorum: Quorum, **limits):
        super().__init__(directory, checkpoint, now_ms, **limits)
        self._quorum = quorum
        self._term: Term | None = None
        self.commit(self._log.end_offset)

    @property
    def quorum(self) -> Quorum:
        return self._quorum

    @property
    def term(self) -> Term | None:
        """Return the term in which this node appends, None without one or after a failed append."""
        return self._term

    # ---- following ------------------------------------------------------------------------------

    def catch_up(self) -> list:
        """Copy some of the quorum's records that are missing here. Blocks.

        Returns MetadataBatches in order, none at the end. Raises QuorumLost; Trimmed if only a
        snapshot has the next records; LogError's kinds; ValueError for an invalid batch.
        """
        assert self._term is None, self._term  # one writer at a time
        found: list = []
        for base, data in self._quorum.read(self._log.end_offset):
            try:
                header = self._copy(base, data)
            except LogError:
                if not found:
                    raise
                # Copied batches are not read again: return them now, and raise on the next call.
                break
            found.append(MetadataBatch(header.base_offset + header.last_offset_delta,
                                       header.leader_epoch, snapshot.decoded(data, header)))
        return found

    def _copy(self, base: int, data: bytes):
        """Append one committed batch to the copy; return its header."""
        _, header = next(batch.walk(data))
        if not batch.crc_ok(data) or header.base_offset != base or base != self._log.end_offset:
            raise ValueError(f"the quorum's batch at {base} is damaged")
        self._log.append_as_follower(data, self._now_ms())
        self._epoch = max(self._epoch, header.leader_epoch)
        self.commit(self._log.end_offset)
        return header

    def compared_to(self, end: int) -> str:
        """Compare the copy with the quorum's log, which ends at `end`. Blocks. Raises QuorumLost,
        LogError's kinds.

        PREFIX: the copy's last batch is identical to the quorum's. UNKNOWN: one of the two has only
        a snapshot at that offset. DIVERGED: the records at the same offset differ.
        """
        own_end = self._log.end_offset
        if own_end == 0:
            return PREFIX
        last = min(own_end, end) - 1
        if last < self._log.start_offset:
            return UNKNOWN
        base, data = self._batch_with(last)
        theirs = self._quorum.batch_at(base)
        if theirs is None:
            return UNKNOWN
        return PREFIX if data == theirs else DIVERGED

    def _batch_with(self, offset: int) -> tuple[int, bytes]:
        """Return (base offset, bytes) of the batch with the record at `offset`."""
        data = self._log.read(offset, 1)
        position, header = next(batch.walk(data))
        return header.base_offset, bytes(
            memoryview(data)[position:position + batch.LOG_OVERHEAD + header.batch_length])

    def is_rebuildable(self) -> bool:
        """Return True if the quorum has its whole log, or a snapshot. Blocks. Raises QuorumLost."""
        return self._quorum.batch_at(0) is not None or self._quorum.load_snapshot(0) is not None

    def start_over(self, keep: bool) -> None:
        """Start with an empty copy, to be read from the quorum again. keep: save the old copy under
        another name. Blocks. Raises LogError's kinds, OSError.
        """
        if keep:
            self._log.settle(self._now_ms())
            shutil.copytree(self._folder, free_name(
                f"{self._folder}.{self._log.end_offset}.diverged"))
        for name in os.listdir(self._folder):
            if name.endswith(".checkpoint"):
                os.unlink(os.path.join(self._folder, name))
        self._snapshot, self._epoch = None, 0
        self._begin_at(0)

    def load_snapshot(self) -> bool:
        """Replace a copy that ends before the quorum's snapshot with that snapshot; the log is then
        read from 0. Blocks. Returns False without such a snapshot. Raises QuorumLost, LogError's
        kinds, ValueError.
        """
        found = self._quorum.load_snapshot(self._log.end_offset)
        if found is None:
            return False
        end, epoch, data = found
        self.take_snapshot(data, end, epoch)
        self._epoch = max(self._epoch, epoch)
        return True

    def found_quorum(self, cluster_id: str) -> bool:
        """Make the newest snapshot here the quorum's first state, unless the quorum has one.
        Returns False if it has. Blocks. Raises QuorumLost, Conflict.
        """
        assert self._snapshot is not None and self.snapshot_end == self._log.end_offset, (
            self._snapshot, self._log.end_offset)
        path, end, epoch = self._snapshot
        with open(path, "rb") as file:
            return self._quorum.found(cluster_id, end, epoch, file.read())

    # ---- active ---------------------------------------------------------------------------------

    def begin_term(self, term: Term) -> None:
        """Start appending. The copy must be complete: catch_up() has returned all records below
        term.end. Raises Conflict.
        """
        if self._log.end_offset != term.end:
            raise Conflict(f"the copy ends at {self._log.end_offset}, the log at {term.end}")
        self._term = term
        self._epoch = term.epoch

    def end_term(self) -> None:
        self._term = None

    def elect(self, node_id: int) -> int:
        """Return the epoch that controller_election won."""
        if self._term is None:
            raise Conflict(f"node {node_id} is not the controller")
        return self._term.epoch

    def append(self, new: list, epoch: int, expected_end: int) -> int:
        term = self._term
        if term is None or epoch != term.epoch:
            raise Conflict(f"epoch {epoch} is over")
        if expected_end != self._log.end_offset:
            raise Conflict(f"the log ends at {self._log.end_offset}, not at {expected_end}")
        now_ms = self._now_ms()
        data = batch.build([(None, value, now_ms, ()) for value in self.values_of(new)],
                           base_offset=expected_end, leader_epoch=epoch)
        try:
            self._quorum.append(term, expected_end, len(new), data)
            self._copy(expected_end, data)
        except TooLong:
            raise
        except (LogError, ValueError):
            self._term = None  # a failed append ends the term
            raise
        return expected_end + len(new) - 1

    def snapshot(self, records: list, offset: int, epoch: int) -> None:
        term = self._current_term()
        super().snapshot(records, offset, epoch)
        assert self._snapshot is not None, offset
        with open(self._snapshot[0], "rb") as file:
            self._quorum.save_snapshot(term, offset + 1, epoch, file.read())

    def trim(self, offset: int) -> None:
        term = self._current_term()
        super().trim(offset)
        self._quorum.trim(term, offset)

    def _current_term(self) -> Term:
        """Return the term. Raises Conflict: it may end at any time during a decision."""
        if self._term is None:
            raise Conflict("the term is over")
        return self._term

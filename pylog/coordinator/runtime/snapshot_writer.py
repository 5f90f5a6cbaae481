"""Write the changed state of coordinator state machines to their snapshots.

Owns: the writer threads.
Invariants: the applied offset is written after all rows up to it, and after the log is flushed up
  to it; a snapshot holds only state that is in the log, and no part of an unfinished
  run_in_slices() step; a failed write only makes the next load slower; rows are written once every
  in-sync replica has their records, because a new leader might lack them. The applied offset is
  below the first offset of every open transaction.
Source: none. The log is the source of truth, LMDB is the cache.
"""

import asyncio
import logging
from typing import Any

from pylog import supervisor
from pylog._native.log.log import LogError
from pylog.coordinator.runtime.journal import Journal
from pylog.coordinator.runtime.shard import StateMachine, Shard, Snapshot
from pylog.metadata.image.state_store import StoreError

THREADS = 4
SAVE_ROWS = 2000  # In one LMDB transaction.
CHECKS, CHECK_INTERVAL_S = 100, 0.01  # Replication checks before a save is postponed.

log = logging.getLogger("pylog.coordinator")


class Saver:
    """Writes the snapshots of one coordinator."""

    def __init__(self) -> None:
        self._threads = supervisor.executor("offsets", THREADS)

    async def close(self) -> None:
        """Wait for writes in progress."""
        await asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)

    async def save(self, shard: Shard[Any]) -> None:
        """Update a shard's snapshot. Logs failures instead of raising them."""
        if shard.snapshot is None:
            return
        try:
            async with shard.saving:
                await self._save(shard, shard.snapshot)
        except Exception as error:
            if not isinstance(error, (StoreError, LogError)):
                supervisor.report("coordinator snapshots", "state.lmdb is behind")
            log.error("state.lmdb could not be brought up to date", extra={
                "topic": shard.journal.log.topic, "partition": shard.index, "reason": str(error)})

    async def _save(self, shard: Shard[Any], snapshot: Snapshot[Any]) -> None:
        state_machine, journal = shard.state_machine, shard.journal
        journal.append_now()
        if journal.failed or not shard.ready or not state_machine.changed or shard.halfway:
            return  # The snapshot would hold state that is not in the log.
        assert not state_machine.records, (shard.index, len(state_machine.records))
        changed, state_machine.changed = state_machine.changed, set()
        is_saved = False
        try:
            is_saved = await self._save_changed(shard, snapshot, state_machine, changed)
        finally:
            if not is_saved:
                # Also on cancellation: a later applied offset is wrong without these rows.
                state_machine.changed |= changed

    async def _save_changed(self, shard: Shard[Any], snapshot: Snapshot[Any],
                            state_machine: StateMachine, changed: set[Any]) -> bool:
        """Return True if everything was written."""
        journal = shard.journal
        journal.written = 0
        # Records of open transactions are in no row: a load must replay them from the log.
        offset = journal.log.last_stable_offset - 1
        if journal.log.high_watermark < journal.log.end_offset or offset < 0:
            return False
        applied = offset, journal.log.epoch_of(offset)
        rows: list[Any] = []
        end = journal.log.end_offset  # Covers everything in the next rows.
        for some in snapshot.rows(state_machine, changed):
            rows += some
            if len(rows) >= SAVE_ROWS:
                if not await _is_replicated(journal, end):
                    return False
                await self._write(shard, snapshot, rows, None)
                rows = []
                # The next rows may only hold appended records.
                journal.append_now()
                end = journal.log.end_offset
        if not await _is_replicated(journal, end):
            return False
        await self._write(shard, snapshot, rows, applied)
        state_machine.saved(changed)
        return True

    async def _write(self, shard: Shard[Any], snapshot: Snapshot[Any], rows: list[Any],
                     applied: tuple[int, int] | None) -> None:
        def write() -> None:
            # Flush the log before the snapshot refers to it.
            shard.journal.log.flush()
            snapshot.write(rows, applied)
        done = asyncio.get_running_loop().run_in_executor(self._threads, write)
        try:
            await asyncio.shield(done)
        except asyncio.CancelledError:
            # Wait, so that this write cannot overtake a later one.
            await asyncio.wait([done])
            raise


async def _is_replicated(journal: Journal, end: int) -> bool:
    """Wait briefly and return True if every in-sync replica has the log up to `end`."""
    for _ in range(CHECKS):
        if journal.failed:
            return False
        if journal.log.high_watermark >= end:
            return True
        await asyncio.sleep(CHECK_INTERVAL_S)
    return False

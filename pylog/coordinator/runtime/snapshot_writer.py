"""What changed in a coordinator's machines on its way to their snapshots.

Owns: the threads that write.
Invariants: (1) an applied offset is written after all rows below it, and after the log is on disk
  up to there; (2) a snapshot holds nothing that the log did not take, and no step in pieces by
  half; (3) what goes wrong costs the next load time, and nothing else; (4) rows are written when
  every in-sync replica has what they hold: another leader might never have had it. The applied
  offset is below what open transactions hold.
Source: none; the log is the truth, LMDB is the map.
"""

import asyncio
import logging
from typing import Any

from pylog import supervisor
from pylog._native.log import LogError
from pylog.coordinator.runtime.journal import Journal
from pylog.coordinator.runtime.shard import Machine, Shard, Snapshot
from pylog.metadata.image.state_store import StoreError

THREADS = 4
SAVE_ROWS = 2000       # In one transaction.
LOOKS, LOOK_SECONDS = 100, 0.01    # How often replicas are looked at before a save is left.

log = logging.getLogger("pylog.coordinator")


class Saver:
    """One for a coordinator, between start and close."""

    def __init__(self) -> None:
        self._threads = supervisor.executor("offsets", THREADS)

    async def close(self) -> None:
        """Waits for what is being written."""
        await asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)

    async def save(self, shard: Shard[Any]) -> None:
        """Brings a shard's snapshot up to date. Keeps (3)."""
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
        machine, journal = shard.machine, shard.journal
        journal.append_now()
        if journal.failed or not shard.ready or not machine.changed or shard.halfway:
            return   # Keeps (2).
        assert not machine.records, (shard.index, len(machine.records))
        changed, machine.changed = machine.changed, set()
        is_saved = False
        try:
            is_saved = await self._save_changed(shard, snapshot, machine, changed)
        finally:
            if not is_saved:
                # Also when it is cancelled: without its rows no later applied offset would be true.
                machine.changed |= changed

    async def _save_changed(self, shard: Shard[Any], snapshot: Snapshot[Any], machine: Machine,
                            changed: set[Any]) -> bool:
        """Whether all is written."""
        journal = shard.journal
        journal.written = 0
        # What is open is in no row: a load must find it in the log. Keeps (4).
        offset = journal.log.last_stable_offset - 1
        if journal.log.high_watermark < journal.log.end_offset or offset < 0:
            return False
        applied = offset, journal.log.epoch_of(offset)
        rows: list[Any] = []
        end = journal.log.end_offset     # Of all that the next rows can hold.
        for some in snapshot.rows(machine, changed):
            rows += some
            if len(rows) >= SAVE_ROWS:
                if not await _is_replicated(journal, end):
                    return False
                await self._write(shard, snapshot, rows, None)
                rows = []
                # Keeps (2).
                journal.append_now()
                end = journal.log.end_offset
        if not await _is_replicated(journal, end):
            return False
        await self._write(shard, snapshot, rows, applied)
        machine.saved(changed)
        return True

    async def _write(self, shard: Shard[Any], snapshot: Snapshot[Any], rows: list[Any],
                     applied: tuple[int, int] | None) -> None:
        def write() -> None:
            # Keeps (1).
            shard.journal.log.flush()
            snapshot.write(rows, applied)
        done = asyncio.get_running_loop().run_in_executor(self._threads, write)
        try:
            await asyncio.shield(done)
        except asyncio.CancelledError:
            # What is written next must not be overtaken by this.
            await asyncio.wait([done])
            raise


async def _is_replicated(journal: Journal, end: int) -> bool:
    """Whether every in-sync replica has the log up to `end`, now or soon. Keeps (2) and (4)."""
    for _ in range(LOOKS):
        if journal.failed:
            return False
        if journal.log.high_watermark >= end:
            return True
        await asyncio.sleep(LOOK_SECONDS)
    return False

"""What every decision of the controller needs: its turn, the newest image, and the log's end.

Owns: the right to append, the order of decisions.
Invariants: (1) one decision at a time, also one that is made in slices, each on the image that
  holds all records before it; (2) a record counts only after the log has it; (3) who is no
  controller decides nothing, and says so; (4) what no image could follow is never in the log: it
  would end every broker, at every start.
Source: KIP-631 (Kafka's QuorumController).
"""

import asyncio
import logging

from pylog._native.log import LogError
from pylog.eventloop.slices import in_slices
from pylog.eventloop.threads import in_thread, whole
from pylog.metadata.controller.partitions.partition_change import RECOVERING
from pylog.metadata.image import snapshot
from pylog.metadata.image.image import Delta, Image, apply
from pylog.metadata.log.metadata_log import MetadataBatch, NotController
from pylog.protocol import messages

TYPE_CHECKING = False  # The real one costs the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

RECORDS_PER_APPEND_MAX = 10_000
_BELONG_TO_THE_ONE_BEFORE = frozenset(("PartitionRecord", "ConfigRecord"))

log = logging.getLogger("pylog.metadata")


class _Turn:
    """A decision's turn, for `async with`. Keeps (1) and (3)."""

    def __init__(self):
        self.is_in_office = False
        self._lock = asyncio.Lock()

    def locked(self) -> bool:
        return self._lock.locked()

    async def __aenter__(self) -> None:
        await self._lock.acquire()
        if not self.is_in_office:
            self._lock.release()
            raise NotController()

    async def __aexit__(self, *_) -> None:
        self._lock.release()

    async def ended(self) -> None:
        """Returns once nobody has the turn."""
        async with self._lock:
            pass


class Decider:
    """metadata_log: where it appends; tail: what it decides on."""

    def __init__(self, metadata_log, tail, settings, random, node_id: int):
        self._log = metadata_log
        self._tail = tail
        self._settings = settings
        self._random = random
        self._node_id = node_id
        self._epoch = -1
        self._deciding = _Turn()
        self._try_offset = 0         # before which no snapshot is tried again
        self._grown: asyncio.Event | None = None
        self.append_failed = asyncio.Event()
        self.elections = {"clean": 0, "unclean": 0}      # Leaders; for any thread.

    @property
    def _image(self) -> Image:
        return self._tail.newest

    @property
    def log(self):
        """Where it appends."""
        return self._log

    @property
    def epoch(self) -> int:
        """The epoch of this office, -1 before it."""
        return self._epoch

    @property
    def is_active(self) -> bool:
        """Whether this node decides."""
        return self._deciding.is_in_office

    def _take_office(self, epoch: int) -> None:
        self._epoch = epoch
        self._deciding.is_in_office = True

    def resign(self) -> None:
        """Another is the controller: whatever is still to be decided is refused. Keeps (3)."""
        self._deciding.is_in_office = False
        self._wake()

    async def resigned(self) -> None:
        """After resign(): returns once no decision is under way any more."""
        assert not self.is_active, self._epoch
        await self._deciding.ended()

    # ---- decisions ------------------------------------------------------------------------------

    async def _decided(self, steps: "Callable[[], Any]") -> tuple:
        """A decision in its turn. steps: makes the generator that returns (records, result), or
        raises Refusal. Returns (result, the offset after which it is in force). Raises LogError's
        kinds, NotController."""
        async with self._deciding:
            return await self._decided_in_turn(steps)

    async def _decided_in_turn(self, steps: "Callable[[], Any]") -> tuple:
        """_decided() of who has the turn."""
        records, result = await in_slices(steps())
        return result, await self._commit(records)

    async def _caught_up(self) -> None:
        """The image is in force here. With the turn: effects wait for no decision."""
        await self._tail.wait(self._image.offset)

    async def _tried(self, records: list) -> LogError | None:
        """Commits; returns the error that kept some or all records out of the log."""
        try:
            await self._commit(records)
        except LogError as error:
            log.error("metadata could not be appended", extra={"reason": str(error)})
            return error
        return None

    # ---- the log --------------------------------------------------------------------------------

    async def committed_beyond(self, offset: int, seconds: float) -> None:
        """Returns once a record stands at `offset`, this office ends, or the time is over."""
        until = asyncio.get_running_loop().time() + seconds
        while self._image.offset < offset and self.is_active:
            left = until - asyncio.get_running_loop().time()
            if self._grown is None:
                self._grown = asyncio.Event()
            try:
                await asyncio.wait_for(self._grown.wait(), left)
            except TimeoutError:
                return

    def _wake(self) -> None:
        if self._grown is not None:
            self._grown.set()
            self._grown = None

    async def _commit(self, records: list) -> int:
        """Makes records part of the log (2). Returns the offset to wait for."""
        assert self._deciding.locked()       # Keeps (1).
        for part in _parts(records):
            # Not cancelled halfway: records in the log must be in the tail.
            await whole(self._append(part))
        # Amid a transaction the image lacks records that the snapshot would stand for.
        if not self._tail.in_transaction and self._image.offset >= self._try_offset \
                and self._log.snapshot_is_due(self._image.offset):
            await in_thread(self._take_snapshot)
        return self._image.offset

    def _commit_now(self, records: list) -> None:
        """_commit() of a start; blocks."""
        for part in _parts(records):
            self._tail.push(self._appended(part))

    async def _append(self, records: list) -> None:
        try:
            delta = await in_thread(self._appended, records)
        except (LogError, ValueError):
            self.append_failed.set()
            raise
        self._tail.push(delta)
        self._wake()

    def _appended(self, records: list) -> Delta:
        self._log.metadata_version = self._image.features.get(
            "metadata.version", snapshot.NEWEST_VERSION)
        end_offset = self._image.offset + len(records)
        # Keeps (4).
        delta = self._tail.fold(MetadataBatch(end_offset, self._epoch, records))
        last_offset = self._log.append(records, self._epoch, self._image.offset + 1)
        assert last_offset == end_offset, (last_offset, end_offset)
        self._count_elections(records)
        return delta

    def _count_elections(self, records: list) -> None:
        for record in records:
            if type(record) is messages.PartitionChangeRecord and record.leader >= 0:
                self.elections["unclean" if record.leader_recovery_state == RECOVERING
                               else "clean"] += 1

    def _take_snapshot(self) -> None:
        image = self._image
        try:
            self._log.snapshot(snapshot.records_of(image), image.offset, image.epoch)
            self._log.trim(image.offset + 1)
        except (LogError, OSError) as error:
            # Its records are in the log: their requests are answered.
            self._try_offset = image.offset + self._log.records_between_snapshots
            log.error("a snapshot could not be written", extra={"reason": str(error)})


def after(image: Image, records: list) -> Image:
    """The image as it will be once the records are appended."""
    return apply(image, records, image.offset + len(records), image.epoch) if records else image


def _parts(records: list):
    """Records in stretches that are appended whole: a topic never without all of its partitions."""
    first = 0
    while first < len(records):
        end = min(first + RECORDS_PER_APPEND_MAX, len(records))
        while end < len(records) and type(records[end]).__name__ in _BELONG_TO_THE_ONE_BEFORE:
            end += 1
        yield records[first:end]
        first = end

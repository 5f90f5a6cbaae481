"""Shared by all decisions of the controller: their order, the newest image, the log's end.

Owns: the right to append, the order of decisions.
Invariants: one decision runs at a time, including one in slices, on an image with all records
  before it; a record counts only once it is in the log; a node that is not the controller rejects
  every decision with NOT_CONTROLLER; a record that images cannot apply never reaches the log,
  because it would end every broker at every start.
Source: KIP-631 (Kafka's QuorumController).
"""

import asyncio
import logging

from pylog._native.log.log import LogError
from pylog.eventloop.slices import in_slices
from pylog.eventloop.threads import in_thread, whole
from pylog.metadata.controller.partitions.partition_change import RECOVERING
from pylog.metadata.image import snapshot
from pylog.metadata.image.image import Delta, Image, apply
from pylog.metadata.log.metadata_log import MetadataBatch, NotController
from pylog.protocol import messages

TYPE_CHECKING = False  # typing.TYPE_CHECKING would cost the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

RECORDS_PER_APPEND_MAX = 10_000
_BELONG_TO_THE_ONE_BEFORE = frozenset(("PartitionRecord", "ConfigRecord"))

log = logging.getLogger("pylog.metadata")


class _Turn:
    """A decision's turn, for `async with`. Raises NotController if this node does not decide."""

    def __init__(self):
        self.is_active = False
        self._lock = asyncio.Lock()

    def locked(self) -> bool:
        return self._lock.locked()

    async def __aenter__(self) -> None:
        await self._lock.acquire()
        if not self.is_active:
            self._lock.release()
            raise NotController()

    async def __aexit__(self, *_) -> None:
        self._lock.release()

    async def ended(self) -> None:
        """Return once no decision has the turn."""
        async with self._lock:
            pass


class Decider:
    """metadata_log: receives appends; tail: has the image for decisions."""

    def __init__(self, metadata_log, tail, settings, random, node_id: int):
        self._log = metadata_log
        self._tail = tail
        self._settings = settings
        self._random = random
        self._node_id = node_id
        self._epoch = -1
        self._deciding = _Turn()
        self._try_offset = 0  # no snapshot is attempted before this offset
        self._grown: asyncio.Event | None = None
        self.append_failed = asyncio.Event()
        self.elections = {"clean": 0, "unclean": 0}  # leader elections; read by any thread

    @property
    def _image(self) -> Image:
        return self._tail.newest

    @property
    def log(self):
        """Return the metadata log."""
        return self._log

    @property
    def epoch(self) -> int:
        """Return this controller's epoch, -1 before it is elected."""
        return self._epoch

    @property
    def is_active(self) -> bool:
        """Return True if this node is the active controller."""
        return self._deciding.is_active

    def _begin_term(self, epoch: int) -> None:
        self._epoch = epoch
        self._deciding.is_active = True

    def resign(self) -> None:
        """Stop deciding: another node is the controller. Rejects all queued decisions."""
        self._deciding.is_active = False
        self._wake()

    async def resigned(self) -> None:
        """Return once no decision is running; call after resign()."""
        assert not self.is_active, self._epoch
        await self._deciding.ended()

    # ---- decisions ------------------------------------------------------------------------------

    async def _decided(self, steps: "Callable[[], Any]") -> tuple:
        """Run a decision in its turn. steps: creates the generator that returns (records, result)
        or raises Refusal. Returns (result, the offset after which it is in force). Raises
        LogError's kinds, NotController.
        """
        async with self._deciding:
            return await self._decided_in_turn(steps)

    async def _decided_in_turn(self, steps: "Callable[[], Any]") -> tuple:
        """Run a decision while the caller has the turn."""
        records, result = await in_slices(steps())
        return result, await self._commit(records)

    async def _caught_up(self) -> None:
        """Wait until the newest image is in force here, with the turn held. Effects never wait for
        decisions.
        """
        await self._tail.wait(self._image.offset)

    async def _tried(self, records: list) -> LogError | None:
        """Commit; return the error if some or all records did not reach the log."""
        try:
            await self._commit(records)
        except LogError as error:
            log.error("metadata could not be appended", extra={"reason": str(error)})
            return error
        return None

    # ---- the log --------------------------------------------------------------------------------

    async def committed_beyond(self, offset: int, seconds: float) -> None:
        """Return once a record has `offset`, this controller resigned, or the time is over."""
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
        """Append records to the log and the tail. Returns the offset to wait for."""
        assert self._deciding.locked()  # one decision at a time
        for part in _parts(records):
            # Shielded from cancellation: records in the log must reach the tail.
            await whole(self._append(part))
        # Inside a transaction the image lacks records that the snapshot would cover.
        if not self._tail.in_transaction and self._image.offset >= self._try_offset \
                and self._log.snapshot_is_due(self._image.offset):
            await in_thread(self._take_snapshot)
        return self._image.offset

    def _commit_now(self, records: list) -> None:
        """Commit during a start. Blocks."""
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
        # Fold first: a record that images cannot apply must not reach the log.
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
            # A failed snapshot does not fail the requests: their records are in the log.
            self._try_offset = image.offset + self._log.records_between_snapshots
            log.error("a snapshot could not be written", extra={"reason": str(error)})


def after(image: Image, records: list) -> Image:
    """Return the image as it will be after the records are appended."""
    return apply(image, records, image.offset + len(records), image.epoch) if records else image


def _parts(records: list):
    """Yield groups of records to append together: a topic always with all of its partitions."""
    first = 0
    while first < len(records):
        end = min(first + RECORDS_PER_APPEND_MAX, len(records))
        while end < len(records) and type(records[end]).__name__ in _BELONG_TO_THE_ONE_BEFORE:
            end += 1
        yield records[first:end]
        first = end

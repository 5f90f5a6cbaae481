"""The end of the metadata log on this broker: the committed image and the published image.

Owns: the newest image, the published one, and the deltas between them.
Invariants: deltas are published once, in log order; `published` was `newest` before and never goes
  back; wait(offset) returns after all effects of the records up to `offset`, from any writer;
  records of a transaction count at its end, even if they arrive in several reads (KIP-868); a
  record that cannot be applied changes nothing.
Source: KIP-500 (brokers follow a metadata log), Kafka's MetadataLoader and MetadataPublisher.
"""

import asyncio
from collections import deque
from heapq import heappop, heappush
from itertools import count

from pylog.metadata.image.feature_levels import level_fault
from pylog.metadata.image.image import Delta, Image, MetadataError, advance, apply, difference


class Tail:
    """newest: the image of all committed records. published: the image in force here.
    published_in_transaction: `published` lacks the records of an open transaction.
    """

    def __init__(self, image: Image):
        self.newest = image
        self.published = image
        self._held: list | None = None  # records of an open transaction
        self._folded: tuple = (None, None)  # the last delta, and the records held after it
        self._amid: set[int] = set()  # unpublished offsets inside a transaction
        self.published_in_transaction = False
        self._deltas: deque = deque()
        self._applied = image.offset
        self._waiters: list = []  # heap of (offset, number, future)
        self._numbers = count()
        # The publisher's future while no delta is available.
        self._grown: asyncio.Future | None = None

    @property
    def in_transaction(self) -> bool:
        """Return True if the log ends inside a transaction. Its records are void unless it ends."""
        return self._held is not None

    def fold(self, batch) -> Delta:
        """Return the Delta of a MetadataBatch after `newest`, for push().

        Runs on any thread, one call at a time. Raises MetadataError.
        """
        # Kafka's tool formats a directory with a snapshot that ends before the log's first offset.
        assert batch.last_offset > self.newest.offset or batch.last_offset == -1, (
            batch.last_offset, self.newest.offset)
        records, held = self._ended(batch.records)
        delta = advance(self.newest, records, batch.last_offset, batch.epoch)
        self._folded = delta, held
        return delta

    def replace(self, batch) -> None:
        """Replace `newest` with a complete snapshot."""
        after = apply(Image(), batch.records, batch.last_offset, batch.epoch)
        delta = difference(self.newest, after)
        self._folded = delta, None
        self.push(delta)

    def push(self, delta: Delta) -> None:
        """Add a delta of committed records; the publisher applies deltas in log order."""
        assert delta.before is self.newest, (delta.before.offset, self.newest.offset)
        self._follow(delta)
        self._deltas.append(delta)
        if self.in_transaction:
            self._amid.add(delta.after.offset)
        if self._grown is not None and not self._grown.done():
            self._grown.set_result(None)

    def replay(self, batches) -> None:
        """Read a log to its end, before anything here has effects. Raises MetadataError, also for
        feature levels that this version does not support.
        """
        assert self.published is self.newest and not self._deltas, self.newest.offset
        for batch in batches:
            self._follow(self.fold(batch))
        # Checked at the end, because a later record may have lowered a level. While brokerd runs,
        # controllers finalize only what all brokers support.
        fault = level_fault(self.newest.features)
        if fault is not None:
            raise MetadataError(fault)
        self.begin()

    def _follow(self, delta: Delta) -> None:
        """Make the delta's image the newest. Until then, fold() has no effect."""
        folded, held = self._folded
        assert folded is delta, delta.after.offset
        self.newest, self._held = delta.after, held

    def begin(self) -> None:
        """Mark the newest image as published: the start has applied everything up to it."""
        self._deltas.clear()
        self._amid.clear()
        self.published = self.newest
        self.published_in_transaction = self.in_transaction
        self.applied(self.newest.offset)

    def _ended(self, records) -> tuple:
        """Return (records that count now, records of a still open transaction)."""
        if self._held is None and not any(type(record).__name__ in _FRAMES for record in records):
            return records, None
        ended: list = []
        held = None if self._held is None else list(self._held)
        for record in records:
            kind = type(record).__name__
            if kind == "BeginTransactionRecord":
                held = []
            elif kind == "EndTransactionRecord":
                ended += held or ()
                held = None
            elif kind == "AbortTransactionRecord":
                held = None
            else:
                (ended if held is None else held).append(record)
        return ended, held

    # ---- the publisher's side -------------------------------------------------------------------

    async def grown(self) -> None:
        """Return once a delta is available."""
        while not self._deltas:
            grown = self._grown = asyncio.get_running_loop().create_future()
            await grown

    def take(self) -> Delta | None:
        """Return the next delta, whose image becomes the published one; None if there is none."""
        if not self._deltas:
            return None
        delta = self._deltas.popleft()
        # Deltas are published in order, without gaps.
        assert delta.before is self.published, (delta.before.offset, self.published.offset)
        self.published = delta.after
        self.published_in_transaction = delta.after.offset in self._amid
        self._amid.discard(delta.after.offset)
        return delta

    def applied(self, offset: int) -> None:
        """Release waiters: all records up to `offset` took effect."""
        assert self._applied <= offset <= self.published.offset, (
            self._applied, offset, self.published.offset)
        self._applied = offset
        while self._waiters and self._waiters[0][0] <= offset:
            _, _, waiter = heappop(self._waiters)
            if not waiter.done():
                waiter.set_result(None)

    # ---- waiters --------------------------------------------------------------------------------

    async def wait(self, offset: int) -> None:
        """Return once the records up to `offset` took effect here."""
        if offset > self._applied:
            waiter = asyncio.get_running_loop().create_future()
            heappush(self._waiters, (offset, next(self._numbers), waiter))
            await waiter


_FRAMES = frozenset(("BeginTransactionRecord", "EndTransactionRecord", "AbortTransactionRecord"))

"""The end of the metadata log as this broker knows it: what is committed, and what is in force.

Owns: the newest image, the published one, and the deltas between the two.
Invariants: (1) deltas leave in the order of the log, each once; (2) `published` is an image that
  was `newest` before, and never goes back; (3) wait(offset) returns after every effect of the
  records up to `offset`, whoever wrote them; (4) records between a begin and an end count at the
  end, also when they come in different reads (KIP-868); (5) what cannot be followed changes
  nothing.
Source: KIP-500 (brokers follow a metadata log), Kafka's MetadataLoader and MetadataPublisher.
"""

import asyncio
from collections import deque
from heapq import heappop, heappush
from itertools import count

from pylog.metadata.image.image import Delta, Image, advance, apply, difference


class Tail:
    """newest: the image of all records that are committed. published: the one in force here.
    published_in_transaction: that one lacks the records of a transaction that has begun."""

    def __init__(self, image: Image):
        self.newest = image
        self.published = image
        self._held: list | None = None   # Records of an open transaction (4).
        self._folded: tuple = (None, None)   # The last delta, and what is held after it.
        self._amid: set[int] = set()     # Offsets of images amid one that are not published yet.
        self.published_in_transaction = False
        self._deltas: deque = deque()
        self._applied = image.offset
        self._waiters: list = []   # A heap of (offset, number, future).
        self._numbers = count()
        # The publisher's future while there is nothing to take.
        self._grown: asyncio.Future | None = None

    @property
    def in_transaction(self) -> bool:
        """Whether the log ends amid a transaction, whose records are void unless it ends."""
        return self._held is not None

    def fold(self, batch) -> Delta:
        """What a MetadataBatch that follows `newest` changes; push() takes it.

        On any thread, one at a time. Raises MetadataError.
        """
        assert batch.last_offset > self.newest.offset, (batch.last_offset, self.newest.offset)
        records, held = self._ended(batch.records)
        delta = advance(self.newest, records, batch.last_offset, batch.epoch)
        self._folded = delta, held
        return delta

    def replace(self, batch) -> None:
        """A snapshot, whose records are all there is, takes the place of `newest`."""
        after = apply(Image(), batch.records, batch.last_offset, batch.epoch)
        delta = difference(self.newest, after)
        self._folded = delta, None
        self.push(delta)

    def push(self, delta: Delta) -> None:
        """The delta's records are committed; its effects follow (1)."""
        assert delta.before is self.newest, (delta.before.offset, self.newest.offset)
        self._follow(delta)
        self._deltas.append(delta)
        if self.in_transaction:
            self._amid.add(delta.after.offset)
        if self._grown is not None and not self._grown.done():
            self._grown.set_result(None)

    def replay(self, batches) -> None:
        """Follows a log up to its end, before anything here has effects. Raises MetadataError."""
        assert self.published is self.newest and not self._deltas, self.newest.offset
        for batch in batches:
            self._follow(self.fold(batch))
        self.begin()

    def _follow(self, delta: Delta) -> None:
        """Only now is the delta so. Keeps (5)."""
        folded, held = self._folded
        assert folded is delta, delta.after.offset
        self.newest, self._held = delta.after, held

    def begin(self) -> None:
        """A start has put everything into force that the records say up to now."""
        self._deltas.clear()
        self._amid.clear()
        self.published = self.newest
        self.published_in_transaction = self.in_transaction
        self.applied(self.newest.offset)

    def _ended(self, records) -> tuple:
        """(the records that count now, those of a transaction that is open then). Keeps (4)."""
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
        """Returns once there is a delta to take."""
        while not self._deltas:
            grown = self._grown = asyncio.get_running_loop().create_future()
            await grown

    def take(self) -> Delta | None:
        """The next delta, whose image is the published one from now on; None when there is none."""
        if not self._deltas:
            return None
        delta = self._deltas.popleft()
        # Keeps (2).
        assert delta.before is self.published, (delta.before.offset, self.published.offset)
        self.published = delta.after
        self.published_in_transaction = delta.after.offset in self._amid
        self._amid.discard(delta.after.offset)
        return delta

    def applied(self, offset: int) -> None:
        """Every effect of the records up to `offset` has happened. Keeps (3)."""
        assert self._applied <= offset <= self.published.offset, (
            self._applied, offset, self.published.offset)
        self._applied = offset
        while self._waiters and self._waiters[0][0] <= offset:
            _, _, waiter = heappop(self._waiters)
            if not waiter.done():
                waiter.set_result(None)

    # ---- who waits ------------------------------------------------------------------------------

    async def wait(self, offset: int) -> None:
        """Returns once the records up to `offset` have had their effects here (3)."""
        if offset > self._applied:
            waiter = asyncio.get_running_loop().create_future()
            heappush(self._waiters, (offset, next(self._numbers), waiter))
            await waiter


_FRAMES = frozenset(("BeginTransactionRecord", "EndTransactionRecord", "AbortTransactionRecord"))

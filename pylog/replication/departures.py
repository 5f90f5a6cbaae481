"""Brokers that may have failed or just left, and how Metadata responses describe them until then.

Owns: nothing outside itself.
Invariants: a response is delayed for at most HOLD_S after a lost connection, and further losses of
  the same broker within that time cause no new delay; this module never changes decisions, only
  when clients see them.
A client that loses its connection to a leader immediately requests Metadata from another broker,
before the controller can have decided. If it gets the old leader again, it retries only by its own
timers (librdkafka after a second). A failed broker also stays in the list of brokers for a while:
if the response that moves a partition omits its previous broker, librdkafka holds back the
partition's records for another second.
"""

from __future__ import annotations

import asyncio

TYPE_CHECKING = False  # typing.TYPE_CHECKING would cost the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Callable

    from pylog.metadata.image.image import Image

HOLD_S = 1.0
LISTED_S = 3.0


class Departures:
    """now_s: a monotonic clock. look: makes the fetchers report ended connections now."""

    def __init__(self, now_s: Callable[[], float], refresh: Callable[[], None] = lambda: None):
        self._now_s = now_s
        self.refresh = refresh
        self._active: frozenset[int] = frozenset()
        self._lost: dict[int, float] = {}  # broker id: time of its last counted loss
        self._suspected: set[int] = set()
        self._left: dict[int, float] = {}  # broker id: time of its fencing
        self._changed = asyncio.Event()

    def lost(self, broker_id: int) -> None:
        """Note that the connection to a leader ended unexpectedly. Repeated losses add no delay."""
        now = self._now_s()
        if broker_id in self._active and now - self._lost.get(broker_id, -HOLD_S) >= HOLD_S:
            self._lost[broker_id] = now
            self._suspected.add(broker_id)

    def back(self, broker_id: int) -> None:
        """Note that there is a connection again."""
        self._settle({broker_id})

    def take_brokers(self, image: Image) -> None:
        """Apply the controller's decision."""
        active = frozenset(id_ for id_ in image.brokers if image.broker_is_active(id_))
        now = self._now_s()
        for id_ in self._active - active:
            broker = image.brokers.get(id_)
            # A broker in controlled shutdown has already handed over its leadership.
            if broker is not None and not broker.in_controlled_shutdown:
                self._left[id_] = now
        for id_ in active:
            self._left.pop(id_, None)
        gone, self._active = self._active - active, active
        self._settle(gone)

    def _settle(self, broker_ids: set[int] | frozenset[int]) -> None:
        if self._suspected & broker_ids:
            self._suspected -= broker_ids
            self._changed.set()  # Wakes the current waiters.
            self._changed.clear()

    @property
    def any(self) -> bool:
        """Return True if responses will differ in a moment."""
        return bool(self.suspects) or self._any_left()

    @property
    def suspects(self) -> set[int]:
        """Return the brokers that the controller may be about to fence."""
        self.refresh()
        self._held_s()
        return self._suspected

    def _held_s(self) -> float:
        if not self._suspected:
            return 0
        now = self._now_s()
        self._suspected = {id_ for id_ in self._suspected if now - self._lost[id_] < HOLD_S}
        return max((self._lost[id_] + HOLD_S - now for id_ in self._suspected), default=0)

    def _any_left(self) -> bool:
        if not self._left:
            return False
        now = self._now_s()
        self._left = {id_: at for id_, at in self._left.items() if now - at < LISTED_S}
        return bool(self._left)

    def is_listed(self, broker_id: int) -> bool:
        """Return True if Metadata still lists a fenced broker."""
        return self._now_s() - self._left.get(broker_id, -LISTED_S) < LISTED_S

    async def settled(self) -> None:
        """Return once the state of all suspects is decided, or HOLD_S is over."""
        while (held_s := self._held_s()) > 0:
            try:
                await asyncio.wait_for(self._changed.wait(), held_s)
            except TimeoutError:
                return

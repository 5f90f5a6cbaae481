"""Brokers that may have died, or have just left: what clients are told of them meanwhile.

Owns: nothing outside itself.
Invariants: (1) an answer is held back for HOLD_S at most after a loss, and losses of one broker
  that come faster than that hold nothing back again; (2) what is said here changes no decision,
  only when clients hear of it.
A client that loses its connection to a leader asks another broker for Metadata at once, sooner than
the controller can have decided; one that is told the old leader again asks anew when its own timers
say so (librdkafka after a second). Nor is a broker that died left out of the list of brokers at
once: librdkafka gives up a partition's records to nobody, for another second, when the answer that
moves them leaves out the broker that has them.
"""

from __future__ import annotations

import asyncio

TYPE_CHECKING = False  # The real one costs the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Callable

    from pylog.metadata.image.image import Image

HOLD_S = 1.0
LISTED_S = 3.0


class Departures:
    """now_s: a monotonic clock. look: lets those who see connections end say so now."""

    def __init__(self, now_s: Callable[[], float], look: Callable[[], None] = lambda: None):
        self._now_s = now_s
        self.look = look
        self._active: frozenset[int] = frozenset()
        self._lost: dict[int, float] = {}       # Broker: its last loss that counts.
        self._suspected: set[int] = set()
        self._left: dict[int, float] = {}       # Broker: when it was fenced.
        self._changed = asyncio.Event()

    def lost(self, broker_id: int) -> None:
        """The connection to a leader has ended without our doing. Keeps (1)."""
        now = self._now_s()
        if broker_id in self._active and now - self._lost.get(broker_id, -HOLD_S) >= HOLD_S:
            self._lost[broker_id] = now
            self._suspected.add(broker_id)

    def back(self, broker_id: int) -> None:
        """There is a connection again."""
        self._settle({broker_id})

    def take_brokers(self, image: Image) -> None:
        """What the controller has decided."""
        active = frozenset(id_ for id_ in image.brokers if image.broker_is_active(id_))
        now = self._now_s()
        for id_ in self._active - active:
            broker = image.brokers.get(id_)
            # One that says good-bye has handed over what it led before.
            if broker is not None and not broker.in_controlled_shutdown:
                self._left[id_] = now
        for id_ in active:
            self._left.pop(id_, None)
        gone, self._active = self._active - active, active
        self._settle(gone)

    def _settle(self, broker_ids: set[int] | frozenset[int]) -> None:
        if self._suspected & broker_ids:
            self._suspected -= broker_ids
            self._changed.set()      # Wakes those who wait now.
            self._changed.clear()

    @property
    def any(self) -> bool:
        """Whether answers now are other ones than in a moment."""
        return bool(self.suspects) or self._any_left()

    @property
    def suspects(self) -> set[int]:
        """Of which brokers the controller may be about to decide that they are gone."""
        self.look()
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
        """Whether a broker that is fenced is named to clients all the same."""
        return self._now_s() - self._left.get(broker_id, -LISTED_S) < LISTED_S

    async def settled(self) -> None:
        """Returns when it is known of those suspected, or was to be. Keeps (1)."""
        while (held_s := self._held_s()) > 0:
            try:
                await asyncio.wait_for(self._changed.wait(), held_s)
            except TimeoutError:
                return

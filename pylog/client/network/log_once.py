"""What a client says in the log: one line for each cause, with the broker and the reason.

Owns: the causes that were told of late.
Invariants: (1) a cause is told again no sooner than AGAIN_S, with how often it was there meanwhile;
  (2) at most CAUSES_MAX causes are remembered; (3) no password or token stands in a line.
Source: Python's logging; what is a warning in Kafka's Java client.
"""

from __future__ import annotations

import collections
import logging
import time
from collections.abc import Hashable

AGAIN_S = 60.0
CAUSES_MAX = 256
STAYS_S = 2.0
_LOG = logging.getLogger("pylog.client")


class Notices:
    """Of one client object. who: its role and client.id."""

    def __init__(self, who: str):
        self.who = who
        # Cause: [when it was told, how often it was there since]; the oldest first.
        self._told: collections.OrderedDict[Hashable, list[float]] = collections.OrderedDict()
        self._since: collections.OrderedDict[Hashable, float] = collections.OrderedDict()

    def warn(self, cause: Hashable, text: str, *given: object) -> None:
        """Something is wrong that may pass."""
        self._tell(logging.WARNING, cause, text, given)

    def warn_if_it_stays(self, cause: Hashable, text: str, *given: object) -> None:
        """The same of what is usual for a moment: a topic that is just being made."""
        now_s = time.monotonic()
        if now_s - self._since.setdefault(cause, now_s) >= STAYS_S:
            self.warn(cause, text, *given)
        elif len(self._since) > CAUSES_MAX:
            self._since.popitem(last=False)  # Keeps (2).

    def fail(self, cause: Hashable, text: str, *given: object) -> None:
        """Something is wrong that will not pass by itself."""
        self._tell(logging.ERROR, cause, text, given)

    def over(self, cause: Hashable, text: str, *given: object) -> None:
        """What was told of has ended; nothing is said where nothing was."""
        self._since.pop(cause, None)
        if self._told.pop(cause, None) is not None:
            _LOG.warning(f"%s: {text}", self.who, *given)

    def inform(self, text: str, *given: object) -> None:
        """What a reader of the log wants to know, and that is not wrong."""
        _LOG.info(f"%s: {text}", self.who, *given)

    def _tell(self, level: int, cause: Hashable, text: str, given: tuple[object, ...]) -> None:
        now_s = time.monotonic()
        row = self._told.get(cause)
        if row is not None and now_s - row[0] < AGAIN_S:
            row[1] += 1
            return
        more = f" ({row[1]:.0f} times more in the last {now_s - row[0]:.0f} s)" \
            if row is not None and row[1] else ""
        self._told[cause] = [now_s, 0]
        self._told.move_to_end(cause)
        if len(self._told) > CAUSES_MAX:
            self._told.popitem(last=False)  # Keeps (2).
        _LOG.log(level, f"%s: {text}%s", self.who, *given, more)

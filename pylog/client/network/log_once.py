"""Log each cause of a client's problems once, with the broker and the reason.

Owns: the recently logged causes.
Invariants: a cause is logged again only after AGAIN_S, with the number of occurrences; at most
  CAUSES_MAX causes are remembered; no line contains a password or token.
Source: Python's logging; the warnings of Kafka's Java client.
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
    """The log of one client object. owner: its role and client.id."""

    def __init__(self, owner: str):
        self.owner = owner
        # Cause: [time of its last log line, occurrences since]; oldest first.
        self._logged: collections.OrderedDict[Hashable, list[float]] = collections.OrderedDict()
        self._since: collections.OrderedDict[Hashable, float] = collections.OrderedDict()

    def warn(self, cause: Hashable, text: str, *given: object) -> None:
        """Log a problem that may be temporary."""
        self._log_limited(logging.WARNING, cause, text, given)

    def warn_if_it_stays(self, cause: Hashable, text: str, *given: object) -> None:
        """Log a problem only if it persists, for states that are normal briefly, such as a new
        topic.
        """
        now_s = time.monotonic()
        if now_s - self._since.setdefault(cause, now_s) >= STAYS_S:
            self.warn(cause, text, *given)
        elif len(self._since) > CAUSES_MAX:
            self._since.popitem(last=False)  # Keeps at most CAUSES_MAX causes.

    def fail(self, cause: Hashable, text: str, *given: object) -> None:
        """Log a problem that will not resolve itself."""
        self._log_limited(logging.ERROR, cause, text, given)

    def over(self, cause: Hashable, text: str, *given: object) -> None:
        """Log that a problem has ended, if it was logged."""
        self._since.pop(cause, None)
        if self._logged.pop(cause, None) is not None:
            _LOG.warning(f"%s: {text}", self.owner, *given)

    def inform(self, text: str, *given: object) -> None:
        """Log information that is not a problem."""
        _LOG.info(f"%s: {text}", self.owner, *given)

    def _log_limited(self, level: int, cause: Hashable, text: str, given: tuple[object, ...]
                     ) -> None:
        now_s = time.monotonic()
        row = self._logged.get(cause)
        if row is not None and now_s - row[0] < AGAIN_S:
            row[1] += 1
            return
        more = f" ({row[1]:.0f} times more in the last {now_s - row[0]:.0f} s)" \
            if row is not None and row[1] else ""
        self._logged[cause] = [now_s, 0]
        self._logged.move_to_end(cause)
        if len(self._logged) > CAUSES_MAX:
            self._logged.popitem(last=False)  # Keeps at most CAUSES_MAX causes.
        _LOG.log(level, f"%s: {text}%s", self.owner, *given, more)

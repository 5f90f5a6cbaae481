"""Fault injection: network and disk.

Owns: nothing.
Invariants: a fault lasts until its end(), clear(), or the end of the test. A log that failed stays
  failed until a restart, as with a real disk; a broker that had faults is not reused for other
  tests.
"""

from __future__ import annotations

from typing import Any

from pylog.protocol.errors import ErrorCode
from pylog.testing import relay
from pylog.testing.errors import BrokerFailed


class Fault:
    """An active fault; leaving the `with` block ends it."""

    def __init__(self, broker: Any, end: tuple, hits: tuple | None = None):
        self._broker, self._end, self._hits = broker, end, hits

    @property
    def hits(self) -> int:
        """Return how many requests, responses or connections it affected; 0 for disk faults."""
        return 0 if self._hits is None else self._broker.call(*self._hits)

    def end(self) -> None:
        if self._broker.running:
            self._broker.call(*self._end)

    def __enter__(self) -> Fault:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()


class Faults:
    """The faults of a broker.

    Network faults use a relay on the broker's port. The first one closes open connections after
    their requests are answered; clients then reconnect.
    """

    def __init__(self, broker: Any):
        self._broker = broker

    # ---- the network ----------------------------------------------------------------------------

    def delay(self, ms: int, api: str | int | None = None, count: int | None = None) -> Fault:
        """Delay responses by `ms`.

        api: only of this API, by name ("Produce", "Fetch") or key. count: number of responses.
        """
        return self._rule(relay.DELAY, api, ms, count)

    def lose_answers(self, api: str | int | None = None, count: int | None = 1) -> Fault:
        """Process requests, but close the connection instead of responding."""
        return self._rule(relay.LOSE_ANSWERS, api, 0, count)

    def lose_requests(self, api: str | int | None = None, count: int | None = 1) -> Fault:
        """Close the connection instead of processing the request."""
        return self._rule(relay.LOSE_REQUESTS, api, 0, count)

    def answer_error(self, error: str | int, api: str | int, count: int | None = 1) -> Fault:
        """Respond to requests with an error code for each partition.

        error: Kafka's name ("NOT_LEADER_OR_FOLLOWER") or code. api: "Produce" or "OffsetCommit",
        which the broker does not process then, or "Fetch".
        """
        return self._rule(relay.ANSWER_ERROR, api, 0, count, _error_code(error))

    def refuse_connections(self) -> Fault:
        """Close new connections immediately. Open ones stay: see drop_connections()."""
        return self._rule(relay.REFUSE, None, 0, None)

    def drop_connections(self) -> int:
        """Close all connections now and return their number. Clients may reconnect."""
        return self._broker.call("drop_connections")

    def _rule(self, kind: str, api: str | int | None, ms: int, count: int | None,
              error_code: int = 0) -> Fault:
        number = self._broker.call("add_rule", kind, api, ms, count, error_code)
        return Fault(self._broker, ("remove_rule", number), ("rule_hits", number))

    # ---- the disk -------------------------------------------------------------------------------

    def disk_full(self) -> Fault:
        """Fail every log write as if the disk were full. Reads still work."""
        return self._disk("full")

    def refuse_fsync(self) -> Fault:
        """Fail every log flush.

        The first failure takes the log directory offline permanently: nothing is acknowledged until
        `broker.restart()`.
        """
        return self._disk("no sync")

    def _disk(self, kind: str) -> Fault:
        self._broker.call("set_disk", kind)
        return Fault(self._broker, ("set_disk", "system"))

    def clear(self) -> None:
        """End all faults. Connections through the relay are closed."""
        if self._broker.running:
            self._broker.call("clear_faults")


def _error_code(error: str | int) -> int:
    """Return the numeric error code. Raises BrokerFailed for an unknown name."""
    found = getattr(ErrorCode, error, None) if isinstance(error, str) else error
    if not isinstance(found, int):
        raise BrokerFailed(f"{error!r} is not a Kafka error")
    return int(found)

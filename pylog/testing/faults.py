"""Faults on request: of the network, of the disk.

Owns: nothing.
Invariants: (1) a fault lasts until its end(), until clear(), or until the test's end; what the disk
  refused stays refused until a restart, as with a real one; (2) a broker with faults behind it is
  not given to another test.
"""

from __future__ import annotations

from typing import Any

from pylog.protocol.errors import ErrorCode
from pylog.testing import relay
from pylog.testing.errors import BrokerFailed


class Fault:
    """One fault in force; `with` ends it."""

    def __init__(self, broker: Any, end: tuple, hits: tuple | None = None):
        self._broker, self._end, self._hits = broker, end, hits

    @property
    def hits(self) -> int:
        """How many requests, answers or connections it has met so far; 0 for a disk's."""
        return 0 if self._hits is None else self._broker.call(*self._hits)

    def end(self) -> None:
        if self._broker.running:
            self._broker.call(*self._end)

    def __enter__(self) -> Fault:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()


class Faults:
    """What can be done to a broker.

    Faults of the network put a relay on the broker's port: the first one ends the open connections,
    once their requests are answered, and clients connect again by themselves.
    """

    def __init__(self, broker: Any):
        self._broker = broker

    # ---- the network ----------------------------------------------------------------------------

    def delay(self, ms: int, api: str | int | None = None, count: int | None = None) -> Fault:
        """Holds answers back for `ms`. api: of these requests only, by name ("Produce", "Fetch") or
        key. count: this many answers."""
        return self._rule(relay.DELAY, api, ms, count)

    def lose_answers(self, api: str | int | None = None, count: int | None = 1) -> Fault:
        """Has requests served, but ends the connection in place of the answer."""
        return self._rule(relay.LOSE_ANSWERS, api, 0, count)

    def lose_requests(self, api: str | int | None = None, count: int | None = 1) -> Fault:
        """Ends the connection in place of serving the request."""
        return self._rule(relay.LOSE_REQUESTS, api, 0, count)

    def answer_error(self, error: str | int, api: str | int, count: int | None = 1) -> Fault:
        """Answers requests with an error code, in each of their partitions. error: its name in
        Kafka ("NOT_LEADER_OR_FOLLOWER") or its code. api: "Produce" or "OffsetCommit", which the
        broker does not serve then, or "Fetch"."""
        return self._rule(relay.ANSWER_ERROR, api, 0, count, _error_code(error))

    def refuse_connections(self) -> Fault:
        """Ends every new connection at once. Those that are open stay: see drop_connections."""
        return self._rule(relay.REFUSE, None, 0, None)

    def drop_connections(self) -> int:
        """Ends all connections now, whatever they wait for; how many. Clients may come back."""
        return self._broker.call("drop_connections")

    def _rule(self, kind: str, api: str | int | None, ms: int, count: int | None,
              error_code: int = 0) -> Fault:
        number = self._broker.call("add_rule", kind, api, ms, count, error_code)
        return Fault(self._broker, ("remove_rule", number), ("rule_hits", number))

    # ---- the disk -------------------------------------------------------------------------------

    def disk_full(self) -> Fault:
        """Has every write to a log fail for want of room; reads go on."""
        return self._disk("full")

    def refuse_fsync(self) -> Fault:
        """Has every flush of a log fail. The first failure takes the log directory offline, for
        good: nothing is acknowledged any more until `broker.restart()`."""
        return self._disk("no sync")

    def _disk(self, kind: str) -> Fault:
        self._broker.call("set_disk", kind)
        return Fault(self._broker, ("set_disk", "system"))

    def clear(self) -> None:
        """Ends all faults; connections that went by the relay end too."""
        if self._broker.running:
            self._broker.call("clear_faults")


def _error_code(error: str | int) -> int:
    """Raises BrokerFailed for a name that Kafka does not have."""
    found = getattr(ErrorCode, error, None) if isinstance(error, str) else error
    if not isinstance(found, int):
        raise BrokerFailed(f"{error!r} is no error of Kafka")
    return int(found)

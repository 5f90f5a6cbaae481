"""A consumer group under a test: who is in it, what it committed, and disturbances.

Owns: nothing.
Invariants: (1) a disturbance goes through the coordinator as its own timers would.
"""

from __future__ import annotations

from typing import Any


class Group:
    """One group by its id."""

    def __init__(self, host: Any, group_id: str):
        self.id = group_id
        self._host = host

    @property
    def state(self) -> str:
        """Kafka's name for it: "Stable", "Empty", ...; "Dead" when there is no such group."""
        return self._host.call("groups").get(self.id, "Dead")

    def members(self) -> dict[str, str]:
        """Member id -> client id."""
        return self._host.call("members", self.id)

    def offsets(self) -> dict[tuple[str, int], int]:
        """(topic, partition) -> committed offset."""
        return self._host.call("offsets", self.id)

    def rebalance(self) -> None:
        """Has every member join again, as when one has come or gone. Raises BrokerFailed when
        there are none."""
        self._host.call("rebalance", self.id)

    def expire_session(self, member_id: str | None = None) -> None:
        """Takes a member, or all of them, for dead; its client learns so by its next request."""
        self._host.call("expire_session", self.id, member_id)

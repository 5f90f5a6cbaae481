"""A consumer group under test: its members, committed offsets, and faults.

Owns: nothing.
Invariants: faults take the same path through the coordinator as its timers.
"""

from __future__ import annotations

from typing import Any


class Group:
    """A group by id."""

    def __init__(self, host: Any, group_id: str):
        self.id = group_id
        self._host = host

    @property
    def state(self) -> str:
        """Return Kafka's state name, such as "Stable" or "Empty"; "Dead" if the group does not
        exist.
        """
        return self._host.call("groups").get(self.id, "Dead")

    def members(self) -> dict[str, str]:
        """Return {member id: client id}."""
        return self._host.call("members", self.id)

    def offsets(self) -> dict[tuple[str, int], int]:
        """Return {(topic, partition): committed offset}."""
        return self._host.call("offsets", self.id)

    def rebalance(self) -> None:
        """Make all members rejoin, as after a membership change.

        Raises BrokerFailed if the group has no members.
        """
        self._host.call("rebalance", self.id)

    def expire_session(self, member_id: str | None = None) -> None:
        """Expire the session of one or all members. Clients notice with their next request."""
        self._host.call("expire_session", self.id, member_id)

"""Track rebalances: their causes, and how long each member had no work.

Owns: the rebalances in progress.
Invariants: a group has one rebalance at a time, and further causes are added to it; a finished
  rebalance is reported once; a report has at most CAUSES_MAX causes and MEMBERS_MAX members, and
  counts the rest.
Source: none; KIP-800 for the reasons that clients give.
"""

from __future__ import annotations

TYPE_CHECKING = False  # Importing typing would cost 6 ms at startup.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from pylog.coordinator.runtime.timers import Time

CAUSES_MAX = 20
MEMBERS_MAX = 20
REASON_MAX = 255  # Characters kept of a client's reason.
# Causes.
JOINED, LEFT, REJOINED, REPLACED = "joined", "left", "rejoined", "instance_replaced"
EXPIRED, NOT_REJOINED, NOT_SYNCED, NOT_REVOKED = (
    "session_expired", "rejoin_timeout", "sync_timeout", "revocation_timeout")
SUBSCRIBED, TOPICS, TOO_MANY, DOWNGRADED, SETTINGS = (
    "subscription_changed", "topics_changed", "group_too_large", "downgraded", "settings_changed")
LOADED = "coordinator_changed"


class Rebalance:
    """A rebalance in progress.

    waits: ids of members that have not reached the group's epoch; None: all that `whom` returns.
    """

    __slots__ = ("began_ms", "causes", "causes_left_out", "clients", "idle_since_ms", "kind",
                 "stopped_ms", "waits", "wall_ms", "whom")

    def __init__(self, kind: str, now_ms: int, wall_ms: int):
        self.kind = kind
        self.began_ms = now_ms
        self.wall_ms = wall_ms
        self.causes: list[dict[str, Any]] = []
        self.causes_left_out = 0
        self.clients: dict[str, tuple[str, str]] = {}
        self.idle_since_ms: dict[str, int] = {}
        self.stopped_ms: dict[str, int] = {}
        self.waits: set[str] | None = set()
        self.whom: Callable[[], Iterable[str]] = tuple


class Rebalances:
    """The rebalances of one state machine's groups. over: receives each finished one as a dict."""

    def __init__(self, clock: Time, over: Callable[[dict[str, Any]], None]):
        self._clock = clock
        self._over = over
        self._open: dict[str, Rebalance] = {}

    def because(self, group: Any, cause: str, member: Any = None, reason: str | None = "") -> None:
        """Start a rebalance with this cause, or add the cause to the current one."""
        entry = self._open.get(group.id)
        if entry is None:
            entry = self._open[group.id] = Rebalance(
                group.kind, self._clock.now_ms(), self._clock.wall_ms())
        if len(entry.causes) == CAUSES_MAX:
            entry.causes_left_out += 1
            return
        row = {"cause": cause, "after_ms": self._clock.now_ms() - entry.began_ms}
        if member is not None:
            row |= {"member_id": member.id, "client_id": member.client_id,
                    "host": member.client_host}
        if reason:
            row["reason"] = reason[:REASON_MAX]
        entry.causes.append(row)

    # ---- members --------------------------------------------------------------------------------

    def stops(self, group: Any, member: Any) -> None:
        """Note that the member has no work from now on."""
        entry = self._open.get(group.id)
        if entry is not None:
            entry.clients[member.id] = member.client_id, member.client_host
            entry.idle_since_ms.setdefault(member.id, self._clock.now_ms())

    def works(self, group: Any, member_id: str) -> None:
        """Note that the member has work again, or has left."""
        entry = self._open.get(group.id)
        if entry is not None:
            self._works(entry, member_id)

    def _works(self, entry: Rebalance, member_id: str) -> None:
        since_ms = entry.idle_since_ms.pop(member_id, None)
        if since_ms is not None:
            entry.stopped_ms[member_id] = \
                entry.stopped_ms.get(member_id, 0) + self._clock.now_ms() - since_ms

    def waits_for(self, group: Any, whom: Callable[[], Iterable[str]]) -> None:
        """End the rebalance when all members returned by `whom` have arrived or left.

        `whom` is evaluated when the first member arrives, because thousands may join before.
        """
        entry = self._open.get(group.id)
        if entry is not None:
            entry.waits, entry.whom = None, whom
            if not any(True for _ in whom()):
                self.finish(group)

    def arrived(self, group: Any, member_id: str) -> None:
        entry = self._open.get(group.id)
        if entry is not None:
            if entry.waits is None:
                entry.waits = set(entry.whom())
            entry.waits.discard(member_id)
            if not entry.waits:
                self.finish(group)

    # ---- the end --------------------------------------------------------------------------------

    def finish(self, group: Any) -> None:
        """Finish and report the rebalance: every member has its assignment, or none is left."""
        entry = self._open.pop(group.id, None)
        if entry is not None:
            for member_id in list(entry.idle_since_ms):
                self._works(entry, member_id)
            self._over(_summary(group, entry, self._clock.now_ms()))

    def forget(self, group_id: str) -> None:
        """Drop the rebalance of a deleted group."""
        self._open.pop(group_id, None)


def _summary(group: Any, entry: Rebalance, now_ms: int) -> dict[str, Any]:
    """Return the report. Members that had no work for the longest time come first."""
    longest = sorted(entry.stopped_ms.items(), key=lambda row: -row[1])
    return {
        "group": group.id, "type": entry.kind, "time_ms": entry.wall_ms,
        "took_ms": now_ms - entry.began_ms, "generation": group.generation,
        "members": len(group.members), "causes": entry.causes,
        "causes_left_out": entry.causes_left_out,
        "stopped": [{"member_id": member_id, "client_id": entry.clients[member_id][0],
                     "host": entry.clients[member_id][1], "stopped_ms": stopped_ms}
                    for member_id, stopped_ms in longest[:MEMBERS_MAX]],
        "stopped_left_out": max(0, len(longest) - MEMBERS_MAX),
        "stopped_ms": sum(entry.stopped_ms.values())}


def sentence(entry: dict[str, Any]) -> str:
    """Describe in one sentence why the group rebalanced and how long members had no work."""
    first = entry["causes"][0]
    member = f"{first['client_id']} ({first['host'].removeprefix('/')}) " \
        if "member_id" in first else ""
    others = len(entry["causes"]) + entry["causes_left_out"] - 1
    more = f" and {others} more" if others else ""
    reason = f" with reason: {first['reason']}" if "reason" in first else ""
    stopped = max((row["stopped_ms"] for row in entry["stopped"]), default=0)
    idle = "no member stopped consuming"
    if stopped:
        idle = f"members stopped consuming for up to {stopped} ms"
    return f"{member}{WORDS[first['cause']]}{more}{reason}; {idle}"


WORDS = {
    JOINED: "joined", LEFT: "left", REJOINED: "joined again",
    REPLACED: "rejoined as a static member",
    EXPIRED: "sent no heartbeat within its session timeout", NOT_REJOINED: "did not rejoin in time",
    NOT_SYNCED: "did not send SyncGroup in time",
    NOT_REVOKED: "did not revoke its partitions in time",
    SUBSCRIBED: "changed its subscription", TOPICS: "its topics changed",
    LOADED: "its coordinator changed during a rebalance",
    TOO_MANY: "it has more members than group.max.size", DOWNGRADED: "it was downgraded to a "
                                                                     "classic group",
    SETTINGS: "its settings changed",
}

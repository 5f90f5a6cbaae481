"""Heartbeats that the network layer answers without the coordinator while nothing changes.

Owns: the offers for the members of a partition's groups; extends their sessions.
Invariants: an offer depends on the group's records, topics and settings, and ends with them: before
  a record of the group is written, and when its topics change. The server ends all offers when
  settings or permissions change; when an offer ends, or a session seems to have timed out, the last
  heartbeat answered this way extends the session.
Source: none. Kafka's broker processes every heartbeat.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from pylog.coordinator.runtime.timers import Timers

OFFSETS = frozenset((b"\0\0", b"\0\1"))  # Key types of offsets.


class CachedHeartbeat(Protocol):
    """A heartbeat whose answer may be repeated; see _native.server.heartbeat_cache.Repeat."""

    def offer(self, until_ms: int) -> None: ...

    def end(self) -> int: ...

    def last_ms(self, after_ms: int) -> int: ...


class _Member(NamedTuple):
    offer: CachedHeartbeat
    session: tuple[Any, ...]  # Key of its session timer,
    session_ms: int  # and the session timeout.


class GroupHeartbeats:
    """The offers of one state machine. timers: of that machine."""

    def __init__(self, timers: Timers):
        self._timers = timers
        self._groups: dict[str, dict[str, _Member]] = {}

    def offer(self, group_id: str, member_id: str, offer: CachedHeartbeat, session: tuple[Any, ...],
              session_ms: int, until_ms: int) -> None:
        """Replace the member's offer. Its session has just been extended."""
        members = self._groups.setdefault(group_id, {})
        before = members.get(member_id)
        if before is not None:
            before.offer.end()
        members[member_id] = _Member(offer, session, session_ms)
        offer.offer(until_ms)

    def extend_session(self, group_id: str, member_id: str, now_ms: int) -> bool:
        """Extend the session if a repeated heartbeat arrived in time; return True if extended."""
        member = self._groups.get(group_id, {}).get(member_id)
        if member is None:
            return False
        last_ms = member.offer.last_ms(now_ms - member.session_ms)
        if last_ms < 0 or last_ms + member.session_ms <= now_ms:
            return False
        self._timers.set(member.session, last_ms + member.session_ms)
        return True

    def void(self, group_id: str) -> None:
        """End all offers of a group, because the group has changed."""
        for member in self._groups.pop(group_id, {}).values():
            last_ms = member.offer.end()
            if last_ms >= 0:
                self._timers.prolong(member.session, last_ms + member.session_ms)

    def void_changed(self, records: Iterable[Any]) -> None:
        """End the offers of groups with changes in `records`; offsets are no change."""
        if not self._groups:
            return
        for record in records:
            # Other items are offsets of transactions.
            if type(record) is tuple and record[0][:2] not in OFFSETS:
                key = record[0]
                self.void(key[4:4 + int.from_bytes(key[2:4], "big")].decode())

    def void_all(self) -> None:
        for group_id in list(self._groups):
            self.void(group_id)

"""Members whose heartbeats are answered without us, as long as nothing changes for them.

Owns: what was offered for each member of a partition's groups, and moves their sessions' ends.
Invariants: (1) what is offered follows from the group's records, its topics and its settings, and
  ends with them: before a record of the group is written, when its topics changed; the server ends
  all at once when settings or rights change; (2) when an offer ends, or a session seems to, the
  last heartbeat that was answered that way counts as any other.
Source: none; Kafka's broker looks at each heartbeat anew.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from pylog.coordinator.runtime.timers import Timers

OFFSETS = frozenset((b"\0\0", b"\0\1"))   # What the keys of offsets begin with.


class Offer(Protocol):
    """A heartbeat whose answer may be given again; see _native.repeats.Repeat."""

    def offer(self, until_ms: int) -> None: ...

    def end(self) -> int: ...

    def last_ms(self, after_ms: int) -> int: ...


class _Member(NamedTuple):
    offer: Offer
    session: tuple[Any, ...]     # The key of the timer that ends it,
    session_ms: int              # and how long after a heartbeat.


class GroupRepeats:
    """timers: those of the machine."""

    def __init__(self, timers: Timers):
        self._timers = timers
        self._groups: dict[str, dict[str, _Member]] = {}

    def offer(self, group_id: str, member_id: str, offer: Offer, session: tuple[Any, ...],
              session_ms: int, until_ms: int) -> None:
        """In place of the one before: its member is here, and its session was prolonged."""
        members = self._groups.setdefault(group_id, {})
        before = members.get(member_id)
        if before is not None:
            before.offer.end()
        members[member_id] = _Member(offer, session, session_ms)
        offer.offer(until_ms)

    def heard(self, group_id: str, member_id: str, now_ms: int) -> bool:
        """Whether a session that seems to be over goes on. Keeps (2)."""
        member = self._groups.get(group_id, {}).get(member_id)
        if member is None:
            return False
        last_ms = member.offer.last_ms(now_ms - member.session_ms)
        if last_ms < 0 or last_ms + member.session_ms <= now_ms:
            return False
        self._timers.set(member.session, last_ms + member.session_ms)
        return True

    def void(self, group_id: str) -> None:
        """Something of the group has changed. Keeps (1)."""
        for member in self._groups.pop(group_id, {}).values():
            last_ms = member.offer.end()
            if last_ms >= 0:
                self._timers.prolong(member.session, last_ms + member.session_ms)

    def void_changed(self, records: Iterable[Any]) -> None:
        """These are about to be written. Offsets change nothing of a group. Keeps (1)."""
        if not self._groups:
            return
        for record in records:
            # What is no pair has offsets of transactions.
            if type(record) is tuple and record[0][:2] not in OFFSETS:
                key = record[0]
                self.void(key[4:4 + int.from_bytes(key[2:4], "big")].decode())

    def void_all(self) -> None:
        for group_id in list(self._groups):
            self.void(group_id)

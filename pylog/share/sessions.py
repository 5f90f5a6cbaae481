"""Share sessions: the partitions that a member fetches, so that requests only contain changes.

Owns: the sessions.
Invariants: there are at most sessions_max sessions with at most places_max partitions in total,
  about 250 bytes each; a session's epoch is that of the next request; a session ends with its
  connection.
Source: KIP-932; Kafka's ShareSessionCache.
"""

from collections.abc import Iterable

from pylog.protocol.errors import Error, ErrorCode

INITIAL, FINAL = 0, -1
EPOCH_MAX = 2**31 - 1
PLACES_MAX = 200_000
Place = tuple[bytes, int]      # (topic id, partition)


class Session:
    """A session.

    places: partition -> True if the next response must include it. Partitions that just returned
    records come last. has_ended: nothing may be acquired for this session any more.
    """

    __slots__ = ("connection", "epoch", "group_id", "has_ended", "member_id", "places")

    def __init__(self, group_id: str, member_id: str, places: Iterable[Place], connection: int):
        self.group_id = group_id
        self.member_id = member_id
        self.epoch = 1
        self.places: dict[Place, bool] = dict.fromkeys(places, True)
        self.connection = connection
        self.has_ended = False

    def is_told(self, place: Place, has_records: bool, error: int) -> bool:
        """Return True if the partition belongs in the response, and record that it was included."""
        told = has_records or error != ErrorCode.NONE or self.places.get(place, True)
        if place in self.places:
            if has_records:
                del self.places[place]
            # Report the end of an error, too.
            self.places[place] = error != ErrorCode.NONE
        return told


class Sessions:
    """Share sessions by group and member."""

    def __init__(self, sessions_max: int, places_max: int = PLACES_MAX):
        self.place_count = 0
        self._sessions_max = sessions_max
        self._places_max = places_max
        self._sessions: dict[tuple[str, str], Session] = {}
        self._of: dict[int, set[tuple[str, str]]] = {}      # By connection.

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, group_id: str, member_id: str, places: Iterable[Place],
              connection: int) -> Session | None:
        """Create or replace the member's session; return None if there are too many."""
        self.end(group_id, member_id)
        session = Session(group_id, member_id, (), connection)
        if len(self._sessions) >= self._sessions_max or not self.add(session, places):
            return None
        self._sessions[group_id, member_id] = session
        self._of.setdefault(connection, set()).add((group_id, member_id))
        return session

    def add(self, session: Session, places: Iterable[Place]) -> bool:
        """Add partitions to a session. Return False, adding none, if there are too many."""
        new = [place for place in dict.fromkeys(places) if place not in session.places]
        if self.place_count + len(new) > self._places_max:
            return False
        session.places.update(dict.fromkeys(new, True))
        self.place_count += len(new)
        return True

    def forget(self, session: Session, places: Iterable[Place]) -> None:
        """Remove partitions from a session."""
        for place in places:
            if session.places.pop(place, None) is not None:
                self.place_count -= 1

    def find(self, group_id: str, member_id: str, epoch: int) -> tuple[Session | None, Error]:
        """Return (session, NONE) if `epoch` is the expected one, or (None, error).

        Advances the session to the epoch of its next request.
        """
        session = self._sessions.get((group_id, member_id))
        if session is None:
            return None, ErrorCode.SHARE_SESSION_NOT_FOUND
        if epoch != FINAL:
            if epoch != session.epoch:
                return None, ErrorCode.INVALID_SHARE_SESSION_EPOCH
            session.epoch = 1 if epoch == EPOCH_MAX else epoch + 1
        return session, ErrorCode.NONE

    def end(self, group_id: str, member_id: str) -> Session | None:
        """Remove and return a session, or None if there is none."""
        session = self._sessions.pop((group_id, member_id), None)
        if session is not None:
            session.has_ended = True
            self.place_count -= len(session.places)
            assert self.place_count >= 0, self.place_count
            keys = self._of[session.connection]
            keys.discard((group_id, member_id))
            if not keys:
                del self._of[session.connection]
        return session

    def closed(self, connection: int) -> list[Session]:
        """End and return the sessions of a closed connection."""
        found = [self.end(*key) for key in list(self._of.get(connection, ()))]
        return [session for session in found if session is not None]

    def has_group(self, group_id: str) -> bool:
        return any(group == group_id for group, _ in self._sessions)

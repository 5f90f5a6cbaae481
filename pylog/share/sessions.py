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
SESSION_ENTRIES_MAX = 200_000
TopicIdPartition = tuple[bytes, int]      # (topic id, partition)


class Session:
    """A session.

    partitions: partition -> True if the next response must include it. Partitions that just
    returned records come last. has_ended: nothing may be acquired for this session any more.
    """

    __slots__ = ("connection", "epoch", "group_id", "has_ended", "member_id", "partitions")

    def __init__(self, group_id: str, member_id: str, partitions: Iterable[TopicIdPartition],
                 connection: int):
        self.group_id = group_id
        self.member_id = member_id
        self.epoch = 1
        self.partitions: dict[TopicIdPartition, bool] = dict.fromkeys(partitions, True)
        self.connection = connection
        self.has_ended = False

    def includes(self, partition: TopicIdPartition, has_records: bool, error: int) -> bool:
        """Return True if the partition belongs in the response, and record that it was included."""
        included = has_records or error != ErrorCode.NONE or self.partitions.get(partition, True)
        if partition in self.partitions:
            if has_records:
                del self.partitions[partition]
            # Report the end of an error, too.
            self.partitions[partition] = error != ErrorCode.NONE
        return included


class Sessions:
    """Share sessions by group and member."""

    def __init__(self, sessions_max: int, partitions_max: int = SESSION_ENTRIES_MAX):
        self.partition_count = 0
        self._sessions_max = sessions_max
        self._partitions_max = partitions_max
        self._sessions: dict[tuple[str, str], Session] = {}
        self._of: dict[int, set[tuple[str, str]]] = {}      # By connection.

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, group_id: str, member_id: str, partitions: Iterable[TopicIdPartition],
              connection: int) -> Session | None:
        """Create or replace the member's session; return None if there are too many."""
        self.end(group_id, member_id)
        session = Session(group_id, member_id, (), connection)
        if len(self._sessions) >= self._sessions_max or not self.add(session, partitions):
            return None
        self._sessions[group_id, member_id] = session
        self._of.setdefault(connection, set()).add((group_id, member_id))
        return session

    def add(self, session: Session, partitions: Iterable[TopicIdPartition]) -> bool:
        """Add partitions to a session. Return False, adding none, if there are too many."""
        new = [partition for partition in dict.fromkeys(partitions)
               if partition not in session.partitions]
        if self.partition_count + len(new) > self._partitions_max:
            return False
        session.partitions.update(dict.fromkeys(new, True))
        self.partition_count += len(new)
        return True

    def forget(self, session: Session, partitions: Iterable[TopicIdPartition]) -> None:
        """Remove partitions from a session."""
        for partition in partitions:
            if session.partitions.pop(partition, None) is not None:
                self.partition_count -= 1

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
            self.partition_count -= len(session.partitions)
            assert self.partition_count >= 0, self.partition_count
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

"""Group members that behave as clients do, for the new protocol (KIP-848) and the classic one.

Owns: nothing; a member runs on the connection passed to it.
Invariants: a member of the new protocol confirms at once the partitions it was assigned or has
  revoked, and otherwise heartbeats at the broker's interval; after an error it reports everything,
  so that the broker sends its complete assignment; a classic member revokes all partitions before
  it rejoins, and heartbeats as often as Java's client does; a response with an unexpected error
  ends the load.
"""

import asyncio
import struct
import time

from bench.control.wire import RETRIABLE, Connection
from bench.loads import LoadFailed
from pylog.protocol import messages

LEAVES = -1
HEARTBEAT_S = 3.0  # heartbeat.interval.ms of Java's client.
SESSION_MS, REBALANCE_MS = 45_000, 60_000
JOIN_AGAIN = (22, 25, 27)  # illegal generation, rebalance in progress, unknown member
_NEW = messages.ConsumerGroupHeartbeatRequest


class Member:
    """Common to both protocols. owned: partitions; waits_s: latencies of its heartbeats; working_s:
    the time when it first had partitions.
    """

    def __init__(self, connection: Connection, group: str, number: int):
        self.connection, self.group = connection, group
        self.name = f"{group}-{number}"
        self.owned: list[int] = []
        self.began_s = self.working_s = 0.0
        self.waits_s: list[float] = []

    def take(self, partitions: list[int]) -> None:
        self.owned = partitions
        if partitions:
            self.working_s = self.working_s or time.monotonic()

    async def heard(self, key: int, version: int, request):
        """Send a heartbeat and return the response."""
        begin_s = time.monotonic()
        answer = await self.connection.ask(key, version, request)
        self.waits_s.append(time.monotonic() - begin_s)
        return answer


class NewMember(Member):
    """A member of the new protocol. Its topic has the group's name."""

    def __init__(self, connection: Connection, group: str, number: int):
        super().__init__(connection, group, number)
        self.epoch = 0
        self.topic_id: bytes | None = None

    async def run(self) -> None:
        """Run until cancelled: acknowledge assignments at once, heartbeat at the broker's interval.
        """
        self.began_s, tells_all = time.monotonic(), True
        while True:
            answer = await self._heartbeat(tells_all)
            tells_all = answer is None  # The lost response may have contained an assignment.
            if answer is None:
                await asyncio.sleep(0.01)
                continue
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                wanted = sorted(part for row in answer.assignment.topic_partitions
                                for part in row.partitions)
                for row in answer.assignment.topic_partitions:
                    self.topic_id = row.topic_id
                if wanted != self.owned:
                    self.take(wanted)
                    continue
            await asyncio.sleep(answer.heartbeat_interval_ms / 1000)

    async def _heartbeat(self, tells_all: bool):
        """Return the response, None if the request must be retried. Other errors end the load."""
        request = _NEW(group_id=self.group, member_id=self.name, member_epoch=self.epoch,
                       topic_partitions=[_NEW.TopicPartitions(
                           topic_id=self.topic_id, partitions=self.owned)] if self.owned else [])
        if tells_all:
            request.rebalance_timeout_ms = REBALANCE_MS
            request.subscribed_topic_names = [self.group]
        # Like a JoinGroup, the request that joins does not count as a heartbeat.
        answer = await (self.heard if self.epoch else self.connection.ask)(68, 1, request)
        if answer.error_code in RETRIABLE:
            return None
        if answer.error_code:
            raise LoadFailed(f"a member is answered with {answer.error_code}")
        return answer

    async def leave(self, connection: Connection) -> None:
        await connection.ask(68, 1, _NEW(
            group_id=self.group, member_id=self.name, member_epoch=LEAVES))


class ClassicMember(Member):
    """A member of the classic protocol; the leader distributes the partitions evenly."""

    def __init__(self, connection: Connection, group: str, number: int, partitions: int):
        super().__init__(connection, group, number)
        self.partitions = partitions
        self.id = ""

    async def run(self) -> None:
        """Run until cancelled: revoke everything before rejoining, heartbeat as Java's client does.
        """
        self.began_s = time.monotonic()
        while True:
            self.take([])
            joined = await self.connection.ask(11, 3, _joining(self.group, self.id))
            if not _goes_on(joined):
                self.id = "" if joined.error_code == 25 else self.id
                await asyncio.sleep(0.01)
                continue
            self.id = joined.member_id
            synced = await self.connection.ask(14, 3, self._syncing(joined))
            if _goes_on(synced):
                self.take([part for part, in struct.iter_unpack(">i", synced.assignment)])
                await self._stay(joined.generation_id)

    async def _stay(self, generation: int) -> None:
        """Heartbeat until others join or leave."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            answer = await self.heard(12, 3, messages.HeartbeatRequest(
                group_id=self.group, generation_id=generation, member_id=self.id))
            if not _goes_on(answer):
                return

    def _syncing(self, joined):
        new = messages.SyncGroupRequest
        ids = [row.member_id for row in joined.members]  # Only the leader sends assignments.
        return new(group_id=self.group, generation_id=joined.generation_id, member_id=self.id,
                   protocol_type="consumer", protocol_name="range", assignments=[
                       new.SyncGroupRequestAssignment(member_id=member_id, assignment=b"".join(
                           struct.pack(">i", part)
                           for part in range(index, self.partitions, len(ids))))
                       for index, member_id in enumerate(ids)])

    async def leave(self, connection: Connection) -> None:
        new = messages.LeaveGroupRequest
        await connection.ask(13, 3, new(
            group_id=self.group, members=[new.MemberIdentity(member_id=self.id)]))


def _joining(group: str, member_id: str):
    new = messages.JoinGroupRequest
    return new(group_id=group, session_timeout_ms=SESSION_MS, rebalance_timeout_ms=REBALANCE_MS,
               member_id=member_id, protocol_type="consumer", protocols=[
                   new.JoinGroupRequestProtocol(name="range", metadata=bytes(60))])


def _goes_on(answer) -> bool:
    """Return True if the member is still in its generation. Other errors end the load."""
    if answer.error_code and answer.error_code not in (*RETRIABLE, *JOIN_AGAIN):
        raise LoadFailed(f"a member is answered with {answer.error_code}")
    return not answer.error_code

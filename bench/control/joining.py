"""Groups of the new protocol (KIP-848) that come together, and that one member leaves.

Owns: its members while a load runs.
Called by: bench.control.__main__.
Invariants: (1) a group is stable when its members own every partition, each once, and about as many
  each; (2) a member does as clients do: it says at once that it owns what it was given, or gave up
  what it was not, and heartbeats as the broker bade it otherwise; (3) an answer with an error ends
  the load.
"""

import asyncio
import time

from bench.control.wire import RETRIABLE, Connection, create_topics, found, run
from bench.loads import LoadFailed
from pylog.protocol import messages

SIZES = (100, 1000)
SETTLED_S = 6.0
STABLE_WAIT_S, LOAD_WAIT_S = 60.0, 150.0
LEAVES = -1
_NEW = messages.ConsumerGroupHeartbeatRequest


class Member:
    """One member on a connection of its own. owned: partitions; waits_s: of its heartbeats."""

    def __init__(self, connection: Connection, group: str, number: int):
        self.connection, self.group = connection, group
        self.name = f"{group}-{number}"
        self.epoch = 0
        self.topic_id: bytes | None = None
        self.owned: list[int] = []
        self.began_s = self.working_s = 0.0
        self.waits_s: list[float] = []

    async def run(self) -> None:
        """Keeps (2), until it is cancelled."""
        self.began_s, joins = time.monotonic(), True
        while True:
            answer = await self.heartbeat(joins)
            if answer is None:
                await asyncio.sleep(0.01)
                continue
            joins, self.epoch = False, answer.member_epoch
            if answer.assignment is not None:
                wanted = sorted(part for row in answer.assignment.topic_partitions
                                for part in row.partitions)
                for row in answer.assignment.topic_partitions:
                    self.topic_id = row.topic_id
                if wanted != self.owned:
                    self.owned = wanted
                    self.working_s = self.working_s or time.monotonic()
                    continue
            await asyncio.sleep(answer.heartbeat_interval_ms / 1000)

    async def heartbeat(self, joins: bool = False):
        """The answer; None when it has to be tried again. Keeps (3)."""
        request = _NEW(group_id=self.group, member_id=self.name, member_epoch=self.epoch,
                       topic_partitions=[_NEW.TopicPartitions(
                           topic_id=self.topic_id, partitions=self.owned)] if self.owned else [])
        if joins:
            request.rebalance_timeout_ms, request.subscribed_topic_names = 60_000, [self.group]
        begin_s = time.monotonic()
        answer = await self.connection.ask(68, 1, request)
        self.waits_s.append(time.monotonic() - begin_s)
        if answer.error_code in RETRIABLE:
            return None
        if answer.error_code:
            raise LoadFailed(f"a member is answered with {answer.error_code}")
        return answer


def joining(broker) -> dict:
    """Members that come at once until all is shared out, then one that leaves."""
    figures: dict = {}
    for size in SIZES:
        figures.update(run(_joining(broker, size), LOAD_WAIT_S))
    return figures


async def _joining(broker, size: int) -> dict:
    group = f"joined-{size}-{time.monotonic_ns()}"   # Its topic has the same name.
    first = await Connection.open(broker.port)
    await create_topics(first, [group], size)
    await found(first, group)
    first.close()
    members = [Member(await Connection.open(broker.port), group, number) for number in range(size)]
    before = broker.cpu_seconds()
    begin_s = time.monotonic()
    tasks = [asyncio.create_task(member.run()) for member in members]
    await _stable(members, tasks, size)
    joined_s = time.monotonic() - begin_s
    idle_s = sum(member.working_s - member.began_s for member in members) / size
    await asyncio.sleep(SETTLED_S)   # The last ones have been told that all is well.
    gone = members.pop()
    tasks.pop().cancel()
    leaving = Member(await Connection.open(broker.port), group, size - 1)
    leaving.epoch, begin_s = LEAVES, time.monotonic()
    await leaving.heartbeat()
    await _stable(members, tasks, size)
    left_s = time.monotonic() - begin_s
    used = broker.cpu_seconds() - before
    waits_s = sorted(wait for member in members for wait in member.waits_s)
    left = set(tasks)
    while left:   # wait_for() of Python 3.11 may keep a cancellation to itself.
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=0.1)
    for member in (*members, gone, leaving):
        member.connection.close()
    return {f"{size}_s": joined_s, f"{size}_idle_s": idle_s, f"{size}_left_s": left_s,
            f"{size}_cpu_s": used, f"{size}_p99_ms": waits_s[len(waits_s) * 99 // 100] * 1000}


async def _stable(members: list, tasks: list, partitions: int) -> None:
    """Keeps (1)."""
    end_s = time.monotonic() + STABLE_WAIT_S
    while not _shared_out(members, partitions):
        for task in tasks:
            if task.done():
                task.result()
        if time.monotonic() > end_s:
            raise LoadFailed("the group does not become stable")
        await asyncio.sleep(0.005)


def _shared_out(members: list, partitions: int) -> bool:
    counts = [len(member.owned) for member in members]
    return max(counts) - min(counts) <= 1 and sorted(
        part for member in members for part in member.owned) == list(range(partitions))

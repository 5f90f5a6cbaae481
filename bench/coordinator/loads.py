"""The loads on a group coordinator. Each takes a running broker and returns its figures by name.

Owns: nothing.
Called by: bench.coordinator.__main__.
Invariants: (1) an answer with an error ends the load; (2) CPU is the broker's alone.
"""

import asyncio
import time

from bench.coordinator.wire import Connection, spread
from pylog.protocol import codec, messages

CONNECTIONS = 32
MEMBERS = 10_000
HEARTBEATS = 100_000
COMMITS = 30_000
GROUP_MEMBERS = 500
OFFSET_GROUPS, OFFSET_PARTITIONS = 1000, 1000
RETRIABLE = (14, 15, 16)
SESSION_MS = 1_800_000


def _frame(key: int, version: int, message) -> bytes:
    return codec.request_frame(key, version, 1, "bench", message)


async def found(connection: Connection, group: str = "g") -> None:
    """Waits until the coordinator of a group serves."""
    while True:
        answer = await connection.ask(10, 3, messages.FindCoordinatorRequest(key=group))
        if answer.error_code == 0:
            told = await connection.ask(9, 5, messages.OffsetFetchRequest(group_id=group))
            if told.error_code not in RETRIABLE:
                return
        await asyncio.sleep(0.002)


async def _topic(connection: Connection, name: str, partitions: int) -> None:
    new = messages.CreateTopicsRequest
    answer = await connection.ask(19, 5, new(timeout_ms=60_000, topics=[new.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=1)]))
    assert answer.topics[0].error_code in (0, 36), answer
    # Kafka tells of a topic before its partitions have leaders.
    while True:
        answer = await connection.ask(3, 4, messages.MetadataRequest(topics=[
            messages.MetadataRequest.MetadataRequestTopic(name=name)]))
        rows = answer.topics[0].partitions
        if len(rows) == partitions and all(row.error_code == 0 for row in rows):
            return
        await asyncio.sleep(0.05)


def _measured(broker, run) -> tuple[float, float]:
    """(seconds, broker CPU seconds) of a coroutine."""
    cpu, start_s = broker.cpu_seconds(), time.perf_counter()
    asyncio.run(run)
    return time.perf_counter() - start_s, broker.cpu_seconds() - cpu


def heartbeats(broker) -> dict:
    """Heartbeats of 10,000 members, each the only one of its group."""
    members = asyncio.run(_join_all(broker.port, MEMBERS))
    frames = [_frame(12, 3, messages.HeartbeatRequest(
        group_id=group, generation_id=generation, member_id=member))
        for group, member, generation in members]
    frames = [frames[number % MEMBERS] for number in range(HEARTBEATS)]
    wall_s, cpu_s = _measured(broker, spread(
        broker.port, frames, CONNECTIONS, lambda body: body[8:10] == b"\0\0"))
    return {"heartbeats/s per core": HEARTBEATS / cpu_s, "heartbeats/s": HEARTBEATS / wall_s}


async def _join_all(port: int, count: int) -> list:
    opened = [await Connection.open(port) for _ in range(CONNECTIONS)]
    await found(opened[0])

    async def join(connection, numbers):
        made = []
        for number in numbers:
            made.append(await _alone(connection, f"group-{number}"))
        return made

    parts = await asyncio.gather(*[join(one, range(first, count, CONNECTIONS))
                                   for first, one in enumerate(opened)])
    for one in opened:
        one.close()
    return [row for part in parts for row in part]


def _join(group: str, member: str = ""):
    new = messages.JoinGroupRequest
    return new(group_id=group, session_timeout_ms=SESSION_MS, rebalance_timeout_ms=60_000,
               member_id=member, protocol_type="consumer", protocols=[
                   new.JoinGroupRequestProtocol(name="range", metadata=bytes(60))])


def _sync(group: str, answer):
    new = messages.SyncGroupRequest
    return new(group_id=group, generation_id=answer.generation_id, member_id=answer.member_id,
               protocol_type="consumer", protocol_name="range", assignments=[
                   new.SyncGroupRequestAssignment(member_id=row.member_id, assignment=bytes(40))
                   for row in answer.members])


async def _alone(connection: Connection, group: str) -> tuple:
    while True:
        answer = await connection.ask(11, 3, _join(group))
        if answer.error_code not in RETRIABLE:
            break
    assert answer.error_code == 0, answer
    done = await connection.ask(14, 3, _sync(group, answer))
    assert done.error_code == 0, done
    return group, answer.member_id, answer.generation_id


def _commit(group: str, topic: str, partitions) -> object:
    new = messages.OffsetCommitRequest
    return new(group_id=group, topics=[new.OffsetCommitRequestTopic(name=topic, partitions=[
        new.OffsetCommitRequestPartition(partition_index=index, committed_offset=index + 7,
                                         committed_metadata="")
        for index in partitions])])


def commits(broker) -> dict:
    """Commits of one partition each, by consumers of many groups."""
    async def prepare():
        connection = await Connection.open(broker.port)
        await found(connection)
        await _topic(connection, "committed", 6)

    asyncio.run(prepare())
    frames = [_frame(8, 7, _commit(f"c-{number % 500}", "committed", (number % 6,)))
              for number in range(COMMITS)]
    wall_s, cpu_s = _measured(broker, spread(
        broker.port, frames, CONNECTIONS, lambda body: body[-2:] == b"\0\0"))
    return {"commits/s": COMMITS / wall_s, "CPU s per million commits": cpu_s / COMMITS * 1e6}


def large_group(broker) -> dict:
    """500 members that come at once, until all of them share one generation."""
    wall_s, cpu_s = _measured(broker, _large_group(broker.port))
    return {"500 members stable, s": wall_s, "500 members stable, CPU s": cpu_s}


async def _large_group(port: int) -> None:
    group = f"large-{time.monotonic_ns()}"
    opened = [await Connection.open(port) for _ in range(GROUP_MEMBERS)]
    await found(opened[0], group)
    generations: dict[int, int] = {}
    stable = asyncio.Event()

    async def member(number: int, connection: Connection) -> None:
        member_id = ""
        while not stable.is_set():
            answer = await connection.ask(11, 5, _join(group, member_id))
            if answer.error_code == 79:
                member_id = answer.member_id
                continue
            if answer.error_code:
                continue
            done = await connection.ask(14, 3, _sync(group, answer))
            if done.error_code:
                continue
            generations[number] = answer.generation_id
            if len(generations) == GROUP_MEMBERS and len(set(generations.values())) == 1:
                stable.set()
            while not stable.is_set():
                beat = await connection.ask(12, 3, messages.HeartbeatRequest(
                    group_id=group, generation_id=answer.generation_id, member_id=member_id))
                if beat.error_code:
                    break
                await asyncio.sleep(0.1)

    tasks = [asyncio.ensure_future(member(number, one)) for number, one in enumerate(opened)]
    await asyncio.wait_for(stable.wait(), 120)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for one in opened:
        one.close()


def restart(broker) -> dict:
    """1,000,000 committed offsets, then a stop: spawn to the first correct OffsetFetch."""
    async def fill():
        connection = await Connection.open(broker.port)
        await found(connection)
        await _topic(connection, "many", OFFSET_PARTITIONS)
        frames = [_frame(8, 7, _commit(f"m-{number}", "many", range(OFFSET_PARTITIONS)))
                  for number in range(OFFSET_GROUPS)]
        await spread(broker.port, frames, 8, lambda body: body[-2:] == b"\0\0")

    figures = {}
    figures["1,000,000 offsets committed, s"], figures["the same, CPU s"] = \
        _measured(broker, fill())
    for how, stop in (("clean", broker.stop), ("kill -9", broker.kill)):
        stop()
        start_s = time.perf_counter()
        broker.start()
        asyncio.run(_fetched(broker.port, "m-77"))
        figures[f"first OffsetFetch after {how}, s"] = time.perf_counter() - start_s
    figures["RSS after, MB"] = broker.rss_bytes() / 1e6
    return figures


async def _fetched(port: int, group: str) -> None:
    connection = await Connection.open(port)
    new = messages.OffsetFetchRequest
    request = new(group_id=group, topics=[
        new.OffsetFetchRequestTopic(name="many", partition_indexes=[5, 999])])
    while True:
        answer = await connection.ask(9, 5, request)
        if answer.error_code == 0:
            break
        assert answer.error_code in RETRIABLE, answer
        await asyncio.sleep(0.002)
    assert [row.committed_offset for row in answer.topics[0].partitions] == [12, 1006], answer


LOADS = {"heartbeats": heartbeats, "commits": commits, "large-group": large_group,
         "restart": restart}

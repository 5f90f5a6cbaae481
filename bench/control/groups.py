"""Loads on groups: heartbeats of many members, and the formation of one large group.

Owns: nothing.
Invariants: an error response ends the load.
"""

import asyncio
import time

from bench.control.wire import RETRIABLE, Connection, found, frame, program, replay, run
from pylog.protocol import messages

CONNECTIONS = 1000
IN_FLIGHT = 1
MEMBERS = 10_000
HEARTBEATS = 200_000
GROUP_MEMBERS = 500
HEARTBEAT_MS = 100
GROUP_WAIT_S = 90
LARGE_TURNS = 3
SESSION_MS = 1_800_000


def heartbeats(broker) -> dict:
    """Send heartbeats of 10,000 members, each in a separate group."""
    members = run(_join_all(broker.port, MEMBERS, _alone))
    frames = [frame(12, 3, messages.HeartbeatRequest(
        group_id=group, generation_id=generation, member_id=member))
        for group, member, generation in members]
    done = replay(broker, frames, CONNECTIONS, IN_FLIGHT, requests=HEARTBEATS, error_at=8)
    return {"per_core": HEARTBEATS / done["cpu_s"], "per_s": done["requests_s"]}


def consumer_heartbeats(broker) -> dict:
    """Send heartbeats with the new protocol (KIP-848)."""
    members = run(_join_all(broker.port, MEMBERS, _subscribed))
    new = messages.ConsumerGroupHeartbeatRequest
    frames = [frame(68, 1, new(group_id=group, member_id=member, member_epoch=epoch))
              for group, member, epoch in members]
    done = replay(broker, frames, CONNECTIONS, IN_FLIGHT, requests=HEARTBEATS, error_at=9)
    return {"per_core": HEARTBEATS / done["cpu_s"], "per_s": done["requests_s"]}


async def _join_all(port: int, count: int, join_one) -> list:
    """Return (group, member, generation or epoch) of each member. join_one: (connection, group)."""
    opened = [await Connection.open(port) for _ in range(CONNECTIONS)]
    await found(opened[0])
    stem = f"group-{time.monotonic_ns()}"

    async def join(connection, numbers):
        return [await join_one(connection, f"{stem}-{number}") for number in numbers]

    parts = await asyncio.gather(*[join(one, range(first, count, CONNECTIONS))
                                   for first, one in enumerate(opened)])
    for one in opened:
        one.close()
    return [row for part in parts for row in part]


def _join(group: str):
    new = messages.JoinGroupRequest
    return new(group_id=group, session_timeout_ms=SESSION_MS, rebalance_timeout_ms=60_000,
               protocol_type="consumer", protocols=[
                   new.JoinGroupRequestProtocol(name="range", metadata=bytes(60))])


async def _alone(connection: Connection, group: str) -> tuple:
    while True:
        answer = await connection.ask(11, 3, _join(group))
        if answer.error_code not in RETRIABLE:
            break
        await asyncio.sleep(0.01)
    assert answer.error_code == 0, answer
    new = messages.SyncGroupRequest
    done = await connection.ask(14, 3, new(
        group_id=group, generation_id=answer.generation_id, member_id=answer.member_id,
        protocol_type="consumer", protocol_name="range", assignments=[
            new.SyncGroupRequestAssignment(member_id=row.member_id, assignment=bytes(40))
            for row in answer.members]))
    assert done.error_code == 0, done
    return group, answer.member_id, answer.generation_id


async def _subscribed(connection: Connection, group: str) -> tuple:
    """Join a member of the new protocol that gets no partitions."""
    new = messages.ConsumerGroupHeartbeatRequest
    member = f"member-{group}"
    while True:
        answer = await connection.ask(68, 1, new(
            group_id=group, member_id=member, member_epoch=0, rebalance_timeout_ms=60_000,
            subscribed_topic_names=["none"], topic_partitions=[]))
        if answer.error_code not in RETRIABLE:
            break
        await asyncio.sleep(0.01)
    assert answer.error_code == 0, answer
    return group, member, answer.member_epoch


def large_group(broker) -> dict:
    """Return the mean time until 500 members that join at once share one generation."""
    async def ready():
        connection = await Connection.open(broker.port)
        await found(connection)
        connection.close()

    run(ready())
    turns = [program(broker, "group", GROUP_MEMBERS, HEARTBEAT_MS, GROUP_WAIT_S,
                     f"large-{time.monotonic_ns()}") for _ in range(LARGE_TURNS)]
    return {"s": _mean(turns, "seconds"), "cpu_s": _mean(turns, "cpu_s"),
            "generations": _mean(turns, "generations")}


def _mean(turns: list, key: str) -> float:
    return sum(turn[key] for turn in turns) / len(turns)

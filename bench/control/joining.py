"""Groups of both protocols: formation, and the departure of one member.

Owns: its members while a load runs.
Invariants: a group is stable when its members own every partition exactly once, evenly distributed;
  members behave as bench.control.members defines; heartbeat waits are measured on members in a
  separate process.
"""

import asyncio
import time

from bench.control.apart import Apart
from bench.control.members import ClassicMember, NewMember
from bench.control.wire import Connection, create_topics, found, run
from bench.loads import LoadFailed

SIZES = (100, 1000)
KINDS = ("new", "classic")
APART = 20
SETTLED_S = 6.0
STABLE_WAIT_S, LOAD_WAIT_S = 60.0, 150.0


def joining(broker) -> dict:
    """Let members join at once until all partitions are assigned; then one leaves."""
    figures: dict = {}
    for kind in KINDS:
        for size in SIZES:
            of_size = run(come_together(broker, kind, size), LOAD_WAIT_S)
            figures.update({f"{kind}_{size}_{name}": of for name, of in of_size.items()})
    return figures


def made(kind: str, group: str, size: int, connection: Connection, number: int):
    """Create a member of a group of `size`, on a topic with as many partitions."""
    return NewMember(connection, group, number) if kind == "new" else \
        ClassicMember(connection, group, number, size)


async def come_together(broker, kind: str, size: int) -> dict:
    """Return s: time until all partitions are assigned; idle_s: mean time of a member without a
    partition; left_s: time after one member left; cpu_s: broker CPU of both; p99_ms: heartbeat
    latency. size: at least 2.
    """
    here = size - min(APART, size // 2)
    group = f"joined-{kind}-{size}-{time.monotonic_ns()}"  # Its topic has the same name.
    first = await Connection.open(broker.port)
    await create_topics(first, [group], size)
    await found(first, group)
    members = [made(kind, group, size, await Connection.open(broker.port), number)
               for number in range(here)]
    apart = Apart(broker.port, made, (kind, group, size), range(here, size))
    before = broker.cpu_seconds()
    begin_s = time.monotonic()
    tasks = [asyncio.create_task(member.run()) for member in members]
    apart.begin()
    await _stable([*members, *apart.members], tasks, size)
    joined_s = time.monotonic() - begin_s
    await asyncio.sleep(SETTLED_S)  # The last members have received their stable assignment.
    idle_s = sum(member.working_s - member.began_s for member in members)
    gone = members.pop()
    tasks.pop().cancel()
    begin_s = time.monotonic()
    await gone.leave(first)
    await _stable([*members, *apart.members], tasks, size)
    left_s = time.monotonic() - begin_s
    used = broker.cpu_seconds() - before
    told = apart.end()
    left = set(tasks)
    while left:  # wait_for() of Python 3.11 can swallow a cancellation.
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=0.1)
    for connection in (first, *(member.connection for member in (*members, gone))):
        connection.close()
    waits_s = sorted(wait for _, waits in told for wait in waits)
    return {"s": joined_s, "idle_s": (idle_s + sum(idle for idle, _ in told)) / size,
            "left_s": left_s, "cpu_s": used,
            "p99_ms": waits_s[len(waits_s) * 99 // 100] * 1000}


async def _stable(members: list, tasks: list, partitions: int) -> None:
    """Wait until every partition has exactly one owner. Raises LoadFailed after STABLE_WAIT_S."""
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

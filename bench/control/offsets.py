"""Loads on committed offsets: commits per second, and a start with a million of them.

Owns: nothing.
Invariants: an error response ends the load; a start is measured from the spawn to an OffsetFetch
  response that matches the committed offsets.
"""

import asyncio
import time

from bench.control.wire import (
    ANSWER_WAIT_S,
    RETRIABLE,
    Connection,
    create_topics,
    found,
    frame,
    replay,
    run,
)
from bench.loads import LoadFailed
from pylog.protocol import messages

CONNECTIONS = 500
IN_FLIGHT = 1
COMMITS = 60_000
COMMIT_GROUPS = 500
OFFSET_GROUPS, OFFSET_PARTITIONS = 1000, 1000


def _commit(group: str, topic: str, partitions) -> bytes:
    new = messages.OffsetCommitRequest
    return frame(8, 7, new(group_id=group, topics=[new.OffsetCommitRequestTopic(
        name=topic, partitions=[new.OffsetCommitRequestPartition(
            partition_index=index, committed_offset=index + 7, committed_metadata="")
            for index in partitions])]))


async def _ready(port: int, topic: str, partitions: int) -> None:
    connection = await Connection.open(port)
    await create_topics(connection, [topic], partitions)
    for number in range(COMMIT_GROUPS):
        await found(connection, f"c-{number}")
    connection.close()


def commits(broker) -> dict:
    """Commit one partition per request, for consumers of many groups."""
    run(_ready(broker.port, "committed", 6))
    frames = [_commit(f"c-{number % COMMIT_GROUPS}", "committed", (number % 6,))
              for number in range(3 * COMMIT_GROUPS)]
    done = replay(broker, frames, CONNECTIONS, IN_FLIGHT, requests=COMMITS, error_at=-2)
    return {"per_s": done["requests_s"], "cpu_s_per_million": done["cpu_s"] / COMMITS * 1e6,
            "p99_ms": done["p99_us"] / 1000}


def restart(broker) -> dict:
    """Commit 1,000,000 offsets, then restart: time from spawn to the first correct OffsetFetch."""
    run(_ready(broker.port, "many", OFFSET_PARTITIONS))
    frames = [_commit(f"m-{number}", "many", range(OFFSET_PARTITIONS))
              for number in range(OFFSET_GROUPS)]
    done = replay(broker, frames, 8, 2, requests=OFFSET_GROUPS, error_at=-2)
    figures = {"fill_s": done["seconds"], "fill_cpu_s": done["cpu_s"]}
    for how, stop in (("clean", broker.stop), ("killed", broker.kill)):
        stop()
        begin_s = time.perf_counter()
        broker.start()
        run(_fetched(broker.port, "m-77"))
        figures[f"{how}_s"] = time.perf_counter() - begin_s
    figures["rss_mb"] = broker.rss_bytes() / 1e6
    return figures


async def _fetched(port: int, group: str) -> None:
    connection = await Connection.open(port)
    new = messages.OffsetFetchRequest
    request = new(group_id=group, topics=[
        new.OffsetFetchRequestTopic(name="many", partition_indexes=[5, 999])])
    end_s = time.monotonic() + ANSWER_WAIT_S
    while True:
        answer = await connection.ask(9, 5, request)
        if answer.error_code == 0:
            break
        if answer.error_code not in RETRIABLE or time.monotonic() > end_s:
            raise LoadFailed(f"OffsetFetch is answered with {answer.error_code}")
        await asyncio.sleep(0.002)
    connection.close()
    offsets = [row.committed_offset for row in answer.topics[0].partitions]
    if offsets != [12, 1006]:
        raise LoadFailed(f"the offsets are {offsets}, not those committed")

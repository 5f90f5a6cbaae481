"""Restart with 100,000 transactional ids and 10,000 groups: time until every coordinator responds.

Owns: nothing.
Invariants: a response with an error ends the load; a start is measured from the spawn until one id
  of each partition of the internal topic, and one group, have the same description as before.
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
from pylog.coordinator.runtime.internal_topic import partition_of
from pylog.protocol import messages

IDS, GROUPS = 100_000, 10_000
ID_PARTITIONS = 50  # of `__transaction_state`
TIMEOUT_MS, TRANSACTIONAL = 60_000, 1


async def _ready(port: int) -> None:
    connection = await Connection.open(port)
    await create_topics(connection, ["few"], 1)
    await found(connection)
    end_s = time.monotonic() + ANSWER_WAIT_S
    await connection.ask(10, 3, messages.FindCoordinatorRequest(key="id", key_type=TRANSACTIONAL))
    while (answer := await connection.ask(22, 4, _init(0))).error_code:
        if answer.error_code not in RETRIABLE or time.monotonic() > end_s:
            raise LoadFailed(f"InitProducerId is answered with {answer.error_code}")
        await asyncio.sleep(0.05)
    connection.close()


def _init(number: int):
    return messages.InitProducerIdRequest(
        transactional_id=f"id-{number}", transaction_timeout_ms=TIMEOUT_MS)


def _commit(number: int):
    new = messages.OffsetCommitRequest
    return new(group_id=f"g-{number}", topics=[new.OffsetCommitRequestTopic(
        name="few", partitions=[new.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=number, committed_metadata="")])])


def start(broker) -> dict:
    """Create each id and each group once, then stop and restart, then kill and restart."""
    run(_ready(broker.port))
    ids = replay(broker, [frame(22, 1, _init(number)) for number in range(IDS)], 16, 4,
                 requests=IDS, error_at=4)
    replay(broker, [frame(8, 7, _commit(number)) for number in range(GROUPS)], 16, 4,
           requests=GROUPS, error_at=-2)
    figures, wanted = {"fill_s": ids["seconds"]}, _one_of_each()
    for how, stop in (("clean", broker.stop), ("killed", broker.kill)):
        stop()
        begin_s = time.perf_counter()
        broker.start()
        run(_described(broker.port, wanted))
        figures[f"{how}_s"] = time.perf_counter() - begin_s
        figures[f"{how}_cpu_s"] = broker.cpu_seconds()
    figures["rss_mb"] = broker.rss_bytes() / 1e6
    return figures


def _one_of_each() -> list[str]:
    """Return one id per partition, so that repeated requests do not dominate the measurement."""
    found = {partition_of(f"id-{number}", ID_PARTITIONS): f"id-{number}" for number in range(IDS)}
    assert len(found) == ID_PARTITIONS, len(found)
    return list(found.values())


async def _described(port: int, wanted: list[str]) -> None:
    """Wait until all descriptions are as before the restart."""
    connection = await Connection.open(port)
    await _answered(connection, 65, 0, messages.DescribeTransactionsRequest(
        transactional_ids=wanted), lambda answer: [
            row.error_code or row.transaction_state != "Empty"
            for row in answer.transaction_states])
    new = messages.OffsetFetchRequest
    group = GROUPS - 1
    await _answered(connection, 9, 5, new(group_id=f"g-{group}", topics=[
        new.OffsetFetchRequestTopic(name="few", partition_indexes=[0])]), lambda answer: [
            answer.error_code or answer.topics[0].partitions[0].committed_offset != group])
    connection.close()


async def _answered(connection: Connection, key: int, version: int, request, faults) -> None:
    """Repeat the request while the only errors are those of a loading coordinator."""
    end_s = time.monotonic() + ANSWER_WAIT_S
    while any(codes := faults(await connection.ask(key, version, request))):
        if {code for code in codes if code} - set(RETRIABLE) or time.monotonic() > end_s:
            raise LoadFailed(f"API {key} is answered with {sorted(set(codes))}")
        await asyncio.sleep(0.002)

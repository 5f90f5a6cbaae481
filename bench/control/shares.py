"""Load on share groups: records acquired and acknowledged, and delivery latency of new records.

Owns: nothing.
Invariants: a response with an error ends the load; every record is acknowledged once, or the load
  fails; broker CPU is read from the first fetch to the last acknowledgement.
"""

import asyncio
import time
from typing import NamedTuple

from bench.control.wire import (
    ANSWER_WAIT_S,
    RETRIABLE,
    Connection,
    create_topics,
    found,
    run,
)
from bench.loads import LoadFailed
from pylog._native.records import batch
from pylog.protocol import messages

CONSUMERS, PARTITIONS = 8, 4
RECORDS, BATCH_RECORDS, RECORD_BYTES = 400_000, 100, 100
ACQUIRED_MAX = 500
WAIT_MS = 500
LATENCY_RECORDS, LATENCY_PER_S = 1_000, 200
ACCEPT, REJECT = 1, 3
FEW_REJECTED = 10  # One record in this many; each type is listed separately in the request.
GROUP_RESOURCE = 32
UNLED = 3, 5, 6


class Run(NamedTuple):
    """Offsets of one partition that a member has acquired."""

    topic_id: bytes
    partition: int
    first: int
    last: int

    @property
    def size(self) -> int:
        return self.last - self.first + 1


class Member:
    """A member of a share group, with one session. Its tasks alternate."""

    def __init__(self, connection: Connection, group: str, number: int):
        self._connection = connection
        self._group = group
        self._id = f"aaaaaaaaaaaaaaaaaaaa{number:02}"
        self._epoch = 0
        self._assigned: list[tuple[bytes, list[int]]] = []

    async def join(self, topic: str) -> None:
        """Heartbeat until partitions are assigned."""
        epoch, end_s = 0, time.monotonic() + ANSWER_WAIT_S
        while time.monotonic() < end_s:
            answer = await self._connection.ask(76, 1, messages.ShareGroupHeartbeatRequest(
                group_id=self._group, member_id=self._id, member_epoch=epoch,
                subscribed_topic_names=[topic]))
            if answer.error_code not in (0, *RETRIABLE):
                raise LoadFailed(f"a member is refused with {answer.error_code}")
            if answer.error_code == 0:
                epoch = answer.member_epoch
                if answer.assignment is not None and answer.assignment.topic_partitions:
                    self._assigned = [(bytes(row.topic_id), list(row.partitions))
                                      for row in answer.assignment.topic_partitions]
                    return
            await asyncio.sleep(0.05)
        raise LoadFailed("a member got no partitions")

    async def fetch(self, runs: list[Run], types) -> list[Run]:
        """Acknowledge the records acquired before, and acquire more. types: Run -> types."""
        new = messages.ShareFetchRequest
        topics = []
        for topic_id, partitions in self._assigned:
            cells = {index: new.FetchPartition(partition_index=index) for index in partitions} \
                if self._epoch == 0 else {}
            for row in runs:
                if row.topic_id == topic_id:
                    cells.setdefault(row.partition, new.FetchPartition(
                        partition_index=row.partition)).acknowledgement_batches.append(
                            new.AcknowledgementBatch(first_offset=row.first, last_offset=row.last,
                                                     acknowledge_types=types(row)))
            if cells:
                topics.append(new.FetchTopic(topic_id=topic_id, partitions=list(cells.values())))
        answer = await self._connection.ask(78, 1, new(
            group_id=self._group, member_id=self._id, share_session_epoch=self._epoch,
            max_wait_ms=WAIT_MS, min_bytes=1, max_records=ACQUIRED_MAX, batch_size=ACQUIRED_MAX,
            topics=topics))
        self._epoch += 1
        return [Run(bytes(topic.topic_id), cell.partition_index, row.first_offset, row.last_offset)
                for topic in _checked(answer).responses for cell in _checked_rows(topic.partitions)
                for row in cell.acquired_records]


def _checked(answer):
    """Raise LoadFailed if the response has an error."""
    if answer.error_code:
        raise LoadFailed(f"a fetch is answered with {answer.error_code}")
    return answer


def _checked_rows(cells):
    """Raise LoadFailed if a partition has an error."""
    for cell in cells:
        if cell.error_code or cell.acknowledge_error_code:
            raise LoadFailed(f"a partition is answered with {cell.error_code}, "
                             f"{cell.acknowledge_error_code}")
    return cells


def _accept(row: Run) -> list[int]:
    return [ACCEPT]


def _reject_few(row: Run) -> list[int]:
    return [REJECT if offset % FEW_REJECTED == 0 else ACCEPT
            for offset in range(row.first, row.last + 1)]


async def _members(port: int, group: str, topic: str, count: int) -> list[Member]:
    found = [Member(await Connection.open(port), group, number) for number in range(count)]
    await asyncio.gather(*(member.join(topic) for member in found))
    return found


async def _ready(port: int, group: str, topic: str, partitions: int) -> Connection:
    connection = await Connection.open(port)
    await found(connection, group)
    new = messages.IncrementalAlterConfigsRequest
    answer = await connection.ask(44, 1, new(resources=[new.AlterConfigsResource(
        resource_type=GROUP_RESOURCE, resource_name=group, configs=[new.AlterableConfig(
            name="share.auto.offset.reset", config_operation=0, value="earliest")])]))
    if answer.responses[0].error_code:
        raise LoadFailed(f"the group's settings are refused: {answer.responses[0]}")
    await create_topics(connection, [topic], partitions)
    return connection


async def _produce(connection: Connection, topic: str, partition: int, count: int) -> int:
    """Append `count` records and return the base offset."""
    new = messages.ProduceRequest
    # Otherwise retention deletes the records.
    now_ms = time.time_ns() // 1_000_000
    request = new(acks=1, timeout_ms=10_000, topic_data=[new.TopicProduceData(
        name=topic, partition_data=[new.PartitionProduceData(index=partition, records=batch.build(
            [(None, bytes(RECORD_BYTES), now_ms, ())] * count))])])
    end_s = time.monotonic() + ANSWER_WAIT_S
    while time.monotonic() < end_s:
        answer = await connection.ask(0, 9, request)
        cell = answer.responses[0].partition_responses[0]
        if cell.error_code == 0:
            return cell.base_offset
        if cell.error_code not in UNLED:
            break
        # Kafka reports the leader of a new partition before it accepts records.
        await asyncio.sleep(0.05)
    raise LoadFailed(f"a Produce is answered with {cell.error_code}")


def load(broker) -> dict:
    """Acquire and acknowledge records in ranges of one type and with mixed types, and measure the
    delivery latency of single records.
    """
    figures = {}
    for name, types in (("whole", _accept), ("mixed", _reject_few)):
        seconds, cpu_s = run(_consumed(broker, types))
        figures[f"{name}_per_cpu_s"] = RECORDS / cpu_s if cpu_s else 0.0
        figures[f"{name}_per_s"] = RECORDS / seconds
    return {**figures, **run(_delivered(broker))}


async def _consumed(broker, types) -> tuple[float, float]:
    """Return (wall seconds, CPU seconds of the broker) for acknowledging every record once."""
    stem = time.monotonic_ns()
    topic, group = f"shared-{stem}", f"group-{stem}"
    connection = await _ready(broker.port, group, topic, PARTITIONS)
    for number in range(RECORDS // BATCH_RECORDS):
        await _produce(connection, topic, number % PARTITIONS, BATCH_RECORDS)
    members = await _members(broker.port, group, topic, CONSUMERS)
    left, ends = RECORDS, (0.0, 0.0)

    def clocks() -> tuple[float, float]:
        return time.perf_counter(), broker.cpu_seconds()

    async def consume(member: Member) -> None:
        nonlocal left, ends
        runs: list[Run] = []
        while left > 0 or runs:
            before, runs = runs, await member.fetch(runs, types)
            left -= sum(row.size for row in before)
            if left <= 0 and before:
                ends = clocks()

    begins = clocks()
    await asyncio.gather(*map(consume, members))
    if left:
        raise LoadFailed(f"{-left} records were acknowledged too often")
    return ends[0] - begins[0], ends[1] - begins[1]


async def _delivered(broker) -> dict:
    """Return the latency from produce to delivery, at a steady rate."""
    stem = time.monotonic_ns()
    topic, group = f"shared-{stem}", f"group-{stem}"
    connection = await _ready(broker.port, group, topic, 1)
    members = await _members(broker.port, group, topic, 2)
    sent: dict[int, float] = {}
    came: dict[int, float] = {}

    async def consume(member: Member) -> None:
        runs: list[Run] = []
        while len(came) < LATENCY_RECORDS or runs:
            runs = await member.fetch(runs, _accept)
            now_s = time.perf_counter()
            came.update((offset, now_s) for row in runs
                        for offset in range(row.first, row.last + 1))

    tasks = [asyncio.create_task(consume(member)) for member in members]
    begin_s = time.perf_counter()
    for number in range(LATENCY_RECORDS):
        await asyncio.sleep(max(0.0, begin_s + number / LATENCY_PER_S - time.perf_counter()))
        at_s = time.perf_counter()
        sent[await _produce(connection, topic, 0, 1)] = at_s
    await asyncio.gather(*tasks)
    waits = sorted(came[offset] - at_s for offset, at_s in sent.items())
    return {"p50_ms": 1e3 * waits[len(waits) // 2], "p99_ms": 1e3 * waits[len(waits) * 99 // 100]}

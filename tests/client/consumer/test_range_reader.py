"""Ranges of a topic as raw batches, read from a broker."""

import asyncio
import time

import pytest

from pylog._native.records import batch
from pylog.client import NewTopic, Producer, TopicPartition
from pylog.client.aio import Admin
from pylog.client.consumer.range_reader import RangeReader, current_ranges
from pylog.client.errors import OffsetOutOfRangeError
from pylog.testing import Broker

COUNT, PARTITIONS = 400, 4
NOW_MS = int(time.time() * 1000) - 10_000


@pytest.fixture(scope="module")
def bootstrap():
    with Broker() as broker:
        async def fill():
            async with Admin(bootstrap_servers=broker.bootstrap) as admin:
                await admin.create_topics([NewTopic("t", PARTITIONS)])
        asyncio.run(fill())
        with Producer(bootstrap_servers=broker.bootstrap, batch_size=2000) as producer:
            for i in range(COUNT * PARTITIONS):
                producer.send("t", b"x" * 100, partition=i % PARTITIONS, timestamp=NOW_MS + i)
        yield broker.bootstrap


def read(bootstrap, ranges, **more):
    """Return the offsets of each partition in the order of the chunks, and the reader."""
    async def go():
        async with Admin(bootstrap_servers=bootstrap) as admin:
            reader = RangeReader(admin.cluster, "t", ranges, **more)
            found, stops = {}, {}
            async for chunk in reader.chunks():
                first = stops.get(chunk.partition, ranges[chunk.partition][0])
                assert chunk.start == first or (chunk.partition, first, chunk.start) in \
                    reader.deleted
                stops[chunk.partition] = chunk.stop
                found.setdefault(chunk.partition, []).extend(
                    header.base_offset + i for _, header in batch.walk(chunk.records)
                    for i in range(header.record_count)
                    if chunk.start <= header.base_offset + i < chunk.end)
            return found, reader
    return asyncio.run(go())


@pytest.mark.parametrize("limits", [{}, {"partition_bytes": 1, "fetch_bytes": 1},
                                    {"partition_bytes": 5000, "fetch_bytes": 8000}])
def test_all_ranges_are_read_whole_and_in_order(bootstrap, limits):
    ranges = {0: (0, COUNT), 1: (17, 330), 3: (399, 400)}
    found, reader = read(bootstrap, ranges, **limits)
    assert found == {partition: list(range(*one)) for partition, one in ranges.items()}
    assert reader.deleted == []


def test_empty_ranges_need_no_fetch(bootstrap):
    assert read(bootstrap, {0: (5, 5), 1: (9, 3)})[0] == {}


def test_offsets_after_the_end_are_an_error(bootstrap):
    with pytest.raises(OffsetOutOfRangeError):
        read(bootstrap, {0: (COUNT + 10, COUNT + 20)})


def test_current_ranges_follow_times(bootstrap):
    async def go(**times):
        async with Admin(bootstrap_servers=bootstrap) as admin:
            return await current_ranges(admin.cluster, "t", [0, 1], **times)
    assert asyncio.run(go()) == {0: (0, COUNT), 1: (0, COUNT)}
    assert asyncio.run(go(since_ms=NOW_MS + 8, until_ms=NOW_MS + 17)) == {0: (2, 5), 1: (2, 4)}
    assert asyncio.run(go(since_ms=NOW_MS + 10**6)) == {}


def test_deleted_offsets_are_listed(bootstrap):
    async def delete():
        async with Admin(bootstrap_servers=bootstrap) as admin:
            await admin.delete_records({TopicPartition("t", 2): 100})
    asyncio.run(delete())
    found, reader = read(bootstrap, {2: (10, 120)})
    assert found == {2: list(range(100, 120))} and reader.deleted == [(2, 10, 100)]

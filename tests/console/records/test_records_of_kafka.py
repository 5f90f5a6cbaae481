"""Searches and copies of records in Apache Kafka."""

import asyncio
import json
import time

import pytest

from pylog.client import NewTopic, Producer, TopicPartition
from pylog.client.aio import Admin
from pylog.console.records import filters, search
from pylog.console.records.copies import Copy
from pylog.console.records.jobs import DONE, RUNNING, Jobs
from pylog.console.records.search import Limits, RecordSearch

pytestmark = pytest.mark.kafka
COUNT = 2000


@pytest.fixture(scope="module")
def bootstrap(kafka):
    address = kafka.bootstrap

    async def create():
        async with Admin(bootstrap_servers=address) as admin:
            await admin.create_topics([NewTopic("console-source", 3), NewTopic("console-copy", 3)])

    async def delete():
        async with Admin(bootstrap_servers=address) as admin:
            await admin.delete_topics(["console-source", "console-copy"])

    asyncio.run(create())
    with Producer(bootstrap_servers=address, compression_type="gzip") as producer:
        for i in range(COUNT):
            producer.send("console-source", json.dumps({"id": i}).encode(), b"k%d" % i)
    yield address
    asyncio.run(delete())


async def found(admin, topic, query, limits=Limits()):  # noqa: B008 -- it is frozen
    chosen = filters.parse(query)
    ranges, _ = await search.plan(admin.cluster, topic, chosen)
    made = RecordSearch(admin.cluster, topic, chosen, ranges, limits, time.monotonic)
    return [json.loads(row.value)["id"] async for one in made.found() for row in one.rows()], made


@pytest.mark.parametrize("order", filters.ORDERS)
def test_searches_find_the_same_records_in_kafka(bootstrap, order):
    async def go():
        async with Admin(bootstrap_servers=bootstrap) as admin:
            ids, made = await found(admin, "console-source", [
                ("json", "$.id >= 500"), ("json", "$.id < 600"), ("order", order)])
            assert sorted(ids) == list(range(500, 600)) and made.is_complete
            ids, _ = await found(admin, "console-source", [("key", "k77"), ("order", order)])
            assert ids == [77]
            ids, made = await found(admin, "console-source", [("order", order)], Limits(10))
            assert len(ids) == 10 and made.left
    asyncio.run(go())


def test_kafka_accepts_copied_batches(bootstrap):
    async def go():
        async with Admin(bootstrap_servers=bootstrap) as admin:
            chosen = filters.parse([])
            ranges, _ = await search.plan(admin.cluster, "console-source", chosen)
            settings = {"bootstrap.servers": bootstrap}
            jobs = Jobs(lambda: 0, time.monotonic)
            job = jobs.start("copy", "u", "c", COUNT, Copy(
                settings, "console-source", chosen, ranges, settings, "console-copy", False, 0,
                time.monotonic).run)
            while job.state == RUNNING:
                await asyncio.sleep(0.05)
            assert (job.state, job.records, job.read) == (DONE, COUNT, COUNT)
            assert job.report[0] == f"{COUNT} records were written, 0 failed."
            ids, made = await found(admin, "console-copy", [("order", "oldest")])
            assert sorted(ids) == list(range(COUNT)) and made.is_complete
            ends = await admin.list_offsets({
                TopicPartition("console-copy", number): "latest" for number in range(3)})
            assert sum(one.offset for one in ends.values()) == COUNT
    asyncio.run(go())

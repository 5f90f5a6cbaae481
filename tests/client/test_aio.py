"""The asyncio consumer: the same calls, awaited."""

import asyncio
import inspect

import pytest

from pylog.client import Consumer as SyncConsumer
from pylog.client import TopicPartition, errors
from pylog.client.aio import Consumer
from tests.client.support import as_rows, new_name, new_topic, put, rows

BROKER_SETTINGS = {"group.initial.rebalance.delay.ms": "0"}


def consumer(broker, **settings):
    return Consumer({"bootstrap.servers": broker.bootstrap, "auto.offset.reset": "earliest"},
                    **settings)


def test_a_group_member_reads_seeks_and_commits(broker):
    topic, group = new_topic(broker, 2), new_name("g")
    put(broker, topic, rows(50))
    part, told = TopicPartition(topic, 0), []

    async def assigned(partitions):
        await asyncio.sleep(0)
        told.append(partitions)

    async def work():
        async with consumer(broker, group_id=group) as member:
            await member.subscribe([topic], on_assign=assigned)
            found = []
            while len(found) < 50:
                found += await member.poll(1.0)
            assert as_rows(found) == rows(50)
            assert told == [[part, TopicPartition(topic, 1)]]
            await member.seek(part, 40)
            assert (await member.poll_arrow(10.0)).num_rows == 10
            assert (await member.lag())[part] == 0
            await member.commit({part: 45})
            assert (await member.committed([part]))[part].offset == 45

    asyncio.run(work())


def test_asyncio_iteration_returns_records_until_wakeup(broker):
    topic = new_topic(broker)
    put(broker, topic, rows(5))

    async def work():
        async with consumer(broker) as member:
            await member.assign([TopicPartition(topic, 0)])
            found = []
            async for record in member:
                found.append(record)
                if len(found) == 5:
                    break
            asyncio.get_running_loop().call_later(0.1, member.wakeup)
            with pytest.raises(errors.WakeupError):
                await member.poll(20.0)
            return found

    assert as_rows(asyncio.run(work())) == rows(5)


def test_other_tasks_run_while_records_are_polled(broker):
    topic = new_topic(broker)
    put(broker, topic, rows(2000), batch_records=500)

    async def work():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(tick())
        async with consumer(broker) as member:
            await member.assign([TopicPartition(topic, 0)])
            read = polls = 0
            while read < 2000:
                read += len(await member.poll(5.0, max_records=10))
                polls += 1
        task.cancel()
        assert ticks >= polls

    asyncio.run(work())


def test_unstarted_consumer_raises(broker):
    with pytest.raises(errors.IllegalStateError, match="async with"):
        asyncio.run(consumer(broker).poll(0))


def test_both_consumers_have_the_same_calls():
    def public(cls):
        return {name for name, _ in inspect.getmembers(cls, callable) if not name.startswith("_")}

    assert public(Consumer) - public(SyncConsumer) == {"start"}
    assert public(SyncConsumer) <= public(Consumer)

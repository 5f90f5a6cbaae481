"""asyncio calls cancelled at each of their awaits: the client stays usable."""

import asyncio
import inspect
import uuid

import pytest

from pylog.client import Producer, ShareConsumer, TopicPartition, aio
from pylog.client.errors import GroupIdNotFoundError, KafkaError
from tests.client.network.test_timeouts_and_cancellation import cancelled_at_each_await
from tests.client.reading import new_topic, read_topic

BROKER_SETTINGS = {"group.initial.rebalance.delay.ms": "0",
                   "group.share.min.heartbeat.interval.ms": "100",
                   "group.share.heartbeat.interval.ms": "100",
                   "group.share.assignment.interval.ms": "0"}
WAIT_S = 30
TURNS = 25
RELEASED_S = 15  # Well below the 30 s after which the lock of a record ends.


def name() -> str:
    return f"n-{uuid.uuid4().hex[:8]}"


async def cancel_after(turns: int, work) -> bool:
    """Cancel a call after some iterations of the loop. Return True if it was still running."""
    task = asyncio.ensure_future(work)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
    return task.cancelled()


@pytest.fixture
def topic(target):
    found = new_topic(target.bootstrap)
    yield found
    # Another client of the process works.
    with Producer(bootstrap_servers=target.bootstrap) as other:
        other.send(found, b"other").result(WAIT_S)


def test_cancelled_init_transactions_can_be_repeated(target, topic):
    async def main():
        async with asyncio.timeout(90):
            for turns in range(0, 60, 3):
                async with aio.Producer(bootstrap_servers=target.bootstrap,
                                        transactional_id="init-cancelled") as producer:
                    await cancel_after(turns, producer.init_transactions())
                    await producer.init_transactions()
                    producer.begin_transaction()
                    await producer.send_and_wait(topic, b"%d" % turns)
                    await producer.commit_transaction()

    asyncio.run(main())
    found = [row[2] for row in read_topic(target.bootstrap, topic, 1, "read_committed")[0]]
    assert found == [b"%d" % turns for turns in range(0, 60, 3)]


@pytest.mark.parametrize("commits", [True, False])
def test_transaction_end_waits_for_offsets_of_a_cancelled_call(
        target, topic, commits):
    group, partition = name(), TopicPartition(topic, 0)

    async def main():
        async with asyncio.timeout(90), aio.Producer(
                bootstrap_servers=target.bootstrap, transactional_id=name()) as producer, \
                aio.Admin(bootstrap_servers=target.bootstrap) as admin:
            await producer.init_transactions()
            for turns in range(TURNS):
                producer.begin_transaction()
                # Its task starts immediately, and sends although the caller is cancelled.
                await cancel_after(turns, producer.send_offsets_to_transaction(
                    {partition: turns + 1}, group))
                await (producer.commit_transaction() if commits else producer.abort_transaction())
                found = (await admin.list_consumer_group_offsets(group)).get(partition)
                assert (found.offset if found else 0) == (turns + 1 if commits and turns else 0)

    asyncio.run(main())


def test_send_arrow_that_is_cancelled_leaves_the_producer_usable(target, topic):
    import pyarrow as pa

    rows = pa.table({"value": [b"row"] * 10})

    async def main():
        async with asyncio.timeout(90), aio.Producer(
                bootstrap_servers=target.bootstrap) as producer:
            for turns in range(6):
                await cancel_after(turns, producer.send_arrow(rows, topic))
            await producer.flush()
            await (await producer.send_arrow(rows, topic))
            assert await producer.flush() == 0

    asyncio.run(main())


@pytest.mark.parametrize("call", ["acknowledge", "commit"])
def test_a_call_of_a_share_consumer_that_is_cancelled_loses_no_record(target, topic, call):
    wanted = {b"%d" % number for number in range(TURNS)}

    async def main():
        found: set[bytes] = set()

        async def polled(consumer):
            records = await consumer.poll(0.2)
            found.update(record.value for record in records)
            return records

        async with asyncio.timeout(90), aio.Producer(
                bootstrap_servers=target.bootstrap) as producer, aio.ShareConsumer(
                    bootstrap_servers=target.bootstrap, group_id=name()) as consumer:
            await consumer.subscribe([topic])
            while await polled(consumer) or not consumer.assignment():
                pass
            for turns in range(TURNS):
                await producer.send_and_wait(topic, b"%d" % turns)
                while b"%d" % turns not in found:
                    await polled(consumer)
                if call == "acknowledge":
                    await cancel_after(turns, consumer.poll(0))
                else:
                    await cancel_after(turns, consumer.commit())
            while found != wanted:
                await polled(consumer)
            assert all(failure is None for failure in (await consumer.commit(WAIT_S)).values())

    asyncio.run(main())


def test_acknowledgements_of_a_cancelled_commit_are_sent(target, topic):
    """No record is delivered a second time."""
    group, outcomes = name(), []

    async def main():
        async with asyncio.timeout(90), aio.Producer(
                bootstrap_servers=target.bootstrap) as producer, aio.ShareConsumer(
                    bootstrap_servers=target.bootstrap, group_id=group) as consumer:
            consumer.set_acknowledgement_commit_callback(
                lambda tp, ranges, failure: outcomes.append((ranges, failure)))
            await consumer.subscribe([topic])
            while await consumer.poll(0.2) or not consumer.assignment():
                pass
            for turns in range(8):
                await producer.send_and_wait(topic, b"value")
                while not await consumer.poll(1.0):
                    pass
                await cancel_after(turns + 1, consumer.commit())
            await consumer.commit(WAIT_S)

    asyncio.run(main())
    assert all(failure is None for _, failure in outcomes)
    assert sum(last - first + 1 for ranges, _ in outcomes for first, last in ranges) == 8
    with ShareConsumer(bootstrap_servers=target.bootstrap, group_id=group) as other:
        other.subscribe([topic])
        assert [other.poll(0.2) for _ in range(5)] == [[]] * 5


def test_busy_share_consumer_polls_yield_to_other_tasks(
        target, topic):
    async def main():
        async with asyncio.timeout(30), aio.ShareConsumer(
                bootstrap_servers=target.bootstrap, group_id=name()) as consumer:
            await consumer.subscribe([topic])
            other = asyncio.create_task(asyncio.sleep(1))
            while not other.done():
                await consumer.poll()

    asyncio.run(main())


def minimal(call) -> dict:
    """Return an argument for each parameter without a default: an empty collection, or a name."""
    kinds = {"str": "absent", "bytes": b"absent", "int": 0, "Mapping": {}, "TopicPartition":
             TopicPartition("absent", 0)}
    return {key: kinds.get(str(parameter.annotation).partition("[")[0], [])
            for key, parameter in inspect.signature(call).parameters.items()
            if parameter.default is parameter.empty}


def admin_calls() -> list[str]:
    return sorted(key for key, member in inspect.getmembers(aio.Admin)
                  if inspect.iscoroutinefunction(member) and not key.startswith("_")
                  and key not in ("start", "close"))


@pytest.mark.parametrize("call", admin_calls())
def test_an_admin_call_that_is_cancelled_leaves_the_admin_usable(target, call):
    async def main():
        async with asyncio.timeout(60), aio.Admin(bootstrap_servers=target.bootstrap) as admin:
            function = getattr(admin, call)

            async def refusable():
                try:
                    await function(**minimal(function), timeout=2)
                except (KafkaError, ValueError):
                    pass  # The arguments name nothing that exists.

            await cancelled_at_each_await(refusable, 40)
            assert (await admin.describe_cluster()).cluster_id

    asyncio.run(main())


@pytest.mark.parametrize("call", ["unsubscribe", "close"])
@pytest.mark.parametrize("mode", ["implicit", "explicit"])
def test_a_cancelled_end_of_a_share_consumer_still_releases_its_records(
        target, topic, call, mode):
    """Acknowledged records are not delivered again; the others reach another member at once."""
    async def check(turns: int) -> None:
        group = name()
        values = {b"%d" % number for number in range(4)}
        topic = await asyncio.to_thread(new_topic, target.bootstrap)
        settings = {"bootstrap_servers": target.bootstrap, "group_id": group,
                    "fetch_max_wait_ms": 50}
        consumer = aio.ShareConsumer(share_acknowledgement_mode=mode, **settings)
        other = aio.ShareConsumer(**settings)
        await consumer.start()
        await other.start()
        try:
            await consumer.subscribe([topic])
            while await consumer.poll(0.2) or not consumer.assignment():
                pass
            async with aio.Producer(
                    bootstrap_servers=target.bootstrap, linger_ms=50) as producer:
                for value in sorted(values):
                    await producer.send(topic, value)
                await producer.flush()
            found = []
            while len(found) < len(values):
                found += await consumer.poll(1.0)
                if mode == "explicit":
                    consumer.acknowledge([record for record in found if record.offset < 2])
            await cancel_after(turns, getattr(consumer, call)())
            left = {b"2", b"3"} if mode == "explicit" else values
            received: list[bytes] = []
            await other.subscribe([topic])
            async with asyncio.timeout(RELEASED_S):
                while not left <= set(received):
                    received += [record.value for record in await other.poll(0.2)]
            received += [record.value for record in await other.poll(0.5)]
            assert sorted(received) == sorted(left)
        finally:
            await consumer.close()
            await other.close()

    async def main():
        for turns in (1, 2, 4, 8, 30):
            await check(turns)

    asyncio.run(main())


@pytest.mark.parametrize(("kind", "more"), [
    (aio.Consumer, {"group_protocol": "classic"}), (aio.Consumer, {"group_protocol": "consumer"}),
    (aio.ShareConsumer, {})], ids=["classic", "consumer", "share"])
def test_client_that_closes_while_it_joins_leaves_no_member_behind(target, topic, kind, more):
    async def members(turns: int) -> int:
        group = name()
        async with kind(bootstrap_servers=target.bootstrap, group_id=group, **more) as consumer:
            await consumer.subscribe([topic])
            await cancel_after(turns, consumer.poll(WAIT_S))
        async with aio.Admin(bootstrap_servers=target.bootstrap) as admin:
            describe = (admin.describe_share_groups if kind is aio.ShareConsumer
                        else admin.describe_consumer_groups)
            try:
                return len((await describe([group]))[group].members)
            except GroupIdNotFoundError:
                return 0  # No member joined.

    async def main():
        for turns in range(20, 420, 20):
            assert await members(turns) == 0, turns

    asyncio.run(main())

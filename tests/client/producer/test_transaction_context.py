"""Consume, transform, produce with pylog.client on brokerd: records and columns."""

import asyncio
import uuid

import pytest

from pylog.client import aio
from pylog.client.config.settings import PRODUCER, Settings
from pylog.client.consumer.consumer import Consumer
from pylog.client.errors import ConfigError, IllegalStateError, RebalanceNeededError
from pylog.client.producer.producer import Producer
from pylog.client.producer.producer import prepared
from pylog.client.producer.transaction_manager import Transactions
from pylog.client.types import TopicPartition
from tests.client.reading import await_markers, new_topic, read_topic
from tests.fixtures.brokers import Brokerd

ROWS = [b"%d" % number for number in range(50)]


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory):
    with Brokerd(tmp_path_factory.mktemp("exactly"), {
            "group.initial.rebalance.delay.ms": 0}) as running:
        yield running.bootstrap


@pytest.fixture
def topics(bootstrap):
    """Return a topic with ROWS, and an empty topic."""
    source, goal = new_topic(bootstrap), new_topic(bootstrap)
    with Producer(bootstrap_servers=bootstrap) as producer:
        for row in ROWS:
            producer.send(source, row)
    return source, goal


def producer_of(bootstrap, **more):
    return Producer(bootstrap_servers=bootstrap, transactional_id=f"id-{uuid.uuid4().hex[:8]}",
                    **more)


def consumer_of(bootstrap, source=None, **more):
    settings = {"group_id": f"g-{uuid.uuid4().hex[:8]}", "enable_auto_commit": False,
                "auto_offset_reset": "earliest", "max_poll_records": 20, **more}
    found = Consumer(bootstrap_servers=bootstrap, isolation_level="read_committed", **settings)
    if source is not None:
        found.subscribe([source])
    return found


def values_of(bootstrap, topic):
    return [row[2] for row in read_topic(bootstrap, topic, 1, "read_committed")[0]]


def copied(producer, consumer, goal, count, fails_at=()):
    """Copy `count` records in transactions; those with numbers in fails_at fail the first time."""
    done, tries, fails = 0, 0, set(fails_at)
    while done < count:
        records = consumer.poll(timeout=10)
        assert records
        tries += 1
        try:
            with producer.transaction(consumer):
                for record in records:
                    producer.send(goal, record.value)
                if tries in fails:
                    raise ValueError("the application")
        except ValueError:
            continue
        done += len(records)


@pytest.mark.parametrize("reset", ["earliest", "none"])
def test_aborted_records_are_processed_again(bootstrap, topics, reset):
    source, goal = topics
    with producer_of(bootstrap) as producer, consumer_of(
            bootstrap, source if reset == "earliest" else None,
            auto_offset_reset=reset) as consumer:
        if reset == "none":
            # Nothing is committed: the consumer returns to the application's position.
            consumer.assign([TopicPartition(source, 0)])
            consumer.seek(TopicPartition(source, 0), 0)
        copied(producer, consumer, goal, len(ROWS), fails_at={1, 3, 4})
        assert consumer.committed([TopicPartition(source, 0)])[
            TopicPartition(source, 0)].offset == len(ROWS)
    assert values_of(bootstrap, goal) == ROWS


def test_columns_are_committed_with_their_results(bootstrap, topics):
    source, goal = topics
    with producer_of(bootstrap) as producer, consumer_of(bootstrap, source) as consumer:
        read = 0
        while read < len(ROWS):
            table = consumer.poll_arrow(timeout=10)
            try:
                with producer.transaction(consumer):
                    producer.send_arrow(table.select(["value"]), goal, value="value")
                    if not read:
                        read = -1
                        raise ValueError("the application")
            except ValueError:
                continue
            read = max(read, 0) + len(table)
    assert values_of(bootstrap, goal) == ROWS


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_next_consumer_resumes_from_the_last_commit(
        bootstrap, topics, protocol):
    source, goal = topics
    group = f"g-{uuid.uuid4().hex[:8]}"
    with producer_of(bootstrap) as producer:
        for _ in range(3):
            with consumer_of(bootstrap, source, group_id=group,
                             group_protocol=protocol) as consumer:
                copied(producer, consumer, goal, 1)
    assert values_of(bootstrap, goal) == ROWS


def test_transaction_is_aborted_if_its_consumer_lost_a_partition(bootstrap, topics):
    source, goal = topics
    with producer_of(bootstrap) as producer, consumer_of(bootstrap) as consumer:
        consumer.assign([TopicPartition(source, 0)])
        records = consumer.poll(timeout=10)
        with pytest.raises(RebalanceNeededError), producer.transaction(consumer):
            producer.send(goal, records[0].value)
            consumer.assign([])
        with producer.transaction():
            producer.send(goal, b"next")
    assert values_of(bootstrap, goal) == [b"next"]


def test_fenced_producer_aborts_nothing_and_raises(bootstrap, topics):
    source, goal = topics
    with producer_of(bootstrap) as producer, consumer_of(bootstrap, source) as consumer:
        records = consumer.poll(timeout=10)
        with pytest.raises(Exception) as caught, producer.transaction(consumer):
            producer.send(goal, records[0].value)
            producer.flush()
            with Producer(bootstrap_servers=bootstrap,
                          transactional_id=producer.settings["transactional.id"]) as other, \
                    other.transaction():
                other.send(goal, b"other")
        assert caught.value.fatal
        assert "could not be aborted" in caught.value.__notes__[0]
        assert consumer.position(TopicPartition(source, 0)) == len(records)
    assert values_of(bootstrap, goal) == [b"other"]


def test_a_consumer_that_commits_by_itself_or_has_no_group_is_rejected(bootstrap):
    with producer_of(bootstrap) as producer:
        with consumer_of(bootstrap, enable_auto_commit=True) as consumer, \
                pytest.raises(ConfigError, match=r"enable\.auto\.commit=false"):
            producer.transaction(consumer).__enter__()
        with consumer_of(bootstrap, group_id=None) as consumer, \
                pytest.raises(IllegalStateError, match=r"group\.id"):
            producer.transaction(consumer).__enter__()
        with pytest.raises(TypeError, match=r"pylog\.client\.Consumer"):
            producer.transaction("orders")
    with Producer(bootstrap_servers=bootstrap) as producer, \
            pytest.raises(IllegalStateError, match=r"transactional\.id"):
        producer.transaction().__enter__()


def test_asyncio_transaction_commits_records_and_offsets_together(bootstrap, topics):
    source, goal = topics

    async def work():
        async with aio.Producer(bootstrap_servers=bootstrap,
                                transactional_id=f"id-{uuid.uuid4().hex[:8]}") as producer, \
                aio.Consumer(bootstrap_servers=bootstrap, group_id=f"g-{uuid.uuid4().hex[:8]}",
                             enable_auto_commit=False, auto_offset_reset="earliest",
                             max_poll_records=20) as consumer:
            await consumer.subscribe([source])
            done = tries = 0
            while done < len(ROWS):
                records = await consumer.poll(timeout=10)
                tries += 1
                try:
                    async with producer.transaction(consumer):
                        for record in records:
                            await producer.send(goal, record.value)
                        if tries % 2:
                            raise ValueError("the application")
                except ValueError:
                    continue
                done += len(records)

    asyncio.run(work())
    assert values_of(bootstrap, goal) == ROWS


@pytest.mark.parametrize("committed", [True, False])
def test_prepared_transaction_is_completed_by_another_client(
        bootstrap, committed):
    goal = new_topic(bootstrap)
    with producer_of(bootstrap) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(goal, b"x")
        part = prepared(producer)
    assert values_of(bootstrap, goal) == []
    settings = Settings(PRODUCER, bootstrap_servers=bootstrap, transactional_id="whichever")

    async def end():
        async with aio.Admin(bootstrap_servers=bootstrap) as admin:
            taken_over = Transactions(admin.cluster, settings, lambda: None, lambda _: None)
            await taken_over.resume(part)
            taken_over.begin_end(committed)
            await taken_over.end(committed)

    asyncio.run(end())
    if committed:
        # Repeating the request is valid: an earlier process may have sent it before it died.
        asyncio.run(end())
    await_markers(bootstrap, goal)
    assert values_of(bootstrap, goal) == [b"x"] * committed


def test_only_an_open_transaction_can_be_prepared(bootstrap):
    with producer_of(bootstrap) as producer:
        producer.init_transactions()
        with pytest.raises(IllegalStateError, match="begin_transaction"):
            prepared(producer)

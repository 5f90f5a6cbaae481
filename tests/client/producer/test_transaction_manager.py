"""Transactions of the producer, on Apache Kafka: both protocols (KIP-98, KIP-890)."""

import asyncio
import uuid

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition

from pylog.client import errors
from pylog.client import types
from pylog.client.producer.aio_producer import Producer as AioProducer
from pylog.client.producer.producer import Producer
from pylog.client.producer.transaction_manager import Transactions
from tests.client.reading import await_markers, new_topic, read_topic

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def bootstrap(kafka):
    return kafka.bootstrap


@pytest.fixture(params=["the brokers add partitions", "the client adds partitions"])
def protocol(request, monkeypatch):
    if request.param.startswith("the client"):
        def learn(self, connection):
            self.brokers_add, self.produce_version_max = False, 11
        monkeypatch.setattr(Transactions, "_learn", learn)
    return request.param


def producer_of(bootstrap, **more):
    settings = {"transactional.id": f"id-{uuid.uuid4().hex[:8]}", **more}
    return Producer({"bootstrap.servers": bootstrap, **settings})


def values_of(bootstrap, topic, isolation="read_committed"):
    await_markers(bootstrap, topic)
    return [row[2] for row in read_topic(bootstrap, topic, 1, isolation)[0]]


def test_committed_records_are_visible_and_aborted_ones_are_not(bootstrap, protocol):
    topic = new_topic(bootstrap)
    with producer_of(bootstrap) as producer:
        producer.init_transactions()
        for number in range(4):
            producer.begin_transaction()
            for i in range(20):
                producer.send(topic, b"%d-%d" % (number, i))
            if number % 2:
                producer.flush()
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    wanted = [b"%d-%d" % (number, i) for number in (0, 2) for i in range(20)]
    assert values_of(bootstrap, topic) == wanted
    assert len(values_of(bootstrap, topic, "read_uncommitted")) == 80


def test_a_transaction_spans_topics_partitions_and_tables(bootstrap, protocol):
    topics = [new_topic(bootstrap, 3) for _ in range(2)]
    with producer_of(bootstrap) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        table = pa.table({"value": [b"%d" % i for i in range(300)],
                          "partition": [i % 3 for i in range(300)]})
        for topic in topics:
            producer.send_arrow(table, topic)
            producer.send(topic, b"last", partition=0)
        producer.commit_transaction()
    for topic in topics:
        await_markers(bootstrap, topic, 3)
        found = read_topic(bootstrap, topic, 3)
        assert [len(rows) for rows in found.values()] == [101, 100, 100]


def test_unsent_records_of_an_aborted_transaction_fail_and_are_never_sent(bootstrap, protocol):
    topic = new_topic(bootstrap)
    with producer_of(bootstrap, **{"linger.ms": 60_000}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        delivery = producer.send(topic, b"never")
        producer.abort_transaction()
        assert delivery.exception(1) is not None
        producer.begin_transaction()
        producer.send(topic, b"kept")
        producer.commit_transaction()
    assert values_of(bootstrap, topic, "read_uncommitted") == [b"kept"]


def test_an_empty_transaction_commits(bootstrap, protocol):
    with producer_of(bootstrap) as producer:
        producer.init_transactions()
        for end in (producer.commit_transaction, producer.abort_transaction):
            producer.begin_transaction()
            end()


@pytest.mark.parametrize("committed", [True, False])
def test_offsets_are_committed_with_the_transaction(bootstrap, protocol, committed):
    topic, group = new_topic(bootstrap), f"g-{uuid.uuid4().hex[:8]}"
    with producer_of(bootstrap) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"x")
        producer.send_offsets_to_transaction(
            {types.TopicPartition(topic, 0): types.OffsetAndMetadata(5, "note")}, group)
        producer.commit_transaction() if committed else producer.abort_transaction()
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    (found,) = reader.committed([TopicPartition(topic, 0)], timeout=20)
    reader.close()
    assert found.offset == (5 if committed else -1001)


def test_a_second_producer_of_the_id_fences_the_first(bootstrap, protocol):
    topic = new_topic(bootstrap)
    first = producer_of(bootstrap)
    first.init_transactions()
    first.begin_transaction()
    first.send(topic, b"old").result(20)
    with Producer(bootstrap_servers=bootstrap,
                  transactional_id=first.settings["transactional.id"]) as second:
        second.init_transactions()
        second.begin_transaction()
        second.send(topic, b"new")
        second.commit_transaction()
    with pytest.raises(errors.KafkaError) as raised:
        first.send(topic, b"too late").result(20)
        first.commit_transaction()
    assert raised.value.fatal, raised.value
    with pytest.raises(errors.KafkaError):
        first.begin_transaction()
    first.close(0)
    assert values_of(bootstrap, topic) == [b"new"]


def test_a_failed_record_breaks_the_transaction_until_it_is_aborted(bootstrap, protocol):
    topic = new_topic(bootstrap, **{"max.message.bytes": "1000"})
    with producer_of(bootstrap) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        failed = producer.send(topic, b"x" * 5000)
        assert isinstance(failed.exception(20), errors.MessageTooLargeError)
        with pytest.raises(errors.MessageTooLargeError):
            producer.send(topic, b"more")
        with pytest.raises(errors.MessageTooLargeError):
            producer.commit_transaction()
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send(topic, b"good")
        producer.commit_transaction()
    assert values_of(bootstrap, topic) == [b"good"]


def test_calls_out_of_order_are_rejected(bootstrap):
    with Producer(bootstrap_servers=bootstrap) as plain:
        for call in (plain.init_transactions, plain.begin_transaction, plain.commit_transaction):
            with pytest.raises(errors.IllegalStateError):
                call()
    with producer_of(bootstrap) as producer:
        with pytest.raises(errors.IllegalStateError):
            producer.begin_transaction()
        producer.init_transactions()
        with pytest.raises(errors.IllegalStateError):
            producer.send("t", b"x")
        with pytest.raises(errors.IllegalStateError):
            producer.commit_transaction()
        producer.begin_transaction()
        with pytest.raises(errors.IllegalStateError):
            producer.begin_transaction()
        producer.abort_transaction()


def test_the_asyncio_producer_has_transactions_too(bootstrap):
    topic = new_topic(bootstrap)

    async def work():
        async with AioProducer(bootstrap_servers=bootstrap,
                               transactional_id=f"id-{uuid.uuid4().hex}") as producer:
            await producer.init_transactions()
            producer.begin_transaction()
            await producer.send(topic, b"aborted")
            await producer.abort_transaction()
            producer.begin_transaction()
            await producer.send(topic, b"committed")
            await producer.commit_transaction()

    asyncio.run(work())
    assert values_of(bootstrap, topic) == [b"committed"]


def sending(producer, topic, is_table):
    import pyarrow as pa

    return producer.send_arrow(pa.table({"value": ["aborted"]}), topic) if is_table else (
        producer.send(topic, b"aborted"))


@pytest.mark.parametrize("is_table", [False, True])
def test_a_send_that_waited_is_not_part_of_the_next_transaction(bootstrap, is_table):
    topic = f"t-{uuid.uuid4().hex}"

    async def work():
        async with AioProducer(bootstrap_servers=bootstrap,
                               transactional_id=f"id-{uuid.uuid4().hex}") as producer:
            with pytest.raises(ZeroDivisionError):
                async with producer.transaction():
                    # It waits for the metadata of a topic that is unknown here.
                    late = asyncio.create_task(sending(producer, topic, is_table))
                    await asyncio.sleep(0)
                    _ = 1 / 0
            async with producer.transaction():
                with pytest.raises(errors.IllegalStateError, match="the transaction ended"):
                    await late
                await producer.send(topic, b"committed")

    asyncio.run(work())
    assert values_of(bootstrap, topic) == [b"committed"]


def test_a_record_added_after_its_check_is_not_part_of_the_next_transaction(bootstrap, protocol):
    topic = new_topic(bootstrap)
    with producer_of(bootstrap) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"a").result(10)
        end = producer._core.transactions.end
        late = []

        async def ended(committed):
            await end(committed)
            late.append(producer._core.put(topic, None, b"late", 0, None, None, None))

        producer._core.transactions.end = ended
        producer.abort_transaction()
        producer._core.transactions.end = end
        producer.begin_transaction()
        producer.send(topic, b"b")
        producer.commit_transaction()
        assert isinstance(late[0].exception(10), errors.KafkaError)
    assert values_of(bootstrap, topic) == [b"b"]

"""Transactions across restarts of brokerd: acknowledged ones remain, open ones can be ended."""

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka import Producer as Librdkafka

from pylog.client.producer.producer import Producer
from pylog.testing import Broker
from tests.client.reading import read_topic

WAIT_S = 30


@pytest.fixture
def broker(tmp_path):
    with Broker(tmp_path, process=True) as broker:
        broker.create_topic("orders", 3)
        yield broker


def producer_of(broker):
    return Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "app"})


def values(broker, isolation="read_committed"):
    return {row[2] for rows in read_topic(broker.bootstrap, "orders", 3, isolation).values()
            for row in rows}


def test_committed_transactions_survive_a_kill_and_open_ones_are_aborted(broker):
    wanted = set()
    for number in range(3):
        producer = producer_of(broker)
        producer.init_transactions()
        producer.begin_transaction()
        for partition in range(3):
            wanted.add(b"committed-%d-%d" % (number, partition))
            producer.send("orders", b"committed-%d-%d" % (number, partition), partition=partition)
        producer.commit_transaction()
        producer.begin_transaction()
        for partition in range(3):
            producer.send("orders", b"open-%d" % number, partition=partition)
        producer.flush()
        broker.kill()
        broker.start()
    with producer_of(broker) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"last", partition=0)
        producer.commit_transaction()
    assert values(broker) == wanted | {b"last"}


def test_offsets_of_an_open_transaction_outlive_a_restart(broker):
    producer = Librdkafka({"bootstrap.servers": broker.bootstrap, "transactional.id": "app"})
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
    place = TopicPartition("orders", 0)
    producer.init_transactions(WAIT_S)
    for offset, restart in ((4, False), (5, True)):
        producer.begin_transaction()
        producer.produce("orders", b"out", partition=1)
        place.offset = offset
        producer.send_offsets_to_transaction([place], consumer.consumer_group_metadata(), WAIT_S)
        if restart:
            broker.restart()
        producer.commit_transaction(WAIT_S)
        assert consumer.committed([place], WAIT_S)[0].offset == offset
    consumer.close()

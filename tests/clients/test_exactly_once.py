"""Transactional copies while the program and its broker are killed in turn.

One of our programs, and Kafka's own message copier. Kafka Streams and Kafka Connect:
docs/reference/compatibility.md.
"""

import sys

import pytest

from tests.compat.exactly_once import ROUNDS, SETTINGS, Copier, Worker, exactly_once
from tests.fixtures.brokers import REPOSITORY, Brokerd
from tests.wire.talk import create_topic, unique

TRANSACTIONAL = """
import sys
from pylog.client import Consumer, KafkaError, Producer, TopicPartition
bootstrap, source, goal = sys.argv[1:]
common = {"bootstrap.servers": bootstrap}
with Consumer({**common, "group.id": goal, "auto.offset.reset": "earliest",
               "enable.auto.commit": False}) as consumer, \\
        Producer({**common, "transactional.id": goal}) as producer:
    producer.init_transactions()
    consumer.assign([TopicPartition(source, 0)])
    while True:
        records = consumer.poll(1.0, 10)
        if not records:
            continue
        try:
            producer.begin_transaction()
            for record in records:
                producer.send(goal, record.value, partition=0)
            producer.send_offsets_to_transaction(
                {TopicPartition(source, 0): records[-1].offset + 1}, consumer.group_metadata())
            producer.commit_transaction()
        except KafkaError as failure:
            producer.abort_transaction()
            entry = consumer.committed([TopicPartition(source, 0)])[TopicPartition(source, 0)]
            consumer.seek(TopicPartition(source, 0), entry.offset if entry else 0)
"""
# Offsets follow the records in a separate commit.
CARELESS = """
import sys
from pylog.client import Consumer, Producer, TopicPartition
bootstrap, source, goal = sys.argv[1:]
common = {"bootstrap.servers": bootstrap}
with Consumer({**common, "auto.offset.reset": "earliest"}) as consumer, \\
        Producer(common) as producer:
    consumer.assign([TopicPartition(source, 0)])
    while True:
        for record in consumer.poll(1.0, 10):
            producer.send(goal, record.value, partition=0).result(10)
"""


class Program(Worker):
    """One of our programs, as text."""

    text = TRANSACTIONAL

    def command(self) -> list[str]:
        return [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(REPOSITORY)!r})\n"
                f"{self.text}", self.broker.bootstrap, self.topic, self.goal]


class Careless(Program):
    text = CARELESS


def run(kind, tmp_path, random_source, count: int, rounds=ROUNDS) -> None:
    settings = {**SETTINGS, "offsets.topic.num.partitions": 4,
                "transaction.state.log.num.partitions": 4}
    (tmp_path / "folder").mkdir()
    with Brokerd(tmp_path / "broker", settings) as broker:
        topic = unique("exactly-once")
        create_topic(broker.port, topic)
        exactly_once(kind([], broker, topic, tmp_path / "folder"), random_source, count, rounds)
        assert broker.alarms() == []


@pytest.mark.timeout(280)
def test_transactional_copy_with_our_client_is_exactly_once(tmp_path, random_source):
    run(Program, tmp_path, random_source, 100)


@pytest.mark.timeout(280)
def test_copy_without_transactions_is_detected(tmp_path, random_source):
    with pytest.raises(AssertionError, match="twice"):
        # The second worker repeats records that the first one copied.
        run(Careless, tmp_path, random_source, 100, ("worker", "worker"))


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(600)
def test_kafkas_message_copier_with_random_aborts_is_exactly_once(
        tmp_path, random_source):
    run(Copier, tmp_path, random_source, 300)

"""One data directory used by Apache Kafka and pylog in turn: each continues with it."""

import pytest

from tests.fixtures.brokers import Brokerd, Kafka

confluent_kafka = pytest.importorskip("confluent_kafka")
admin = pytest.importorskip("confluent_kafka.admin")

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]


def create(broker, name, partitions):
    client = admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    topic = admin.NewTopic(name, partitions, 1, config={"retention.ms": "987654321"})
    for future in client.create_topics([topic]).values():
        future.result(30)


def produce(broker, topic, values):
    producer = confluent_kafka.Producer({
        "bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value, key=value)
    assert producer.flush(30) == 0


def consume(broker, topic, count):
    """Return all values of a topic after `count` of them arrived."""
    consumer = confluent_kafka.Consumer({
        "bootstrap.servers": broker.bootstrap, "group.id": "none", "enable.auto.commit": False})
    partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    consumer.assign([confluent_kafka.TopicPartition(topic, index, 0) for index in partitions])
    values = []
    while len(values) < count:
        message = consumer.poll(30)
        assert message is not None and message.error() is None, (len(values), message)
        values.append(message.value())
    consumer.close()
    return sorted(values)


def test_directory_migrates_from_kafka_to_pylog_and_back(tmp_path):
    written = []
    for turn in range(4):
        # The Kafka fixture stores its data in a folder of that name.
        broker = Brokerd(tmp_path, data_dir=tmp_path / "kafka") if turn % 2 else Kafka(tmp_path)
        with broker as running:
            if turn == 0:
                create(running, "kept", 3)
            if turn == 1:
                create(running, "ours", 2)
            assert consume(running, "kept", len(written)) == sorted(written)
            values = [b"%d-%d" % (turn, number) for number in range(50)]
            produce(running, "kept", values)
            written += values
            assert consume(running, "kept", len(written)) == sorted(written)
            assert running.stop() in (0, 143)
    assert (tmp_path / "kafka" / "ours-1").is_dir()

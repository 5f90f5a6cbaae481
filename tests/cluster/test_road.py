"""From an Apache Kafka to three machines of ours, Kafka's controller included."""

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.brokers import Kafka, free_port
from tests.clusters import Cluster, until
from tests.replication import support
from tests.tools.support import run

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SETTINGS = {"offsets.topic.num.partitions": 2, "transaction.state.log.num.partitions": 2,
            "offsets.topic.replication.factor": 1, "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1, "group.initial.rebalance.delay.ms": 0}
KAFKA = 9


def produced(bootstrap, values) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
    for value in values:
        producer.produce("orders", value, partition=0)
    assert producer.flush(60) == 0


def consumed(bootstrap, count) -> list:
    """What the group reads next."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers",
                         "auto.offset.reset": "earliest", "enable.auto.commit": False})
    consumer.subscribe(["orders"])
    found: list = []

    def look():
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.append(message.value())
        return len(found) >= count
    until(look, 60)
    consumer.commit(asynchronous=False)
    consumer.close()
    return found


def everything(bootstrap) -> list:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "all",
                         "enable.auto.commit": False})
    part = TopicPartition("orders", 0, 0)
    _, end = consumer.get_watermark_offsets(part, timeout=30)
    consumer.assign([part])
    found = []
    while len(found) < end:
        message = consumer.poll(10)
        assert message is not None, found
        found.append(message.value())
    consumer.close()
    return found


@pytest.mark.timeout(300)
def test_a_kafka_is_replaced_by_three_machines_and_its_controller_last(tmp_path):
    values = [b"%d" % number for number in range(60)]
    client_port, controller_port = free_port(), free_port()
    kafka = Kafka(tmp_path / "kafka", {
        **SETTINGS, "node.id": KAFKA,
        "controller.quorum.voters": f"{KAFKA}@127.0.0.1:{controller_port}",
        "listeners": f"PLAINTEXT://127.0.0.1:{client_port},"
                     f"CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{client_port}"})
    kafka.broker.wanted_port = client_port
    cluster = Cluster(tmp_path, settings=SETTINGS)
    kafka.start()
    ours = {number: support.member(broker.root, kafka, number, {
        **SETTINGS, "listeners": f"PLAINTEXT://127.0.0.1:{broker.port}", "metrics.listener": ""})
        for number, broker in cluster.brokers.items()}
    try:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(30)
        produced(kafka.bootstrap, values[:20])
        assert consumed(kafka.bootstrap, 20) == values[:20]
        for number, broker in ours.items():
            broker.port = cluster.brokers[number].port
            broker.start(60)
        # Everything moves, and what Kafka had in one place has three.
        run("cluster", "move", "*", "--to", "1,2,3", "--wait", "--yes", broker=ours[1])
        produced(ours[1].bootstrap, values[20:40])
        # Kafka's broker has nothing any more, and its controller comes last.
        for number in (3, 2, 1):
            ours[number].stop()
        kafka.stop()
        cluster.start()
        # Kafka's broker is found to be gone.
        until(lambda: support.brokers(cluster.brokers[1]) == [1, 2, 3], 30)
        run("cluster", "grow", "--wait", "--yes", broker=cluster.brokers[1])
        produced(cluster.bootstrap, values[40:])
        assert everything(cluster.bootstrap) == values
        assert consumed(cluster.bootstrap, 40) == values[20:]
        assert "the same on all replicas" in run(
            "cluster", "verify", "orders", broker=cluster.brokers[2]).out
    finally:
        cluster.close()
        for broker in ours.values():
            broker.kill()
        kafka.kill()

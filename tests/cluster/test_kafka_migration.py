"""Migration from an Apache Kafka to three of our machines, including the controller, and back."""

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from pylog.testing.ports import free_port
from tests.chaos.history import Final, History, Partition, problems
from tests.chaos.readers import LibrdkafkaMember, OwnMember, Reader
from tests.chaos.soak import read_whole
from tests.chaos.transactors import LibrdkafkaTransactor, OwnTransactor
from tests.chaos.writers import LibrdkafkaSender, OwnSender, Sender
from tests.fixtures.brokers import ALARMS, Kafka
from tests.fixtures.clusters import Cluster, until
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
    """Return the group's next records."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers",
                         "auto.offset.reset": "earliest", "enable.auto.commit": False})
    consumer.subscribe(["orders"])
    found: list = []

    def is_done():
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.append(message.value())
        return len(found) >= count
    until(is_done, 60)
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


def kafka_alone(root) -> Kafka:
    """Return a combined broker and controller, not started; it keeps its port."""
    client_port, controller_port = free_port(), free_port()
    kafka = Kafka(root / "kafka", {
        **SETTINGS, "node.id": KAFKA,
        "controller.quorum.voters": f"{KAFKA}@127.0.0.1:{controller_port}",
        "listeners": f"PLAINTEXT://127.0.0.1:{client_port},"
                     f"CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{client_port}"})
    kafka.broker.wanted_port = client_port
    return kafka


@pytest.mark.timeout(300)
def test_kafka_is_replaced_by_three_machines_with_its_controller_last(tmp_path):
    values = [b"%d" % number for number in range(60)]
    kafka = kafka_alone(tmp_path)
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
        # Everything moves, and single replicas become three.
        run("cluster", "move", "*", "--to", "1,2,3", "--wait", "--yes", broker=ours[1])
        produced(ours[1].bootstrap, values[20:40])
        # Kafka's broker has no partition left, and its controller moves last.
        for number in (3, 2, 1):
            ours[number].stop()
        kafka.stop()
        cluster.start()
        # Kafka's broker is reported as failed.
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


TOPICS = {"orders": 4, "accounts": 2}


class Load:
    """Clients that continuously write, read and commit, also in transactions, and their results."""

    def __init__(self, bootstrap: str):
        self.history = History()
        given = self.history, bootstrap
        self._writers = [
            OwnSender("own", *given, "orders", 4, 40),
            LibrdkafkaSender("librdkafka", *given, "orders", 4, 40),
            OwnTransactor("own-transactor", *given, "accounts", 2, 3),
            LibrdkafkaTransactor("librdkafka-transactor", *given, "accounts", 2, 3)]
        self._readers = [
            Reader("reader", *given, TOPICS, False), Reader("committed", *given, TOPICS, True),
            OwnMember("own-group", 0, *given, ["orders", "accounts"]),
            LibrdkafkaMember("librdkafka-group", 0, *given, ["orders", "accounts"])]
        for client in self._clients:
            client.start()

    @property
    def _clients(self) -> list:
        return [*self._writers, *self._readers]

    def wait_for_progress(self) -> None:
        """Wait until each client has made progress."""
        before = {client: client.progress for client in self._clients}

        def is_done():
            for client in self._clients:
                assert client.failure is None, (client.name, client.failure)
            return all(client.progress > before[client] + 5 for client in before)
        until(is_done, 120, f"{[(one.name, one.progress - before[one]) for one in before]}")

    def end(self) -> list:
        """Stop and return the failed sends."""
        for clients in (self._writers, self._readers):
            for client in clients:
                client.end(120)
        return [failure for client in self._writers if isinstance(client, Sender)
                for failure in client.failures]


@pytest.mark.timeout(900)
def test_everything_moves_back_to_kafka_while_clients_continue(tmp_path):
    kafka = kafka_alone(tmp_path)
    ours = {}
    kafka.start()
    try:
        for number in (1, 2, 3):
            ours[number] = support.member(tmp_path / f"ours-{number}", kafka, number, SETTINGS)
            ours[number].start(60)
        for name, count in TOPICS.items():
            support.create(kafka, name, [[KAFKA]] * count)
        load = Load(",".join(broker.bootstrap for broker in (kafka, ours[1])))
        load.wait_for_progress()
        for goal in ("1,2,3", str(KAFKA)):
            # Internal topics with groups and transactions move too.
            run("cluster", "move", "*", "--to", goal, "--wait", "--yes", broker=kafka)
            load.wait_for_progress()
        for broker in ours.values():
            assert broker.stop() == 0
            # A coordinator that lost its partition during a write logs that.
            assert not [line for line in broker.alarms() if any(mark in line for mark in ALARMS)]
        load.wait_for_progress()
        assert load.end() == []
        finals = {}
        for name, count in TOPICS.items():
            for partition in range(count):
                place = Partition(name, partition)
                finals[place] = Final(
                    read_whole(kafka.bootstrap, place, "read_uncommitted"),
                    set(read_whole(kafka.bootstrap, place, "read_committed")), {})
        assert problems(load.history, finals, set(TOPICS)) == []
    finally:
        for broker in (*ours.values(), kafka):
            broker.kill()

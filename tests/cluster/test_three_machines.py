"""Three brokerds with etcd, killed and stopped under load."""

import contextlib
import io
import itertools
import json
import os
import signal
import threading
import time
import urllib.request

import pytest

from bench.cluster.nodes import children
from pylog import cli
from pylog.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from pylog.client.errors import KafkaError
from pylog.testing.ports import free_port
from tests.fixtures.clusters import Cluster, files_of, until
from tests.tools.support import run

NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    found = Cluster(tmp_path_factory.mktemp("cluster"), settings={
        "group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 1,
        "transaction.state.log.num.partitions": 1, "broker.session.timeout.ms": 1500,
        "broker.heartbeat.interval.ms": 250})
    found.brokers[1].overrides["metrics.listener"] = f"127.0.0.1:{free_port()}"
    with found:
        yield found


@pytest.fixture
def topic(cluster):
    """A topic with two partitions and three replicas."""
    return created(cluster, f"orders-{next(NUMBERS)}")


def test_hung_quorum_member_is_reported_everywhere(cluster):
    def status() -> tuple[list, list]:
        # It fails until the cluster is healthy, so the exit status is ignored.
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            cli.pylog(["cluster", "status", "--json", "-b", cluster.bootstrap])
        told = json.loads(out.getvalue())
        return told["quorum_members"], told["troubles"]

    until(lambda: status()[1] == [], 60, cluster.tails())
    members, _ = status()
    assert len(members) == 3 and sum(row["leads"] for row in members) == 1
    etcd, = children(cluster.brokers[3].pid)
    os.kill(etcd, signal.SIGSTOP)
    try:
        until(lambda: any("127.0.0.3:" in line and "cannot be used" in line
                          for line in status()[1]), 60, cluster.tails())
        findings = run("doctor", "--json", broker=cluster.brokers[1], fails=True).json["findings"]
        told = [row["status"] for row in findings if row["check"] == "quorum"]
        assert told == ["ok", "ok", "fail"], findings
        page = urllib.request.urlopen(urllib.request.Request(
            f"http://{cluster.brokers[1].overrides['metrics.listener']}/cluster",
            headers={"Accept": "text/html"}), timeout=20).read().decode()
        assert "Quorum of the controllers" in page and "if one more member fails" in page
    finally:
        os.kill(etcd, signal.SIGCONT)
    until(lambda: status()[1] == [], 60, cluster.tails())


class Writer(threading.Thread):
    """Writes numbers with acks=all, one after the other, until it is stopped."""

    def __init__(self, bootstrap, topic):
        super().__init__(daemon=True)
        self.acknowledged: list[int] = []
        self.refused: list[str] = []
        self._stopping = threading.Event()
        self._settings = {"bootstrap.servers": bootstrap, "acks": "all",
                          "delivery.timeout.ms": 60_000, "linger.ms": 0}
        self._topic = topic
        self.start()

    def run(self):
        with Producer(self._settings) as producer:
            number = 0
            while not self._stopping.is_set():
                try:
                    producer.send(self._topic, str(number).encode(),
                                  partition=number % 2).result(60)
                except KafkaError as error:
                    self.refused.append(str(error))
                else:
                    self.acknowledged.append(number)
                number += 1

    def wait_for_progress(self, cluster) -> None:
        """Wait until new records are acknowledged."""
        before = len(self.acknowledged)
        until(lambda: len(self.acknowledged) > before + 20, 60, cluster.tails())

    def end(self) -> list:
        self._stopping.set()
        self.join(90)
        assert not self.is_alive()
        return self.acknowledged


def controller_of(cluster) -> int:
    """Return the active controller, or -1."""
    for broker in cluster.brokers.values():
        if broker.alive():
            found = run("cluster", "--json", broker=broker).json["quorum"]
            return -1 if found is None else found["leader"]
    return -1


def described(cluster, topic) -> dict:
    """Return partition -> (leader, isr)."""
    broker = next(broker for broker in cluster.brokers.values() if broker.alive())
    with Admin({"bootstrap.servers": broker.bootstrap}) as admin:
        parts = admin.describe_topics([topic])[topic].partitions
    return {number: (part.leader, list(part.isr)) for number, part in parts.items()}


def created(cluster, topic, partitions=2) -> str:
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        until(lambda: len(admin.describe_cluster().nodes) == 3)
        admin.create_topics([NewTopic(topic, partitions, 3)])
    # The queried broker sees the change a moment after the broker that received it.
    asked = next(broker for broker in cluster.brokers.values() if broker.alive())
    with Admin({"bootstrap.servers": asked.bootstrap}) as admin:
        until(lambda: topic in admin.list_topics())
    wait_in_sync(cluster, topic)
    return topic


def wait_in_sync(cluster, topic) -> None:
    """Wait until every replica of a topic is in its ISR."""
    end = time.monotonic() + 60
    while any(len(isr) < 3 for _, isr in described(cluster, topic).values()):
        assert time.monotonic() < end, cluster.tails()
        time.sleep(0.1)


def everything(cluster, topic, partitions, **settings) -> list:
    """Return the values of all partitions up to their ends."""
    with Consumer({"bootstrap.servers": cluster.bootstrap, "auto.offset.reset": "earliest",
                   **settings}) as consumer:
        parts = [TopicPartition(topic, index) for index in partitions]
        consumer.assign(parts)
        ends, found = consumer.end_offsets(parts), []
        until(lambda: found.extend(consumer.poll(0.5)) or all(
            consumer.position(part) >= end for part, end in ends.items()), 30, cluster.tails())
        return [int(record.value) for record in found]


def check(cluster, topic, acknowledged) -> None:
    """Check that no record is lost or duplicated and that replicas are identical byte by byte."""
    wait_in_sync(cluster, topic)
    partitions = described(cluster, topic)
    found = everything(cluster, topic, partitions)
    lost = set(acknowledged) - set(found)
    assert not lost, sorted(lost)[:10]
    assert len(found) == len(set(found))
    for partition in partitions:
        until(lambda index=partition: len({
            files_of(broker, topic, index) for broker in cluster.brokers.values()}) == 1, 10)
    assert "the same on all replicas" in run(
        "cluster", "verify", topic, broker=cluster.brokers[1]).out


def test_acknowledged_records_survive_a_killed_leader_and_controller(cluster, topic):
    writer = Writer(cluster.bootstrap, topic)
    writer.wait_for_progress(cluster)
    leader = described(cluster, topic)[0][0]
    cluster.brokers[leader].kill()
    until(lambda: described(cluster, topic)[0][0] not in (-1, leader))
    writer.wait_for_progress(cluster)
    cluster.start_broker(leader)
    wait_in_sync(cluster, topic)
    decides = controller_of(cluster)
    cluster.brokers[decides].kill()
    until(lambda: controller_of(cluster) not in (-1, decides))
    writer.wait_for_progress(cluster)
    cluster.start_broker(decides)
    acknowledged = writer.end()
    assert not writer.refused, writer.refused
    check(cluster, topic, acknowledged)


def test_restart_of_a_machine_fails_no_request(cluster, topic):
    writer = Writer(cluster.bootstrap, topic)
    writer.wait_for_progress(cluster)
    leader = described(cluster, topic)[0][0]
    assert cluster.brokers[leader].stop() == 0
    writer.wait_for_progress(cluster)
    cluster.start_broker(leader)
    wait_in_sync(cluster, topic)
    acknowledged = writer.end()
    assert not writer.refused, writer.refused
    check(cluster, topic, acknowledged)


def coordinator_of(cluster, topic) -> int:
    leaders = {leader for leader, _ in described(cluster, topic).values()}
    assert len(leaders) == 1
    return leaders.pop()


def test_groups_and_transactions_survive_coordinator_failover(cluster, topic):
    group = {"bootstrap.servers": cluster.bootstrap, "group.id": "readers",
             "auto.offset.reset": "earliest", "enable.auto.commit": False}
    # This broker requests the internal topic from the controller in its own process.
    first = cluster.brokers[controller_of(cluster)].bootstrap
    with Producer({"bootstrap.servers": first,
                   "transactional.id": "orders-writer"}) as producer, \
            Consumer(group) as consumer:
        consumer.subscribe([topic])
        producer.init_transactions()
        numbers = iter(range(1000))
        sent = _transaction(producer, topic, numbers)
        read = _read(consumer, len(sent), cluster)
        consumer.commit()
        for internal in ("__transaction_state", "__consumer_offsets"):
            wait_in_sync(cluster, internal)
            victim = coordinator_of(cluster, internal)
            producer.begin_transaction()
            open_ = [next(numbers) for _ in range(4)]
            for number in open_:
                producer.send(topic, str(number).encode())
            producer.flush()
            cluster.brokers[victim].kill()
            producer.commit_transaction()
            sent += open_ + _transaction(producer, topic, numbers)
            read += _read(consumer, len(sent) - len(read), cluster)
            consumer.commit()
            cluster.start_broker(victim)
            wait_in_sync(cluster, topic)
        assert sorted(read) == sorted(sent)
        # The last marker may follow the counted records.
        parts = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
        ends = consumer.end_offsets(parts)
        until(lambda: not consumer.poll(0.1) and {part: consumer.position(part) for part in parts}
              == ends, 30, cluster.tails())
        consumer.commit()
    with Consumer(group) as consumer:
        committed = consumer.committed(parts)
        assert {part: entry.offset for part, entry in committed.items()} == ends
    found = everything(cluster, topic, [0, 1], **{"isolation.level": "read_committed"})
    assert sorted(found) == sorted(sent)


def _transaction(producer, topic, numbers) -> list:
    """Commit a transaction and return its numbers."""
    producer.begin_transaction()
    found = [next(numbers) for _ in range(4)]
    for number in found:
        producer.send(topic, str(number).encode())
    producer.commit_transaction()
    return found


def _read(consumer, count, cluster) -> list:
    found = []
    until(lambda: found.extend(consumer.poll(0.5)) or len(found) >= count, 30, cluster.tails())
    return [int(record.value) for record in found]

"""Three brokerds with their etcds, killed while they are written to."""

import os
import signal
import threading
import time

import pytest

from pylog.client import Admin, Consumer, Producer
from pylog.client.errors import KafkaError
from tests.clusters import Cluster, files_of, has_process, until
from tests.tools.support import run

TOPIC = "orders"


@pytest.fixture
def cluster(tmp_path):
    with Cluster(tmp_path) as found:
        yield found


class Writer(threading.Thread):
    """Writes numbers with acks=all until it is told to stop. `acknowledged`: those, in order."""

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
                    producer.send(self._topic, str(number).encode()).result(60)
                except KafkaError as error:
                    self.refused.append(str(error))
                else:
                    self.acknowledged.append(number)
                number += 1

    def end(self) -> list:
        self._stopping.set()
        self.join(90)
        assert not self.is_alive()
        return self.acknowledged


def controller_of(cluster) -> int:
    """The node that decides, -1 while none does."""
    for broker in cluster.brokers.values():
        if broker.alive():
            found = run("cluster", "--json", broker=broker).json["quorum"]
            return -1 if found is None else found["leader"]
    return -1


def described(cluster) -> dict:
    """Partition -> (leader, isr) of TOPIC."""
    broker = next(broker for broker in cluster.brokers.values() if broker.alive())
    told = run("topics", "describe", TOPIC, "--json", broker=broker).json[0]
    return {part["partition"]: (part["leader"], part["isr"]) for part in told["partitions"]}


def created(cluster, partitions=2):
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        until(lambda: len(admin.describe_cluster().nodes) == 3, words=cluster.tails())
        admin.create_topics([_topic(partitions)])
    in_sync_again(cluster)


def _topic(partitions):
    from pylog.client import NewTopic

    return NewTopic(TOPIC, partitions, 3)


def all_numbers(cluster) -> list:
    with Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "check",
                   "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe([TOPIC])
        found, quiet = [], 0
        while quiet < 3:
            records = list(consumer.poll(1.0) or ())
            quiet = 0 if records else quiet + 1
            found += [int(record.value) for record in records]
    return found


def in_sync_again(cluster) -> None:
    until(lambda: all(len(isr) == 3 for _, isr in described(cluster).values()),
          words=cluster.tails())


def check(cluster, acknowledged) -> None:
    """Nothing is lost, and at rest the replicas are the same, byte by byte."""
    in_sync_again(cluster)
    found = all_numbers(cluster)
    assert set(acknowledged) <= set(found), sorted(set(acknowledged) - set(found))[:10]
    assert "the same on all replicas" in run(
        "cluster", "verify", TOPIC, broker=cluster.brokers[1]).out
    for partition in described(cluster):
        assert len({files_of(broker, TOPIC, partition)
                    for broker in cluster.brokers.values()}) == 1


def test_three_empty_machines_form_a_cluster_that_outlives_each_of_them(cluster):
    created(cluster)
    numbers = set(cluster.brokers)
    ids = {run("cluster", "--json", broker=broker).json["cluster_id"]
           for broker in cluster.brokers.values()}
    assert len(ids) == 1
    writer = Writer(cluster.bootstrap, TOPIC)
    until(lambda: len(writer.acknowledged) > 50, words=cluster.tails())
    victim = controller_of(cluster)
    assert victim in numbers
    cluster.brokers[victim].kill()
    until(lambda: controller_of(cluster) in numbers - {victim}, words=cluster.tails())
    before = len(writer.acknowledged)
    until(lambda: len(writer.acknowledged) > before + 50, words=cluster.tails())
    cluster.start_broker(victim)
    in_sync_again(cluster)
    check(cluster, writer.end())


def test_etcd_ends_with_its_brokerd(tmp_path):
    with Cluster(tmp_path) as cluster:
        broker = cluster.brokers[1]
        assert has_process("etcd", broker.data_dir)
        assert broker.stop() == 0
        assert not has_process("etcd", broker.data_dir)
        cluster.brokers[2].kill()
        until(lambda: not has_process("etcd", cluster.brokers[2].data_dir))


@pytest.mark.slow
def test_a_cluster_goes_on_for_long_while_its_machines_die_and_hang(cluster, random_source):
    created(cluster, partitions=6)
    end = time.monotonic() + float(os.environ.get("SECONDS", "60"))
    writer = Writer(cluster.bootstrap, TOPIC)
    while time.monotonic() < end:
        number = random_source.choice(list(cluster.brokers))
        broker = cluster.brokers[number]
        if random_source.random() < 0.5:
            broker.kill()
            time.sleep(random_source.uniform(0, 4))
            cluster.start_broker(number)
        else:
            broker.process.send_signal(signal.SIGSTOP)
            time.sleep(random_source.uniform(1, 8))
            broker.process.send_signal(signal.SIGCONT)
        before = len(writer.acknowledged)
        until(lambda: len(writer.acknowledged) > before, 60, cluster.tails())
        in_sync_again(cluster)
    check(cluster, writer.end())

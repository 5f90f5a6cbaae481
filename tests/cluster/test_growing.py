"""A single node with data becomes the first of three machines, and finally a single node again."""

import shutil
import threading

import pytest

from pylog import cli
from pylog.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from pylog.protocol import api, messages
from pylog.security import authorizer
from pylog.security.authorization.access import STANDARD
from tests.fixtures.brokers import Brokerd
from tests.fixtures.clusters import Cluster, files_of, until
from tests.security.caller import Caller
from tests.tools.support import run

SETTINGS = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1,
            "group.initial.rebalance.delay.ms": 0, "num.network.threads": 1,
            "authorizer.class.name": STANDARD, "super.users": "User:ANONYMOUS"}
INTERNAL = ("__consumer_offsets", "__transaction_state")


class Writer(threading.Thread):
    """Writes numbered records, one at a time, until it is stopped.

    Every outcome is known: the producer is idempotent and retries for a minute.
    """

    def __init__(self, bootstrap, topic):
        super().__init__(daemon=True)
        self.acknowledged: list[bytes] = []
        self._ending = threading.Event()
        self._settings = {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0,
                          "enable.idempotence": True, "request.timeout.ms": 5_000,
                          "delivery.timeout.ms": 60_000}
        self._topic = topic
        self.start()

    def run(self):
        with Producer(self._settings) as producer:
            while not self._ending.is_set():
                value = b"%d" % len(self.acknowledged)
                producer.send(self._topic, value, partition=0).result(60)
                self.acknowledged.append(value)

    def wait_for_progress(self) -> None:
        before = len(self.acknowledged)
        until(lambda: len(self.acknowledged) > before + 20 or not self.is_alive(), 60)
        assert self.is_alive()

    def end(self) -> list:
        self._ending.set()
        self.join(70)
        assert not self.is_alive()
        return self.acknowledged


def detach(broker) -> None:
    """Detach the stopped node from its cluster."""
    assert cli.brokerd(["detach", "--override", f"log.dirs={broker.data_dir}"]) == 0


def as_single_node(cluster) -> Brokerd:
    """Return the first machine's broker as a single node, with the same directories and port."""
    first = cluster.brokers[1]
    single = Brokerd(first.root, {"node.id": 1, **SETTINGS})
    single.port = first.port
    return single


def filled(broker) -> None:
    """Create the state that the cluster must preserve: settings, a group, a transaction, an ACL."""
    with Admin({"bootstrap.servers": broker.bootstrap}) as admin:
        admin.create_topics([NewTopic("orders", 1, 1),
                             NewTopic("paid", 2, 1, configs={"retention.ms": "86400000"})])
    allow(broker)
    with Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "till"}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("paid", b"one", partition=0)
        producer.commit_transaction()
        producer.begin_transaction()
        producer.send("paid", b"never", partition=0)
        producer.abort_transaction()
    read(broker, 1)


def allow(broker) -> None:
    """Create an ACL."""
    new = messages.CreateAclsRequest
    with Caller(broker.port) as caller:
        answer = caller.ask(api.CREATE_ACLS, 3, new(creations=[new.AclCreation(
            resource_type=authorizer.TOPIC, resource_name="paid", principal="User:alice",
            host="*", resource_pattern_type=authorizer.LITERAL, operation=authorizer.READ,
            permission_type=authorizer.ALLOW)]))
    assert not answer.results[0].error_code, answer


def allowed(broker) -> list:
    """Return the principals of the ACLs."""
    with Caller(broker.port) as caller:
        answer = caller.ask(api.DESCRIBE_ACLS, 3, messages.DescribeAclsRequest(
            resource_type_filter=authorizer.ANY, resource_name_filter=None,
            pattern_type_filter=authorizer.ANY, principal_filter=None, host_filter=None,
            operation=authorizer.ANY, permission_type=authorizer.ANY))
    return [rule.principal for row in answer.resources for rule in row.acls]


def read(broker, count) -> list:
    """Read the group's next records and commit."""
    with Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "tills",
                   "auto.offset.reset": "earliest", "enable.auto.commit": False,
                   "isolation.level": "read_committed"}) as consumer:
        consumer.subscribe(["paid"])
        found: list = []
        until(lambda: found.extend(consumer.poll(0.2)) or len(found) >= count, 30)
        consumer.commit()
    return [record.value for record in found]


def values(broker, topic) -> list:
    with Consumer({"bootstrap.servers": broker.bootstrap, "auto.offset.reset": "earliest"}) \
            as consumer:
        part = TopicPartition(topic, 0)
        consumer.assign([part])
        end, found = consumer.end_offsets([part])[part], []
        until(lambda: found.extend(consumer.poll(0.2)) or consumer.position(part) >= end, 30)
    return [record.value for record in found]


def check_all(broker, acknowledged) -> None:
    """Check that no record is lost or duplicated and that all state is preserved."""
    assert values(broker, "orders") == acknowledged
    described = run("topics", "describe", "paid", "--json", broker=broker).json[0]
    assert described["configs"]["retention.ms"] == "86400000"
    assert allowed(broker) == ["User:alice"]
    with Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "till"}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("paid", b"next", partition=0)
        producer.commit_transaction()
    # The group continues at its committed offset.
    assert read(broker, 1) == [b"next"]


def replicas_of(broker, topic) -> set:
    told = run("topics", "describe", topic, "--json", broker=broker).json[0]
    return {(len(part["replicas"]), len(part["isr"])) for part in told["partitions"]}


@pytest.mark.timeout(180)
def test_a_single_node_grows_into_three_machines_and_shrinks_back_with_its_data(tmp_path):
    cluster = Cluster(tmp_path, settings=SETTINGS)
    single = as_single_node(cluster)
    try:
        with single:
            filled(single)
            writer = Writer(cluster.bootstrap, "orders")
            writer.wait_for_progress()
            single.stop()
            cluster.start()
            first = cluster.brokers[1]
            writer.wait_for_progress()
            run("cluster", "grow", "--wait", "--yes", broker=first)
            until(lambda: all(replicas_of(first, topic) == {(3, 3)}
                              for topic in ("orders", "paid", *INTERNAL)), 30, cluster.tails())
            writer.wait_for_progress()
            first.kill()
            writer.wait_for_progress()
            check_all(cluster.brokers[2], writer.end())
            cluster.start_broker(1)
            until(lambda: replicas_of(first, "orders") == {(3, 3)}, 30, cluster.tails())
            assert len({files_of(broker, "orders", 0)
                        for broker in cluster.brokers.values()}) == 1

            run("cluster", "shrink", "--to", "1", "--wait", "--yes", broker=first)
            for number in (3, 2, 1):
                cluster.brokers[number].stop()
            for number in (2, 3):
                shutil.rmtree(cluster.brokers[number].data_dir)
            detach(single)
            single.start()
            for number in (2, 3):
                run("cluster", "forget", str(number), "--yes", broker=single)
            assert "is healthy: 1 broker," in run("cluster", "status", broker=single).out
            check_all(single, writer.acknowledged)
    finally:
        cluster.close()


@pytest.mark.timeout(120)
def test_detached_machine_keeps_its_in_sync_partitions(tmp_path):
    cluster = Cluster(tmp_path, settings=SETTINGS)
    with cluster:
        with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
            until(lambda: len(admin.describe_cluster().nodes) == 3)
            admin.create_topics([NewTopic("orders", 1, 3)])
        writer = Writer(cluster.bootstrap, "orders")
        writer.wait_for_progress()
        acknowledged = writer.end()
        for broker in cluster.brokers.values():
            broker.kill()
        detach(as_single_node(cluster))
        with as_single_node(cluster) as single:
            assert values(single, "orders") == acknowledged
            with Producer({"bootstrap.servers": single.bootstrap, "acks": "all"}) as producer:
                producer.send("orders", b"more", partition=0).result(20)
            assert values(single, "orders") == [*acknowledged, b"more"]

"""Internal topics of a cluster with fewer brokers than their replication factor."""

import pytest

from pylog.client import Admin, Consumer, NewTopic, Producer
from pylog.protocol.errors import ErrorCode
from pylog.testing import Cluster
from tests.fixtures.clusters import until
from tests.tools.support import run
from tests.wire.messages import ask
from tests.wire.raw import Connection

FIND_COORDINATOR, VERSION = 10, 6
TOPICS = ["__consumer_offsets", "__transaction_state", "__share_group_state"]
SHARE_KEY = "g:AAAAAAAAAAAAAAAAAAAAAQ:0"
KEYS = ["g", "t", SHARE_KEY]     # By key type: group, transaction, share.
WAIT_S = 60


@pytest.fixture(scope="module")
def shared():
    """Three brokers, separate from their controller."""
    with Cluster(3, processes=True, settings={
            "group.initial.rebalance.delay.ms": 0, "default.replication.factor": 1,
            "offsets.topic.num.partitions": 2, "transaction.state.log.num.partitions": 2,
            "share.coordinator.state.topic.num.partitions": 2}) as made:
        yield made


@pytest.fixture
def cluster(shared):
    yield shared
    for broker in shared.brokers.values():
        if not broker.running:
            broker.start()


def coordinator_errors(broker) -> list:
    host, _, port = broker.bootstrap.rpartition(":")
    with Connection(int(port), host=host) as connection:
        return [ask(connection, FIND_COORDINATOR, VERSION, key_type=kind, coordinator_keys=[key])
                ["coordinators"][0]["error_code"] for kind, key in enumerate(KEYS)]


def factors(broker) -> dict:
    """Return internal topic -> replication factor."""
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        found = admin.describe_topics([name for name in admin.list_topics(internal=True)
                                       if name in TOPICS])
    return {name: {len(part.replicas) for part in topic.partitions.values()}
            for name, topic in found.items()}


def delete(cluster, names) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        there = [name for name in names if name in admin.list_topics(internal=True)]
        if there:
            admin.delete_topics(there)
        until(lambda: not any(name in admin.list_topics(internal=True) for name in names), WAIT_S)


def test_internal_topics_wait_until_enough_brokers_are_registered(cluster):
    delete(cluster, TOPICS)
    first = cluster[1]
    with Admin(bootstrap_servers=first.bootstrap) as admin:
        for number in (2, 3):
            cluster.kill(number)
        until(lambda: len(admin.describe_cluster().nodes) == 1, WAIT_S)
        for number in (2, 3):
            run("cluster", "forget", number, "--yes", broker=first)
        admin.create_topics([NewTopic("t", 1, 1)])
    with Producer(bootstrap_servers=first.bootstrap) as producer:
        producer.send("t", b"value").result(WAIT_S)
    with Consumer(bootstrap_servers=first.bootstrap, group_id="g",
                  auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["t"])
        for number in (2, 3):
            assert consumer.poll(1.0) == []
            assert coordinator_errors(first) == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 3
            assert factors(first) == {}
            cluster[number].start()
        found = []
        until(lambda: found.extend(consumer.poll(0.5)) or found, WAIT_S)
        assert [record.value for record in found] == [b"value"]
        consumer.commit()
    until(lambda: coordinator_errors(first) == [ErrorCode.NONE] * 3, WAIT_S)
    assert factors(first) == dict.fromkeys(TOPICS, {3})


def test_status_names_an_internal_topic_with_too_few_replicas(cluster):
    delete(cluster, [TOPICS[1]])
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(TOPICS[1], 2, 1)])
    told = run("cluster", "status", broker=cluster, fails=True).out
    assert "__transaction_state has 1 replica, but transaction.state.log.replication.factor is 3" \
        in told and "pylog cluster grow __transaction_state -r 3" in told, told
    run("cluster", "grow", TOPICS[1], "-r", 3, "--wait", "--yes", broker=cluster)
    until(lambda: factors(cluster[1])[TOPICS[1]] == {3}, WAIT_S)
    assert "is healthy" in run("cluster", "status", broker=cluster).out

"""Replicas of a cluster that move to another log directory of their broker."""

import pytest

from pylog.client import Admin, Producer, TopicPartition
from pylog.testing import Cluster
from tests.fixtures.clusters import until
from tests.wire.messages import ask
from tests.wire.raw import Connection

pytestmark = pytest.mark.timeout(120)
ALTER_LOG_DIRS, LOG_DIRS = 34, 35


@pytest.fixture(scope="module")
def cluster():
    with Cluster(3, log_dirs=2, settings={"replica.lag.time.max.ms": 300_000,
                                          "offsets.topic.num.partitions": 1}) as found:
        yield found


def send(cluster, topic, count=1):
    """No replica leaves the ISR during this: each replica must have the records."""
    with Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all",
                   "request.timeout.ms": 5_000, "delivery.timeout.ms": 20_000}) as producer:
        for sent in [producer.send(topic, b"%d" % number, partition=0)
                     for number in range(count)]:
            sent.result(20)


def connected(cluster, number):
    host, _, port = cluster[number].bootstrap.rpartition(":")
    return Connection(int(port), host=host)


def places(connection, topic) -> dict:
    answer = ask(connection, LOG_DIRS, 5, topics=[{"topic": topic, "partitions": [0]}])
    return {row["log_dir"]: partition["is_future_key"] for row in answer["results"]
            for found in row["topics"] for partition in found["partitions"]}


def move(cluster, number, topic, deleted) -> None:
    """Records below `deleted` are deleted concurrently."""
    with connected(cluster, number) as connection:
        here, = places(connection, topic)
        there = next(path for path in cluster[number].log_dirs if path != here)
        answer = ask(connection, ALTER_LOG_DIRS, 2, dirs=[
            {"path": there, "topics": [{"name": topic, "partitions": [0]}]}])
        assert answer["results"][0]["partitions"][0]["error_code"] == 0
        with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
            admin.delete_records({TopicPartition(topic, 0): deleted})
        until(lambda: places(connection, topic) == {there: False}, 30)


@pytest.mark.parametrize("leads", [True, False])
def test_moved_replica_keeps_its_role(cluster, leads):
    topic = f"leads-{leads}"
    cluster.create_topic(topic)
    cluster.wait_in_sync(topic)
    send(cluster, topic, 100)
    leader = cluster.leader(topic)
    moved = next(number for number in cluster.brokers if (number == leader) == leads)
    for deleted in (10, 20):
        move(cluster, moved, topic, deleted)
        send(cluster, topic, 10)
    assert cluster.leader(topic) == leader and len(cluster.in_sync(topic)) == 3
    cluster[leader].restart()
    cluster.wait_in_sync(topic)
    send(cluster, topic, 10)

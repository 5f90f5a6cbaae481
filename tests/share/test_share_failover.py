"""Share groups of a cluster: accepted records stay accepted and others are redelivered, whichever
broker fails.
"""

import time

import pytest

from pylog.client import (
    Acknowledge, Admin, ConfigResource, NewTopic, Producer, ResourceType, ShareConsumer,
)
from pylog.testing import Cluster
from tests.fixtures.clusters import until

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]
SETTINGS = {"broker.session.timeout.ms": 1500, "share.coordinator.state.topic.num.partitions": 1,
            "share.coordinator.state.topic.replication.factor": 3,
            "share.coordinator.state.topic.min.isr": 1,
            "offsets.topic.num.partitions": 1, "offsets.topic.replication.factor": 3,
            "group.share.min.heartbeat.interval.ms": 300,
            "group.share.heartbeat.interval.ms": 300}
STATES = "__share_group_state"
DEAD = "dlq.t"
RECORDS = 30
WAIT_S = 90


@pytest.fixture(scope="module")
def shared():
    with Cluster(3, settings=SETTINGS) as found:
        yield found


@pytest.fixture
def cluster(shared):
    yield shared
    for broker in shared.brokers.values():
        if not broker.running:
            broker.start()


class Queue:
    """A topic of three replicas and a group that starts with its first record."""

    def __init__(self, cluster, name):
        self.cluster, self.topic, self.group = cluster, f"t-{name}", f"g-{name}"
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            admin.create_topics([NewTopic(self.topic, 1, 3), NewTopic(f"{DEAD}-{name}", 1, 3,
                configs={"errors.deadletterqueue.group.enable": "true"})])
            admin.incremental_alter_configs({ConfigResource(ResourceType.GROUP, self.group): {
                "share.auto.offset.reset": "earliest",
                "errors.deadletterqueue.topic.name": f"{DEAD}-{name}"}})
        cluster.wait_in_sync(self.topic)
        with Producer(bootstrap_servers=cluster.bootstrap, acks="all") as producer:
            for number in range(RECORDS):
                producer.send(self.topic, b"%d" % number, partition=0)
            assert producer.flush(WAIT_S) == 0

    def member(self):
        found = ShareConsumer(bootstrap_servers=self.cluster.bootstrap, group_id=self.group,
                              share_acknowledgement_mode="explicit", max_poll_records=RECORDS)
        found.subscribe([self.topic])
        return found

    def take(self, consumer, wanted, kind):
        """Let the consumer acknowledge these offsets as `kind`, and release the others."""
        left, end_s = set(wanted), time.monotonic() + WAIT_S
        while left:
            assert time.monotonic() < end_s, left
            for record in consumer.poll(0.5):
                mine = record.offset in left
                consumer.acknowledge(record, kind if mine else Acknowledge.RELEASE)
                left -= {record.offset}
            assert set(consumer.commit().values()) <= {None}

    def rest(self, consumer, wanted):
        """Accept until every wanted record arrived; return the received offsets."""
        seen, end_s = [], time.monotonic() + WAIT_S
        while not set(wanted) <= set(seen):
            assert time.monotonic() < end_s, set(wanted) - set(seen)
            for record in consumer.poll(0.5):
                seen.append(record.offset)
                consumer.acknowledge(record)
            consumer.commit()
        return seen


@pytest.mark.parametrize("what", ["topic", "states"])
def test_records_accepted_before_a_leader_failure_are_not_redelivered(cluster, what):
    queue = Queue(cluster, what)
    accepted = range(0, RECORDS, 3)
    with queue.member() as consumer:
        queue.take(consumer, accepted, Acknowledge.ACCEPT)
    topic = queue.topic if what == "topic" else STATES
    leader = cluster.leader(topic)
    cluster.wait_in_sync(topic)
    cluster.kill(leader)
    until(lambda: cluster.leader(topic) not in (leader, -1), WAIT_S)
    with queue.member() as consumer:
        seen = queue.rest(consumer, set(range(RECORDS)) - set(accepted))
    assert set(seen).isdisjoint(accepted)


def test_member_continues_with_the_next_leader(cluster):
    queue = Queue(cluster, "on")
    with queue.member() as consumer:
        queue.take(consumer, range(0, RECORDS, 2), Acknowledge.ACCEPT)
        leader = cluster.leader(queue.topic)
        cluster.kill(leader)
        until(lambda: cluster.leader(queue.topic) not in (leader, -1), WAIT_S)
        seen = queue.rest(consumer, range(1, RECORDS, 2))
    assert set(seen).isdisjoint(range(0, RECORDS, 2))


def test_next_leader_writes_the_dead_letters(cluster):
    queue = Queue(cluster, "dead")
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        resource = ConfigResource(ResourceType.TOPIC, f"{DEAD}-dead")
        admin.incremental_alter_configs({
            resource: {"errors.deadletterqueue.group.enable": "false"}})
    with queue.member() as consumer:
        queue.take(consumer, (3, 4), Acknowledge.REJECT)
    leader = cluster.leader(queue.topic)
    cluster.kill(leader)
    until(lambda: cluster.leader(queue.topic) not in (leader, -1), WAIT_S)
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.incremental_alter_configs({
            resource: {"errors.deadletterqueue.group.enable": "true"}})
        with queue.member() as consumer:
            seen = queue.rest(consumer, set(range(RECORDS)) - {3, 4})
            until(lambda: admin.list_offsets({(f"{DEAD}-dead", 0): "latest"})[
                f"{DEAD}-dead", 0].offset >= 2, WAIT_S)
    assert {3, 4}.isdisjoint(seen)

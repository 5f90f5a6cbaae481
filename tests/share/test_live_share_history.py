"""A share group of three brokerds whose leader is killed, restarted and elected again."""

import random
import threading
import time

import pytest

from pylog.client import (
    Acknowledge, Admin, ConfigResource, NewTopic, Producer, ResourceType, ShareConsumer,
)
from pylog.client.errors import KafkaError
from pylog.protocol.errors import ErrorCode
from tests.fixtures.clusters import Cluster, until
from tests.share.history import ACCEPTED, REJECTED, RELEASED, Delivery, History, Record

pytestmark = pytest.mark.timeout(300)
TOPIC, GROUP, PARTITIONS, MEMBERS = "t", "g", 2, 3
DELIVERIES_MAX, WAIT_S = 5, 60
SETTINGS = {"group.share.delivery.count.limit": DELIVERIES_MAX,
            "group.share.record.lock.duration.ms": 15000,
            "share.coordinator.state.topic.num.partitions": 3}
KINDS = {ACCEPTED: Acknowledge.ACCEPT, REJECTED: Acknowledge.REJECT,
         RELEASED: Acknowledge.RELEASE}
# After one of these errors the broker may have written the acknowledgement.
UNSURE = {ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION,
          ErrorCode.COORDINATOR_NOT_AVAILABLE}
STEP, BACKLOG = 200, 1000  # records: settled between two faults, waiting at most


class Work(threading.Thread):
    """Calls step(client) until it is stopped. A failure ends it and is raised by stop()."""

    def __init__(self, client, step):
        super().__init__(daemon=True)
        self._client, self._step = client, step
        self._ends, self.failure = threading.Event(), None
        self.start()

    def run(self):
        try:
            with self._client as client:
                while not self._ends.is_set():
                    self._step(client)
        except BaseException as failure:
            self.failure = failure

    def stop(self):
        self._ends.set()
        self.join(WAIT_S)
        assert not self.is_alive(), "the client does not end"
        if self.failure is not None:
            raise self.failure


class Scenario:
    """A producer and the members of a group, running on one topic."""

    def __init__(self, bootstrap):
        self.bootstrap, self.history = bootstrap, History(DELIVERIES_MAX)
        self.settled_count = self.number = 0
        self.works = [Work(Producer(bootstrap_servers=bootstrap, acks="all"), self._produce)]
        self.works += [Work(self.member(), self._chooser(seed)) for seed in range(MEMBERS)]

    def member(self):
        made = ShareConsumer(bootstrap_servers=self.bootstrap, group_id=GROUP,
                             share_acknowledgement_mode="explicit", max_poll_records=20)
        made.subscribe([TOPIC])
        return made

    def _produce(self, producer):
        if self.number - self.settled_count > BACKLOG:
            time.sleep(0.01)
            return
        waiting = []
        for _ in range(20):
            value, self.number = b"%d" % self.number, self.number + 1
            self.history.sent(value)
            waiting.append((value, producer.send(
                TOPIC, value, partition=self.number % PARTITIONS)))
        producer.flush(WAIT_S)
        for value, sent in waiting:
            if sent.done() and sent.exception() is None:
                found = sent.result()
                self.history.written(value, Record(found.partition, found.offset))

    def _chooser(self, seed):
        """Accepts, rejects and releases randomly, seeded by `seed`."""
        chance = random.Random(seed)
        return lambda member: self.handle(
            member, lambda: chance.choices(list(KINDS), (16, 1, 3))[0])

    def handle(self, member, choose):
        """Poll a member's records, and acknowledge each with the result of choose()."""
        chosen = {}
        for record in member.poll(0.2):
            kind, count = choose(), member.delivery_count(record)
            self.history.delivered(Delivery(Record(record.partition, record.offset),
                                            record.value, count))
            member.acknowledge(record, KINDS[kind])
            chosen.setdefault((record.topic, record.partition), []).append(
                (record.value, kind, count))
        try:
            failures = member.commit() if chosen else {}
        except KafkaError as failure:
            failures = dict.fromkeys(chosen, failure)
        for place, rows in chosen.items():
            # The client reports no result for a request that it did not send.
            failure = failures[place]
            for value, kind, count in rows:
                if failure is None:
                    self.history.acknowledged(value, kind, count)
                    self.settled_count += kind != RELEASED
                else:
                    self.history.refused(value, kind, type(failure).__name__,
                                         failure.code > 0 and failure.code not in UNSURE)

    def goes_on(self, words):
        """Wait until more records are settled."""
        enough = self.settled_count + STEP
        until(lambda: self.settled_count >= enough or any(
            work.failure for work in self.works), WAIT_S, words())
        assert not any(work.failure for work in self.works), [
            work.failure for work in self.works]

    def end(self):
        for work in self.works:
            work.stop()

    def drain(self):
        """Let a new member accept all available records.

        Returns the partitions that still have records, by the broker's count.
        """
        # A member whose leave was lost with its coordinator keeps its partitions for the session
        # timeout of 45 s, and then its records for the lock duration.
        end_s, left = time.monotonic() + 2 * WAIT_S, {None: -1}
        with self.member() as member, Admin(bootstrap_servers=self.bootstrap) as admin:
            while left and time.monotonic() < end_s:
                self.handle(member, lambda: ACCEPTED)
                left = {part: row for part, row in admin.list_share_group_offsets(GROUP).items()
                        if row.lag != 0}
        return left


@pytest.fixture
def cluster(tmp_path):
    with Cluster(tmp_path, settings=SETTINGS) as found:
        with Admin(bootstrap_servers=found.bootstrap) as admin:
            until(lambda: len(admin.describe_cluster().nodes) == 3)
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])
            admin.incremental_alter_configs({ConfigResource(ResourceType.GROUP, GROUP): {
                "share.auto.offset.reset": "earliest"}})
            await_in_sync(admin)
        yield found


def partition(admin):
    """Return the first partition as a broker describes it."""
    return admin.describe_topics([TOPIC])[TOPIC].partitions[0]


def await_in_sync(admin):
    until(lambda: len(partition(admin).isr) == 3, WAIT_S, "a replica does not join the ISR")


def test_every_written_record_is_settled_or_available_after_leaders_changed(cluster):
    scenario = Scenario(cluster.bootstrap)
    scenario.goes_on(cluster.tails)
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        first = partition(admin).leader
        cluster.brokers[first].kill()
        until(lambda: partition(admin).leader not in (first, -1), WAIT_S, cluster.tails())
        scenario.goes_on(cluster.tails)
        cluster.start_broker(first)
        await_in_sync(admin)
        scenario.goes_on(cluster.tails)
        # The preferred replica becomes leader again: nothing is killed.
        admin.elect_leaders([(TOPIC, 0)])
        until(lambda: partition(admin).leader == first, WAIT_S, cluster.tails())
    scenario.goes_on(cluster.tails)
    scenario.end()
    assert scenario.drain() == {}, scenario.history.summary()
    assert scenario.history.faults() == [], scenario.history.summary()
    print(scenario.history.summary())
    # Accepted and rejected records stay settled under the next leader.
    cluster.brokers[first].kill()
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        until(lambda: partition(admin).leader not in (first, -1), WAIT_S, cluster.tails())
    with scenario.member() as member:
        until(lambda: len(member.assignment()) == PARTITIONS or member.poll(0.2), WAIT_S)
        assert member.poll(2.0) == []

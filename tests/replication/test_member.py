"""A brokerd in the cluster of a running Kafka, with Kafka's controller."""

import time

import pytest

from tests.fixtures.brokers import cpu_seconds
from tests.monitor import scrape
from tests.replication import support

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def member(kafka, tmp_path_factory):
    broker = support.member(tmp_path_factory.mktemp("member"), kafka, 2).start()
    try:
        yield broker
        assert broker.alarms() == []
        assert broker.stop() == 0
        # A controlled shutdown removes it from the cluster's metadata at once.
        assert support.until(lambda: support.brokers(kafka), [1]) == [1]
    finally:
        broker.kill()


@pytest.fixture
def topic(kafka, request):
    name = request.node.name.replace("[", ".").replace("]", "")[:80]
    yield name
    support.delete(kafka, name)


def test_member_appears_as_a_broker_of_the_kafka_cluster(kafka, member):
    assert support.until(lambda: support.brokers(kafka), [1, 2]) == [1, 2]
    assert support.brokers(member) == [1, 2]


def test_topic_created_here_is_led_by_its_assigned_broker(kafka, member, topic):
    support.create(member, topic, [[2], [1]])
    for broker in (member, kafka):
        wanted = [(2, [2]), (1, [1])]
        assert support.until(lambda at=broker: support.states(at, topic), wanted) == wanted


def test_records_are_produced_and_fetched_through_either_broker(kafka, member, topic):
    support.create(kafka, topic, [[2]])
    support.until(lambda: support.states(member, topic), [(2, [2])])
    support.produce(kafka, topic, [b"%d" % number for number in range(500)])
    assert support.consumed(member, topic, 500) == [b"%d" % number for number in range(500)]


def test_it_follows_a_leader_of_kafkas_and_is_in_the_isr(kafka, member, topic):
    support.create(member, topic, [[1, 2]])
    wanted = [(1, [1, 2])]
    assert support.until(lambda: support.states(kafka, topic), wanted) == wanted
    support.produce(kafka, topic, [b"%d" % number for number in range(2000)],
                    **{"linger.ms": 5, "compression.type": "lz4"})
    # acks=all with both in the ISR: acknowledged records are on this broker too.
    assert support.states(kafka, topic) == wanted
    own, theirs = (support.segments(at, topic) for at in (member, kafka))
    assert own == theirs != {}


def test_deleted_topic_is_unfollowed(kafka, member):
    name = "follows-and-goes"
    support.create(kafka, name, [[1, 2]])
    support.produce(kafka, name, [b"value"] * 10)
    assert support.segments(member, name)
    support.delete(kafka, name)
    assert support.until(lambda: support.segments(member, name), {}) == {}


def test_it_leads_with_a_follower_of_kafkas_in_the_isr(kafka, member, topic):
    support.create(kafka, topic, [[2, 1]], {"min.insync.replicas": "2"})
    wanted = [(2, [1, 2])]
    assert support.until(lambda: support.states(kafka, topic), wanted) == wanted
    values = [b"%d" % number for number in range(2000)]
    support.produce(kafka, topic, values, **{"linger.ms": 5, "compression.type": "zstd"})
    # acks=all of two: acknowledged records are on Kafka too, and readable here.
    assert support.segments(member, topic) == support.segments(kafka, topic) != {}
    assert support.consumed(kafka, topic, 2000) == values
    assert support.states(member, topic) == wanted


def test_metrics_cover_followers_and_followed_partitions(kafka, member, topic):
    def told(name):
        return scrape.value(scrape.address_of(member), f"pylog_replica_{name}")

    before = told("partitions_followed"), told("in_bytes_total"), told("isr_expands_total")
    support.create(kafka, topic, [[1, 2]])
    support.produce(kafka, topic, [b"value"] * 10)
    support.settled(member, topic, 1, [1, 2])
    assert told("partitions_followed") == before[0] + 1 and told("in_bytes_total") > before[1]
    support.reassign(kafka, topic, {0: [2]})
    support.settled(member, topic, 2, [2])
    support.reassign(kafka, topic, {0: [2, 1]})
    support.settled(member, topic, 2, [1, 2])
    assert told("partitions_followed") == before[0]
    assert told("isr_expands_total") == before[2] + 1
    assert told("partitions_under_replicated") == told("lag_records_max") == 0


def test_elections_change_its_role(kafka, member, topic):
    support.create(kafka, topic, [[1, 2]])
    wanted = [(1, [1, 2])]
    assert support.until(lambda: support.states(kafka, topic), wanted) == wanted
    with support.Sending(kafka, topic) as sending:
        for replicas in ([2, 1], [1, 2], [2, 1]):
            sending.more()
            support.reassign(kafka, topic, {0: replicas})
            assert support.elect(member, topic) == 0
            for broker in (kafka, member):
                support.settled(broker, topic, replicas[0], [1, 2])
    # One idempotent producer throughout: no duplicate, no loss, in order.
    assert support.consumed(kafka, topic, len(sending.sent)) == sending.sent
    support.same(member, kafka, topic)


def test_replica_moves_here_and_back(kafka, member, topic):
    support.create(kafka, topic, [[1]])
    values = [b"%d" % number for number in range(1000)]
    support.produce(kafka, topic, values)
    for there, back in ((2, 1), (1, 2)):
        support.reassign(kafka, topic, {0: [there]})
        wanted = [(there, [there])]
        assert support.until(lambda to=wanted: support.states(kafka, topic), wanted) == wanted
        assert support.consumed(member, topic, 1000) == values
        old = member if back == 2 else kafka
        assert support.until(lambda at=old: support.segments(at, topic), {}) == {}
    support.produce(member, topic, [b"last"])
    assert support.consumed(kafka, topic, 1001)[-1] == b"last"


def test_idle_member_uses_little_cpu(kafka, member, topic):
    support.create(kafka, topic, [[1, 2]] * 4)
    wanted = [(1, [1, 2])] * 4
    assert support.until(lambda: support.states(kafka, topic), wanted) == wanted
    time.sleep(1)
    before = cpu_seconds(member.pid)
    time.sleep(2)
    # Heartbeats, no-op records and empty fetches; a busy loop would use a full core.
    assert cpu_seconds(member.pid) - before < 0.4


@pytest.mark.slow
def test_a_killed_member_is_back_in_the_isr_with_the_same_bytes(kafka, tmp_path, topic):
    broker = support.member(tmp_path, kafka, 3).start()
    try:
        support.create(kafka, topic, [[1, 3]])
        wanted = [(1, [1, 3])]
        assert support.until(lambda: support.states(kafka, topic), wanted) == wanted
        support.produce(kafka, topic, [b"%d" % number for number in range(500)])
        broker.kill()
        support.produce(kafka, topic, [b"%d" % number for number in range(500)], **{"acks": 1})
        # The controller unfences it when the killed process's session has ended.
        broker.start()
        assert support.until(lambda: support.states(kafka, topic), wanted, 60) == wanted
        support.produce(kafka, topic, [b"last"])
        assert support.segments(broker, topic) == support.segments(kafka, topic)
        assert broker.stop() == 0
    finally:
        broker.kill()

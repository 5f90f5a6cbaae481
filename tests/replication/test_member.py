"""A brokerd in the cluster of a running Kafka, whose controller is Kafka's."""

import pytest

from tests.replication import support

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def member(kafka, tmp_path_factory):
    broker = support.member(tmp_path_factory.mktemp("member"), kafka, 2).start()
    try:
        yield broker
        assert broker.alarms() == []
        assert broker.stop() == 0
        # A controlled shutdown: it is out of the cluster's metadata at once.
        assert support.until(lambda: support.brokers(kafka), [1]) == [1]
    finally:
        broker.kill()


@pytest.fixture
def topic(kafka, request):
    name = request.node.name.replace("[", ".").replace("]", "")[:80]
    yield name
    support.delete(kafka, name)


def test_it_is_a_broker_of_the_cluster_for_clients_of_either(kafka, member):
    assert support.until(lambda: support.brokers(kafka), [1, 2]) == [1, 2]
    assert support.brokers(member) == [1, 2]


def test_a_topic_that_was_asked_for_here_is_led_where_it_was_assigned(kafka, member, topic):
    support.create(member, topic, [[2], [1]])
    for broker in (member, kafka):
        wanted = [(2, [2]), (1, [1])]
        assert support.until(lambda at=broker: support.states(at, topic), wanted) == wanted


def test_records_go_to_and_come_from_its_partitions_through_either(kafka, member, topic):
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
    # acks=all with both in the ISR: what is acknowledged is here too.
    assert support.states(kafka, topic) == wanted
    own, theirs = (support.segments(at, topic) for at in (member, kafka))
    assert own == theirs != {}


def test_a_topic_that_is_deleted_is_followed_no_more(kafka, member):
    name = "follows-and-goes"
    support.create(kafka, name, [[1, 2]])
    support.produce(kafka, name, [b"value"] * 10)
    assert support.segments(member, name)
    support.delete(kafka, name)
    assert support.until(lambda: support.segments(member, name), {}) == {}


def test_a_replica_moves_here_and_back_and_is_gone_then(kafka, member, topic):
    support.create(kafka, topic, [[1]])
    support.produce(kafka, topic, [b"%d" % number for number in range(1000)])
    support.reassign(kafka, topic, {0: [2]})
    assert support.until(lambda: support.states(kafka, topic), [(2, [2])]) == [(2, [2])]
    assert support.consumed(member, topic, 1000) == [b"%d" % number for number in range(1000)]

import pytest

from pylog.client import Admin, NewTopic, Producer
from pylog.testing import BrokerFailed, Cluster
from tests.fixtures.clusters import until


@pytest.fixture(scope="module")
def shared():
    with Cluster(3, settings={"broker.session.timeout.ms": 800, "replica.lag.time.max.ms": 800},
                 log_dirs=2) as found:
        yield found


@pytest.fixture
def cluster(shared):
    """Three running brokers, regardless of the previous test."""
    yield shared
    shared.heal()
    for broker in shared.brokers.values():
        if not broker.running:
            broker.start()


def nodes(admin) -> list:
    return sorted(node.id for node in admin.describe_cluster().nodes)


def send(cluster, topic, value, **settings) -> None:
    with Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "delivery.timeout.ms":
                   20_000, "request.timeout.ms": 5_000, **settings}) as producer:
        producer.send(topic, value, partition=0).result(20)


def follower_of(cluster, topic) -> int:
    return next(number for number in cluster.brokers if number != cluster.leader(topic))


def cut_off(cluster, topic, **how) -> None:
    """Cut the leader off from a follower, which then leaves the ISR. If a busy machine delays the
    leader's heartbeats, it is replaced, perhaps by that follower: then cut off the next leader.
    """
    while not left_by_one(cluster, topic, **how):
        cluster.heal()
        cluster.wait_in_sync(topic)


def left_by_one(cluster, topic, **how) -> bool:
    """Return False if the leader was replaced."""
    leader, follower = cluster.leader(topic), follower_of(cluster, topic)
    cluster.cut(leader, follower, **how)
    send(cluster, topic, b"one")
    until(lambda: follower not in cluster.in_sync(topic) or cluster.leader(topic) != leader)
    return cluster.leader(topic) == leader


def test_brokers_of_one_process_are_one_cluster():
    with Cluster(2) as cluster:
        with Admin({"bootstrap.servers": cluster[1].bootstrap}) as admin:
            until(lambda: nodes(admin) == [1, 2])
            admin.create_topics([NewTopic("t", 3, 2)])
            until(lambda: list(admin.list_topics()) == ["t"])


def test_stopped_broker_rejoins_its_cluster(cluster):
    with Admin({"bootstrap.servers": cluster[1].bootstrap}) as admin:
        cluster[2].stop()
        until(lambda: nodes(admin) == [1, 3])
        cluster[2].start()
        until(lambda: nodes(admin) == [1, 2, 3])


def test_killed_leader_is_replaced_and_rejoins_the_isr(cluster):
    topic = cluster.create_topic("killed")
    send(cluster, topic, b"one")
    leader = cluster.leader(topic)
    cluster.kill(leader)
    until(lambda: cluster.leader(topic) not in (-1, leader))
    send(cluster, topic, b"two")
    cluster[leader].start()
    cluster.wait_in_sync(topic)
    assert [record.value for record in cluster[leader].topic(topic).records()] == [b"one", b"two"]


def test_paused_broker_leaves_the_isr_and_returns(cluster):
    topic = cluster.create_topic("paused")
    paused = follower_of(cluster, topic)
    cluster.pause(paused)
    until(lambda: paused not in cluster.in_sync(topic))
    send(cluster, topic, b"one")
    cluster.resume(paused)
    cluster.wait_in_sync(topic)


def test_follower_cut_off_from_its_leader_leaves_the_isr(cluster):
    topic = cluster.create_topic("deaf")
    # The controller can reach both: the leader stays.
    cut_off(cluster, topic, one_way=True)
    cluster.heal()
    cluster.wait_in_sync(topic)


def test_cut_link_blocks_both_directions(cluster):
    topic = cluster.create_topic("cut")
    cut_off(cluster, topic)
    cluster.heal()
    cluster.wait_in_sync(topic)


def test_isolated_leader_is_replaced_and_discards_unacknowledged_records(cluster):
    topic = cluster.create_topic("isolated", min_insync_replicas=2)
    leader = cluster.leader(topic)
    cluster.isolate(leader)
    with Producer({"bootstrap.servers": cluster[leader].bootstrap, "acks": "1"}) as producer:
        producer.send(topic, b"lost", partition=0).result(20)
    until(lambda: cluster.leader(topic) not in (-1, leader))
    cluster.heal()
    send(cluster, topic, b"kept")
    cluster.wait_in_sync(topic)
    for broker in cluster.brokers.values():
        until(lambda of=broker: [record.value for record in of.topic(topic).records()] == [b"kept"])


def test_machine_with_lost_disks_copies_its_replicas_again(cluster):
    topic = cluster.create_topic("replaced")
    send(cluster, topic, b"one")
    lost = follower_of(cluster, topic)
    cluster.lose_disk(lost)
    assert not cluster[lost].running
    cluster[lost].start()
    cluster.wait_in_sync(topic)
    until(lambda: [record.value for record in cluster[lost].topic(topic).records()] == [b"one"])


def test_faults_require_existing_brokers(cluster):
    with pytest.raises(BrokerFailed, match="no broker 7"):
        cluster.cut(1, 7)


def test_brokers_in_separate_processes_can_be_cut_and_paused():
    with Cluster(2, processes=True, settings={
            "broker.session.timeout.ms": 1000, "replica.lag.time.max.ms": 1000}) as cluster:
        topic = cluster.create_topic("t")
        leader, follower = cluster.leader(topic), follower_of(cluster, topic)
        cluster.cut(1, 2)
        send(cluster, topic, b"one")
        until(lambda: follower not in cluster.in_sync(topic))
        cluster.heal()
        cluster.wait_in_sync(topic)
        cluster.pause(leader)
        until(lambda: cluster.leader(topic) == follower)
        cluster.resume(leader)
        cluster.wait_in_sync(topic)

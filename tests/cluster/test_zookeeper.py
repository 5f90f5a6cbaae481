"""Three brokerds with their quorum in ZooKeeper."""

import pytest

from tests.cluster.test_controllers import create, decider, topics_of
from tests.fixtures.clusters import Cluster, has_process, until
from tests.fixtures.zookeepers import ZooKeepers


@pytest.fixture
def zookeeper(tmp_path):
    found = ZooKeepers(tmp_path, 1)
    try:
        yield found.start()
    finally:
        found.close()


def test_controllers_fail_over_without_etcd(tmp_path, zookeeper):
    settings = {"quorum.zookeeper.connect": ",".join(zookeeper.addresses),
                "quorum.zookeeper.digest": "pylog:secret"}
    with Cluster(tmp_path, settings=settings) as cluster:
        brokers = cluster.brokers
        assert not any(has_process("etcd", broker.data_dir) for broker in brokers.values())
        create(brokers[1], "before", 3)
        victim = until(lambda: decider(cluster), words=cluster.tails())
        brokers[victim].kill()
        left = [broker for broker in brokers.values() if broker.alive()]
        create(left[0], "without", 2)
        until(lambda: decider(cluster) not in (0, victim), words=cluster.tails())
        cluster.start_broker(victim)
        create(brokers[victim], "after", 3)
        until(lambda: all(topics_of(broker) == {"before", "without", "after"}
                          for broker in brokers.values()), words=cluster.tails())

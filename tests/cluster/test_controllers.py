"""Three brokerds with etcd: the active controller, and failover when it is killed."""

import json

import pytest

from pylog.client import Admin, NewTopic
from tests.fixtures.clusters import Cluster, has_process, until
from tests.monitor import scrape
from tests.tools.support import run


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("cluster"),
                 settings={"metrics.listener": "127.0.0.1:0"}) as found:
        yield found


@pytest.fixture
def cluster(shared):
    """Three running brokers, including those that an earlier test stopped."""
    for number, broker in shared.brokers.items():
        if not broker.alive():
            shared.start_broker(number)
    return shared


def health(broker) -> dict:
    """Return {component: state} of a broker's /readyz."""
    _, _, body = scrape.get(scrape.address_of(broker), "/readyz")
    return {name: one["state"] for name, one in json.loads(body)["components"].items()}


def seen_by(broker) -> dict:
    return run("cluster", "--json", broker=broker).json


def decider(cluster) -> int:
    """Return the node that all brokers report as active controller, or 0 if they disagree."""
    found = {(seen_by(broker)["quorum"] or {"leader": 0})["leader"]
             for broker in cluster.brokers.values() if broker.alive()}
    return found.pop() if len(found) == 1 else 0


def create(broker, name, replicas):
    with Admin({"bootstrap.servers": broker.bootstrap}) as admin:
        admin.create_topics([NewTopic(name, 2, replicas)])


def topics_of(broker) -> set:
    return {row["topic"] for row in run("topics", "list", "--json", broker=broker).json}


def test_three_empty_machines_form_a_cluster_with_controller_failover(cluster):
    brokers = cluster.brokers
    assert len({seen_by(broker)["cluster_id"] for broker in brokers.values()}) == 1
    create(brokers[1], "before", 3)
    victim = until(lambda: decider(cluster), words=cluster.tails())
    brokers[victim].kill()
    left = [broker for broker in brokers.values() if broker.alive()]
    create(left[0], "without", 2)
    until(lambda: decider(cluster) not in (0, victim), words=cluster.tails())
    until(lambda: all(topics_of(broker) == {"before", "without"} for broker in left))
    cluster.start_broker(victim)
    create(brokers[victim], "after", 3)
    until(lambda: all(topics_of(broker) == {"before", "without", "after"}
                      for broker in brokers.values()), words=cluster.tails())


def test_etcd_exits_with_its_brokerd(cluster):
    broker = cluster.brokers[1]
    assert has_process("etcd", broker.data_dir)
    assert broker.stop() == 0
    assert not has_process("etcd", broker.data_dir)
    cluster.brokers[2].kill()
    until(lambda: not has_process("etcd", cluster.brokers[2].data_dir))


def test_broker_without_controller_and_quorum_is_not_ready_until_they_return(cluster):
    last = cluster.brokers[3]
    ready = dict.fromkeys(["event_loop", "lifecycle", "listeners", "recovery", "log_directories",
                           "controller", "registration", "quorum"], "ok")
    until(lambda: health(last) == ready, words=cluster.tails())
    for number in (1, 2):
        cluster.brokers[number].kill()
    until(lambda: health(last)["quorum"] == "failed", words=cluster.tails())
    found = until(lambda: (seen := health(last))["controller"] != "ok" and seen,
                  words=cluster.tails())
    assert found["listeners"] == found["log_directories"] == found["event_loop"] == "ok"
    cluster.start_broker(1)
    until(lambda: health(last) == ready, words=cluster.tails())

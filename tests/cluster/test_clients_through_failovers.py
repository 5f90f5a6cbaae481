"""Third-party clients continue while three brokerds are killed and restarted."""

import itertools

import pytest

from pylog.client import Consumer, TopicPartition
from tests.cluster.test_three_machines import created, described
from tests.compat.clients import ClientMissing
from tests.compat.steady import STARTS, Steady
from tests.fixtures.clusters import Cluster, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
NUMBERS = itertools.count()
WAIT_S = 120


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("cluster"), settings={
            "group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 1}) as found:
        yield found


@pytest.fixture(params=list(STARTS))
def steady(request, cluster, tmp_path):
    """A running client on a topic with one partition and three replicas."""
    topic = created(cluster, f"steady-{next(NUMBERS)}", 1)
    with open(tmp_path / "errors.txt", "wb") as errors:
        try:
            found = Steady(request.param, cluster.bootstrap, topic, errors)
        except ClientMissing as missing:
            pytest.skip(str(missing))
        with found:
            found.topic = topic
            wait_for_progress(cluster, found)
            yield found


def wait_for_progress(cluster, steady) -> None:
    """Wait until new records are acknowledged and the group has read them."""
    before = max(steady.acknowledged, default=-1)
    until(lambda: steady.acknowledged and max(steady.acknowledged) > before + 50, WAIT_S,
          f"{steady.failed[:3]}\n{cluster.tails()}")
    newest = max(steady.acknowledged)
    until(lambda: newest in steady.seen, WAIT_S, cluster.tails())


def check(cluster, steady) -> None:
    """Check that no request failed and that acknowledged records were read once and in order."""
    steady.end_producer()
    assert not steady.failed, steady.failed[:3]
    part = TopicPartition(steady.topic, 0)
    with Consumer({"bootstrap.servers": cluster.bootstrap,
                   "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([part])
        end, found = consumer.end_offsets([part])[part], []
        until(lambda: found.extend(consumer.poll(0.5)) or consumer.position(part) >= end, WAIT_S)
    values = [int(record.value) for record in found]
    assert values == sorted(set(values))
    assert set(steady.acknowledged) <= set(values)
    until(lambda: steady.seen >= set(steady.acknowledged), WAIT_S, "the group has not read all")


def all_in_sync(cluster, topic) -> None:
    until(lambda: len(described(cluster, topic)[0][1]) == 3, WAIT_S, cluster.tails())


def test_client_continues_when_leaders_are_killed(cluster, steady):
    for _ in range(2):
        leader = described(cluster, steady.topic)[0][0]
        cluster.brokers[leader].kill()
        wait_for_progress(cluster, steady)
        cluster.start_broker(leader)
        all_in_sync(cluster, steady.topic)
    check(cluster, steady)


def test_client_continues_during_a_rolling_restart(cluster, steady):
    for number, broker in cluster.brokers.items():
        broker.stop()
        wait_for_progress(cluster, steady)
        cluster.start_broker(number)
        all_in_sync(cluster, steady.topic)
    check(cluster, steady)

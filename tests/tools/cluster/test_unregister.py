"""A removed broker is reported until it is unregistered: three in-process brokers."""

import pytest

from pylog.testing import Cluster
from tests.fixtures.clusters import until
from tests.tools.support import run


@pytest.fixture
def cluster():
    """Three brokers, of which the third has stopped."""
    with Cluster(3) as found:
        found.create_topic("everywhere", replicas=3)
        found.create_topic("elsewhere", replicas=1)
        found.wait_in_sync("everywhere")
        found[3].stop()
        yield found[1]


def missing(broker) -> dict[str, int]:
    """Return missing brokers, with the number of their replicas."""
    return run("cluster", "--json", broker=broker).json["missing_brokers"]


def test_dead_broker_is_unregistered_once_it_has_no_replicas(cluster):
    until(lambda: missing(cluster) in ({"3": 1}, {"3": 2}))
    refused = run("cluster", "forget", "3", "--yes", broker=cluster, fails=True).err
    assert "broker 3 has replicas of" in refused and "pylog cluster drain 3" in refused
    run("topics", "delete", "everywhere", "elsewhere", "--yes", broker=cluster)
    until(lambda: missing(cluster) == {"3": 0})
    assert "broker 3 is not running; it has no replicas" in run(
        "cluster", "status", broker=cluster, fails=True).out
    found = run("doctor", "--json", broker=cluster).json["findings"]
    assert [(row["status"], row["advice"]) for row in found if row["check"] == "broker"] == [
        ("warn", "start it, or if it will not return: pylog cluster forget 3")]
    assert "every replica is already in place" in run(
        "cluster", "drain", "3", "--yes", broker=cluster).out
    assert run("cluster", "forget", "3", "--yes",
               broker=cluster).out == "broker 3 is unregistered\n"
    until(lambda: missing(cluster) == {})
    assert "there is no broker 3" in run(
        "cluster", "forget", "3", "--yes", broker=cluster, fails=True).err


def test_running_broker_is_not_unregistered(brokerd):
    assert "broker 1 is running" in run(
        "cluster", "forget", "1", "--yes", broker=brokerd, fails=True).err
    assert "there is no broker 77" in run(
        "cluster", "forget", "77", "--yes", broker=brokerd, fails=True).err

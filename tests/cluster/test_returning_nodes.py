"""A cluster's node that was started as a single node, or whose metadata log is a different one."""

import pytest

from pylog.client import Admin, NewTopic
from pylog.metadata import meta_properties
from tests.fixtures.brokers import BrokerDied, Brokerd
from tests.fixtures.clusters import Cluster, until
from tests.tools.support import run


@pytest.fixture
def cluster(tmp_path):
    with Cluster(tmp_path) as found:
        yield found


def create(broker, name, replicas) -> None:
    with Admin({"bootstrap.servers": broker.bootstrap}) as admin:
        admin.create_topics([NewTopic(name, 2, replicas)])


def topics_of(broker) -> set:
    return {row["topic"] for row in run("topics", "list", "--json", broker=broker).json}


def as_single_node(broker) -> Brokerd:
    """Return the node's directories, started without the cluster's settings."""
    single = Brokerd(broker.root, {"node.id": broker.overrides["node.id"]})
    single.port = broker.port
    return single


def test_node_started_without_its_cluster_settings_refuses_to_run(cluster):
    create(cluster.brokers[1], "before", 3)
    cluster.brokers[1].kill()
    with pytest.raises(BrokerDied, match="belongs to cluster .*brokerd detach"):
        as_single_node(cluster.brokers[1]).start()
    cluster.start_broker(1)
    until(lambda: topics_of(cluster.brokers[1]) == {"before"}, words=cluster.tails())


def test_member_with_reordered_directories_refuses_to_run_as_single_node(cluster, tmp_path):
    member = cluster.brokers[1]
    first, second = str(member.data_dir), str(tmp_path / "second")
    member.stop()
    member.overrides["log.dirs"] = f"{first},{second}"
    cluster.start_broker(1)
    member.stop()
    single = as_single_node(member)
    empty = str(tmp_path / "empty")
    for order in (f"{second},{first}", f"{empty},{second}"):
        single.overrides["log.dirs"] = order
        with pytest.raises(BrokerDied, match="belongs to cluster .*brokerd detach"):
            single.start()


def with_second_directory(member, second) -> None:
    member.stop()
    member.overrides["log.dirs"] = f"{member.data_dir},{second}"


def test_reordered_directories_start_no_empty_etcd(cluster, tmp_path):
    create(cluster.brokers[1], "before", 3)
    member, second = cluster.brokers[3], tmp_path / "second"
    with_second_directory(member, second)
    cluster.start_broker(3)
    member.stop()
    member.overrides["log.dirs"] = f"{second},{member.data_dir}"
    with pytest.raises(BrokerDied, match=f"the metadata of this node is in {member.data_dir}"):
        member.start()
    assert not (second / "etcd").exists()
    member.overrides["log.dirs"] = f"{member.data_dir},{second}"
    cluster.start_broker(3)
    until(lambda: topics_of(member) == {"before"}, words=cluster.tails())


def test_start_without_a_quorum_marks_every_directory_of_an_older_node(
        cluster, tmp_path):
    member, second = cluster.brokers[3], tmp_path / "second"
    with_second_directory(member, second)
    cluster.start_broker(3)
    for broker in cluster.brokers.values():
        broker.kill()
    mark = second / meta_properties.MEMBERSHIP
    mark.unlink()
    member.spawn()
    until(mark.exists, words=cluster.tails())
    member.kill()
    single = as_single_node(member)
    single.overrides["log.dirs"] = str(second)
    with pytest.raises(BrokerDied, match="belongs to cluster .*brokerd detach"):
        single.start()


def test_node_with_diverged_metadata_log_reloads_it_from_the_cluster(cluster):
    first = cluster.brokers[1]
    create(first, "before", 3)
    first.kill()
    # As if it had left this cluster before directories stored their cluster.
    mark = first.data_dir / meta_properties.MEMBERSHIP
    kept = mark.read_bytes()
    mark.unlink()
    with as_single_node(first) as single:
        for number in range(20):
            create(single, f"alone-{number}", 1)
    mark.write_bytes(kept)
    create(cluster.brokers[2], "without", 2)
    cluster.start_broker(1)
    assert "reading it again" in first.tail(20000)
    until(lambda: topics_of(first) == {"before", "without"}, words=cluster.tails())
    cluster.brokers[2].kill()
    until(lambda: topics_of(first) == {"before", "without"}, words=cluster.tails())
    create(first, "after", 2)
    assert list(first.data_dir.glob("__cluster_metadata-0.*.diverged"))
    cluster.brokers[3].kill()
    cluster.start_broker(2)
    until(lambda: topics_of(cluster.brokers[2]) >= {"before", "without", "after"},
          words=cluster.tails())

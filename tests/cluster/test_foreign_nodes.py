"""Nodes that must not replace a living controller.

A second empty node with the same addresses, a node of another cluster.
"""

import contextlib
import shutil
import time

import pytest

from pylog.client import Admin, NewTopic
from pylog.testing.ports import free_port
from tests.fixtures.brokers import BrokerDied, Brokerd
from tests.fixtures.clusters import Cluster, until
from tests.metadata.members import members_of
from tests.tools.support import run

END_S = 60


@pytest.fixture
def cluster(tmp_path):
    with Cluster(tmp_path, settings={"quorum.etcd.replace.after.ms": 2000}) as found:
        yield found


def twin_of(broker, root, **settings) -> Brokerd:
    """Return an empty node with the addresses of `broker`, but with its own client listener."""
    controller = broker.overrides["listeners"].partition(",")[2]
    return Brokerd(root, {**broker.overrides, **settings,
                          "listeners": f"PLAINTEXT://127.0.0.1:{free_port()},{controller}"})


@contextlib.contextmanager
def etcd_that_starts_late(broker, root):
    """Let the broker's etcd start long after the broker, which the other members answer."""
    command = root / "late-etcd"
    command.write_text("#!/bin/sh\nsleep 4\nexec etcd \"$@\"\n")
    command.chmod(0o755)
    broker.overrides["quorum.etcd.command"] = str(command)
    yield
    del broker.overrides["quorum.etcd.command"]


def error_of_start(node) -> str:
    """Start a node that must exit with an error; return its output."""
    with pytest.raises(BrokerDied):
        node.start(END_S)
    return " ".join(node.tail().split())


def creates_topics(cluster, name) -> None:
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        until(lambda: len(admin.describe_cluster().nodes) == 3, words=cluster.tails())
        admin.create_topics([NewTopic(name, 2, 3)])


def test_second_empty_node_with_the_same_addresses_does_not_replace_a_running_one(
        cluster, tmp_path):
    before = members_of(cluster)
    assert len(before) == 3
    cluster_id = run("cluster", "--json", broker=cluster.brokers[1]).json["cluster_id"]
    for number in (1, 2, 3):
        said = error_of_start(twin_of(cluster.brokers[number], tmp_path / f"twin-{number}"))
        assert f"127.0.0.{number}:" in said and f"of cluster {cluster_id} at" in said, said
        assert f"etcd member {before[f'node-{number}']}" in said, said
        assert f"pylog cluster replace {number} --force" in said, said
    assert members_of(cluster) == before
    creates_topics(cluster, "orders")


def test_empty_node_replaces_a_dead_member(cluster):
    before = members_of(cluster)
    cluster.brokers[2].kill()
    shutil.rmtree(cluster.brokers[2].data_dir)
    cluster.start_broker(2)
    after = members_of(cluster)
    assert after.keys() == before.keys() and after["node-2"] != before["node-2"]
    assert after["node-1"] == before["node-1"] and after["node-3"] == before["node-3"]
    creates_topics(cluster, "orders")


def test_node_of_another_cluster_does_not_replace_a_member(cluster):
    before = members_of(cluster)
    cluster.brokers[2].kill()
    shutil.rmtree(cluster.brokers[2].data_dir)
    other = "A" * 22
    cluster.brokers[2].overrides["quorum.cluster.id"] = other
    said = error_of_start(cluster.brokers[2])
    assert f"this node belongs to cluster {other}, and cluster " in said, said
    assert members_of(cluster) == before


def test_empty_node_waits_if_no_quorum_would_remain(cluster):
    before = members_of(cluster)
    for number in (2, 3):
        cluster.brokers[number].kill()
    shutil.rmtree(cluster.brokers[2].data_dir)
    cluster.brokers[2].spawn()
    time.sleep(5)
    cluster.start_broker(3)
    until(lambda: "brokerd ready" in cluster.brokers[2].output.read_text(), 60, cluster.tails())
    after = members_of(cluster)
    assert after.keys() == before.keys() and after["node-2"] != before["node-2"]
    creates_topics(cluster, "orders")


def test_operator_replaces_a_member_that_is_not_proven_dead(cluster, tmp_path):
    before = members_of(cluster)
    until(lambda: "controller 2 still responds" in run(
        "cluster", "replace", "2", "--yes", broker=cluster.brokers[1], fails=True).err)
    assert members_of(cluster) == before
    told = run("cluster", "replace", "2", "--force", broker=cluster.brokers[1])
    assert "was removed" in told.out
    # The removed process must not continue as a controller without membership.
    until(lambda: not cluster.brokers[2].alive(), 60, cluster.tails())
    assert "was removed from its cluster" in cluster.brokers[2].tail(6000)
    assert before.items() - members_of(cluster).items() == {("node-2", before["node-2"])}
    # Other members answer before this node's etcd has read of its removal.
    with etcd_that_starts_late(cluster.brokers[2], tmp_path):
        said = error_of_start(cluster.brokers[2])
    assert "was removed from its cluster" in said, said
    cluster.brokers[2].data_dir.rename(tmp_path / "aside")
    cluster.start_broker(2)
    assert members_of(cluster).keys() == before.keys()
    creates_topics(cluster, "orders")

"""Three controllers on one address with different ports."""

import asyncio

import pytest

from pylog.client import Admin, NewTopic
from pylog.config import Settings, clusters
from pylog.testing.ports import free_port
from tests.fixtures.brokers import BrokerDied
from tests.fixtures.clusters import Cluster, until


def on_one_host(root) -> Cluster:
    """Return the cluster, whose nodes all have the address 127.0.0.1."""
    cluster = Cluster(root, settings={"initial.broker.registration.timeout.ms": 15_000})
    voters = ",".join(f"{number}@127.0.0.1:{free_port()}" for number in cluster.brokers)
    for number, broker in cluster.brokers.items():
        for name in ("quorum.etcd.client.port", "quorum.etcd.peer.port"):
            del broker.overrides[name]
        controller = voters.split(",")[number - 1].partition("@")[2]
        clients = broker.overrides["listeners"].partition(",")[0]
        broker.overrides |= {"controller.quorum.voters": voters,
                             "listeners": f"{clients},CONTROLLER://{controller}"}
    return cluster


def ports_of(voters) -> list:
    settings = Settings({
        "node.id": "1", "controller.quorum.voters": voters, "process.roles": "controller",
        "listeners": "CONTROLLER://:9093", "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT"})
    return [clusters.etcd_ports(settings, voter) for voter in clusters.voters(settings)]


@pytest.mark.parametrize(("voters", "ports"), [
    ("1@h1:9093,2@h2:9093,3@h3:9093", [(2379, 2380)] * 3),
    ("1@h:9093,2@h:9095,3@h:60001", [(19093, 29093), (19095, 29095), (50001, 40001)]),
    ("1@h:9093,2@h:9095,3@h3:9093", [(19093, 29093), (19095, 29095), (2379, 2380)])])
def test_controllers_on_one_address_get_different_etcd_ports(voters, ports):
    assert ports_of(voters) == ports


def test_three_controllers_on_one_address_form_a_cluster(tmp_path):
    with on_one_host(tmp_path) as cluster:
        with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
            until(lambda: len(admin.describe_cluster().nodes) == 3, words=cluster.tails())
            admin.create_topics([NewTopic("orders", 2, 3)])
            until(lambda: "orders" in admin.list_topics())


def test_controller_without_a_majority_exits_with_an_error(tmp_path):
    first = on_one_host(tmp_path).brokers[1]
    with pytest.raises(BrokerDied, match="no majority of the controllers runs: 127.0.0.1:"):
        first.start(60)


def test_controller_whose_etcd_port_is_used_exits_and_names_the_port(tmp_path):
    first = on_one_host(tmp_path).brokers[1]
    port = int(first.overrides["listeners"].rpartition(":")[2])
    used = port + 10_000 if port + 10_000 <= 65_535 else port - 10_000

    async def work():
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", used)
        try:
            first.spawn()
            while first.alive():
                await asyncio.sleep(0.1)
        finally:
            server.close()
    asyncio.run(asyncio.wait_for(work(), 60))
    assert f"127.0.0.1:{used}: address already in use" in first.tail()

"""`pylog cluster status` prints "is healthy" only after every component has responded."""

import os
import re
import signal
import subprocess

import pytest

from pylog import cli
from pylog.testing import Broker
from pylog.testing.certificates import Authority, write
from pylog.testing.child import pause
from pylog.testing.ports import free_port
from pylog.tools.cluster import health
from pylog.tools.cluster import cluster_checks
from tests.fixtures.brokers import Brokerd
from tests.fixtures.clusters import Cluster, until
from tests.fixtures.zookeepers import ZooKeepers
from tests.tools.support import run

NODES = (1, 2, 3)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Three brokers, each a controller with an etcd and a metrics endpoint."""
    made = Cluster(tmp_path_factory.mktemp("health"))
    for broker in made.brokers.values():
        broker.overrides["metrics.listener"] = f"127.0.0.1:{free_port()}"
    with made:
        run("topics", "create", "t", "-p", 3, "-r", 3, broker=made)
        yield made


def status(cluster, *words, fails: bool = False) -> str:
    ended = run("cluster", "status", *words, broker=cluster, fails=fails)
    assert ended.out, ended.err
    return ended.out


def recovered(cluster) -> None:
    """Wait until the status is good again, for the next test."""
    until(lambda: cli.pylog(["cluster", "status", "-b", cluster.bootstrap]) == 0, 90,
          cluster.tails())


def etcd_of(broker) -> int:
    """Return the process id of a broker's etcd."""
    listed = subprocess.run(["ps", "-wweo", "pid,args"], capture_output=True, text=True, check=True)
    [found] = [int(line.split()[0]) for line in listed.stdout.splitlines()
               if line.split()[1].endswith("etcd") and str(broker.root) in line]
    return found


def test_healthy_cluster_passes_every_check(cluster):
    recovered(cluster)
    told = status(cluster)
    assert re.search(r"is healthy: 3 brokers, \d+ partitions, every replica in sync, "
                     "3 controllers, 3 members of the quorum", told), told
    assert "not checked" not in told, told
    assert run("cluster", "status", "--json", broker=cluster).json["unchecked"] == []


@pytest.mark.parametrize("stopped", [1, 2])
def test_stopped_etcds_are_named(cluster, stopped):
    etcds = [etcd_of(cluster.brokers[number]) for number in NODES[:stopped]]
    for pid in etcds:
        os.kill(pid, signal.SIGSTOP)
    try:
        told = status(cluster, "--timeout", "5", fails=True)
    finally:
        for pid in etcds:
            os.kill(pid, signal.SIGCONT)
    assert "of the quorum cannot be used" in told or "quorum cannot be checked" in told, told
    recovered(cluster)


def test_a_killed_broker_is_named_with_its_controller_and_no_disk_is_blamed(cluster):
    cluster.brokers[3].kill()
    try:
        for _ in range(2):
            for partition in range(3):
                told = run("cluster", "explain", f"t-{partition}", broker=cluster).out
                assert "log director" not in told and "is healthy" not in told, told
                assert re.search("Broker 3 (does not respond|is not running)", told), told
        told = status(cluster, fails=True)
        assert "broker 3 does not respond" in told or "broker 3 is not running" in told, told
        assert "controller 3 at 127.0.0.3:" in told and "Connection refused" in told, told
    finally:
        cluster.start_broker(3)
    recovered(cluster)


def test_groups_are_listed_without_those_of_a_killed_broker_which_is_named(cluster):
    names = [f"group-{number}" for number in range(12)]
    for name in names:
        run("groups", "reset-offsets", name, "-t", "t", "--to-earliest", "--execute",
            broker=cluster)
    assert len(run("groups", "list", "group-*", "--json", broker=cluster).json) == len(names)
    cluster.brokers[3].kill()
    try:
        ended = run("groups", "list", "group-*", "--json", broker=cluster, fails=True)
    finally:
        cluster.start_broker(3)
    assert ended.json and {row["group"] for row in ended.json} <= {*names}
    assert {row["coordinator"] for row in ended.json} <= {1, 2}
    assert "groups are missing" in ended.err and "broker 3 (" in ended.err
    recovered(cluster)


def test_a_hanging_broker_is_named_with_its_controller(cluster):
    pause(cluster.brokers[3].process)
    try:
        told = status(cluster, "--timeout", "10", fails=True)
    finally:
        cluster.brokers[3].process.send_signal(signal.SIGCONT)
    assert "controller 3 at 127.0.0.3:" in told and "does not answer" in told, told
    recovered(cluster)


def test_a_cluster_without_a_controller_is_not_well(tmp_path):
    with Cluster(tmp_path, count=4) as cluster:
        for number in NODES:
            cluster.brokers[number].kill()
        told = status(cluster.brokers[4], "--timeout", "5", fails=True)
    for number in NODES:
        assert f"controller {number} at 127.0.0.{number}:" in told, told
    assert "the controllers' quorum cannot be checked" in told, told


@pytest.fixture
def on_zookeeper(tmp_path_factory):
    """Yield a broker and controller with a ZooKeeper quorum of three servers: (broker, ZooKeepers).
    """
    root, clients, port = tmp_path_factory.mktemp("zookeeper"), free_port(), free_port()
    zookeepers = ZooKeepers(root, 3)
    try:
        zookeepers.start()
        with Brokerd(root / "broker", {
                "node.id": 1, "process.roles": "broker,controller",
                "controller.listener.names": "CONTROLLER",
                "controller.quorum.voters": f"1@127.0.0.1:{port}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
                "listeners": f"PLAINTEXT://127.0.0.1:{clients},CONTROLLER://127.0.0.1:{port}",
                "metrics.listener": f"127.0.0.1:{free_port()}", "metrics.token": "secret",
                "quorum.zookeeper.connect": ",".join(zookeepers.addresses)}) as broker:
            broker.port = clients
            yield broker, zookeepers
    finally:
        zookeepers.close()


def test_an_external_quorum_that_no_endpoint_reports_is_not_well(on_zookeeper):
    broker, _ = on_zookeeper
    told = status(broker, fails=True)
    assert "that keeps the controllers' log cannot be checked" in told, told
    assert "is healthy" not in told
    assert "3 members of the quorum" in status(broker, "--token", "secret")


def test_dead_zookeepers_are_named(on_zookeeper):
    broker, zookeepers = on_zookeeper
    for number in (1, 2):
        zookeepers.kill(number)
    told = status(broker, "--token", "secret", "--timeout", "5", fails=True)
    for address in zookeepers.addresses[:2]:
        assert f"{address} of the quorum cannot be used" in told, told
    assert "no majority" in told


def test_a_certificate_that_ends_soon_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster_checks, "CERTIFICATE_DAYS_WARN", 100_000)
    with Broker(tls=True) as broker:
        trusted = tmp_path / "ca.pem"
        trusted.write_bytes(broker.authority.pem)
        told = run("-X", "security.protocol=SSL", "-X", "ssl.truststore.type=PEM",
                   "-X", f"ssl.truststore.location={trusted}", "cluster", "status",
                   broker=broker, fails=True).out
    assert "the certificate of broker 1 must be replaced: good until 20" in told, told


def directory(free: int, total: int) -> dict:
    return {"broker": 1, "path": "/d", "error": None, "usable_bytes": free, "total_bytes": total}


@pytest.mark.parametrize("free,is_full", [(0, True), (49, True), (50, False), (1000, False)])
def test_a_log_directory_without_space_is_reported(free, is_full):
    assert bool(health.space_troubles([directory(free, 1000)])) == is_full


@pytest.mark.parametrize("clocks,said", [
    ({}, []), ({1: (0, 5)}, []), ({1: (0, 5), 2: (900, 950), 3: (-90, -20)}, []),
    ({1: (0, 2000), 2: (1500, 4000)}, []),
    ({1: (0, 5), 2: (4205, 4300)}, ["the clock of broker 2 is at least 4.2 s ahead of that of "
                                    "broker 1: synchronize both, for example with chrony"])])
def test_clocks_that_differ_are_reported(clocks, said):
    assert health.clock_troubles(clocks) == said


def described(leader: int, epoch: int) -> dict:
    return {"leader": leader, "epoch": epoch}


def test_a_controller_that_does_not_keep_its_role_is_reported():
    assert health.changes(described(1, 7), described(1, 7), "") == []
    [told] = health.changes(described(1, 7), described(2, 9), "")
    assert "controller 1 in epoch 7, controller 2 in epoch 9" in told
    [told] = health.changes(described(1, 7), None, "no answer")
    assert told.endswith("cannot be checked: no answer")


@pytest.mark.parametrize("factor,wanted,brokers,is_named", [
    (1, 3, 3, True), (2, 3, 3, True), (1, 3, 2, True), (3, 3, 3, False), (2, 3, 2, False),
    (1, 3, 1, False), (3, 1, 3, False), (None, 3, 3, False)])
def test_internal_topics_with_fewer_replicas_than_their_setting_are_named(
        factor, wanted, brokers, is_named):
    topic, setting = "__consumer_offsets", "offsets.topic.replication.factor"
    told = health.factor_troubles({} if factor is None else {topic: factor},
                                  [{}, {setting: str(wanted)}], brokers)
    assert [topic in line and setting in line for line in told] == [True] * is_named


TLS_CLUSTER = {
    "listeners": "CLIENTS://:9092,REPLICATION://:9094,CONTROLLER://:9093",
    "advertised.listeners": "CLIENTS://h1:19092,REPLICATION://h1:9094",
    "listener.security.protocol.map":
        "CLIENTS:SSL,REPLICATION:SASL_SSL,CONTROLLER:SSL,SSL:SSL,PLAINTEXT:PLAINTEXT",
    "controller.listener.names": "CONTROLLER", "controller.quorum.voters": "1@h1:9093",
    "quorum.etcd.endpoints": "", "quorum.zookeeper.connect": "",
    "quorum.etcd.security.protocol": ""}


def listeners_in(lines: list[str]) -> list[str]:
    return [re.search(r"of listener (\S+ of brokers? [\d, ]+):", line)[1] for line in lines]


def test_tls_listeners_that_the_client_does_not_use_are_listed_as_not_checked():
    settings = {1: TLS_CLUSTER, 2: TLS_CLUSTER}
    told = health.unread_certificates(settings, "PLAINTEXT", {})
    assert listeners_in(told) == ["CLIENTS of brokers 1, 2", "REPLICATION of brokers 1, 2"]
    assert "a client that uses SASL_SSL" in told[1]
    told = health.unread_certificates(settings, "SSL", {1: 19092, 2: 19092})
    assert listeners_in(told) == ["REPLICATION of brokers 1, 2"]
    told = health.unread_certificates(settings, "SSL", {2: 19092})
    assert listeners_in(told) == ["CLIENTS of broker 1", "REPLICATION of brokers 1, 2"]


def test_client_behind_an_address_translation_has_read_the_listener_of_its_protocol():
    told = health.unread_certificates({1: TLS_CLUSTER}, "SASL_SSL", {1: 7777})
    assert listeners_in(told) == ["CLIENTS of broker 1"]


@pytest.mark.parametrize("row", [
    {}, {"listeners": "PLAINTEXT://:9092"},
    {"listeners": "A://:1", "listener.security.protocol.map": "A:SASL_PLAINTEXT"}])
def test_brokers_without_tls_have_no_certificates_to_check(row):
    assert health.unread_certificates({1: row}, "PLAINTEXT", {}) == []


@pytest.mark.parametrize(("row", "own", "named"), [
    ({}, "PLAINTEXT", "etcd"), ({}, "SSL", None), ({}, "SASL_SSL", "etcd"),
    ({"quorum.etcd.security.protocol": "PLAINTEXT"}, "PLAINTEXT", None),
    ({"quorum.etcd.endpoints": "h9:2379"}, "PLAINTEXT", None),
    ({"quorum.etcd.endpoints": "h9:2379", "quorum.etcd.security.protocol": "SSL"}, "SSL", "etcd"),
    ({"quorum.zookeeper.connect": "h9:2181"}, "PLAINTEXT", None),
    ({"quorum.zookeeper.connect": "h9:2181", "quorum.zookeeper.ssl.enable": "true"}, "SSL",
     "ZooKeeper"),
    ({"controller.quorum.voters": ""}, "PLAINTEXT", None)])
def test_certificates_of_the_quorum_are_listed_unless_the_controllers_show_them(row, own, named):
    told = health.unread_quorum_certificates([TLS_CLUSTER | row] * 2, own)
    assert [named in line for line in told] == [True] * (named is not None)


def test_kafka_controllers_need_no_etcd_certificate_check():
    row = {key: value for key, value in TLS_CLUSTER.items() if not key.startswith("quorum")}
    assert health.unread_quorum_certificates([row], "PLAINTEXT") == []


@pytest.mark.parametrize(("unchecked", "shown"), [
    ([], "cluster c is healthy: 1 broker, 2 partitions, every replica in sync, 3 controllers"),
    (["a"], "cluster c is healthy as far as it was checked (1 fact not checked): 1 broker, "),
    (["a", "b"], "as far as it was checked (2 facts not checked): ")])
def test_headline_counts_the_facts_that_were_not_checked(unchecked, shown):
    found = {"cluster_id": "c", "brokers": [{}], "partitions": 2}
    assert shown in health.verdict(found, health.Checked([], unchecked, None, 3, 0))


def test_status_lists_a_tls_listener_that_the_client_does_not_use(tmp_path):
    own = Authority().issue("node", ["localhost", "127.0.0.1"])
    with Brokerd(tmp_path / "broker", {
            "listeners": f"PLAINTEXT://127.0.0.1:{(port := free_port())},"
                         f"SSL://127.0.0.1:{free_port()}",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": write(tmp_path, "own.pem", own.chain + own.key)}) as broker:
        broker.port = port
        told = status(broker)
        unchecked = run("cluster", "status", "--json", broker=broker).json["unchecked"]
    assert "is healthy as far as it was checked (1 fact not checked): 1 broker, " in told, told
    assert "not checked: the certificate of listener SSL of broker 1: " in told, told
    assert len(unchecked) == 1

import pytest

from pylog.config import ConfigError, Settings, clusters
from pylog.config.clusters import Voter


def derived(text, here="", **given):
    return clusters.derived(text, {name.replace("_", "."): value for name, value in given.items()},
                            lambda host: host in here.split())


def test_machines_with_the_same_hosts_agree_on_the_voters():
    found = [derived("a,b,c", here) for here in ("a", "b", "c")]
    assert {texts["controller.quorum.voters"] for texts in found} == {
        "1@a:9093,2@b:9093,3@c:9093"}
    assert [texts["node.id"] for texts in found] == ["1", "2", "3"]
    assert found[1]["advertised.listeners"] == "PLAINTEXT://b:9092"
    assert found[1]["listeners"] == "PLAINTEXT://:9092,CONTROLLER://:9093"
    assert found[1]["min.insync.replicas"] == "2"


def test_a_fourth_machine_has_the_same_voters_and_no_vote():
    texts = derived("a,b,c,d", "d")
    assert texts["process.roles"] == "broker" and texts["node.id"] == "4"
    assert texts["controller.quorum.voters"] == derived("a,b,c", "a")["controller.quorum.voters"]
    assert "CONTROLLER://" not in texts["listeners"]


def test_addresses_are_bound_and_names_are_not():
    assert derived("127.0.0.1,127.0.0.2,127.0.0.3", node_id=2)["listeners"] == (
        "PLAINTEXT://127.0.0.2:9092,CONTROLLER://127.0.0.2:9093")
    assert derived("::1,::2,::3", node_id="1")["controller.quorum.voters"].startswith(
        "1@[::1]:9093,")


@pytest.mark.parametrize("text,here,words", [
    ("a,b", "a", "the cluster stops when one fails"),
    ("a,a,b", "a", "different hosts"), ("a,,b", "a", "different"),
    ("a:1,b,c", "a", "without ports"), ("a,b,c", "", "none of a, b, c is this machine"),
    ("a,b,c", "a c", "a, c are all this machine"),
])
def test_ambiguous_node_identity_is_rejected(text, here, words):
    with pytest.raises(ConfigError, match=words):
        derived(text, here)


def test_explicit_setting_takes_precedence(tmp_path):
    settings = Settings.load(None, ["node.id=2", "min.insync.replicas=1"], lambda given: derived(
        "a,b,c", **{name.replace(".", "_"): value for name, value in given.items()}))
    assert settings["node.id"] == 2 and settings["min.insync.replicas"] == 1
    assert settings.origin("default.replication.factor") == "--cluster"
    assert clusters.voters(settings)[2] == Voter(3, "c", 9093)
    assert clusters.has_quorum(settings) and not clusters.has_quorum(Settings())


def test_internal_topics_have_a_replica_on_each_of_the_first_three_hosts():
    for hosts, replicas in (("a", "1"), ("a,b,c", "3"), ("a,b,c,d", "3")):
        texts = derived(hosts, "a")
        assert {texts[f"{prefix}.replication.factor"] for prefix in (
            "default", "offsets.topic", "transaction.state.log",
            "share.coordinator.state.topic")} == {replicas}


def test_a_broker_is_single_when_no_other_can_join():
    assert Settings().is_single_broker
    assert not Settings(SEVERAL).is_single_broker
    assert not Settings({
        "listeners": "PLAINTEXT://:0,CONTROLLER://:0", "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    }).is_single_broker


SEVERAL = {"process.roles": "broker", "node.id": "2", "controller.listener.names": "CONTROLLER",
           "controller.quorum.voters": "1@h:9093", "listeners": "PLAINTEXT://:0"}


@pytest.mark.parametrize("texts,words", [
    ({"listeners": "SSL://:0"}, "defined in advertised.listeners. .* are SSL"),
    ({"inter.broker.listener.name": "PLAINTEXT", "security.inter.broker.protocol": "PLAINTEXT"},
     "Only one of inter.broker.listener.name and security.inter.broker.protocol"),
])
def test_broker_with_an_unreachable_advertised_address_does_not_start(texts, words):
    with pytest.raises(ConfigError, match=words):
        Settings({**SEVERAL, **texts})


def test_listener_protocol_is_known_locally_and_remotely():
    settings = Settings({**SEVERAL, "listener.security.protocol.map":
                         "IN:SASL_SSL,PLAINTEXT:PLAINTEXT,CONTROLLER:SSL",
                         "listeners": "IN://:0", "inter.broker.listener.name": "IN"})
    assert settings.protocol_of(settings.between_brokers) == "SASL_SSL"
    assert settings.protocol_of("CONTROLLER") == "SSL"
    assert Settings(SEVERAL).protocol_of("CONTROLLER") == "PLAINTEXT"


def test_node_without_outgoing_connections_may_use_any_protocol():
    Settings({"listener.security.protocol.map": "IN:SASL_SSL", "listeners": "IN://:0",
              "inter.broker.listener.name": "IN"})


def test_machines_with_a_secured_protocol_secure_all_listeners():
    found = derived("a,b,c", "b", security_inter_broker_protocol="sasl_ssl",
                    sasl_mechanism_inter_broker_protocol="SCRAM-SHA-512")
    assert found["listeners"] == "SASL_SSL://:9092,CONTROLLER://:9093"
    assert found["advertised.listeners"] == "SASL_SSL://b:9092"
    assert found["sasl.mechanism.controller.protocol"] == "SCRAM-SHA-512"
    settings = Settings({**found, "security.inter.broker.protocol": "SASL_SSL"})
    assert settings.protocol_of("CONTROLLER") == "SASL_SSL"
    assert settings.between_brokers == "SASL_SSL"
    assert "listener.security.protocol.map" not in derived("a,b,c", "a")


def test_controllers_with_a_zookeeper_setting_use_it_as_quorum():
    several = {"node.id": "1", "process.roles": "broker,controller",
               "controller.listener.names": "CONTROLLER",
               "listeners": "PLAINTEXT://:0,CONTROLLER://:0",
               "controller.quorum.voters": "1@h:9093"}
    assert not clusters.has_quorum(Settings(several))
    named = {**several, "quorum.zookeeper.connect": "z1:2181,z2:2181"}
    assert clusters.has_quorum(Settings(named))
    for wrong, words in (
            ({"quorum.etcd.endpoints": "e:2379"}, "a cluster has one quorum"),
            ({"quorum.zookeeper.connect": "z1:2181/chroot"}, "is not host:port"),
            ({"quorum.zookeeper.digest": "user"}, "expected user:password")):
        with pytest.raises(ConfigError, match=words):
            Settings({**named, **wrong})


def controllers(voters, **others) -> Settings:
    return Settings({
        "node.id": "1", "controller.quorum.voters": voters, "process.roles": "controller",
        "listeners": "CONTROLLER://:9093", "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT", **others})


@pytest.mark.parametrize(("ports", "shared"), [
    ((9093, 19093, 9095), 19093), ((9093, 9095, 29095), 29095), ((9093, 19093, 29093), 19093),
    ((60001, 40001, 9093), 40001), ((9093, 9093, 9095), 9093)])
def test_colliding_derived_etcd_ports_are_rejected(ports, shared):
    voters = ",".join(f"{number}@h:{port}" for number, port in enumerate(ports, 1))
    with pytest.raises(ConfigError, match=rf"both need port {shared} of h\. .* plus 10000"):
        controllers(voters)
    controllers(voters, **{"quorum.etcd.endpoints": "e:2379"})


def test_controllers_on_different_addresses_may_use_any_controller_ports():
    controllers("1@h1:9093,2@h2:19093,3@h3:29093")
    controllers("1@h:9093,2@h:9094,3@h2:19093")

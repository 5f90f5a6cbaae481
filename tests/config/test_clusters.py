import pytest

from pylog.config import ConfigError, Settings, clusters
from pylog.config.clusters import Voter


def derived(text, here="", **given):
    return clusters.derived(text, {name.replace("_", "."): value for name, value in given.items()},
                            lambda host: host in here.split())


def test_machines_told_the_same_hosts_agree_on_the_voters():
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
    ("a,b", "a", "no majority"), ("a,a,b", "a", "different hosts"), ("a,,b", "a", "different"),
    ("a:1,b,c", "a", "without ports"), ("a,b,c", "", "none of a, b, c is this machine"),
    ("a,b,c", "a c", "a, c are all this machine"),
])
def test_what_does_not_say_who_is_who_is_refused(text, here, words):
    with pytest.raises(ConfigError, match=words):
        derived(text, here)


def test_what_is_set_by_name_takes_precedence(tmp_path):
    settings = Settings.load(None, ["node.id=2", "min.insync.replicas=1"], lambda given: derived(
        "a,b,c", **{name.replace(".", "_"): value for name, value in given.items()}))
    assert settings["node.id"] == 2 and settings["min.insync.replicas"] == 1
    assert settings.origin("default.replication.factor") == "--cluster"
    assert clusters.voters(settings)[2] == Voter(3, "c", 9093)
    assert clusters.has_quorum(settings) and not clusters.has_quorum(Settings())


@pytest.mark.parametrize("protocols,words", [
    ("PLAINTEXT:PLAINTEXT,CONTROLLER:SSL", "controller.listener.names: listener CONTROLLER has"),
    ("PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT", "listener PLAINTEXT has the protocol SASL"),
    ("PLAINTEXT:SASL_SSL", "listener PLAINTEXT has the protocol SASL_SSL"),
])
def test_a_node_does_not_start_when_it_could_not_reach_the_others(protocols, words):
    several = {"process.roles": "broker", "node.id": "2", "controller.listener.names": "CONTROLLER",
               "controller.quorum.voters": "1@h:9093", "listeners": "PLAINTEXT://:0"}
    with pytest.raises(ConfigError, match=words):
        Settings({**several, "listener.security.protocol.map": protocols})
    Settings({**several, "listener.security.protocol.map":
              "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_SSL,CONTROLLER:PLAINTEXT",
              "listeners": "PLAINTEXT://:0,CLIENTS://:0"})


def test_who_dials_nobody_may_have_any_protocol():
    Settings({"listener.security.protocol.map": "IN:SASL_SSL", "listeners": "IN://:0",
              "inter.broker.listener.name": "IN"})


def test_a_zookeeper_keeps_the_quorum_of_controllers_that_name_it():
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

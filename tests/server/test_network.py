"""Listeners for the effective settings; here, the resolver's queries."""

from types import SimpleNamespace

from pylog.config import Settings
from pylog.server import network as network_of
from pylog.server.network import Network


class _Reactors:
    threads = 1

    def set_limits(self, most, most_of_one, addresses, *_):
        self.limits = most, addresses

    def set_listener_limit(self, number, most):
        self.listener_limit = number, most


def test_unrelated_setting_change_makes_no_resolver_query(monkeypatch):
    asked, reactors = [], _Reactors()
    monkeypatch.setattr(network_of, "_reactors", lambda *_: reactors)
    monkeypatch.setattr(network_of, "_addresses", lambda host: asked.append(host) or [host])
    settings = Settings({"listeners": "PLAINTEXT://:0",
                         "max.connections.per.ip.overrides": "slow.example:3"})
    network = Network(settings, *[SimpleNamespace()] * 3)
    network._open[0] = settings.listeners[0], settings.listeners[0].port
    network.apply()
    settings.set_dynamic({"max.connections": "7"}, {})
    network.apply()
    assert asked == ["slow.example"] and reactors.limits == (7, {"slow.example": 3})
    settings.set_dynamic({"max.connections.per.ip.overrides": "other.example:4"}, {})
    network.apply()
    assert asked == ["slow.example", "other.example"]
    assert reactors.limits[1] == {"other.example": 4}


def test_reactors_get_the_settings_of_fetches(monkeypatch):
    found = {}
    monkeypatch.setattr(network_of, "Reactors", lambda **given: found.update(given) or _Reactors())
    none = SimpleNamespace()
    for texts, rack_aware, gather_ms in (
            ({}, False, 10),
            ({"replica.selector.class":
              "org.apache.kafka.common.replica.RackAwareReplicaSelector",
              "fetch.batching.max.ms": "25"}, True, 25)):
        network_of._reactors(Settings(texts), none, none, none, none, none)
        assert (found["rack_aware"], found["gather_ms_max"]) == (rack_aware, gather_ms)

"""Constraints between settings, at the start and at run time."""

import pytest

from pylog.config import ConfigError, Settings
from pylog.config.dynamic import LEAST
from pylog.config.relations import RELATIONS

STARTED = {"log.dirs": "/a,/b", "log.cleaner.threads": "1"}
# Rejected in a file and as a change, of one broker and of all.
REFUSED = [
    ("max.connections", "0", "Invalid max.connections 0"),
    ("max.connection.creation.rate", "0", "Invalid max.connection.creation.rate 0"),
    ("max.connections.per.ip", "0", "only if max.connections.per.ip.overrides property is set"),
    ("log.cleaner.threads", "0", "log.cleaner.threads must be greater than or equal to 1"),
    ("log.roll.jitter.ms", "-1", "log.roll.jitter.ms must be greater than or equal to 0"),
    ("log.flush.interval.ms", "-1", "log.flush.interval.ms .*flush.ms: Value must be at least 0"),
    ("log.roll.ms", "0", "log.roll.ms must be greater than or equal to 1"),
    ("group.consumer.assignment.interval.ms", "15001", "less than or equal to group.consumer.max"),
]


@pytest.mark.parametrize(("name", "text", "words"), REFUSED)
def test_settings_that_lock_out_or_stop_are_rejected_at_start_and_at_run_time(name, text, words):
    with pytest.raises(ConfigError, match=words):
        Settings({name: text})
    for per_broker in (True, False):
        with pytest.raises(ConfigError, match=words):
            Settings().check_dynamic({name: text}, per_broker)


@pytest.mark.parametrize(("name", "text", "words"), [
    ("log.cleanup.policy", "compact,compact", "an entry twice"),
    ("ssl.cipher.suites", "x,x", "an entry twice"),
    ("log.remote.copy.lag.ms", "604800001",
     "Value must not exceed log.local.retention.ms .effective value: 604800000"),
])
def test_value_that_only_a_change_rejects(name, text, words):
    Settings({name: text})
    with pytest.raises(ConfigError, match=words):
        Settings().check_dynamic({name: text}, True)


def test_copy_lag_is_limited_by_local_retention():
    settings = Settings({"log.local.retention.bytes": "5"})
    settings.check_dynamic({"log.remote.copy.lag.bytes": "5"}, False)
    with pytest.raises(ConfigError, match="log.local.retention.bytes .effective value: 5"):
        settings.check_dynamic({"log.remote.copy.lag.bytes": "6"}, False)
    Settings().check_dynamic({"log.remote.copy.lag.bytes": "6"}, False)


def test_connection_limit_of_zero_requires_address_overrides():
    both = {"max.connections.per.ip": "0", "max.connections.per.ip.overrides": "10.0.0.1:5"}
    assert Settings(both).connection_limits == {"10.0.0.1": 5}
    Settings().check_dynamic(both, False)
    settings = Settings({"max.connections.per.ip.overrides": "10.0.0.1:5"})
    settings.check_dynamic({"max.connections.per.ip": "0"}, True)
    settings.set_dynamic({"max.connections.per.ip": "0"}, {})
    with pytest.raises(ConfigError, match="only if"):
        settings.check_dynamic({"max.connections.per.ip.overrides": ""}, True)


@pytest.mark.parametrize("name", sorted(LEAST))
def test_a_stored_setting_that_locks_out_is_not_put_into_force(name):
    stored = {name: str(LEAST[name] - 1), "log.segment.bytes": "1048576"}
    for per_broker in (True, False):
        assert Settings().usable_dynamic(stored, per_broker) == {"log.segment.bytes": "1048576"}


def test_stored_limits_that_shut_out_every_address_are_the_files_instead():
    settings = Settings({"max.connections.per.ip": "7"})
    refused = settings.set_dynamic({"max.connections.per.ip": "0"}, {})
    assert "can be set to zero only if" in refused
    assert settings["max.connections.per.ip"] == 7


@pytest.mark.parametrize("text", ["/c", "/a,/c", "*,/a"])
def test_only_directories_of_the_broker_can_be_cordoned(text):
    with pytest.raises(ConfigError, match=r"cordoned\.log\.dirs"):
        Settings({**STARTED, "cordoned.log.dirs": text})
    with pytest.raises(ConfigError, match=r"cordoned\.log\.dirs"):
        Settings(STARTED).check_dynamic({"cordoned.log.dirs": text}, True)


@pytest.mark.parametrize("text", ["", "*", "/a", "/b,/a"])
def test_any_directories_of_the_broker_can_be_cordoned(text):
    Settings({**STARTED, "cordoned.log.dirs": text})
    Settings(STARTED).check_dynamic({"cordoned.log.dirs": text}, True)


def test_each_relation_holds_for_the_defaults_and_names_real_settings():
    settings = Settings()
    for name, word, other in RELATIONS:
        assert word in ("<", "<=", ">=") and settings[name] is not None, name
        assert settings[other] is not None, other


@pytest.mark.parametrize(("name", "text"), [
    ("listener.name.plaintext.max.connections", "0"),
    ("listener.name.plaintext.max.connection.creation.rate", "0"),
    ("listener.name.plaintext.num.network.threads", "100")])
def test_limits_of_one_listener_have_the_brokers_bounds(name, text):
    for per_broker in (True, False):
        with pytest.raises(ConfigError, match=r"max\.connection|num\.network\.threads"):
            Settings().check_dynamic({name: text}, per_broker)
        for other in ("other", "PLAINTEXT"):
            Settings().check_dynamic({name.replace("plaintext", other): text}, per_broker)


@pytest.mark.parametrize("name", ["listener.name.plaintext.ssl.keystore.type",
                                  "listener.name.plaintext.log.roll.ms",
                                  "listener.name.plaintext.some.plugins", "listeners"])
def test_per_broker_settings_are_rejected_for_all_brokers(name):
    with pytest.raises(ConfigError, match=rf"default cluster level.*: \[{name}\]"):
        Settings().check_dynamic({name: "7"}, False)


def test_pools_of_threads_at_most_halve_or_double():
    settings = Settings({"remote.log.reader.threads": "10"})
    settings.check_dynamic({"remote.log.reader.threads": "5"}, True)
    settings.check_dynamic({"remote.log.reader.threads": "20"}, True)
    with pytest.raises(ConfigError, match="at least half the current value 10"):
        settings.check_dynamic({"remote.log.reader.threads": "4"}, True)
    with pytest.raises(ConfigError, match="greater than double the current value 10"):
        settings.check_dynamic({"remote.log.reader.threads": "21"}, True)


def test_local_retention_must_not_exceed_total_retention():
    for texts in ({"log.local.retention.ms": "604800001"}, {"log.local.retention.ms": "-1"},
                  {"log.retention.bytes": "5", "log.local.retention.bytes": "6"},
                  {"log.retention.ms": "5", "log.local.retention.ms": "6"}):
        with pytest.raises(ConfigError, match=r"log\.local\.retention"):
            Settings().check_dynamic(texts, True)
    Settings().check_dynamic({"log.retention.ms": "-1", "log.local.retention.ms": "-1"}, True)


def test_node_id_is_reported_as_broker_id_too():
    for texts in ({"node.id": "7"}, {"broker.id": "7"}):
        settings = Settings(texts)
        assert (settings["broker.id"], settings.texts["broker.id"]) == (7, "7")
    assert Settings()["broker.id"] == Settings()["node.id"]

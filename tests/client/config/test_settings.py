"""Client settings: names, values, and errors for invalid ones."""

import pytest

from pylog.client.config.settings import TABLE, Settings
from pylog.client.errors import ConfigError

SERVERS = {"bootstrap.servers": "localhost:9092"}


def test_dotted_and_underscored_names_are_one_setting():
    by_dots = Settings("consumer", {**SERVERS, "fetch.min.bytes": 7})
    by_words = Settings("consumer", bootstrap_servers="localhost:9092", fetch_min_bytes="7")
    assert by_dots.values == by_words.values
    assert by_dots["fetch.min.bytes"] == 7


def test_unknown_setting_is_rejected_with_the_nearest_name():
    with pytest.raises(ConfigError, match=r"did you mean 'auto.offset.reset'"):
        Settings("consumer", {**SERVERS, "auto.ofset.reset": "earliest"})


def test_alias_error_names_the_other_client():
    with pytest.raises(ConfigError, match="one of the producer"):
        Settings("consumer", {**SERVERS, "linger.ms": 5})


def test_the_same_setting_twice_is_rejected():
    with pytest.raises(ConfigError, match="given twice"):
        Settings("consumer", SERVERS, bootstrap_servers="localhost:9093")


@pytest.mark.parametrize("name, value", [
    ("fetch.min.bytes", -1), ("fetch.min.bytes", "many"), ("fetch.min.bytes", 1.5),
    ("enable.auto.commit", "perhaps"), ("auto.offset.reset", "middle"),
    ("bootstrap.servers", "localhost"), ("bootstrap.servers", "localhost:0"),
])
def test_a_wrong_value_is_rejected(name, value):
    with pytest.raises(ConfigError, match=name):
        Settings("consumer", {**SERVERS, name: value})


@pytest.mark.parametrize("given", ["orders", ["localhost:9092"]])
def test_settings_must_be_a_mapping(given):
    with pytest.raises(ConfigError, match="a mapping or keywords"):
        Settings("consumer", given, bootstrap_servers="localhost:9092")


def test_servers_are_required():
    with pytest.raises(ConfigError, match="bootstrap.servers is missing"):
        Settings("consumer", {})


def test_enumerated_values_ignore_case():
    settings = Settings("consumer", {**SERVERS, "auto.offset.reset": "EARLIEST",
                                     "enable.auto.commit": "False"})
    assert settings["auto.offset.reset"] == "earliest"
    assert settings["enable.auto.commit"] is False


def test_every_default_is_an_allowed_value():
    for role in ("consumer", "producer", "admin"):
        defaults = Settings(role, SERVERS).values
        given = {name: value for name, value in defaults.items() if value is not None}
        assert Settings(role, given).values.keys() == defaults.keys()
    assert len({row.name for row in TABLE}) == len(TABLE)


def test_sasl_needs_a_name_and_a_password():
    with pytest.raises(ConfigError, match="sasl.username"):
        Settings("admin", {**SERVERS, "security.protocol": "SASL_SSL", "sasl.username": "me"})

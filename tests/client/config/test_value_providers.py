"""Settings whose value comes from the environment, a file or a directory, like Kafka's config
providers.
"""

import pytest

from pylog.client.config import value_providers
from pylog.client.config.settings import Settings
from pylog.client.errors import ConfigError

SERVERS = {"bootstrap.servers": "localhost:9092"}


def test_values_come_from_the_environment_a_file_and_a_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("PASSWORD_OF_ALICE", "p=1")
    (tmp_path / "secrets.properties").write_text("user=alice\nport: 9093\n")
    (tmp_path / "password").write_text("from a directory\n")
    found = value_providers.resolved({
        "a": "${env:PASSWORD_OF_ALICE}", "b": f"${{file:{tmp_path}/secrets.properties:user}}!",
        "c": f"${{dir:{tmp_path}:password}}", "d": 7, "e": "${other:x}"}, value_providers.USUAL)
    assert found == {"a": "p=1", "b": "alice!", "c": "from a directory", "d": 7,
                     "e": "${other:x}"}


def test_client_accepts_declared_value_providers(monkeypatch):
    monkeypatch.setenv("CLIENT_NAME", "billing")
    declared = {**SERVERS, "config.providers": "vars", "config.providers.vars.class":
                "org.apache.kafka.common.config.provider.EnvVarConfigProvider"}
    found = Settings("producer", {**declared, "client.id": "${vars:CLIENT_NAME}-1"})
    assert found["client.id"] == "billing-1"
    assert Settings("producer", {**SERVERS, "client.id": "${env:X}"})["client.id"] == "${env:X}"


@pytest.mark.parametrize("value, words", [
    ("${env:THERE_IS_NO_SUCH_NAME}", "there is no THERE_IS_NO_SUCH_NAME"),
    ("${file:/nowhere/at/all:x}", "/nowhere/at/all has no x"),
    ("${dir:/etc:../etc/passwd}", "has no ../etc/passwd"), ("${dir:/etc:}", "/etc has no"),
])
def test_missing_value_is_an_error(value, words):
    with pytest.raises(ConfigError) as failure:
        value_providers.resolved({"sasl.password": value}, value_providers.USUAL)
    assert words in str(failure.value) and "sasl.password" in str(failure.value)


def test_unknown_value_provider_is_rejected():
    with pytest.raises(ConfigError, match="there are only EnvVarConfigProvider"):
        Settings("admin", {**SERVERS, "config.providers": "vault",
                           "config.providers.vault.class": "com.example.Vault"})

"""Which addresses the web console may have without a login."""

import pytest

from pylog.config import ConfigError, Settings, console_access


@pytest.mark.parametrize("listener", [
    "127.0.0.1:8080", "127.0.0.2:8080", "localhost:8080", "[::1]:8080"])
def test_a_console_of_this_machine_needs_no_login(listener):
    settings = Settings({"console.listener": listener})
    assert console_access.auth(settings, False) == console_access.NONE


def test_an_open_console_must_be_declared_insecure():
    given = {"console.listener": "0.0.0.0:8080"}
    with pytest.raises(ConfigError, match="without a login: everyone who reaches this address"):
        console_access.auth(Settings(given), False)
    assert console_access.auth(
        Settings({**given, "console.insecure": "true"}), False) == console_access.NONE
    for text in ("sasl", "SASL"):
        assert console_access.auth(
            Settings({**given, "console.auth": text}), False) == console_access.SASL


def test_a_cluster_that_needs_a_login_makes_the_console_need_one():
    settings = Settings({"console.listener": "127.0.0.1:8080"})
    assert console_access.auth(settings, True) == console_access.SASL

"""Login settings in Kafka's format."""

import pytest

from pylog.config.errors import ConfigError
from pylog.security.sasl import jaas

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(("text", "options"), [
    (f"{MODULE} required;", {}),
    (f'{MODULE} required username="a" password="b c" ;', {"username": "a", "password": "b c"}),
    (f'{MODULE} REQUIRED\n  user_a="x;=\\"y\\\\"\n  user_b=plain;',
     {"user_a": 'x;="y\\', "user_b": "plain"}),
])
def test_options_are_read(text, options):
    assert jaas.options(text) == options


@pytest.mark.parametrize("text", [
    "", ";", MODULE, f"{MODULE} required", f'{MODULE} required password="secret',
    f"{MODULE} maybe;",
    f"{MODULE} required username=a password=top secret;",
    f'{MODULE} required password="top" secret user="a";',
    f'{MODULE} required password "secret";', f'{MODULE} required a="secret"; {MODULE} required;'])
def test_invalid_login_setting_is_rejected_without_showing_secrets(text):
    with pytest.raises(ConfigError) as refused:
        jaas.options(text)
    assert "secret" not in str(refused.value)

"""OAUTHBEARER's server side: client messages and responses."""

import time

import pytest

from pylog.config import ConfigError, Settings
from pylog.security.sasl import oauthbearer
from pylog.security.errors import AuthenticationFailed, TokenRefused
from pylog.security.sasl.sasl import BEARER, KEYS_URL, Mechanisms
from pylog.security.oauth.jwt import Token
from tests.security.issuer import Issuer, served


def check(text):
    if text != "good":
        raise TokenRefused("it is another")
    return Token("alice", 5000)


def exchange():
    return oauthbearer.Exchange(check)


@pytest.mark.parametrize("message", [
    b"n,,\x01auth=Bearer good\x01\x01", b"n,a=alice,\x01auth=bearer  good\x01\x01",
    b"n,,\x01auth=Bearer good\x01traceId=9f, and so on\x01\x01"])
def test_valid_token_authenticates_its_principal(message):
    login = exchange()
    assert login.step(message) == b""
    assert (login.is_complete, login.name, login.expires_ms) == (True, "alice", 5000)


def test_invalid_token_gets_an_error_and_the_next_message_ends_the_login():
    login = exchange()
    assert login.step(b"n,,\x01auth=Bearer other\x01\x01") == b'{"status":"invalid_token"}'
    assert not login.is_complete
    for message in (b"n,,\x01auth=Bearer good\x01\x01", b"\x01"):
        with pytest.raises(AuthenticationFailed, match="invalid_token") as failed:
            login.step(message)
        # only for the log
        assert failed.value.reason == "it is another" not in str(failed.value)
    assert not login.is_complete


def test_acting_for_another_principal_is_rejected():
    with pytest.raises(AuthenticationFailed, match="different from the token's principal"):
        exchange().step(b"n,a=bob,\x01auth=Bearer good\x01\x01")


@pytest.mark.parametrize("message", [
    b"", b"\x01", b"n,,\x01\x01", b"n,,\x01auth=Basic good\x01\x01", b"n,,\x01auth=Bearer\x01\x01",
    b"n,,\x01auth=Bearer good\x01", b"y,,\x01auth=Bearer good\x01\x01", b"n,,auth=Bearer good",
    b"n,,\x01auth=Bearer go\xffod\x01\x01", b"n,a=,\x01auth=Bearer good\x01\x01",
    b"n,,\x01other=good\x01\x01", b"n,,\x01auth=Bearer good\x01\x01more",
    b"n,,\x01auth=Bearer " + b"g" * oauthbearer.TOKEN_BYTES_MAX + b"\x01\x01"], ids=repr)
def test_malformed_token_is_rejected_without_a_reason(message):
    with pytest.raises(AuthenticationFailed) as failed:
        exchange().step(message)
    assert failed.value.text is None


def let_in(mechanisms, token) -> bool:
    login = mechanisms.begin("SASL_SSL", BEARER)
    login.step(f"n,,\x01auth=Bearer {token}\x01\x01".encode())
    return login.is_complete


def mechanisms_of(settings) -> Mechanisms:
    return Mechanisms(settings, dict, lambda: int(time.time() * 1000), time.monotonic_ns)


def test_tokens_are_judged_by_the_settings_of_now(tmp_path):
    """A listener that was closed and opened again may accept other tokens."""
    issuer, path = Issuer(), tmp_path / "keys.json"
    path.write_text(issuer.published)
    settings = Settings({
        "listeners": "SASL_SSL://:9093", "sasl.enabled.mechanisms": BEARER,
        KEYS_URL: f"file://{path}", "sasl.oauthbearer.expected.audience": "before",
        "sasl.oauthbearer.allow.unverified.issuer": "true"})
    mechanisms = mechanisms_of(settings)
    mechanisms.check()
    assert let_in(mechanisms, issuer.token(aud="before"))
    settings.set_dynamic({}, {
        "listener.name.sasl_ssl.sasl.oauthbearer.expected.audience": "after"})
    assert not let_in(mechanisms, issuer.token(aud="before"))
    assert let_in(mechanisms, issuer.token(aud="after"))


def test_login_does_not_wait_for_the_issuer():
    """An issuer that is new to a running broker is requested in the background."""
    issuer = Issuer()
    with served(issuer) as server:
        settings = Settings({
            "listeners": "SASL_SSL://:9093", "sasl.enabled.mechanisms": BEARER,
            KEYS_URL: f"{server.url}/keys",
            "sasl.oauthbearer.allow.unverified.audience": "true",
            "sasl.oauthbearer.allow.unverified.issuer": "true"})
        mechanisms, token = mechanisms_of(settings), issuer.token()
        mechanisms.check(contacts_issuer=False)
        assert not let_in(mechanisms, token)
        end_s = time.monotonic() + 20
        while not let_in(mechanisms, token):
            assert time.monotonic() < end_s
            time.sleep(0.05)
    with pytest.raises(ConfigError, match="no keys from"):
        mechanisms_of(settings).check()


def test_keys_are_reloaded_at_the_configured_intervals():
    mechanisms = Mechanisms(Settings({
        "listeners": "SASL_PLAINTEXT://:0", KEYS_URL: "file:///nowhere/keys",
        "sasl.oauthbearer.jwks.endpoint.refresh.ms": "7000",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": "5000"}), dict, lambda: 0, lambda: 0)
    keys = mechanisms._keys_of("SASL_PLAINTEXT")
    assert (keys._refresh_s, keys._retry_s) == (7, 5)

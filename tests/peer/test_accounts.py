"""A node's credentials for other nodes, and errors before a connection is tried."""

import sys
import types

import pytest

from pylog.config import ConfigError
from pylog.peer import accounts
from pylog.security.errors import AuthenticationFailed

URL = "sasl.oauthbearer.token.endpoint.url"
CLIENT = "sasl.oauthbearer.client.credentials.client."
DEFAULTS = {"sasl.login.retry.backoff.ms": 100, "sasl.login.retry.backoff.max.ms": 1000}


def made(mechanism: str, options: str = "", **more):
    given = {**DEFAULTS, **more}
    if options:
        given["sasl.jaas.config"] = f"x.Module required {options};"
    return accounts.of(mechanism, given.get, lambda: 5_000_000)


@pytest.fixture
def gssapi(monkeypatch):
    """Replace the library by one without functions."""
    monkeypatch.setitem(sys.modules, "gssapi", types.SimpleNamespace())


@pytest.mark.parametrize("mechanism,options,more,words", [
    ("PLAIN", "", {}, "a username and a password"),
    ("SCRAM-SHA-256", "username=me", {}, "a username and a password"),
    ("OAUTHBEARER", "", {}, "token.endpoint.url is not set"),
    ("OAUTHBEARER", "", {URL: "ftp://h"}, "expected https://"),
    ("OAUTHBEARER", "clientId=me", {URL: "http://h"}, "client.secret is not set"),
    ("OAUTHBEARER", "clientId=me clientSecret=s ssl.truststore.location=\"/nowhere\"",
     {URL: "https://h"}, "/nowhere"),
    ("GSSAPI", "", {}, "serviceName is missing"),
    ("GSSAPI", "keyTab=x serviceName=kafka", {}, "principal is missing"),
    ("GSSAPI", "keyTab=\"/nowhere\" principal=me", {"sasl.kerberos.service.name": "kafka"},
     "/nowhere cannot be read"),
])
def test_unusable_login_settings_are_rejected(gssapi, mechanism, options, more, words):
    with pytest.raises(ConfigError, match=words):
        made(mechanism, options, **more)


def test_kerberos_needs_its_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with pytest.raises(ConfigError, match="pip install"):
        made("GSSAPI", "serviceName=kafka")


@pytest.mark.parametrize("options,more,name", [
    ("", {URL: "http://h", f"{CLIENT}id": "me", f"{CLIENT}secret": "s"}, "me"),
    ("clientId=other clientSecret=s", {URL: "http://h"}, "other"),
    # Kafka's order: a setting overrides the login module's option.
    ("clientId=other clientSecret=s", {URL: "http://h", f"{CLIENT}id": "me"}, "me"),
    ("unsecuredLoginStringClaim_sub=node", {}, "node"),
    ("", {URL: "file:///run/a%20token"}, "/run/a token")])
def test_token_account_is_named_after_its_subject(options, more, name):
    account = made("OAUTHBEARER", options, **more)
    assert account.name == name and account.blocks


def test_token_from_a_file_is_sent(tmp_path):
    path = tmp_path / "token"
    account = made("OAUTHBEARER", **{URL: path.as_uri()})
    path.write_text("a.b.c")
    assert next(account.tokens("h")) == b"n,,\x01auth=Bearer a.b.c\x01\x01"


def test_unavailable_token_ends_the_login():
    account = made("OAUTHBEARER", **{URL: "file:///nowhere"})
    with pytest.raises(AuthenticationFailed, match="no token in /nowhere"):
        next(account.tokens("h"))


def test_a_ticket_is_for_the_service_on_the_host_that_is_dialled(gssapi, monkeypatch, tmp_path):
    from pylog.security.sasl import kerberos

    asked: list[tuple] = []
    monkeypatch.setattr(kerberos, "tokens", lambda *what: asked.append(what) or iter(()))
    keytab = tmp_path / "keytab"
    keytab.write_bytes(b"")
    account = made("GSSAPI", f'keyTab="{keytab}" principal=me serviceName=kafka')
    account.tokens("h1")
    made("GSSAPI", **{"sasl.kerberos.service.name": "kafka"}).tokens("h2")
    assert asked == [("kafka", "h1", "me", str(keytab)), ("kafka", "h2", None, None)]
    assert account.name == "me"

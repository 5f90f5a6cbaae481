"""Bearer tokens of the client, by its settings; issuers are simulated."""

import asyncio

import pytest
from joserfc import jwk

from pylog.client.config.settings import Settings
from pylog.client.errors import AuthenticationError, ConfigError
from pylog.testing.certificates import Authority
from tests.security.issuer import Issuer, claims_of, served

SASL = {"bootstrap.servers": "h:1", "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER"}
PREFIX = "sasl.oauthbearer."
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"


def shown(**given) -> str:
    """Return the token of a client with these settings."""
    return asyncio.run(Settings("admin", SASL | given).tokens.token())


def test_callback_token_is_reused_until_it_nears_expiry():
    given = iter([("t1", 2e11), ("t2", 2e11)])
    tokens = Settings("admin", SASL, oauth_cb=lambda _: next(given)).tokens
    assert [asyncio.run(tokens.token()) for _ in range(3)] == ["t1"] * 3


@pytest.mark.parametrize(("callback", "words"), [
    (lambda _: 1 / 0, "oauth_cb raised ZeroDivisionError"),
    (lambda _: "", "expected a token"), (lambda _: b"x", "not bytes"), (lambda _: (), "not tuple"),
    (lambda _: ("t", None), "not an end of None"), (lambda _: ("t", "soon"), "an end of 'soon'")])
def test_invalid_callback_token_is_reported(callback, words):
    with pytest.raises(AuthenticationError, match=words):
        shown(oauth_cb=callback)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, asyncio.CancelledError,
                                  StopIteration, StopAsyncIteration])
def test_raising_token_callback_fails_the_login_and_is_called_again(kind):
    calls = []

    def once(_):
        calls.append(1)
        if len(calls) == 1:
            raise kind("planted")
        return "token", 2e11

    tokens = Settings("admin", SASL, oauth_cb=once).tokens

    async def main():
        async with asyncio.timeout(30):
            with pytest.raises(AuthenticationError, match=f"oauth_cb raised {kind.__name__}"):
                await tokens.token()
            assert await tokens.token() == "token"

    asyncio.run(main())


def test_a_token_in_a_file_is_shown(tmp_path):
    path = tmp_path / "token"
    path.write_text("a.b.c\n")
    assert shown(**{f"{PREFIX}token.endpoint.url": path.as_uri()}) == "a.b.c"


@pytest.mark.parametrize("names", [
    {f"{PREFIX}jwt.retriever.class": "org.apache.kafka.common.security.oauthbearer."
                                     "JwtBearerJwtRetriever"},
    {f"{PREFIX}grant.type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
     f"{PREFIX}method": "oidc"}], ids=["java", "librdkafka"])
def test_a_signed_assertion_gets_a_token_by_the_names_of_other_clients(tmp_path, names):
    key, path, template = jwk.RSAKey.generate_key(2048), tmp_path / "key", tmp_path / "template"
    path.write_bytes(key.as_pem(private=True, password="p"))
    template.write_text('{"header": {"kid": "k"}}')
    alias = "jwt.template.file" if f"{PREFIX}method" in names else "template.file"
    with served(Issuer(), {"me": key}) as server:
        token = shown(**names, **{f"{PREFIX}{name}": value for name, value in {
            "token.endpoint.url": f"{server.url}/token", "assertion.private.key.file": str(path),
            "assertion.private.key.passphrase": "p", "assertion.claim.iss": "me",
            "assertion.claim.sub": "alice", "assertion.claim.exp.seconds": "30",
            f"assertion.{alias}": str(template)}.items()})
    assert claims_of(token)["sub"] == "alice"
    header, claims = server.asserted[0]
    assert header["kid"] == "k" and claims["exp"] - claims["iat"] == 30


def test_issuer_ca_has_a_separate_setting(tmp_path):
    """The machine's trust store does not contain it."""
    authority = Authority()
    own, trusted = tmp_path / "own.pem", tmp_path / "ca.pem"
    certificate = authority.issue("localhost")
    own.write_bytes(certificate.key + certificate.chain)
    trusted.write_bytes(authority.pem)
    with served(Issuer(), {"me": "s3cret"}, tls=str(own)) as server:
        account = {f"{PREFIX}token.endpoint.url": f"{server.url}/token",
                   f"{PREFIX}client.id": "me", f"{PREFIX}client.secret": "s3cret"}
        with pytest.raises(AuthenticationError, match="certificate"):
            shown(**account)
        for trust in ({"https.ca.location": str(trusted)},
                      {"sasl.jaas.config": f'{MODULE} ssl.truststore.type="PEM" '
                                           f'ssl.truststore.location="{trusted}";'}):
            assert claims_of(shown(**account, **trust))["sub"] == "me"


@pytest.mark.parametrize(("given", "words"), [
    ({}, "token.endpoint.url is not set"),
    ({"token.endpoint.url": "http://h", "client.id": "me"}, "client.secret is not set, nor"),
    ({"token.endpoint.url": "http://h", "assertion.claim.iss": "me"}, "private.key.file nor"),
    ({"token.endpoint.url": "http://h", "grant.type": "password"}, "expected one of Default"),
    ({"token.endpoint.url": "http://h", "assertion.algorithm": "none"}, "allowed are RS256, ES"),
])
def test_settings_without_a_token_source_are_rejected_immediately(given, words):
    with pytest.raises(ConfigError, match=words):
        Settings("admin", SASL | {PREFIX + name: value for name, value in given.items()})


def test_unreadable_issuer_trust_is_rejected_immediately():
    with pytest.raises(ConfigError, match="/nowhere"):
        Settings("admin", SASL | {
            f"{PREFIX}token.endpoint.url": "https://h", f"{PREFIX}client.id": "me",
            f"{PREFIX}client.secret": "s", "https.ca.location": "/nowhere"})
    for options in ('ssl.truststore.location="/x"',
                    'ssl.keystore.location="/x" ssl.keystore.type="PEM"'):
        with pytest.raises(ConfigError, match="ssl.truststore.type=PEM.*https.ca.location"):
            Settings("admin", SASL | {"sasl.jaas.config": f"{MODULE} {options};"})

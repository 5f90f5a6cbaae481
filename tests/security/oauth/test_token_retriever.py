"""Settings that choose how tokens are obtained; the issuer is simulated."""

import pytest
from joserfc import jwk

from pylog.config import ConfigError
from pylog.security.oauth import token_retriever
from pylog.security.errors import AuthenticationFailed
from tests.security.issuer import Issuer, claims_of, served

PREFIX = "sasl.oauthbearer."
GRANT = "org.apache.kafka.common.security.oauthbearer.JwtBearerJwtRetriever"
DEFAULTS = {"assertion.algorithm": "RS256", "assertion.claim.exp.seconds": 300,
            "assertion.claim.nbf.seconds": 60}
BEARER_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
ASSERTED = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


@pytest.fixture(scope="module")
def key():
    return jwk.RSAKey.generate_key(2048)


@pytest.fixture(scope="module")
def server(key):
    with served(Issuer(), {"me": key, "other": "s3cret"}) as running:
        yield running


@pytest.fixture
def key_file(key, tmp_path):
    path = tmp_path / "key.pem"
    path.write_bytes(key.as_pem(private=True))
    return str(path)


def of(given, **options):
    """given: settings without their prefix."""
    found = {**DEFAULTS, **given}
    return token_retriever.of(lambda name: found.get(name.removeprefix(PREFIX)), options,
                              lambda: 1e9, None)


def whose(found) -> str:
    return claims_of(found.token)["sub"]


def test_client_sends_an_assertion_instead_of_a_secret(server, key_file):
    found = of({"token.endpoint.url": f"{server.url}/token", "scope": "kafka",
                "client.credentials.client.id": "me", "assertion.private.key.file": key_file,
                "assertion.claim.iss": "me", "assertion.claim.sub": "me",
                "assertion.claim.aud": server.url})
    assert whose(found.get()) == found.name == "me"
    asked = dict(server.asked[-1])
    assert len(asked.pop("client_assertion")) == 1
    assert asked == {"grant_type": ["client_credentials"], "client_assertion_type": [ASSERTED],
                     "client_id": ["me"], "scope": ["kafka"]}
    assert server.asserted[-1][1]["aud"] == server.url


def test_an_assertion_needs_no_client_id(server, key_file):
    found = of({"token.endpoint.url": f"{server.url}/token", "assertion.claim.iss": "me",
                "assertion.private.key.file": key_file})
    assert whose(found.get()) == found.name == "me" and "client_id" not in server.asked[-1]


def test_assertion_overrides_a_secret_as_in_kafka(server, key_file):
    found = of({"token.endpoint.url": f"{server.url}/token", "assertion.claim.iss": "me",
                "assertion.private.key.file": key_file}, clientId="other", clientSecret="s3cret")
    assert whose(found.get()) == "me" and server.asked[-1]["client_id"] == ["other"]


def test_bearer_grant_requests_a_token_for_the_assertions_subject(server, key_file):
    found = of({"token.endpoint.url": f"{server.url}/token", "jwt.retriever.class": GRANT,
                "assertion.claim.iss": "me", "assertion.claim.sub": "alice", "scope": "kafka",
                "assertion.private.key.file": key_file})
    assert whose(found.get()) == found.name == "alice"
    asked = dict(server.asked[-1])
    assert len(asked.pop("assertion")) == 1
    assert asked == {"grant_type": [BEARER_GRANT], "scope": ["kafka"]}


def test_rejected_assertion_is_reported_without_its_content(server, tmp_path):
    path = tmp_path / "key.pem"
    path.write_bytes(jwk.RSAKey.generate_key(2048).as_pem(private=True))
    found = of({"token.endpoint.url": f"{server.url}/token", "assertion.claim.iss": "me",
                "assertion.private.key.file": str(path)})
    with pytest.raises(AuthenticationFailed, match="/token returned no token: 401 invalid_client"
                       ) as caught:
        found.get()
    assert server.asked[-1]["client_assertion"][0] not in str(caught.value)


def test_unusable_signing_key_is_reported_before_any_request(server, tmp_path):
    before = len(server.asked)
    found = of({"token.endpoint.url": f"{server.url}/token", "assertion.claim.iss": "me",
                "assertion.private.key.file": str(tmp_path / "gone")})
    with pytest.raises(AuthenticationFailed, match="no private key in .*/gone"):
        found.get()
    assert len(server.asked) == before


@pytest.mark.parametrize("kind", ["", "DefaultJwtRetriever", "x.y.FileJwtRetriever"])
def test_a_token_in_a_file_is_named_after_it(tmp_path, kind):
    path = tmp_path / "a token"
    path.write_text("a.b.c")
    found = of({"token.endpoint.url": path.as_uri(), "jwt.retriever.class": kind})
    assert found.name == str(path) and found.get() == ("a.b.c", 0)


@pytest.mark.parametrize(("given", "words"), [
    ({}, "token.endpoint.url is not set"),
    ({"token.endpoint.url": "ftp://h"}, "expected https://… or http://…, or file:///path"),
    ({"token.endpoint.url": "file:///x", "jwt.retriever.class": GRANT},
     r"expected https://… or http://…$"),
    ({"token.endpoint.url": "http://h", "jwt.retriever.class": "FileJwtRetriever"},
     "expected file:///path$"),
    ({"token.endpoint.url": "http://h", "jwt.retriever.class": "com.example.Own"},
     "=Own: expected one of DefaultJwtRetriever, ClientCred"),
    ({"token.endpoint.url": "http://h"}, "client.id and .*client.secret are not set, nor"),
    ({"token.endpoint.url": "http://h", "client.credentials.client.id": "me",
      "assertion.private.key.file": "/x"},
     "client.secret is not set, nor .*assertion.file, nor .*claim.iss with .*key.file$"),
    ({"token.endpoint.url": "http://h", "assertion.claim.iss": "me"},
     "neither .*private.key.file nor .*assertion.file is set"),
    ({"token.endpoint.url": "http://h", "jwt.retriever.class": GRANT,
      "client.credentials.client.id": "me", "client.credentials.client.secret": "s3cret"},
     "neither .*private.key.file nor .*assertion.file is set"),
])
def test_incomplete_token_settings_name_the_missing_one(given, words):
    with pytest.raises(ConfigError, match=words) as caught:
        of(given)
    assert "s3cret" not in str(caught.value)

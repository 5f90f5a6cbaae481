"""OAUTHBEARER on a listener: an issuer's tokens authenticate, and their expiry ends the session."""

import asyncio
import struct
import time

import pytest

from pylog.config import ConfigError
from pylog.protocol.errors import ErrorCode
from pylog.testing import Broker
from pylog.testing.ports import free_port
from tests.security.caller import Caller
from tests.security.issuer import Issuer, served, unsigned
from tests.wire import raw

FAILED = ErrorCode.SASL_AUTHENTICATION_FAILED
AUDIENCE = "brokers"


@pytest.fixture(scope="module")
def issuer():
    made = Issuer()
    with served(made, {"alice": "her-secret"}, lasts_s=3600) as server:
        made.server = server
        yield made


def settings(port, **more):
    return {"listeners": f"SASL_PLAINTEXT://127.0.0.1:{port}",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "connection.failed.authentication.delay.ms": "10", **more}


UNVERIFIED = {"sasl.oauthbearer.allow.unverified.audience": "true",
              "sasl.oauthbearer.allow.unverified.issuer": "true"}


@pytest.fixture(scope="module")
def port(issuer):
    port = free_port()
    with Broker(settings=settings(port, **{
            "sasl.oauthbearer.jwks.endpoint.url": f"{issuer.server.url}/keys",
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "sasl.oauthbearer.expected.issuer": issuer.name})):
        yield port


def log_in(caller, token):
    assert caller.handshake("OAUTHBEARER").error_code == 0
    return caller.token(f"n,,\x01auth=Bearer {token}\x01\x01".encode())


def test_token_authenticates_until_it_expires(port, issuer):
    with Caller(port) as caller:
        answer = log_in(caller, issuer.token("alice", 100, aud=AUDIENCE))
        assert answer.error_code == 0 and not answer.auth_bytes
        assert 90_000 < answer.session_lifetime_ms <= 100_000
        assert caller.metadata().brokers


def test_invalid_token_gets_an_error_and_closes_the_connection(port, issuer):
    now = int(time.time())
    for token in (issuer.token("alice"), issuer.token("alice", aud="others"),
                  issuer.token("alice", iss="others", aud=AUDIENCE),
                  issuer.token("alice", -60, aud=AUDIENCE, iat=now - 100),
                  unsigned({"sub": "alice", "iat": now, "exp": now + 100, "aud": AUDIENCE}),
                  Issuer().token("alice", aud=AUDIENCE)):
        with Caller(port) as caller:
            answer = log_in(caller, token)
            assert (answer.error_code, answer.auth_bytes) == (0, b'{"status":"invalid_token"}')
            answer = caller.token(b"\x01")
            assert (answer.error_code, answer.error_message) == (
                FAILED, '{"status":"invalid_token"}')
            assert caller.closed()


def test_session_ends_with_its_token_unless_reauthenticated(port, issuer):
    with Caller(port) as idle, Caller(port) as caller:
        # Tokens are valid 30 seconds of clock skew longer than they state; sessions are not.
        for each in (idle, caller):
            assert log_in(each, issuer.token("alice", 2, aud=AUDIENCE)).error_code == 0
        time.sleep(1.2)
        assert log_in(caller, issuer.token("alice", 60, aud=AUDIENCE)).error_code == 0
        time.sleep(1.5)
        assert caller.metadata().brokers
        with pytest.raises(raw.Closed):
            idle.metadata()


def test_reauthentication_as_another_principal_is_rejected(port, issuer):
    with Caller(port) as caller:
        assert log_in(caller, issuer.token("alice", aud=AUDIENCE)).error_code == 0
        time.sleep(1.1)
        answer = log_in(caller, issuer.token("bob", aud=AUDIENCE))
        assert answer.error_code == FAILED and "Cannot change principals" in answer.error_message


def test_tokens_of_a_rotated_key_count_after_a_moment(port, issuer):
    issuer.new_key("rotated")
    token = issuer.token("alice", aud=AUDIENCE)
    end_s = time.monotonic() + 20
    while True:
        with Caller(port) as caller:
            if not log_in(caller, token).auth_bytes:
                break
        assert time.monotonic() < end_s
        time.sleep(0.05)


def test_withdrawn_keys_are_forgotten_after_the_configured_time():
    issuer, port = Issuer(), free_port()
    with served(issuer) as server, Broker(settings=settings(port, **{
            "sasl.oauthbearer.jwks.endpoint.url": f"{server.url}/keys",
            "sasl.oauthbearer.jwks.endpoint.refresh.ms": "300", **UNVERIFIED})):
        token = issuer.token("alice")
        with Caller(port) as caller:
            assert not log_in(caller, token).auth_bytes
        issuer.keys.pop(list(issuer.keys)[0])
        issuer.new_key("next")
        end_s = time.monotonic() + 60
        while True:
            with Caller(port) as caller:
                if log_in(caller, token).auth_bytes:
                    break
            assert time.monotonic() < end_s
            time.sleep(0.05)


@pytest.mark.parametrize(("more", "said"), [
    ({}, "jwks.endpoint.url is not set"),
    ({"sasl.oauthbearer.jwks.endpoint.url": "file:///nowhere/keys", **UNVERIFIED},
     "no keys from file:"),
    ({"sasl.oauthbearer.jwks.endpoint.url": "file:///nowhere/keys",
      "sasl.oauthbearer.expected.issuer": "i"},
     "expected.audience is not set, so tokens for every audience would be accepted"),
    ({"sasl.oauthbearer.jwks.endpoint.url": "file:///nowhere/keys",
      "sasl.oauthbearer.expected.audience": "a"},
     "set sasl.oauthbearer.allow.unverified.issuer=true"),
    ({"sasl.oauthbearer.jwks.endpoint.url": "file:///nowhere/keys",
      "sasl.oauthbearer.unsecured.enable": "true"}, "exclude each other")])
def test_a_listener_that_could_not_check_tokens_does_not_start(more, said):
    with pytest.raises((ConfigError, RuntimeError), match=said):
        Broker(settings=settings(free_port(), **more)).__enter__()


def test_unsigned_tokens_are_accepted_if_enabled():
    port, now = free_port(), int(time.time())
    with Broker(settings=settings(port, **{"sasl.oauthbearer.unsecured.enable": "true"})):
        with Caller(port) as caller:
            answer = log_in(caller, unsigned({"sub": "a", "iat": now, "exp": now + 100}))
            assert not answer.auth_bytes and caller.metadata().brokers


def test_claims_with_configured_names_are_checked(issuer):
    port = free_port()
    with Broker(settings=settings(port, **{
            "sasl.oauthbearer.jwks.endpoint.url": f"{issuer.server.url}/keys",
            "sasl.oauthbearer.expected.scope": "kafka",
            "sasl.oauthbearer.scope.claim.name": "rights",
            "sasl.oauthbearer.sub.claim.name": "login", **UNVERIFIED})):
        accepted = []
        for claims in ({"login": "alice", "rights": "other kafka"}, {"login": "alice"},
                       {"login": "alice", "rights": "other"}, {"rights": "kafka"},
                       {"login": "alice", "scope": "kafka"}):
            with Caller(port) as caller:
                accepted.append(not log_in(caller, issuer.token("alice", **claims)).auth_bytes)
    assert accepted == [True, False, False, False, False]


def test_unauthenticated_client_cannot_send_more_than_the_configured_size():
    port = free_port()
    with Broker(settings=settings(port, **{"sasl.oauthbearer.unsecured.enable": "true",
                                           "sasl.server.max.receive.size": "1000"})):
        with raw.Connection(port) as small, raw.Connection(port) as large:
            small.send(struct.pack(">i", 1000))
            large.send(struct.pack(">i", 1001))
            assert large.closed() and small.quiet(0.1)


def client_settings(issuer, port, **more):
    return {"bootstrap.servers": f"127.0.0.1:{port}", "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER", **more}


def test_python_client_gets_tokens_from_an_endpoint_and_a_callback(port, issuer):
    from pylog.client import Admin, errors

    issuer.server.asked.clear()
    endpoint = {"sasl.oauthbearer.token.endpoint.url": f"{issuer.server.url}/token",
                "sasl.oauthbearer.client.id": "alice", "sasl.oauthbearer.scope": "produce"}
    found = client_settings(issuer, port, **endpoint)
    # The endpoint's tokens have no audience: the broker rejects them with a reason.
    with pytest.raises(errors.AuthenticationError, match="invalid_token"):
        with Admin({**found, "sasl.oauthbearer.client.secret": "her-secret"}) as admin:
            admin.describe_cluster()
    assert {"grant_type": ["client_credentials"], "scope": ["produce"]} in issuer.server.asked
    with pytest.raises(errors.AuthenticationError, match="401 invalid_client") as failed:
        with Admin({**found, "sasl.oauthbearer.client.secret": "wr0ng"}) as admin:
            admin.describe_cluster()
    assert "wr0ng" not in str(failed.value)
    given = []

    def token(text):
        given.append(issuer.token("alice", aud=AUDIENCE))
        return given[-1]

    with Admin(client_settings(issuer, port, oauth_cb=token)) as admin:
        assert admin.describe_cluster().cluster_id
    # One token serves several connections.
    assert len(given) == 1

    def failing(text):
        raise LookupError("no vault")

    with pytest.raises(errors.AuthenticationError, match="oauth_cb raised LookupError: no vault"):
        with Admin(client_settings(issuer, port, oauth_cb=failing)) as admin:
            admin.describe_cluster()


def test_python_client_reauthenticates_while_sending(port, issuer):
    from pylog.client.config.settings import Settings
    from pylog.client.network.cluster import Cluster
    from pylog.protocol import messages

    given = []

    def token(text):
        # The expired token is not used again: a broker requires a second between two logins.
        given.append(text)
        return issuer.token("alice", 3, aud=AUDIENCE), 0

    async def work():
        settings = Settings("admin", client_settings(issuer, port, oauth_cb=token))
        async with Cluster(settings) as cluster:
            await cluster.refresh()
            connection = await cluster.connection(1)
            end_s = time.monotonic() + 7
            while time.monotonic() < end_s:
                asked = [connection.send(messages.MetadataRequest(topics=[])) for _ in range(5)]
                assert all(answer.brokers for answer in await asyncio.gather(*asked))
            assert await cluster.connection(1) is connection

    asyncio.run(work())
    assert len(given) >= 3

"""SASL on a listener, with the steps of correct and incorrect clients."""

import struct
import time

import pytest

from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode
from pylog.security.sasl import scram
from pylog.testing import Broker
from pylog.testing.ports import free_port
from tests.security.caller import Caller
from tests.wire import raw

JAAS = ('org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="alice-secret"'
        ' user_bob="bob-secret";')
FAILED = ErrorCode.SASL_AUTHENTICATION_FAILED


@pytest.fixture(scope="module")
def ports():
    """Yield (the port without authentication, the port with authentication)."""
    ports = free_port(), free_port()
    with Broker(settings={
            "listeners": f"PLAINTEXT://127.0.0.1:{ports[0]},SASL_PLAINTEXT://127.0.0.1:{ports[1]}",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "connection.failed.authentication.delay.ms": "10",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
            "listener.name.sasl_plaintext.scram-sha-512.connections.max.reauth.ms": "1200"}):
        for mechanism in scram.HASHES:
            salt = b"some salt"
            with Caller(ports[0]) as caller:
                new = messages.AlterUserScramCredentialsRequest
                answer = caller.ask(api.ALTER_USER_SCRAM_CREDENTIALS, 0, new(
                    deletions=[], upsertions=[new.ScramCredentialUpsertion(
                        name="carol", mechanism=mechanism, iterations=4096, salt=salt,
                        salted_password=scram.salted(mechanism, "carol-secret", salt, 4096))]))
                assert [row.error_code for row in answer.results] == [0]
        yield ports


@pytest.fixture
def caller(ports):
    with Caller(ports[1]) as connection:
        yield connection


def test_authenticated_client_is_served(caller):
    answer = caller.plain("alice", "alice-secret")
    assert (answer.error_code, answer.session_lifetime_ms) == (0, 0)
    assert caller.metadata().brokers


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram_credentials_of_the_metadata_authenticate(caller, mechanism):
    assert caller.scram("carol", "carol-secret", mechanism).error_code == 0
    assert caller.metadata().brokers


@pytest.mark.parametrize("login", [
    lambda caller: caller.plain("alice", "wrong"), lambda caller: caller.plain("nobody", "wrong"),
    lambda caller: caller.scram("carol", "wrong"), lambda caller: caller.scram("nobody", "wrong")])
def test_failed_login_gets_an_error_and_closes_the_connection(caller, login):
    answer = login(caller)
    assert answer.error_code == FAILED and "wrong" not in answer.error_message
    assert caller.closed()


@pytest.mark.parametrize(("key", "version"), [
    (key, version) for key, (low, high) in api.SERVED.items() for version in {low, high}
    if key not in (api.API_VERSIONS, api.SASL_HANDSHAKE)])
def test_a_stranger_reaches_nothing(caller, key, version):
    caller.send(raw.frame(raw.header(key, version, flexible=False) + bytes(64)))
    assert caller.closed(2.0)


def test_unauthenticated_client_may_send_api_versions_once(caller):
    request = messages.ApiVersionsRequest(client_software_name="a", client_software_version="1")
    assert caller.ask(api.API_VERSIONS, 3, request).api_keys
    caller.send(raw.frame(raw.header(api.API_VERSIONS, 0)))
    assert caller.closed()


def test_unsupported_version_may_be_followed_by_a_supported_one(caller):
    caller.send(raw.frame(raw.header(api.API_VERSIONS, 99, flexible=True) + b"\x02a\x021\0"))
    assert caller.receive()[4:6] == struct.pack(">h", ErrorCode.UNSUPPORTED_VERSION)
    assert caller.ask(api.API_VERSIONS, 0, messages.ApiVersionsRequest()).api_keys


def test_unsupported_mechanism_is_rejected_with_the_supported_ones(caller):
    answer = caller.handshake("GSSAPI")
    assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert list(answer.mechanisms) == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    assert caller.closed()


def test_second_handshake_during_a_login_disconnects(caller):
    caller.handshake("PLAIN")
    assert caller.handshake("PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert caller.closed()


def test_api_versions_during_a_login_disconnects(caller):
    caller.handshake("PLAIN")
    answer = caller.ask(api.API_VERSIONS, 0, messages.ApiVersionsRequest())
    assert (answer.error_code, answer.api_keys) == (ErrorCode.ILLEGAL_SASL_STATE, [])
    assert caller.closed()


@pytest.mark.parametrize("size", [512 * 1024 + 1, 100 << 20])
def test_a_stranger_cannot_make_a_frame_long(caller, size):
    caller.send(struct.pack(">i", size))
    assert caller.closed(2.0)


@pytest.mark.parametrize("name", ["alice", "nobody"])
def test_tokens_without_headers_follow_the_oldest_handshake(caller, name):
    assert caller.handshake("PLAIN", 0).error_code == 0
    caller.send(raw.frame(b"\0%s\0alice-secret" % name.encode()))
    if name == "nobody":
        assert caller.closed()
    else:
        assert caller.receive() == b"" and caller.metadata().brokers


def test_sasl_on_a_listener_without_sasl_is_rejected(ports):
    with Caller(ports[0]) as caller:
        assert caller.handshake("PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert caller.token(b"").error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert caller.metadata().brokers


def test_a_session_that_ended_must_be_renewed(ports):
    with Caller(ports[1]) as renewed, Caller(ports[1]) as other:
        for caller in (renewed, other):
            answer = caller.scram("carol", "carol-secret", "SCRAM-SHA-512")
            assert answer.session_lifetime_ms == 1200
        time.sleep(1.05)
        assert renewed.scram("carol", "carol-secret", "SCRAM-SHA-512").error_code == 0
        time.sleep(0.3)
        assert renewed.metadata().brokers
        with pytest.raises(raw.Closed):
            other.metadata()


def test_reauthentication_cannot_change_the_user(ports):
    with Caller(ports[1]) as soon, Caller(ports[1]) as other, Caller(ports[1]) as same:
        for caller in (soon, other, same):
            caller.plain("alice", "alice-secret")
        assert soon.handshake("PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
        time.sleep(1.05)
        assert same.plain("alice", "alice-secret").error_code == 0
        answer = other.plain("bob", "bob-secret")
        assert answer.error_code == FAILED and "Cannot change principals" in answer.error_message
        assert other.closed() and same.metadata().brokers


def test_malformed_login_does_not_affect_other_connections(ports, random_source):
    with Caller(ports[1]) as bystander:
        bystander.plain("alice", "alice-secret")
        for _ in range(40):
            with Caller(ports[1]) as caller:
                caller.handshake(random_source.choice(["PLAIN", "SCRAM-SHA-256"]),
                                 random_source.randrange(2))
                caller.send(raw.frame(random_source.randbytes(random_source.randrange(1, 200))))
        assert bystander.metadata().brokers

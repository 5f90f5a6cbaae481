"""Delegation tokens: creation, logins, and expiry."""

import time

import pytest

from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode
from pylog.security.sasl import scram
from pylog.testing import Broker
from pylog.testing.ports import free_port
from tests.security.caller import Caller, ScramClient

JAAS = ("org.apache.kafka.common.security.plain.PlainLoginModule required "
        'user_alice="a" user_bob="b" user_carol="c" user_root="r";')
SETTINGS = {
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "connection.failed.authentication.delay.ms": "10",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:root;User:ANONYMOUS",
}
SECRET = {"delegation.token.secret.key": "the nodes' secret"}


def settings(ports, **more):
    return {"listeners": f"PLAINTEXT://127.0.0.1:{ports[0]},SASL_PLAINTEXT://127.0.0.1:{ports[1]}",
            **SETTINGS, **SECRET, **more}


@pytest.fixture(scope="module")
def ports():
    ports = free_port(), free_port()
    with Broker(settings=settings(ports)):
        yield ports


def logged_in(port, name):
    caller = Caller(port)
    assert caller.plain(name, name[0]).error_code == 0
    return caller


def create(caller, version=3, owner=None, renewers=(), life_ms=-1):
    new = messages.CreateDelegationTokenRequest
    request = new(max_lifetime_ms=life_ms, renewers=[
        new.CreatableRenewers(principal_type=kind, principal_name=name)
        for kind, name in renewers])
    if owner is not None:
        request.owner_principal_type, request.owner_principal_name = "User", owner
    return caller.ask(api.CREATE_DELEGATION_TOKEN, version, request)


def renew(caller, hmac, period_ms=-1):
    return caller.ask(api.RENEW_DELEGATION_TOKEN, 2, messages.RenewDelegationTokenRequest(
        hmac=hmac, renew_period_ms=period_ms))


def expire(caller, hmac, period_ms=-1):
    return caller.ask(api.EXPIRE_DELEGATION_TOKEN, 2, messages.ExpireDelegationTokenRequest(
        hmac=hmac, expiry_time_period_ms=period_ms))


def describe(caller, owners=None):
    new = messages.DescribeDelegationTokenRequest
    return caller.ask(api.DESCRIBE_DELEGATION_TOKEN, 3, new(
        owners=None if owners is None else [
            new.DescribeDelegationTokenOwner(principal_type="User", principal_name=name)
            for name in owners]))


def by_token(port, token, mechanism="SCRAM-SHA-256", extensions=",tokenauth=true", proof=None):
    """Return (the connection, the last response of a login with the token)."""
    import base64

    caller = Caller(port)
    assert caller.handshake(mechanism).error_code == 0
    password = base64.b64encode(bytes(token.hmac) if proof is None else proof).decode()
    client = ScramClient(token.token_id, password, mechanism, extensions=extensions)
    answer = caller.token(client.first())
    return caller, answer if answer.error_code else caller.token(client.final(answer.auth_bytes))


@pytest.mark.parametrize("version", [1, 2, 3])
def test_token_is_created_for_the_requester(ports, version):
    with logged_in(ports[1], "alice") as caller:
        made = create(caller, version, renewers=[("User", "bob")], life_ms=60_000)
        assert (made.error_code, made.principal_type, made.principal_name) == (0, "User", "alice")
        assert made.max_timestamp_ms - made.issue_timestamp_ms == 60_000
        assert made.expiry_timestamp_ms == made.max_timestamp_ms
        assert len(made.hmac) == 64 and len(made.token_id) == 22


@pytest.mark.parametrize("mechanism", scram.MECHANISMS)
def test_delegation_token_authenticates_its_owner_until_it_expires(ports, mechanism):
    with logged_in(ports[1], "alice") as caller:
        made = create(caller, life_ms=90_000)
        found, done = by_token(ports[1], made, mechanism)
        with found:
            assert done.error_code == 0
            assert 80_000 < done.session_lifetime_ms <= 90_000
            # A client that logged in with a token gets no further token.
            not_allowed = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
            assert create(found).error_code == not_allowed
            assert renew(found, made.hmac).error_code == not_allowed
            assert expire(found, made.hmac).error_code == not_allowed
            assert describe(found).error_code == not_allowed
        assert expire(caller, made.hmac).error_code == 0
    found, done = by_token(ports[1], made, mechanism)
    with found:
        assert done.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_delegation_token_needs_its_hmac(ports):
    with logged_in(ports[1], "alice") as caller:
        made = create(caller)
    for given in ({"proof": bytes(64)}, {"proof": bytes(made.hmac)[:-1]}, {"extensions": ""},
                  {"extensions": ",tokenauth=false"}):
        found, done = by_token(ports[1], made, **given)
        with found:
            assert done.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_plaintext_clients_get_no_token(ports):
    with Caller(ports[0]) as caller:
        not_allowed = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        made = create(caller)
        assert (made.error_code, made.principal_name) == (not_allowed, "ANONYMOUS")
        assert (made.issue_timestamp_ms, made.token_id, made.hmac) == (-1, "", b"")
        assert renew(caller, b"").error_code == not_allowed
        assert describe(caller).error_code == not_allowed


def test_only_owner_and_renewers_renew_and_expire_a_token(ports):
    with logged_in(ports[1], "alice") as alice, logged_in(ports[1], "bob") as bob, \
            logged_in(ports[1], "root") as root:
        made = create(alice, renewers=[("User", "bob")])
        mismatch = ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        assert renew(root, made.hmac).error_code == expire(root, made.hmac).error_code == mismatch
        now_ms = time.time() * 1000
        done = renew(bob, made.hmac, 5000)
        assert done.error_code == 0 and abs(done.expiry_timestamp_ms - now_ms - 5000) < 4000
        done = expire(alice, made.hmac, 10_000)
        assert done.error_code == 0 and abs(done.expiry_timestamp_ms - now_ms - 10_000) < 9000
        # Not longer than its maximum lifetime.
        assert renew(bob, made.hmac, 2**62).expiry_timestamp_ms <= made.max_timestamp_ms
        assert expire(bob, made.hmac, -1).expiry_timestamp_ms == -1
        assert renew(bob, made.hmac).error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
        assert renew(bob, b"x" * 64).error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_token_for_another_owner_requires_permission(ports):
    with logged_in(ports[1], "alice") as alice, logged_in(ports[1], "root") as root:
        made = create(alice, owner="bob")
        assert made.error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
        made = create(root, owner="bob")
        assert (made.error_code, made.principal_name, made.token_requester_principal_name) == (
            0, "bob", "root")
        assert create(alice, renewers=[("Group", "g")]).error_code \
            == ErrorCode.INVALID_PRINCIPAL_TYPE


def test_token_is_visible_to_its_owner_and_renewers(ports):
    with logged_in(ports[1], "alice") as alice, logged_in(ports[1], "bob") as bob, \
            logged_in(ports[1], "carol") as carol, logged_in(ports[1], "root") as root:
        made = create(alice, renewers=[("User", "bob")])

        def seen(caller, owners=None):
            return made.token_id in [token.token_id for token in describe(caller, owners).tokens]

        assert seen(alice) and seen(bob) and seen(root) and not seen(carol)
        assert seen(alice, ["alice"]) and seen(bob, ["bob"]) and not seen(alice, ["carol"])
        assert describe(alice, []).tokens == []
        for version in (1, 2):
            answer = alice.ask(api.DESCRIBE_DELEGATION_TOKEN, version,
                               messages.DescribeDelegationTokenRequest(owners=None))
            assert made.token_id in [token.token_id for token in answer.tokens]
        (row,) = [token for token in describe(alice).tokens if token.token_id == made.token_id]
        assert bytes(row.hmac) == bytes(made.hmac)
        assert [one.principal_name for one in row.renewers] == ["bob"]


def test_without_a_secret_tokens_are_off():
    ports = free_port(), free_port()
    given = settings(ports)
    del given["delegation.token.secret.key"]
    with Broker(settings=given), logged_in(ports[1], "alice") as caller:
        off = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
        assert create(caller).error_code == renew(caller, b"x").error_code == off
        assert expire(caller, b"x").error_code == describe(caller).error_code == off


def test_tokens_outlive_a_restart_and_are_removed_when_they_have_expired():
    ports = free_port(), free_port()
    with Broker(settings=settings(ports, **{
            "delegation.token.expiry.check.interval.ms": "500"})) as broker:
        with logged_in(ports[1], "alice") as caller:
            short, long = create(caller, life_ms=3000), create(caller)
        broker.restart()
        found, done = by_token(ports[1], long)
        with found:
            assert done.error_code == 0
        end_s = time.monotonic() + 30
        with logged_in(ports[1], "alice") as caller:
            while short.token_id in [token.token_id for token in describe(caller).tokens]:
                assert time.monotonic() < end_s
                time.sleep(0.1)
            assert [token.token_id for token in describe(caller).tokens] == [long.token_id]
        found, done = by_token(ports[1], short)
        with found:
            assert done.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_kafka_tool_creates_a_token_for_the_python_client(ports, monkeypatch):
    import io

    from pylog.client import Admin
    from tests.tools.support import run

    address = f"127.0.0.1:{ports[1]}"
    login = ("-b", address, "-X", "security.protocol=SASL_PLAINTEXT", "-X", "sasl.username=alice",
             "-X", "sasl.password=a")
    made = run("tokens", "create", "--renewer", "User:bob", "--hours", 1, "--json", *login).json
    assert made["owner"] == "User:alice" and made["renewers"] == ["User:bob"]
    with Admin({"bootstrap.servers": address, "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": made["token_id"],
                "sasl.password": made["password"], "pylog.sasl.tokenauth": True}) as admin:
        assert admin.describe_cluster().cluster_id
    listed = run("tokens", "list", "--json", *login).json
    assert made["token_id"] in [row["token_id"] for row in listed]
    for word in ("renew", "expire"):
        monkeypatch.setattr("sys.stdin", io.StringIO(made["password"] + "\n"))
        run("tokens", word, *login)
    assert made["token_id"] not in [
        row["token_id"] for row in run("tokens", "list", "--json", *login).json]
    monkeypatch.setattr("sys.stdin", io.StringIO("no proof\n"))
    assert "not the password of a token" in run("tokens", "renew", *login, fails=True).err


@pytest.mark.kafka
@pytest.mark.slow
def test_kafkas_tool_creates_describes_renews_and_expires_tokens(ports, tmp_path):
    from bench.kafka import run_tool

    config = tmp_path / "client.properties"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="alice" password="a";\n')

    def tool(*arguments):
        done = run_tool("org.apache.kafka.tools.DelegationTokenCommand", "--bootstrap-server",
                        f"127.0.0.1:{ports[1]}", "--command-config", config, *arguments,
                        wait_s=120, heap="256m")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    made = tool("--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob")
    id_, hmac = made.splitlines()[-1].split()[:2]
    mine = ("--describe", "--owner-principal", "User:alice")
    assert id_ in tool(*mine)
    tool("--renew", "--renew-time-period", "-1", "--hmac", hmac)
    tool("--expire", "--expiry-time-period", "-1", "--hmac", hmac)
    assert id_ not in tool(*mine)


def test_new_token_has_the_configured_lifetimes():
    ports = free_port(), free_port()
    with Broker(settings=settings(ports, **{"delegation.token.max.lifetime.ms": "90000",
                                            "delegation.token.expiry.time.ms": "30000"})), \
            logged_in(ports[1], "alice") as caller:
        answer = create(caller)
    assert answer.error_code == 0
    assert answer.max_timestamp_ms - answer.issue_timestamp_ms == 90_000
    assert answer.expiry_timestamp_ms - answer.issue_timestamp_ms == 30_000

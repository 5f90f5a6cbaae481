"""Connections to other nodes with TLS and a login, by the event loop and by a thread."""

import asyncio
import select
import time

import pytest

from pylog.config import ConfigError, Settings
from pylog.peer import securing
from pylog.peer.connection import Peer
from pylog.peer.dial import dial
from pylog.peer.errors import PeerError
from pylog.protocol import codec, messages
from pylog.security.errors import TokenRefused
from pylog.security.oauth.jwt import Token
from tests.peer.secured import CA, OTHER_CA, Node, credentials, now_ms, refusing, settings
from tests.security.issuer import Issuer, served

GOOD, MINE = CA.issue(), CA.issue("node 2", ())
FOR_EVER = 0
BEAT = messages.BrokerHeartbeatRequest(broker_id=1, broker_epoch=7)


async def by_loop(node, wanted, calls: int = 1) -> int:
    """Return the response to a heartbeat over a Peer."""
    peer = await Peer.connect("127.0.0.1", node.port, "test", credentials=wanted)
    try:
        answers = [(await peer.call(BEAT, 1, 10)).throttle_time_ms for _ in range(calls)]
    finally:
        peer.close()
    return answers[-1]


async def by_thread(node, wanted) -> int:
    """Do the same over a dialled connection."""
    return await asyncio.to_thread(_beaten, node.port, wanted)


def _beaten(port: int, wanted) -> int:
    made = dial("127.0.0.1", port, time.monotonic_ns, wanted)
    with made.socket:
        line = made.socket if made.tls is None else made.tls
        frame = codec.request_frame(63, 1, 9, "test", BEAT)
        assert line.send(frame) == len(frame)
        data = b""
        while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
            try:
                piece = line.recv(1000)
            except BlockingIOError:
                select.select([made.socket], [], [], 10)
                continue
            if not piece:
                raise PeerError("closed")
            data += piece
        _, body = codec.decode_response_header(63, 1, data[4:])
        return codec.decode_response(63, 1, data[4:], body).throttle_time_ms


WAYS = pytest.mark.parametrize("way", [by_loop, by_thread])


def run(way, wanted, tmp_path, **node) -> tuple[int, Node]:
    async def both():
        async with Node(tmp_path, **node) as served:
            async with asyncio.timeout(20):
                return await way(served, wanted), served

    return asyncio.run(both())


@WAYS
@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_node_connects_by_any_protocol(way, protocol, tmp_path):
    answer, node = run(way, credentials(protocol, tmp_path), tmp_path,
                       own=GOOD if "SSL" in protocol else None,
                       lifetime_ms=FOR_EVER if "SASL" in protocol else None)
    assert answer == 7 and node.logins == ("SASL" in protocol)


@WAYS
def test_node_presents_its_certificate(way, tmp_path):
    assert run(way, credentials("SSL", tmp_path, own=MINE), tmp_path, own=GOOD, trusted=CA)[0] == 7


@WAYS
@pytest.mark.parametrize("mine,node,words", [
    ({}, {"own": OTHER_CA.issue()}, "not trusted"),
    ({}, {"own": CA.issue("elsewhere", ["elsewhere"])}, "for another name"),
    ({}, {"own": CA.issue(days=-1)}, "expired, on 20[0-9-]{8}"),
    ({}, {}, "does not speak TLS|closed the connection"),
], ids=["authority", "name", "expired", "plain text"])
def test_wrong_node_is_disconnected_with_the_reason(way, mine, node, words, tmp_path):
    with pytest.raises(PeerError, match=f"127.0.0.1:[0-9]+: .*({words})"):
        run(way, credentials("SSL", tmp_path, **mine), tmp_path, **node)


@WAYS
def test_own_expired_certificate_is_reported_with_its_date(way, tmp_path):
    wanted = credentials("SASL_SSL", tmp_path, own=CA.issue("late", (), days=-2))
    words = "the client's certificate has expired, on 20[0-9-]{8}"
    with refusing(tmp_path) as node, pytest.raises(
            PeerError, match=f"^127.0.0.1:[0-9]+: {words}$"):
        asyncio.run(way(node, wanted))


@WAYS
def test_partly_written_certificate_fails_one_attempt(way, tmp_path):
    wanted, file = credentials("SSL", tmp_path), tmp_path / "ca.pem"

    async def both() -> int:
        async with Node(tmp_path, own=GOOD) as node, asyncio.timeout(20):
            file.write_bytes(CA.pem[:100])
            with pytest.raises(PeerError, match=f"^127.0.0.1:{node.port}: .*ca.pem"):
                await way(node, wanted)
            file.write_bytes(CA.pem)
            return await way(node, wanted)

    assert asyncio.run(both()) == 7


@WAYS
def test_changed_certificate_settings_are_loaded(way, tmp_path):
    """The CA is not in any file."""
    name = "listener.name.in.ssl.truststore.certificates"
    texts = settings("SSL", tmp_path).texts | {name: OTHER_CA.pem.decode()}
    del texts["listener.name.in.ssl.truststore.location"]
    changing = Settings(texts)
    wanted = securing.between_brokers(changing, now_ms)
    with pytest.raises(PeerError, match="not trusted"):
        run(way, wanted, tmp_path, own=GOOD)
    changing.set_dynamic({}, {name: CA.pem.decode()})
    assert run(way, wanted, tmp_path, own=GOOD)[0] == 7


@WAYS
def test_whether_names_are_checked_may_change(way, tmp_path):
    changing = settings("SSL", tmp_path)
    wanted = securing.between_brokers(changing, now_ms)
    with pytest.raises(PeerError, match="for another name"):
        run(way, wanted, tmp_path, own=CA.issue("elsewhere", ["elsewhere"]))
    changing.set_dynamic({}, {"listener.name.in.ssl.endpoint.identification.algorithm": ""})
    assert run(way, wanted, tmp_path, own=CA.issue("elsewhere", ["elsewhere"]))[0] == 7


@WAYS
def test_a_name_that_is_not_to_be_checked_may_be_any(way, tmp_path):
    wanted = credentials("SSL", tmp_path, **{
        "listener.name.in.ssl.endpoint.identification.algorithm": ""})
    assert run(way, wanted, tmp_path, own=CA.issue("elsewhere", ["elsewhere"]))[0] == 7


@WAYS
@pytest.mark.parametrize("mine,words", [
    ({"account": 'username="node" password="other"'}, "rejected the login of node: .*Invalid"),
    ({"sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
      "listener.name.in.scram-sha-256.sasl.jaas.config":
          'x.Module required username="node" password="s3cret";'},
     "does not offer SCRAM-SHA-256, only PLAIN")])
def test_failed_login_reports_the_reason_without_the_password(way, mine, words, tmp_path):
    with pytest.raises(PeerError, match=words) as caught:
        run(way, credentials("SASL_PLAINTEXT", tmp_path, **mine), tmp_path, lifetime_ms=FOR_EVER)
    assert "other" not in str(caught.value) and "s3cret" not in str(caught.value)


def by_token(tmp_path, url: str, **more):
    return credentials("SASL_PLAINTEXT", tmp_path, **{
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": url, **more})


@WAYS
def test_a_node_logs_in_with_a_token_of_its_issuer(way, tmp_path):
    issuer, seen = Issuer(), []

    def check(text):
        seen.append(text)
        return Token("node", 0)

    with served(issuer, {"node": "s3cret"}) as server:
        wanted = by_token(tmp_path, f"{server.url}/token", **{
            "sasl.oauthbearer.client.credentials.client.id": "node",
            "sasl.oauthbearer.client.credentials.client.secret": "s3cret",
            "sasl.oauthbearer.scope": "brokers"})
        for _ in range(2):
            assert run(way, wanted, tmp_path, lifetime_ms=FOR_EVER, check=check)[0] == 7
        # The token is valid for an hour.
        assert server.asked == [{"grant_type": ["client_credentials"], "scope": ["brokers"]}]
    assert len(seen) == 2 and seen[0] == seen[1] and len(seen[0].split(".")) == 3


@WAYS
def test_failed_token_login_is_reported_without_the_token(way, tmp_path):
    def refused(text):
        raise TokenRefused("it has expired")

    path = tmp_path / "token"
    wanted = by_token(tmp_path, path.as_uri())
    with pytest.raises(PeerError, match=f"the login of {path}: no token in {path}: FileNotFound"):
        run(way, wanted, tmp_path, lifetime_ms=FOR_EVER, check=refused)
    path.write_text("s3cret.token.x\n")
    with pytest.raises(PeerError, match=f"login of {path}: .*invalid_token") as caught:
        # A missing file is checked again after a pause.
        for _ in range(100):
            try:
                run(way, wanted, tmp_path, lifetime_ms=FOR_EVER, check=refused)
            except PeerError as error:
                if "no token" not in str(error):
                    raise
                time.sleep(0.05)
    assert "s3cret" not in str(caught.value)


def test_a_login_that_ends_is_renewed_before_the_next_request(tmp_path):
    async def renewed(node, wanted):
        peer = await Peer.connect("127.0.0.1", node.port, "test", credentials=wanted)
        while node.logins < 3:
            # Several concurrent calls: none of them runs between the two requests of a login.
            await asyncio.gather(*[peer.call(BEAT, 1, 10) for _ in range(100)])
        peer.close()
        return peer.failure

    failure, node = run(renewed, credentials("SASL_SSL", tmp_path), tmp_path, own=GOOD,
                        lifetime_ms=400)
    assert "closed" in str(failure) and node.asked >= 200


def test_changed_certificate_files_are_used_by_the_next_connection(tmp_path):
    wanted = credentials("SSL", tmp_path, authority=OTHER_CA)
    for way in (by_loop, by_thread):
        with pytest.raises(PeerError, match="not trusted"):
            run(way, wanted, tmp_path, own=GOOD)
    settings("SSL", tmp_path)
    for way in (by_loop, by_thread):
        assert run(way, wanted, tmp_path, own=GOOD)[0] == 7


@pytest.mark.parametrize("texts,words", [
    ({"sasl.mechanism.inter.broker.protocol": "DIGEST"}, "expected one of PLAIN, SCRAM"),
    ({"account": 'user_node="s3cret"'}, "in.plain.sasl.jaas.config: .* a username and a password"),
    ({"listener.name.in.ssl.truststore.location": "/nowhere"}, "/nowhere"),
])
def test_settings_that_prevent_connections_are_rejected_at_the_start(texts, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        credentials("SASL_SSL", tmp_path, **texts)


def test_plain_text_needs_no_credentials(tmp_path):
    made = settings("PLAINTEXT", tmp_path)
    assert securing.between_brokers(made, now_ms) is None
    assert securing.towards_controllers(made, now_ms) is None

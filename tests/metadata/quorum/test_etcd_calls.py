"""A client's requests to etcd's members and its handling of responses; the members are simulated.
"""

import asyncio
import http.client
import json
import logging
import ssl
from types import SimpleNamespace

import pytest

from pylog.metadata.quorum.etcd import Etcd, split
from pylog.metadata.quorum.key_value import (
    Absent, TransactionResult, Delete, Full, Get, Is, KeysError, List, Put, Row, Unknown,
    Unreachable,
)
from tests.metadata.virtual import run

A, B = "YQ==", "Yg=="      # a, b
REFUSED = "no connection"
UNAVAILABLE = (503, {"code": 14, "message": "no leader"})


class Members:
    """answers: results of the calls in order: an exception, (status, response), REFUSED or a
    response. `asked`: [(address, method, body, headers)]. `open`: number of connections.
    """

    def __init__(self, *answers, addresses=("m1:1", "m2:2", "m3:3"), **fields):
        self.answers, self.asked, self.open = list(answers), [], 0
        self.keys = Etcd(addresses, **fields)
        self.keys._connection_to = self.connection_to

    def connection_to(self, address):
        members = self

        class Connection:
            def connect(self):
                if members.answers[0] == REFUSED:
                    members.answers.pop(0)
                    raise ConnectionRefusedError("refused")
                members.open += 1

            def request(self, verb, path, data, headers):
                assert verb == "POST" and path.startswith("/v3/")
                members.asked.append((address, path[4:], json.loads(data), headers))

            def getresponse(self):
                answer = members.answers.pop(0)
                if isinstance(answer, Exception):
                    raise answer
                status, answer = answer if isinstance(answer, tuple) else (200, answer)
                text = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                return SimpleNamespace(status=status, read=lambda: text)

            def close(self):
                members.open -= 1

        return Connection()

    @property
    def addresses(self):
        return [address for address, *_ in self.asked]


def found(*pairs):
    return {"response_range": {"kvs": [dict(zip(("key", "value"), pair)) for pair in pairs]}}


def test_reads_are_batched_and_rows_keep_their_order():
    members = Members({"responses": [found((A, B)), {"response_range": {}}, found((B,))]})
    assert members.keys.read_keys([Get("a"), Get("b"), List("f/", "x", 7)]) == [
        [Row("a", b"b")], [], [Row("b", b"")]]
    _, method, body, _ = members.asked[0]
    assert method == "kv/txn" and body == {"success": [
        {"request_range": {"key": A}}, {"request_range": {"key": B}},
        {"request_range": {"key": "Zi94", "range_end": "ZjA=", "limit": "7"}}]}


@pytest.mark.parametrize(("answer", "expected"), [
    ({"kvs": [{"key": A, "value": B}], "count": "1"}, Row("a", b"b")), ({"header": {}}, None)])
def test_key_may_be_read_from_a_single_member(answer, expected):
    members = Members(answer)
    assert members.keys.get_here("a") == expected
    _, method, body, _ = members.asked[0]
    assert method == "kv/range" and body == {"key": A, "serializable": True}


@pytest.mark.parametrize(("answer", "expected"), [
    ({"succeeded": True, "responses": [{"response_put": {}}]}, TransactionResult(True, [])),
    ({"responses": [found((A, B))]}, TransactionResult(False, [[Row("a", b"b")]])),
    ({}, TransactionResult(False, []))])
def test_transaction_returns_success_or_the_current_values(answer, expected):
    members = Members(answer)
    assert members.keys.transact(
        [Is("a", b"b"), Absent("b")], [Put("a", b"a"), Put("b", b"b", 77), Delete("a")],
        [Get("a")]) == expected
    assert members.asked[0][2] == {
        "compare": [{"key": A, "result": "EQUAL", "target": "VALUE", "value": B},
                    {"key": B, "result": "EQUAL", "target": "CREATE", "create_revision": "0"}],
        "success": [{"request_put": {"key": A, "value": A}},
                    {"request_put": {"key": B, "value": B, "lease": "77"}},
                    {"request_delete_range": {"key": A}}],
        "failure": [{"request_range": {"key": A}}]}


@pytest.mark.parametrize(("answer", "dropped"), [({"succeeded": True}, True), ({}, False)])
def test_a_range_is_dropped_or_not(answer, dropped):
    members = Members(answer)
    assert members.keys.drop([], "f/", "x") == dropped
    assert members.asked[0][2]["success"] == [
        {"request_delete_range": {"key": "Zi8=", "range_end": "Zi94"}}]


def test_lease_is_granted_and_renewed_and_an_expired_one_has_no_ttl():
    members = Members({"ID": "17"}, {"result": {"TTL": "9"}}, {"result": {}}, {})
    assert members.keys.grant(9) == 17 and members.asked[0][1:3] == ("lease/grant", {"TTL": 9})
    assert [members.keys.keep_alive(17) for _ in range(3)] == [9, 0, 0]
    # All on one connection.
    assert members.open == 1 and set(members.addresses) == {"m1:1"}
    members.keys.close()
    assert members.open == 0


@pytest.mark.parametrize("failure", [
    OSError("reset"), http.client.BadStatusLine(""), (200, b"no json"), UNAVAILABLE,
    (504, {"code": 4, "error": "deadline"}), REFUSED])
def test_read_is_tried_on_each_member_until_one_responds(failure):
    members = Members(failure, failure, {"responses": [found((A, B))]})
    assert members.keys.get("a") == Row("a", b"b")
    assert members.addresses[-1] == "m3:3" and members.open == 1
    members.keys.close()
    members.answers = [failure] * 3
    with pytest.raises(Unreachable):
        members.keys.get("a")
    assert members.answers == []


@pytest.mark.parametrize("failure", [OSError("reset"), (200, b"no json"), UNAVAILABLE])
def test_unanswered_change_is_not_retried(failure):
    members = Members(failure, {"succeeded": True})
    with pytest.raises(Unknown):
        members.keys.transact([], [])
    assert members.addresses == ["m1:1"]
    assert members.keys.transact([], []).succeeded and members.addresses == ["m1:1", "m2:2"]


def test_a_change_that_was_not_received_is_sent_to_the_next():
    members = Members(REFUSED, REFUSED, {"succeeded": True})
    assert members.keys.transact([], []).succeeded and members.addresses == ["m3:3"]
    members.keys.close()
    members.answers = [REFUSED] * 3
    with pytest.raises(Unreachable, match="m2:2: refused"):
        members.keys.transact([], [])


@pytest.mark.parametrize(("answer", "kind", "text"), [
    ((400, {"error": "bad"}), KeysError, "bad"), ((400, {"message": "worse"}), KeysError, "worse"),
    ((400, {"code": 3}), KeysError, "3"), ((200, [1]), KeysError, "1"),
    ((500, {"error": "mvcc: database space exceeded"}), Full, "space")])
def test_rejection_is_not_retried_on_other_members(caplog, answer, kind, text):
    members = Members(answer)
    with pytest.raises(KeysError, match=text) as refused:
        members.keys.transact([], [])
    assert type(refused.value) is kind and len(members.asked) == 1
    assert [row.levelno for row in caplog.records] == (
        [logging.CRITICAL] if kind is Full else [])


def test_login_precedes_the_first_call_and_is_renewed_after_expiry():
    members = Members({"token": "one"}, {"ID": "1"}, {"ID": "2"}, (401, {"code": 16}),
                      {"token": "two"}, {"ID": "3"}, login=("me", "secret"))
    assert [members.keys.grant(1) for _ in range(3)] == [1, 2, 3]
    assert [(method, headers.get("Authorization")) for _, method, _, headers in members.asked] == [
        ("auth/authenticate", None), ("lease/grant", "one"), ("lease/grant", "one"),
        ("lease/grant", "one"), ("auth/authenticate", None), ("lease/grant", "two")]
    assert members.asked[0][2] == {"name": "me", "password": "secret"}


def test_a_call_that_is_rejected_after_its_login_too_is_rejected():
    members = Members({"token": "one"}, (401, {"code": 16}), {"token": "two"},
                      (401, {"code": 16, "error": "again"}), login=("me", "secret"))
    with pytest.raises(KeysError, match="again"):
        members.keys.grant(1)


@pytest.mark.parametrize("answer", [(400, {"error": "wrong"}), {"error": "wrong"}])
def test_rejected_login_names_the_user(answer):
    with pytest.raises(KeysError, match="the login of me: wrong"):
        Members(answer, login=("me", "secret")).keys.grant(1)


def test_no_login_is_sent_without_credentials():
    members = Members((401, {"code": 16, "error": "who?"}))
    with pytest.raises(KeysError, match="who?"):
        members.keys.grant(1)
    assert len(members.asked) == 1 and "Authorization" not in members.asked[0][3]


@pytest.mark.parametrize(("address", "parts"), [
    ("h:1", ("h", 1)), ("[::1]:2379", ("::1", 2379)), ("192.0.2.1:22", ("192.0.2.1", 22))])
def test_an_address_is_a_host_and_a_port(address, parts):
    assert split(address) == parts


def test_tls_context_secures_the_connection():
    plain = Etcd(["[::1]:7"], timeout_s=3)._connection_to("[::1]:7")
    assert (plain.host, plain.port, plain.timeout) == ("::1", 7, 3)
    assert not isinstance(plain, http.client.HTTPSConnection)
    context = ssl.create_default_context()
    secured = Etcd(["h:7"], timeout_s=3, ssl_context=context)._connection_to("h:7")
    assert isinstance(secured, http.client.HTTPSConnection)
    assert (secured.host, secured.port, secured.timeout) == ("h", 7, 3)


class Watched:
    """Watched members. plan: per dial: an exception, or [(seconds, data)]; b"" ends the stream."""

    def __init__(self, monkeypatch, *plan, addresses=("m1:1", "m2:2"), **fields):
        self.plan, self.dials, self.stirs, self.written = list(plan), [], [], []
        self.open = 0
        self.keys = Etcd(addresses, **fields)
        monkeypatch.setattr(asyncio, "open_connection", self.dial)

    def run(self, seconds):
        async def go(loop):
            self.loop, self.began_s = loop, loop.time()
            task = loop.create_task(self.keys.watch("at/", lambda: self.stirs.append(self.now)))
            await asyncio.sleep(seconds)
            assert not task.done()
            task.cancel()
            await asyncio.wait([task])
            assert self.open == 0
        run(go)
        return self

    @property
    def now(self):
        return round(self.loop.time() - self.began_s, 2)

    async def dial(self, host, port, ssl=None):
        self.dials.append((self.now, host, port))
        step = self.plan.pop(0) if self.plan else "silent"
        if isinstance(step, Exception):
            raise step
        self.open += 1
        steps = [] if step == "silent" else list(step)

        async def read(count):
            if not steps:
                await self.loop.create_future()
            seconds, data = steps.pop(0)
            await asyncio.sleep(seconds)
            return data

        def close():
            self.open -= 1
        return SimpleNamespace(read=read), SimpleNamespace(write=self.written.append, close=close)


def test_watcher_is_notified_by_each_event_of_the_nearest_member(monkeypatch):
    watched = Watched(monkeypatch, [(1, b"created"), (2, b"changed")]).run(60)
    assert watched.stirs == [1, 3] and watched.dials == [(0, "m1", 1)]
    head, _, body = watched.written[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v3/watch HTTP/1.1\r\nHost: m1:1\r\n")
    assert b"Content-Length: %d\r\n" % len(body) in head + b"\r\n" and b"Authoriz" not in head
    assert json.loads(body) == {"create_request": {"key": "YXQv", "range_end": "YXQw"}}


def test_watch_uses_the_login_of_the_calls(monkeypatch):
    watched = Watched(monkeypatch)
    watched.keys._token = "word"
    assert b"\r\nAuthorization: word\r\n" in watched.run(1).written[0]


def test_watch_moves_from_an_unreachable_member_and_retries(monkeypatch):
    watched = Watched(monkeypatch, OSError("refused")).run(11)
    # The client returns from another member; a single message does not make it leave the nearest.
    assert watched.dials == [(0, "m1", 1), (0.1, "m2", 2), (5.2, "m1", 1)]
    assert watched.stirs == [0, 5.1]


def test_watches_that_end_soon_go_round_with_a_pause(monkeypatch):
    watched = Watched(monkeypatch, *[[(0.5, b"")]] * 4).run(2.3)
    assert [(at, host) for at, host, _ in watched.dials] == [
        (0, "m1"), (0.6, "m2"), (1.2, "m1"), (1.8, "m2")]


def test_after_a_watch_that_held_the_nearest_is_the_next(monkeypatch):
    watched = Watched(monkeypatch, [(3, b"")], [(0.5, b"")], [(0.5, b"")]).run(4)
    assert [(at, host) for at, host, _ in watched.dials] == [(0, "m1"), (3.1, "m1"), (3.7, "m2")]


def test_a_dial_of_a_watch_ends_in_time(monkeypatch):
    watched = Watched(monkeypatch, timeout_s=0.5)

    async def silent(host, port, ssl=None):
        watched.dials.append((watched.now, host, port))
        await asyncio.sleep(100)
    monkeypatch.setattr(asyncio, "open_connection", silent)
    assert [at for at, _, _ in watched.run(1.5).dials] == [0, 0.6, 1.2]
    assert watched.stirs == [0.5, 1.1]

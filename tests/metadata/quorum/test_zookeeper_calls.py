"""A client's handling of ZooKeeper's responses; kazoo is simulated."""

import asyncio
import socket
import threading
from types import SimpleNamespace

import pytest
from kazoo.exceptions import (
    ConnectionLoss,
    NoAuthError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.security import make_digest_acl

from pylog.config import Settings
from pylog.metadata.quorum import zookeeper
from pylog.metadata.quorum.key_value import Absent, Is, Unknown
from pylog.metadata.quorum.zookeeper import ZooKeeper
from tests.metadata.played_zookeeper import pending
from tests.metadata.virtual import run


class Kazoo:
    """A client of the nodes {path: value}. results: of the transactions to come; `committed`: their
    operations. failures: of the next checks for a node. `watches`: not fired yet.
    """

    def __init__(self, nodes, results=(), failures=()):
        self.nodes, self.results, self.failures = nodes, list(results), list(failures)
        self.committed, self.watches = [], []

    def start_async(self):
        connected = threading.Event()
        connected.set()
        return connected

    def sync_async(self, path):
        return pending(path)

    def get_async(self, path):
        if path not in self.nodes:
            return pending(NoNodeError())
        return pending((self.nodes[path], SimpleNamespace(version=4)))

    def get_children_async(self, path, watch=None):
        self.watches.append(watch)
        return pending(list({node[len(path) + 1:].partition("/")[0] for node in self.nodes
                             if node.startswith(f"{path}/")}))

    def exists_async(self, path, watch):
        if self.failures:
            return pending(self.failures.pop(0))
        self.watches.append(watch)
        return pending(None)

    def transaction(self):
        operations = []

        def commit():
            self.committed.append(operations)
            return pending(self.results.pop(0))

        return SimpleNamespace(
            check=lambda *arguments: operations.append(("check", *arguments)),
            delete=lambda *arguments: operations.append(("delete", *arguments)),
            commit_async=commit)

    def fire(self):
        fired, self.watches = self.watches, []
        for watch in fired:
            watch(None)


@pytest.fixture
def keys_of(monkeypatch):
    def made(kazoo):
        monkeypatch.setattr(zookeeper, "KazooClient", lambda *_, **__: kazoo)
        return ZooKeeper(["z:1"], 10)
    return made


FLOOR = "/c/" + "0" * 17
NODES = {"/x": b"1", f"{FLOOR}/001": b"", f"{FLOOR}/002": b"", f"{FLOOR}/003": b""}


def test_drop_is_one_conditional_transaction(keys_of):
    kazoo = Kazoo(NODES, [[True] * 3])
    assert keys_of(kazoo).drop([Is("/x", b"1")], "/c/", f"{3:020d}")
    assert kazoo.committed == [[("check", "/x", 4), ("delete", f"{FLOOR}/001"),
                                ("delete", f"{FLOOR}/002")]]


@pytest.mark.parametrize("condition", [Is("/x", b"2"), Is("/y", b"1"), Absent("/x")])
def test_drop_with_a_false_condition_sends_no_request(keys_of, condition):
    kazoo = Kazoo(NODES)
    assert not keys_of(kazoo).drop([condition], "/c/", f"{3:020d}")
    assert kazoo.committed == []


@pytest.mark.parametrize("reason", [NoNodeError(), NotEmptyError()])
def test_conflicting_drop_is_not_reported_as_done(keys_of, reason):
    """Also a condition that does not hold: it held when it was checked."""
    kazoo = Kazoo(NODES, [[RolledBackError(), reason, RuntimeInconsistency()]])
    with pytest.raises(Unknown, match="other clients change the same keys"):
        keys_of(kazoo).drop([Is("/x", b"1")], "/c/", f"{3:020d}")


@pytest.mark.parametrize("failure", [ConnectionLoss(), NoAuthError()])
def test_failed_watch_is_set_later_and_fires_repeatedly(keys_of, failure):
    kazoo = Kazoo({"/w/a": b""}, failures=[failure] * 2)
    stirs = []

    async def scenario(loop):
        stirred = asyncio.Event()

        def wake():
            stirs.append(bool(kazoo.watches))
            stirred.set()

        watching = loop.create_task(keys_of(kazoo).watch("/w/", wake))
        # A watch that was never set never fires.
        while stirs != [False, False, True]:
            stirred.clear()
            await stirred.wait()
        for _ in range(2):
            stirred.clear()
            kazoo.fire()
            await stirred.wait()
        watching.cancel()

    run(scenario)
    assert stirs == [False, False, True, True, True]


SAID = "Zookeeper version: 3.9.2-abc, built on 2024\nLatency: 0\nMode: {}\nNode count: 5\n"


@pytest.mark.parametrize(("said", "state"), [
    (SAID.format("leader"), (True, True, "3.9.2", -1, "")),
    (SAID.format("follower"), (True, False, "3.9.2", -1, "")),
    ("Mode: standalone\n", (True, False, "", -1, "")),
    ("This ZooKeeper instance is not currently serving requests\n",
     (False, False, "", -1, "This ZooKeeper instance is not currently serving requests")),
    ("", (False, False, "", -1, "it does not serve requests: it has no majority")),
    (OSError(111, "refused"), (False, False, "", -1, "[Errno 111] refused")),
    (TimeoutError(), (False, False, "", -1, "TimeoutError"))])
def test_server_reports_its_own_status(keys_of, monkeypatch, said, state):
    keys = keys_of(Kazoo({}))

    def answer(address):
        if isinstance(said, Exception):
            raise said
        return said

    monkeypatch.setattr(keys, "_four_letter_response", answer)
    assert keys.state_of("z:1")[:6] == ("z:1", *state)


def test_server_status_uses_a_separate_connection_until_closed(keys_of):
    asked = []

    def serve(listening):
        with listening.accept()[0] as talking:
            asked.append(talking.recv(99))
            talking.sendall(b"Mode: ")
            talking.sendall(b"leader\n\xff")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = threading.Thread(target=serve, args=[listening])
        serving.start()
        said = keys_of(Kazoo({}))._four_letter_response(f"[127.0.0.1]:{listening.getsockname()[1]}")
        serving.join()
    assert (asked, said) == ([b"srvr"], "Mode: leader\n\ufffd")


@pytest.mark.parametrize(("given", "made"), [
    ({}, {}),
    ({"enable": True}, {"certfile": None, "keyfile": None, "ca": None}),
    ({"enable": True, "keystore.location": "own.pem", "truststore.location": "ca.pem"},
     {"certfile": "own.pem", "keyfile": "own.pem", "ca": "ca.pem"})])
def test_tls_checks_the_name_and_has_the_files_of_the_settings(given, made):
    found = zookeeper.tls_of(Settings({f"quorum.zookeeper.ssl.{name}": str(value)
                                       for name, value in given.items()}))
    assert found == ({"use_ssl": True, "check_hostname": True, **made} if made else {})


@pytest.mark.parametrize("login", [None, "pylog:se:cret"])
def test_nodes_of_a_user_may_be_read_and_changed_only_by_that_user(
        monkeypatch, login):
    given = {}

    def client(addresses, session_s, **more):
        given.update(more, addresses=addresses, session_s=session_s)
        return Kazoo({})

    monkeypatch.setattr(zookeeper, "KazooClient", client)
    ZooKeeper(["a:1", "b:2"], 10, login=login)
    assert (given["addresses"], given["session_s"]) == ("a:1,b:2", 10)
    # It retries the connection without a limit.
    assert given["connection_retry"].max_tries == -1
    if login is None:
        assert (given["auth_data"], given["default_acl"]) == ([], None)
    else:
        assert given["auth_data"] == [("digest", login)]
        (acl,) = given["default_acl"]
        assert acl == make_digest_acl("pylog", "se:cret", all=True) and acl.acl_list == ["ALL"]

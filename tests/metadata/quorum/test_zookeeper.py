"""ZooKeeper as a quorum's keys: properties that etcd does not have."""

import sys
import time

import pytest

from pylog.config import Settings
from pylog.log.errors import StartError
from pylog.metadata import controller_service
from pylog.metadata.quorum.key_value import (
    Absent,
    Delete,
    Get,
    Is,
    KeysError,
    List,
    Put,
    Unreachable,
)
from pylog.metadata.quorum.zookeeper import Fact, ZooKeeper, tls_of
from pylog.testing.certificates import Authority, write
from pylog.testing.ports import free_port
from tests.fixtures.zookeepers import ZooKeepers

CA = Authority()
TTL_S = 10


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    """Return (port, file with a certificate and key, file of the CA)."""
    root = tmp_path_factory.mktemp("certificates")
    issued = CA.issue()
    return (free_port(), write(root, "own.pem", issued.chain + issued.key),
            write(root, "ca.pem", CA.pem))


@pytest.fixture(scope="module")
def server(tmp_path_factory, tls):
    port, own, trusted = tls
    found = ZooKeepers(tmp_path_factory.mktemp("zookeeper"), 1, {
        "secureClientPort": port,
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": own, "ssl.keyStore.type": "PEM",
        "ssl.trustStore.location": trusted, "ssl.trustStore.type": "PEM",
        "ssl.hostnameVerification": "false"})
    try:
        yield found.start()
    finally:
        found.close()


@pytest.fixture
def keys(server):
    found = server.keys(TTL_S)
    yield found
    found.close()


def test_transaction_is_atomic(keys):
    assert keys.transact([Absent("/a/x")], [Put("/a/x", b"1"), Put("/a/y", b"2")]).succeeded
    assert keys.transact([Absent("/a/x")], [Put("/a/y", b"3")], [Get("/a/x")]) == (
        False, [[("/a/x", b"1")]])
    assert keys.transact([Is("/a/x", b"1"), Is("/a/y", b"?")], [Put("/a/x", b"4")]) == (False, [])
    assert keys.get("/a/x").value == b"1"
    assert keys.transact([Is("/a/y", b"2")], [Put("/a/x", b"5"), Delete("/a/y")]).succeeded
    assert keys.read_keys([Get("/a/x"), Get("/a/y")]) == [[("/a/x", b"5")], []]
    assert keys.transact([], [Delete("/a/y")]).succeeded


def test_change_of_another_session_is_visible_to_the_next_transaction(server, keys):
    other = server.keys(TTL_S)
    assert keys.transact([Absent("/b/x")], [Put("/b/x", b"1")]).succeeded
    for number in range(1, 10, 2):
        assert other.transact([Is("/b/x", b"%d" % number)], [Put("/b/x", b"%d" % (number + 1))]) \
            .succeeded
        assert not keys.transact([Is("/b/x", b"%d" % number)], [Put("/b/x", b"no")]).succeeded
        assert keys.transact([Is("/b/x", b"%d" % (number + 1))],
                             [Put("/b/x", b"%d" % (number + 2))]).succeeded
    # Back to a former value: the cached one no longer counts.
    assert other.transact([], [Put("/b/x", b"no")]).succeeded
    assert other.transact([], [Put("/b/x", b"11")]).succeeded
    assert keys.transact([Is("/b/x", b"11")], [Put("/b/x", b"12")]).succeeded
    other.close()


def test_numbers_are_listed_and_dropped_across_floors(keys):
    numbers = [1, 2, 998, 999, 1000, 1001, 5000]
    for number in numbers:
        keys.transact([], [Put(f"/c/{number:020d}", b"%d" % number)])

    def listed(first, count=10):
        found, = keys.read_keys([List("/c/", f"{first:020d}", count)])
        return [int(row.value) for row in found]

    assert listed(0) == numbers and listed(999) == numbers[3:] and listed(2, 3) == [2, 998, 999]
    assert not keys.drop([Is("/c/x", b"1")], "/c/", f"{1001:020d}")
    assert listed(0) == numbers
    assert keys.drop([Absent("/c/x")], "/c/", f"{1001:020d}")
    assert listed(0) == [1001, 5000]


def test_leased_key_is_removed_with_its_session(server, keys):
    other = server.keys(TTL_S)
    assert other.transact([], [Put("/d/x", b"1", other.grant(TTL_S))]).succeeded
    assert keys.transact([], [Put("/d/y", b"2", keys.grant(TTL_S))]).succeeded
    # Taken over: it is deleted with its new owner.
    assert keys.transact([], [Put("/d/x", b"3", keys.grant(TTL_S))]).succeeded
    other.close()
    assert keys.read_keys([Get("/d/x"), Get("/d/y")]) == [[("/d/x", b"3")], [("/d/y", b"2")]]
    server.end_lease(keys, keys.grant(TTL_S))
    until = time.monotonic() + 20
    while True:
        try:
            assert keys.read_keys([Get("/d/x"), Get("/d/y")]) == [[], []]
            break
        except Unreachable:
            assert time.monotonic() < until


def test_nodes_of_a_user_are_accessible_only_to_that_user(server, keys):
    own = ZooKeeper(server.addresses, TTL_S, login="pylog:secret")
    assert own.transact([Absent("/e/x")], [Put("/e/x", b"1")]).succeeded
    with pytest.raises(KeysError):
        keys.get("/e/x")
    with pytest.raises(KeysError):
        keys.transact([], [Put("/e/y", b"1")])
    stranger = ZooKeeper(server.addresses, TTL_S, login="pylog:wrong")
    with pytest.raises(KeysError):
        stranger.get("/e/x")
    assert own.get("/e/x").value == b"1"
    own.close()
    stranger.close()


def test_a_zookeeper_is_reached_by_tls_if_its_certificate_is_trusted(server, tls):
    port, own, trusted = tls
    settings = {"quorum.zookeeper.ssl.enable": True,
                "quorum.zookeeper.ssl.keystore.location": own,
                "quorum.zookeeper.ssl.truststore.location": trusted}
    keys = ZooKeeper([f"localhost:{port}"], TTL_S, tls=tls_of(Settings(settings)))
    assert keys.transact([], [Put("/f/x", b"1")]).succeeded and keys.get("/f/x").value == b"1"
    keys.close()
    del settings["quorum.zookeeper.ssl.truststore.location"]
    keys = ZooKeeper([f"localhost:{port}"], TTL_S, timeout_s=1.0, tls=tls_of(Settings(settings)))
    with pytest.raises(Unreachable):
        keys.get("/f/x")
    keys.close()


def test_a_zookeeper_that_does_not_answer_is_unreachable_in_time():
    keys = ZooKeeper(["127.0.0.1:1"], TTL_S, timeout_s=0.1)
    for call in (lambda: keys.get("/x"), lambda: keys.transact([], [Put("/x", b"1")]),
                 lambda: keys.grant(1), lambda: keys.drop([], "/x/", "1")):
        with pytest.raises(Unreachable):
            call()
    keys.close()


def test_missing_kazoo_is_reported_with_installation_advice(monkeypatch):
    monkeypatch.setitem(sys.modules, "pylog.metadata.quorum.zookeeper", None)
    with pytest.raises(StartError, match=r"pip install 'pylog-broker\[zookeeper\]'"):
        controller_service._zookeeper({})


def test_written_value_is_cached_with_its_new_version():
    keys = ZooKeeper.__new__(ZooKeeper)
    keys._known = {}
    keys._remember([Is("a", b"old"), Absent("b")], [Put("a", b"new"), Put("b", b"first")],
                   {"a": Fact(b"old", 4)})
    assert keys._known == {"a": Fact(b"new", 5), "b": Fact(b"first", 0)}

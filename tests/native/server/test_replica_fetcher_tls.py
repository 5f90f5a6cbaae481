"""A fetcher with a TLS connection to its leader."""

import select
import ssl
import threading

import pytest

from pylog._native.server import replica_fetcher
from pylog._native.server.tls import TlsClient, TlsError
from pylog.testing.certificates import Authority, write
from tests.native.log.test_log import TOPIC_ID
from tests.native.server.fake_leader import VERSION, FakeLeader, row
from tests.native.server.test_replica_fetcher import (
    directory, filled, follower_of, make_fetchers, next_notices, until,
)

__all__ = ["directory", "make_fetchers"]      # Fixtures.

CA = Authority()
OWN = CA.issue("leader", ["leader"])


class SafeLeader(FakeLeader):
    """FakeLeader over TLS, for the fixture `leader`."""

    def __init__(self, root):
        super().__init__()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(write(root, "leader.pem", OWN.chain + OWN.key))
        self._context = context

    def attach(self, fetchers, leader_id=1, serial=1, thread=0):
        session = self.shaken(TlsClient(trusted=CA.pem))
        fetchers.attach(thread, leader_id, self.far.detach(), VERSION, serial, session.give())

    def shaken(self, client, host="leader"):
        session = client.connect(self.far.fileno(), host, True)
        served = threading.Thread(target=self._serve)
        served.start()
        try:
            while not session.handshake():
                select.select([self.far], [], [], 20)
        finally:
            served.join()
        return session

    def _serve(self):
        try:
            self.near = self._context.wrap_socket(self.near, server_side=True)
        except (ssl.SSLError, OSError):
            self.near.close()


@pytest.fixture
def leader(tmp_path_factory):
    one = SafeLeader(tmp_path_factory.mktemp("tls"))
    yield one
    one.close()


def test_follower_receives_many_tls_records_at_once(
        make_fetchers, leader, directory):
    # More data than one turn of a plain text connection, and no event announces the rest.
    source, copy = filled(directory, 60, size=50_000), follower_of(directory)
    fetchers = make_fetchers(bytes_max=64 << 20, partition_bytes_max=64 << 20)
    fetchers.follow(copy, TOPIC_ID, 0, 1, 4, 99)
    leader.attach(fetchers)
    leader.take()
    whole = source.read(0, 64 << 20)
    assert len(whole) > 5 << 20
    leader.answer((TOPIC_ID, row(whole, high_watermark=120)))
    leader.take()
    assert copy.read(0, 64 << 20) == whole
    assert leader.partitions()[0][1].fetch_offset == 120
    assert fetchers.take() == []


def test_leader_that_closes_the_tls_session_is_reported_lost(make_fetchers, leader, directory):
    fetchers = make_fetchers()
    fetchers.follow(follower_of(directory), TOPIC_ID, 0, 1, 4, 99)
    leader.attach(fetchers, serial=5)
    leader.take()
    leader.near.close()
    [lost] = next_notices(fetchers)
    assert (lost.kind, lost.token) == (replica_fetcher.LOST, 5)
    until(lambda: fetchers.stats()["connections_lost"] == 1)


@pytest.mark.parametrize("client,host,words", [
    ({"trusted": Authority("other").pem}, "leader", "local issuer|self.signed"),
    ({"trusted": CA.pem}, "another", "mismatch"),
    ({}, "leader", "local issuer|self.signed")], ids=["authority", "name", "the system's"])
def test_leader_with_another_name_is_rejected(leader, client, host, words):
    with pytest.raises(TlsError, match=words):
        leader.shaken(TlsClient(**client), host)


@pytest.mark.parametrize("of,words", [
    ({"trusted": b"no PEM"}, "no certificates"),
    ({"chain": OWN.chain, "key": CA.issue().key, "trusted": CA.pem}, "does not belong"),
    ({"chain": OWN.chain, "trusted": CA.pem}, "no certificate that matches")])
def test_unusable_settings_are_rejected(of, words):
    with pytest.raises(TlsError, match=words):
        TlsClient(**of)


def test_unused_session_is_freed_with_its_owner(leader):
    given = leader.shaken(TlsClient(trusted=CA.pem)).give()
    leader.far.close()
    del given
    assert leader.near.recv(1) == b""

import itertools
import random
import threading
import time

import pytest

from pylog.metadata.log.metadata_log import Conflict
from pylog.metadata.quorum.etcd import Etcd
from pylog.metadata.quorum.key_value import Full, Put, Unknown, Unreachable
from pylog.metadata.quorum.quorum_state import (
    Batch,
    Quorum,
    QuorumLost,
    Term,
    TooLong,
    Trimmed,
    View,
)
from tests.metadata.conftest import served

PREFIXES = itertools.count(1)
TTL_S = 30


@pytest.fixture(scope="module", params=["memory", "etcd", "zookeeper"])
def servers(request, tmp_path_factory):
    yield from served(request, tmp_path_factory)


@pytest.fixture
def prefix():
    return f"/test/{next(PREFIXES)}/"


@pytest.fixture
def quorum(servers, prefix):
    found = Quorum(servers.keys(TTL_S), prefix, 5.0, time.monotonic)
    yield found
    found.close()


class Cut:
    """Keys that lose the responses of the next `cuts` changes; `applied`: the changes are made at
    once, otherwise arrive() makes them.
    """

    def __init__(self, keys, applied=True):
        self._keys = keys
        self.applied = applied
        self.cuts = 0
        self._on_their_way = []

    def __getattr__(self, name):
        return getattr(self._keys, name)

    def transact(self, *arguments):
        if not self.cuts:
            return self._keys.transact(*arguments)
        self.cuts -= 1
        if self.applied:
            self._keys.transact(*arguments)
        else:
            self._on_their_way.append(arguments)
        raise Unknown("cut")

    def arrive(self):
        for arguments in self._on_their_way:
            self._keys.transact(*arguments)


def in_office(quorum, node_id=1):
    return quorum.campaign(node_id, "host", 9093, TTL_S, quorum.read_view())


def everything(quorum, base=0, count=1):
    """Return all batches, read in parts of `count` records."""
    found = []
    while batches := quorum.read(base):
        found += batches
        base = batches[-1].base + count
    return found


def test_cluster_id_is_that_of_the_first_requester(quorum):
    assert quorum.cluster_id("first") == "first"
    assert quorum.cluster_id("second") == "first"


def test_a_node_with_records_founds_the_log_and_names_the_cluster_at_once(quorum):
    assert quorum.known_cluster_id() is None
    assert quorum.found("own", 7, 3, b"snapshot")
    assert (quorum.known_cluster_id(), quorum.read_view()[:2]) == ("own", (3, 7))
    assert quorum.load_snapshot(0) == (7, 3, b"snapshot")
    assert quorum.cluster_id("other") == "own"


def test_log_of_another_cluster_is_not_started(quorum):
    quorum.cluster_id("first")
    assert not quorum.found("own", 7, 3, b"snapshot")
    assert quorum.read_view()[:2] == (0, 0)
    assert quorum.found("first", 7, 3, b"snapshot")


def test_batches_are_read_back_in_order_as_they_were_written(quorum):
    term = in_office(quorum)
    written = [Batch(2 * number, random.Random(number).randbytes(10 ** (number % 6)))
               for number in range(70)]
    for base, data in written:
        quorum.append(term, base, 2, data)
    assert everything(quorum, 0, 2) == written
    assert everything(quorum, 100, 2) == written[50:]
    assert quorum.read_view().end == 140


def test_append_requires_the_expected_end_offset(quorum):
    term = in_office(quorum)
    quorum.append(term, 0, 3, b"a")
    for base in (0, 2, 4):
        with pytest.raises(Conflict):
            quorum.append(term, base, 1, b"b")
    assert everything(quorum, 0, 3) == [Batch(0, b"a")]


def test_newer_epoch_fences_an_older_one_with_a_valid_lease(quorum):
    old = in_office(quorum, 1)
    quorum.append(old, 0, 1, b"old")
    new = in_office(quorum, 2)
    assert (new.epoch, new.end) == (old.epoch + 1, 1)
    with pytest.raises(Conflict):
        quorum.append(old, 1, 1, b"too late")
    with pytest.raises(Conflict):
        quorum.renew(old, TTL_S)
    with pytest.raises(Conflict):
        quorum.save_snapshot(old, 1, 1, b"too late")
    quorum.append(new, 1, 1, b"new")
    assert [data for _, data in everything(quorum)] == [b"old", b"new"]
    assert quorum.read_view().holder == new.holder


def test_one_of_two_equal_candidates_wins(quorum):
    view = quorum.read_view()
    quorum.campaign(1, "host", 9093, TTL_S, view)
    with pytest.raises(Conflict):
        quorum.campaign(2, "host", 9093, TTL_S, view)
    assert quorum.read_view().holder.node_id == 1


@pytest.mark.parametrize("applied", [True, False])
def test_append_with_a_lost_response_is_applied_once(servers, prefix, applied):
    client = Cut(servers.keys(TTL_S), applied)
    quorum = Quorum(client, prefix, 5.0, time.monotonic)
    client.cuts = 1
    term = in_office(quorum)
    assert term.epoch == 1
    for number in range(4):
        client.cuts = number
        quorum.append(term, number, 1, b"%d" % number)
    assert [data for _, data in everything(quorum)] == [b"0", b"1", b"2", b"3"]
    quorum.close()


def test_unanswered_append_is_resolved_by_the_next_epoch(
        servers, prefix):
    client = Cut(servers.keys(TTL_S))
    quorum = Quorum(client, prefix, 0.1, time.monotonic)
    term = in_office(quorum)
    client.cuts = 1_000_000
    with pytest.raises(QuorumLost):
        quorum.append(term, 0, 1, b"in doubt")
    client.cuts = 0
    assert in_office(quorum, 2).end == 1
    assert everything(quorum) == [Batch(0, b"in doubt")]
    quorum.close()


def test_oversized_change_is_rejected_but_compressible_data_is_not(quorum):
    term = in_office(quorum)
    with pytest.raises(TooLong):
        quorum.append(term, 0, 1, random.Random(1).randbytes(1_300_000))
    data = bytes(range(256)) * 40_000
    quorum.append(term, 0, 1, data)
    assert everything(quorum) == [Batch(0, data)]


def test_more_than_a_floor_of_batches_is_read_and_trimmed_in_order(quorum):
    """ZooKeeper groups its numbers by thousands."""
    term = in_office(quorum)
    for base in range(940, 1060, 20):
        quorum.keys.transact([], [Put(quorum._key("at/end"), str(base).encode())])
        quorum.append(term, base, 20, b"%d" % base)
    assert [base for base, _ in everything(quorum, 940, 20)] == list(range(940, 1060, 20))
    quorum.save_snapshot(term, 1040, term.epoch, b"all")
    quorum.trim(term, 1040)
    assert [base for base, _ in everything(quorum, 1040, 20)] == [1040]
    with pytest.raises(Trimmed):
        quorum.read(1020)


def test_nothing_is_dropped_for_a_controller_of_the_past(quorum):
    old = in_office(quorum, 1)
    quorum.append(old, 0, 1, b"a")
    quorum.save_snapshot(old, 1, old.epoch, b"all")
    in_office(quorum, 2)
    with pytest.raises(Conflict):
        quorum.trim(old, 1)
    assert everything(quorum) == [Batch(0, b"a")]


def test_snapshot_replaces_the_records_that_it_covers(quorum):
    term = in_office(quorum)
    for base in range(10):
        quorum.append(term, base, 1, b"x")
    assert quorum.load_snapshot(0) is None
    quorum.trim(term, 5)
    assert len(everything(quorum)) == 10
    for end in (4, 8):
        data = random.Random(end).randbytes(1_200_000)
        quorum.save_snapshot(term, end, term.epoch, data)
        quorum.trim(term, end)
        assert quorum.load_snapshot(0) == (end, term.epoch, data)
    with pytest.raises(Trimmed):
        quorum.read(7)
    assert [base for base, _ in everything(quorum, 8)] == [8, 9]
    quorum.save_snapshot(term, 10, term.epoch, b"all")
    quorum.trim(term, 10)
    with pytest.raises(Trimmed):
        quorum.read(9)
    assert quorum.read(10) == []


def test_late_write_does_not_restore_an_older_snapshot(servers, prefix):
    client = Cut(servers.keys(TTL_S), applied=False)
    quorum = Quorum(client, prefix, 5.0, time.monotonic)
    term = in_office(quorum)
    for base in range(8):
        quorum.append(term, base, 1, b"x")
    for end in (4, 8):
        client.cuts = 2 if end == 4 else 0
        quorum.save_snapshot(term, end, term.epoch, b"")
        quorum.trim(term, end)
    client.arrive()
    assert quorum.load_snapshot(0) == (8, term.epoch, b"")
    quorum.close()


def test_resigned_controller_leaves_no_holder(quorum):
    term = in_office(quorum)
    quorum.resign(term)
    view = quorum.read_view()
    assert (view.holder, view.epoch) == (None, term.epoch)
    quorum.resign(term)


def test_term_outlives_its_lease_until_the_next_term(servers, quorum):
    term = in_office(quorum)
    servers.end_lease(quorum.keys, term.lease)
    assert quorum.read_view().holder is None
    renewed = quorum.renew(term, TTL_S)
    assert renewed.lease != term.lease and quorum.read_view().holder == term.holder
    quorum.append(renewed, 0, 1, b"a")


def test_one_reachable_member_is_enough_for_requests(etcds, prefix):
    client = Etcd(["127.0.0.1:1", "127.0.0.1:2", *etcds.addresses])
    quorum = Quorum(client, prefix, 5.0, time.monotonic)
    quorum.append(in_office(quorum), 0, 1, b"a")
    quorum.close()


def test_without_a_quorum_every_call_ends_in_time(etcds, prefix):
    quorum = Quorum(Etcd(["127.0.0.1:1"]), prefix, 0.05, time.monotonic)
    view = View(0, 0, None)
    for call in (quorum.read_view, lambda: quorum.campaign(1, "host", 1, TTL_S, view),
                 lambda: quorum.cluster_id("x")):
        with pytest.raises(QuorumLost):
            call()
    with pytest.raises(Unreachable):
        Etcd(["127.0.0.1:1"]).get("x")


class Crowded:
    """Keys without space."""

    name = "etcd"
    value_bytes_max = 1 << 20

    def transact(self, *arguments):
        raise Full("etcdserver: mvcc: database space exceeded")


def test_quorum_without_space_is_distinguished_from_an_unreachable_one():
    quorum = Quorum(Crowded(), "/test/", 0.0, time.monotonic)
    with pytest.raises(QuorumLost):
        quorum.append(Term(1, b"1", 0, 0, None), 0, 1, b"data")
    assert (quorum.is_full, quorum.is_responding, quorum.failures) == (True, True, 1)
    quorum.keys = Cut(quorum.keys)
    quorum.keys.cuts = 1
    quorum.is_full = False
    quorum.keys.applied = False
    with pytest.raises(QuorumLost):
        quorum.append(Term(1, b"1", 0, 0, None), 0, 1, b"data")
    assert (quorum.is_full, quorum.is_responding, quorum.appends) == (False, False, 0)


def test_killing_the_leader_loses_and_doubles_nothing(servers, quorum):
    term = in_office(quorum)
    acknowledged = []

    def write():
        for base in range(150):
            quorum.append(term, base, 1, b"%d" % base)
            acknowledged.append(base)

    writing = threading.Thread(target=write)
    writing.start()
    while len(acknowledged) < 20 and writing.is_alive():
        time.sleep(0.002)
    leader = servers.leader()
    servers.kill(leader)
    try:
        writing.join(60)
        assert acknowledged == list(range(150))
        assert everything(quorum) == [Batch(base, b"%d" % base) for base in range(150)]
    finally:
        servers.start_member(leader)
        servers.await_leader()


def test_each_members_status_is_returned(servers, prefix):
    clock = itertools.count(0, 10)  # Cached information is outdated at each call.
    quorum = Quorum(servers.keys(TTL_S), prefix, 5.0, lambda: next(clock))

    def members_once(answering: int):
        """A member that is slow for a while counts as unreachable."""
        while True:
            found = quorum.members()
            if sum(member.answers for member in found) == answering:
                return found

    try:
        members = members_once(3)
        assert [member.address for member in members] == servers.addresses
        assert not any(member.reason for member in members)
        assert all(member.version for member in members)
        assert sum(member.leads for member in members) == 1
        follower = next(number for number, member in enumerate(members, 1) if not member.leads)
        servers.kill(follower)
        try:
            gone = members_once(2)[follower - 1]
            assert not gone.answers and gone.reason
        finally:
            servers.start_member(follower)
    finally:
        quorum.close()


def test_member_status_is_cached_briefly(servers, prefix):
    keys = servers.keys(TTL_S)
    quorum = Quorum(keys, prefix, 5.0, lambda: 5.0)
    try:
        assert quorum.members() is quorum.members()
    finally:
        quorum.close()

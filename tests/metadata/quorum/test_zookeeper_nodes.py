"""Keys in the nodes of a ZooKeeper in memory: conditions, reads, and concurrent transactions."""

import pytest
from kazoo.exceptions import ConnectionLoss, NoAuthError
from kazoo.protocol.states import KeeperState

from pylog.metadata.quorum import zookeeper
from pylog.metadata.quorum.key_value import (
    Absent,
    Delete,
    Get,
    Is,
    KeysError,
    List,
    Put,
    Row,
    Unknown,
    Unreachable,
)
from tests.metadata.played_zookeeper import Server

NAMES = ("/a/x", "/a/y", "/b/z")
VALUES = (b"1", b"2", b"3")


@pytest.fixture
def server():
    return Server()


@pytest.fixture
def keys(server, monkeypatch):
    return server.clients(monkeypatch, 1)[0]


@pytest.fixture
def two(server, monkeypatch):
    return server.clients(monkeypatch, 2)


def reads(keys):
    """Return the keys read since the last call."""
    found = [path for what, path in keys.kazoo.asked if what == "get"]
    keys.kazoo.asked.clear()
    return found


def number(value):
    return f"/c/{value:020d}"


# Conditions.

def drawn(source, held):
    """Return (conditions, changes) that mostly hold for {key: value}, in the format of keys."""
    names = source.sample(NAMES, source.randrange(len(NAMES) + 1))
    conditions = []
    for name in names:
        value = held.get(name) if source.random() < 0.8 else source.choice((*VALUES, None))
        conditions.append(Absent(name) if value is None else Is(name, value))
    changes = [Put(name, source.choice(VALUES)) if source.random() < 0.7 else Delete(name)
               for name in source.sample(NAMES, source.randrange(1, 3))]
    return conditions, changes


@pytest.mark.parametrize("part", range(3))
def test_two_sessions_see_each_others_transactions(random_source, two, part):
    """Also if a transaction happens between another client's read and its transaction."""
    held: dict = {}

    def transact(keys):
        conditions, changes = drawn(random_source, held)
        expected = all(held.get(part.key) == getattr(part, "value", None) for part in conditions)
        looks = [Get(name) for name in NAMES]
        made, rows = keys.transact(conditions, changes, looks)
        assert made == expected, (conditions, changes, held)
        if not made:
            assert rows == [[Row(name, held[name])] if name in held else [] for name in NAMES]
            return
        for change in changes:
            held.pop(change.key, None)
            if isinstance(change, Put):
                held[change.key] = change.value

    for _ in range(60):
        transact(random_source.choice(two))
    for keys in two:
        assert keys.read_keys([Get(name) for name in NAMES]) == [
            [Row(name, held[name])] if name in held else [] for name in NAMES]


def test_nodes_changed_between_read_and_transaction_are_read_again(two):
    keys, other = two
    assert keys.transact([], [Put("/a/x", b"1")]).succeeded
    keys.kazoo.meanwhile = lambda: other.transact([], [Put("/a/x", b"2")])
    assert keys.transact([Is("/a/x", b"1")], [Put("/a/x", b"3")]) == (False, [])
    assert keys.get("/a/x").value == b"2"
    # A concurrent transaction may also leave the condition unchanged.
    keys.kazoo.meanwhile = lambda: other.transact([], [Put("/a/x", b"2")])
    assert keys.transact([Is("/a/x", b"2")], [Put("/a/x", b"3")]).succeeded


def test_key_created_during_a_transaction_fails_its_absence_condition(two):
    keys, other = two
    keys.kazoo.meanwhile = lambda: other.transact([], [Put("/a/x", b"2")])
    assert keys.transact([Absent("/a/x")], [Put("/a/y", b"3")]) == (False, [])
    assert keys.read_keys([Get("/a/x"), Get("/a/y")]) == [[Row("/a/x", b"2")], []]


def test_condition_does_not_change_its_key(keys, server):
    keys.transact([], [Put("/a/x", b"1")])
    assert keys.transact([Is("/a/x", b"1"), Absent("/a/z")], [Put("/a/y", b"2")]).succeeded
    assert server.nodes["/a/x"] == (b"1", 0, 0) and "/a/z" not in server.nodes


def test_constant_conflicts_end_with_an_unknown_outcome(two):
    keys, other = two
    tries = []

    def again():
        tries.append(other.transact([], [Put("/a/x", b"1")]).succeeded)
        keys.kazoo.meanwhile = again

    other.transact([], [Put("/a/x", b"1")])
    keys.kazoo.meanwhile = again
    with pytest.raises(Unknown, match="other clients keep changing the same keys"):
        keys.transact([Is("/a/x", b"1")], [Put("/a/x", b"2")])
    assert len(tries) == zookeeper.ATTEMPTS_MAX == len(keys.kazoo.committed)


# Reads.

def test_value_written_under_a_condition_is_not_read_again(keys):
    assert keys.transact([Absent("/a/x")], [Put("/a/x", b"1")]).succeeded
    for value in (b"1", b"2"):
        assert keys.transact([Is("/a/x", value)], [Put("/a/x", bytes([value[0] + 1]))]).succeeded
    assert reads(keys) == []


def test_cached_value_is_read_again_before_a_rejection(two):
    keys, other = two
    assert keys.transact([Absent("/a/x")], [Put("/a/x", b"1")]).succeeded
    other.transact([], [Put("/a/x", b"2")])
    assert keys.transact([Is("/a/x", b"2")], [Put("/a/x", b"3")]).succeeded
    assert reads(keys) == ["/a/x"]


def test_key_with_a_failed_condition_is_removed_from_the_cache(keys):
    assert keys.transact([Absent("/a/x")], [Put("/a/x", b"1")]).succeeded
    assert not keys.transact([Is("/a/x", b"?")], []).succeeded
    reads(keys)
    assert keys.transact([Is("/a/x", b"1")], [Delete("/a/x")]).succeeded
    assert reads(keys) == ["/a/x"]


def test_folder_is_created_once_and_again_after_removal(keys, server):
    for value in (b"1", b"2"):
        keys.transact([], [Put("/a/b/x", value), Delete("/a/b/y")])
    assert [path for what, path in keys.kazoo.asked if what == "ensure"] == ["/a/b"]
    server.nodes.clear()
    assert keys.transact([Absent("/a/b/z")], [Put("/a/b/z", b"3")]).succeeded
    assert server.nodes["/a/b/z"][0] == b"3"


def test_a_look_is_as_new_as_the_call(keys):
    keys.read_keys([Get("/a/x"), Get("/a/y")])
    assert keys.kazoo.asked == [("sync", "/"), ("get", "/a/x"), ("get", "/a/y")]


# Numbers.

def test_a_list_ends_before_the_first_number_that_is_missing(keys, server):
    for value in (1, 2, 3):
        keys.transact([], [Put(number(value), b"%d" % value)])

    def listed(first=0, count=9):
        return [int(row.value) for row in keys.read_keys([List("/c/", f"{first:020d}", count)])[0]]

    assert listed() == [1, 2, 3] and listed(2) == [2, 3] and listed(0, 2) == [1, 2]
    gone = server.nodes.pop("/c/" + "0" * 17 + "/002")
    server.nodes["/c/" + "0" * 17 + "/002/leaf"] = gone
    assert listed() == [1]


def test_numbers_of_many_floors_are_listed_in_their_order(keys):
    numbers = [1, 998, 999, 1000, 1001, 5000, 1_000_000]
    for value in reversed(numbers):
        keys.transact([], [Put(number(value), b"%d" % value)])
    for first in (0, 1, 999, 1000, 1002, 5001):
        rows, = keys.read_keys([List("/c/", f"{first:020d}", 3)])
        assert rows == [Row(number(value), b"%d" % value)
                        for value in numbers if value >= first][:3]


@pytest.mark.parametrize("below", [0, 1, 2, 999, 1000, 1001, 5001])
def test_drop_deletes_children_and_empty_parents(keys, server, below):
    numbers = [1, 2, 999, 1000, 5000]
    for value in numbers:
        keys.transact([], [Put(number(value), b"")])
    assert keys.drop([], "/c/", f"{below:020d}")
    rows, = keys.read_keys([List("/c/", f"{0:020d}", 99)])
    assert [int(row.key[3:]) for row in rows] == [value for value in numbers if value >= below]
    floors = {f"{value // 1000:017d}" for value in numbers if value // 1000 >= below // 1000}
    assert server.children("/c") == floors


def test_long_drop_is_split_and_each_part_checks_the_conditions(two, monkeypatch):
    keys, other = two
    monkeypatch.setattr(zookeeper, "DROPS_MAX", 2)
    other.transact([], [Put("/a/x", b"1"), *[Put(number(value), b"") for value in range(5)]])

    def meanwhile():
        keys.kazoo.meanwhile = lambda: None
        other.transact([], [Put("/a/y", b"")])

    keys.kazoo.meanwhile = meanwhile
    assert keys.drop([Is("/a/x", b"1")], "/c/", f"{5:020d}")
    assert [len(operations) for operations in keys.kazoo.committed] == [3, 3, 2]
    keys.kazoo.committed.clear()
    assert keys.drop([Absent("/a/z")], "/c/", f"{5:020d}")
    assert keys.kazoo.committed == [[("create", "/a/z"), ("delete", "/a/z")]]


def test_drop_with_an_outdated_condition_stops(two, monkeypatch):
    keys, other = two
    monkeypatch.setattr(zookeeper, "DROPS_MAX", 2)
    other.transact([], [Put("/a/x", b"1"), *[Put(number(value), b"") for value in range(5)]])
    of = keys._multi

    def multi(*arguments):
        found = of(*arguments)
        other.transact([], [Put("/a/x", b"2")])
        return found

    monkeypatch.setattr(keys, "_multi", multi)
    assert not keys.drop([Is("/a/x", b"1")], "/c/", f"{5:020d}")
    rows, = keys.read_keys([List("/c/", f"{0:020d}", 99)])
    assert [int(row.key[3:]) for row in rows] == [2, 3, 4]


# Leases.

def test_leased_value_belongs_to_its_session_and_to_a_later_writer(two, server):
    keys, other = two
    for one, value in ((keys, b"1"), (other, b"2"), (other, b"3")):
        assert one.transact([], [Put("/d/x", value, one.grant(9))]).succeeded
    server.end_session(keys.grant(9))
    assert keys.get("/d/x").value == b"3"
    server.end_session(other.grant(9))
    assert keys.get("/d/x") is None


def test_key_without_a_lease_is_permanent(keys, server):
    keys.transact([], [Put("/d/x", b"1")])
    server.end_session(keys.grant(9))
    assert keys.get("/d/x").value == b"1"


def test_a_lease_of_a_session_that_ended_puts_nothing(keys):
    lease = keys.grant(9)
    assert keys.keep_alive(lease) == 1
    keys.kazoo.client_id = (lease + 1, b"")
    assert keys.keep_alive(lease) == 0
    with pytest.raises(Unknown, match="the session has ended"):
        keys.transact([], [Put("/d/x", b"1", lease), Put("/d/y", b"1")])
    assert keys.kazoo.committed == []
    keys.kazoo.client_id = None
    with pytest.raises(Unreachable, match="the connection was lost"):
        keys.keep_alive(lease)


# Faults.

@pytest.mark.parametrize(("failure", "raised"), [
    (ConnectionLoss(), Unreachable), (NoAuthError(), KeysError)])
@pytest.mark.parametrize("what", ["sync", "get", "children"])
def test_a_look_that_fails_has_changed_nothing(keys, what, failure, raised):
    keys.kazoo.failures = {what: failure}
    with pytest.raises(raised, match=type(failure).__name__):
        keys.read_keys([Get("/a/x"), List("/c/", "0" * 20, 1)])


@pytest.mark.parametrize(("failure", "raised"), [
    (ConnectionLoss(), Unknown), (NoAuthError(), KeysError)])
@pytest.mark.parametrize("what", ["commit", "ensure"])
def test_unanswered_change_has_an_unknown_outcome_but_a_rejected_one_does_not(
        keys, what, failure, raised):
    keys.kazoo.failures = {what: failure}
    with pytest.raises(raised, match=type(failure).__name__):
        keys.transact([], [Put("/a/x", b"1")])


def test_rejection_inside_a_transaction_is_reported_as_its_cause(keys, server, monkeypatch):
    def refuse(*_):
        raise NoAuthError

    monkeypatch.setattr(server, "_create", refuse)
    with pytest.raises(KeysError, match="NoAuthError"):
        keys.transact([], [Put("/a/x", b"1"), Put("/a/y", b"1")])


def test_without_a_server_no_request_is_sent_and_a_failed_login_is_reported(keys):
    keys._timeout_s = 0
    keys.kazoo.connected.clear()
    with pytest.raises(Unreachable, match="no ZooKeeper session with z:1 after 0 s"):
        keys.read_keys([Get("/a/x")])
    keys.kazoo.client_state = KeeperState.AUTH_FAILED
    with pytest.raises(KeysError, match="the login failed"):
        keys.transact([], [Put("/a/x", b"1")])
    assert keys.kazoo.asked == []


def test_a_client_that_hangs_up_ends_its_session_and_kazoos_threads(keys, monkeypatch):
    heard = []
    for name in ("stop", "close"):
        monkeypatch.setattr(keys.kazoo, name, lambda name=name: heard.append(name), raising=False)
    keys.close()
    assert heard == ["stop", "close"]

"""Sessions and metrics: timeouts of members on the state machine's virtual clock."""

import pytest

from pylog.coordinator.groups import offsets
from pylog.coordinator.groups.shard import GroupShard
from pylog.coordinator.groups.state.classic_group import COMPLETING, EMPTY, PREPARING, STABLE
from pylog.coordinator.groups.state.group_store import Name
from tests.coordinator.groups.test_shard import LIMITS, Machine
from tests.coordinator.world import Clock, loaded

FIVE_MINUTES_MS = 300_000
G, H = Name("g", "consumer", "classic"), Name("h", "consumer", "classic")


@pytest.fixture
def store():
    return Machine()


def test_a_new_member_has_its_session_from_the_end_of_the_join_phase(store):
    store.join("a", session_ms=1000, rebalance_ms=5000)
    store.run(100)
    assert store.answers["a"].generation_id == 1 and store.group.state == COMPLETING
    store.run(999)
    assert list(store.group.members) == ["client-0"]
    store.run(1)
    assert store.group.members == {} and store.group.state == EMPTY


def test_join_response_starts_a_new_session(store):
    first, second = store.stable("a", "b")
    store.join("a again", first, session_ms=300, rebalance_ms=900,
                       protocols=(("range", b"n"),))
    for _ in range(4):
        store.run(200)
        assert store.heartbeat(second, 1) == 27 and first in store.group.members
    store.join("b again", second, session_ms=5000, rebalance_ms=900)
    assert store.answers["a again"].generation_id == 2
    store.run(299)
    assert first in store.group.members
    store.run(1)
    assert list(store.group.members) == [second]


def test_sync_restarts_a_followers_session(store):
    store.join("a", session_ms=1000)
    store.join("b", session_ms=1000)
    store.run(100).run(100)
    store.sync("b syncs", "client-1", 1)
    store.run(400)
    store.sync("a syncs", "client-0", 1, {"client-1": b"x"})
    store.run(999)
    assert set(store.group.members) == {"client-0", "client-1"}
    store.run(1)
    assert store.group.members == {}


def joined_by_two(store):
    """Return first and second member of generation 1; neither has sent SyncGroup."""
    for token in "ab":
        store.join(token, session_ms=1000, rebalance_ms=60_000)
    store.run(100).run(100)


def synced(store):
    store.sync("b syncs", "client-1", 1)
    store.sync("a syncs", "client-0", 1, {"client-1": b"x"})


@pytest.mark.parametrize("phase", ["JoinGroup", "SyncGroup"])
def test_session_starts_when_the_response_is_sent(store, phase):
    if phase == "SyncGroup":
        joined_by_two(store)
    store.flushes = False
    (joined_by_two if phase == "JoinGroup" else synced)(store)
    for _ in range(5):
        store.run(999)
        assert set(store.group.members) == {"client-0", "client-1"}
    store.flush()
    store.run(999)
    assert set(store.group.members) == {"client-0", "client-1"}
    # The timers are due without another request.
    assert store.groups.timers.next_ms() <= store.clock.ms + 1
    store.run(1)
    assert store.group.members == {}


def test_session_starts_when_a_sync_error_is_sent(store):
    joined_by_two(store)
    store.sync("b syncs", "client-1", 1)
    store.run(900)
    store.flushes = False
    store.join("c", session_ms=60_000, rebalance_ms=60_000)
    assert store.answers["b syncs"].error_code == 27
    store.run(3000)
    store.flush()
    store.run(999)
    assert "client-1" in store.group.members
    store.run(1)
    assert "client-1" not in store.group.members


def test_response_to_a_departed_member_starts_no_session(store):
    joined_by_two(store)
    store.flushes = False
    synced(store)
    assert store.groups.leave("g", [("client-0", None)]) == [0]
    store.settle()
    store.flush()
    store.run(999)
    assert list(store.group.members) == ["client-1"]
    assert ("member", "g", "client-0") not in store.groups.timers


def test_waiting_sync_keeps_the_session(store):
    store.join("a", session_ms=1000, rebalance_ms=5000)
    store.join("b", session_ms=1000, rebalance_ms=5000)
    store.run(100).run(100)
    store.sync("b syncs", "client-1", 1)
    store.run(900)
    assert store.heartbeat("client-0", 1) == 0
    store.run(900)
    assert set(store.group.members) == {"client-0", "client-1"}


def test_sync_ended_by_a_rebalance_starts_a_session(store):
    store.join("a", session_ms=1000, rebalance_ms=5000)
    store.join("b", session_ms=1000, rebalance_ms=5000)
    store.run(100).run(100)
    store.sync("b syncs", "client-1", 1)
    store.run(900)
    store.join("c", session_ms=1000)
    assert store.answers["b syncs"].error_code == 27
    store.run(999)
    assert list(store.group.members) == ["client-1", "client-2"]
    store.run(1)
    assert list(store.group.members) == ["client-2"]


def test_waiting_new_member_expires_after_five_minutes(store):
    first, = store.stable("a")
    store.join("a once more", first, rebalance_ms=400_000, protocols=(("range", b"n"),))
    store.sync("a syncs again", first, 2, {first: b""})
    assert store.group.state == STABLE
    store.join("c")
    for _ in range(FIVE_MINUTES_MS // 500 - 1):
        assert store.heartbeat(first, 2) == 27
        store.run(500)
    store.run(499)
    assert store.heartbeat(first, 2) == 27 and "c" not in store.answers
    store.run(1)
    assert store.answers["c"].error_code == 25 and list(store.group.members) == [first]


def test_a_member_of_a_replayed_group_has_a_session_to_show_up(store):
    first, second = store.stable("a", "b")
    again = Machine()
    loaded(again.groups, store.log)
    again.run(999)
    assert again.heartbeat(first, 1) == 0
    again.run(1)
    assert list(again.group.members) == [first]


def test_replayed_group_above_the_size_limit_rejoins(store):
    store.stable("a", "b", "c")
    for most, state in ((3, STABLE), (2, PREPARING)):
        again = Machine(LIMITS._replace(members_max=most))
        loaded(again.groups, store.log)
        assert again.group.state == state, most


def test_admin_removal_of_an_instance_is_counted_and_rebalances(store):
    store.join("a", instance="i")
    store.join("b", instance="k")
    store.run(100).run(100)
    assert store.groups.leave("g", [("", "i"), ("", "nobody"), ("x", None)]) == [0, 25, 25]
    assert store.group.state == PREPARING and list(store.group.statics) == ["k"]
    assert store.groups.events["member_left"] == 1


def test_issued_member_id_can_be_released(store):
    first, = store.stable("a")
    pending = store.join("b", version=4).member_id
    store.join("a again", first, protocols=(("range", b"n"),))
    assert "a again" not in store.answers, "the newcomer is waited for"
    assert store.groups.leave("g", [(pending, None)]) == [0]
    assert store.settle().answers["a again"].generation_id == 2
    assert store.join("b late", pending).error_code == 25


def test_unused_member_id_delays_a_group_for_at_most_a_session(store):
    first, = store.stable("a")
    pending = store.join("b", version=4, session_ms=300).member_id
    store.join("a again", first, rebalance_ms=5000, protocols=(("range", b"n"),))
    store.run(299)
    assert "a again" not in store.answers and store.group.pending == {pending}
    store.run(1)
    assert store.answers["a again"].generation_id == 2


def test_group_events_are_counted(store):
    events = store.groups.events

    def counted():
        found = {name: count for name, count in events.items() if count}
        events.update(dict.fromkeys(events, 0))
        return found

    first, second = store.stable("a", "b")
    assert counted() == {"member_joined": 2, "rebalance": 1, "generation": 1}
    store.commit(5, first, 1)
    assert counted() == {"offset_committed": 1}
    store.run(900)
    store.heartbeat(first, 1)
    store.run(100)
    assert counted() == {"member_expired": 1, "rebalance": 1}
    store.join("a again", first)
    assert counted() == {"generation": 1}
    store.groups.leave("g", [(first, None)])
    assert counted() == {"member_left": 1, "rebalance": 1, "generation": 1}
    store.clock.ms += 1000
    offsets.expire(store.groups, store.group)
    assert counted() == {"offset_expired": 1}


class Elsewhere:
    """Groups of another store, in the interface that the machine uses."""

    def __init__(self, *group_ids):
        self.log = {}
        for group_id in group_ids:
            source = Machine()
            source.join("a", group=group_id)
            source.run(100)
            source.groups.leave(group_id, [("client-0", None)])
            source.settle()
            self.log[group_id] = source.log

    def find(self, group_id):
        source = Machine()
        for key, value in self.log.get(group_id, ()):
            source.groups.replay(key, value)
        return source.groups.groups.get(group_id)

    def names(self):
        return [Name(group_id, "consumer", "classic") for group_id in self.log]


@pytest.fixture
def cold():
    return Elsewhere("g", "h")


@pytest.fixture
def machine_over(cold):
    groups = GroupShard(
        LIMITS, Clock(), iter(map(str, range(1000))).__next__, cold.find, cold.names)
    groups.loaded()
    return groups


def test_stored_group_is_found_and_listed_once(machine_over):
    assert machine_over.elsewhere() == [G, H]
    assert machine_over.find("g").state == EMPTY and machine_over.find("x") is None
    assert machine_over.elsewhere() == [H]
    assert machine_over.find("g") is machine_over.find_or_make("g")


def test_dropped_group_is_not_restored_from_the_store(machine_over):
    machine_over.drop(machine_over.find("g"))
    assert machine_over.find("g") is None and machine_over.elsewhere() == [H]
    assert machine_over.find_or_make("g").generation == 0
    key, value = machine_over.records[-1]
    machine_over.replay(machine_over.records[0][0], None)
    assert value is None and machine_over.find("g") is None


def test_replayed_tombstone_hides_the_stored_group(machine_over):
    key = next(key for key, value in Elsewhere("h").log["h"])
    machine_over.replay(key, None)
    assert machine_over.find("h") is None and machine_over.elsewhere() == [G]

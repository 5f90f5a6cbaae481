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
def machine():
    return Machine()


def test_a_new_member_has_its_session_from_the_end_of_the_join_phase(machine):
    machine.join("a", session_ms=1000, rebalance_ms=5000)
    machine.run(100)
    assert machine.answers["a"].generation_id == 1 and machine.group.state == COMPLETING
    machine.run(999)
    assert list(machine.group.members) == ["client-0"]
    machine.run(1)
    assert machine.group.members == {} and machine.group.state == EMPTY


def test_join_response_starts_a_new_session(machine):
    first, second = machine.stable("a", "b")
    machine.join("a again", first, session_ms=300, rebalance_ms=900, protocols=(("range", b"n"),))
    for _ in range(4):
        machine.run(200)
        assert machine.heartbeat(second, 1) == 27 and first in machine.group.members
    machine.join("b again", second, session_ms=5000, rebalance_ms=900)
    assert machine.answers["a again"].generation_id == 2
    machine.run(299)
    assert first in machine.group.members
    machine.run(1)
    assert list(machine.group.members) == [second]


def test_sync_restarts_a_followers_session(machine):
    machine.join("a", session_ms=1000)
    machine.join("b", session_ms=1000)
    machine.run(100).run(100)
    machine.sync("b syncs", "client-1", 1)
    machine.run(400)
    machine.sync("a syncs", "client-0", 1, {"client-1": b"x"})
    machine.run(999)
    assert set(machine.group.members) == {"client-0", "client-1"}
    machine.run(1)
    assert machine.group.members == {}


def joined_by_two(machine):
    """Return first and second member of generation 1; neither has sent SyncGroup."""
    for token in "ab":
        machine.join(token, session_ms=1000, rebalance_ms=60_000)
    machine.run(100).run(100)


def synced(machine):
    machine.sync("b syncs", "client-1", 1)
    machine.sync("a syncs", "client-0", 1, {"client-1": b"x"})


@pytest.mark.parametrize("phase", ["JoinGroup", "SyncGroup"])
def test_session_starts_when_the_response_is_sent(machine, phase):
    if phase == "SyncGroup":
        joined_by_two(machine)
    machine.flushes = False
    (joined_by_two if phase == "JoinGroup" else synced)(machine)
    for _ in range(5):
        machine.run(999)
        assert set(machine.group.members) == {"client-0", "client-1"}
    machine.flush()
    machine.run(999)
    assert set(machine.group.members) == {"client-0", "client-1"}
    # The timers are due without another request.
    assert machine.groups.timers.next_ms() <= machine.clock.ms + 1
    machine.run(1)
    assert machine.group.members == {}


def test_session_starts_when_a_sync_error_is_sent(machine):
    joined_by_two(machine)
    machine.sync("b syncs", "client-1", 1)
    machine.run(900)
    machine.flushes = False
    machine.join("c", session_ms=60_000, rebalance_ms=60_000)
    assert machine.answers["b syncs"].error_code == 27
    machine.run(3000)
    machine.flush()
    machine.run(999)
    assert "client-1" in machine.group.members
    machine.run(1)
    assert "client-1" not in machine.group.members


def test_response_to_a_departed_member_starts_no_session(machine):
    joined_by_two(machine)
    machine.flushes = False
    synced(machine)
    assert machine.groups.leave("g", [("client-0", None)]) == [0]
    machine.settle()
    machine.flush()
    machine.run(999)
    assert list(machine.group.members) == ["client-1"]
    assert ("member", "g", "client-0") not in machine.groups.timers


def test_waiting_sync_keeps_the_session(machine):
    machine.join("a", session_ms=1000, rebalance_ms=5000)
    machine.join("b", session_ms=1000, rebalance_ms=5000)
    machine.run(100).run(100)
    machine.sync("b syncs", "client-1", 1)
    machine.run(900)
    assert machine.heartbeat("client-0", 1) == 0
    machine.run(900)
    assert set(machine.group.members) == {"client-0", "client-1"}


def test_sync_ended_by_a_rebalance_starts_a_session(machine):
    machine.join("a", session_ms=1000, rebalance_ms=5000)
    machine.join("b", session_ms=1000, rebalance_ms=5000)
    machine.run(100).run(100)
    machine.sync("b syncs", "client-1", 1)
    machine.run(900)
    machine.join("c", session_ms=1000)
    assert machine.answers["b syncs"].error_code == 27
    machine.run(999)
    assert list(machine.group.members) == ["client-1", "client-2"]
    machine.run(1)
    assert list(machine.group.members) == ["client-2"]


def test_waiting_new_member_expires_after_five_minutes(machine):
    first, = machine.stable("a")
    machine.join("a once more", first, rebalance_ms=400_000, protocols=(("range", b"n"),))
    machine.sync("a syncs again", first, 2, {first: b""})
    assert machine.group.state == STABLE
    machine.join("c")
    for _ in range(FIVE_MINUTES_MS // 500 - 1):
        assert machine.heartbeat(first, 2) == 27
        machine.run(500)
    machine.run(499)
    assert machine.heartbeat(first, 2) == 27 and "c" not in machine.answers
    machine.run(1)
    assert machine.answers["c"].error_code == 25 and list(machine.group.members) == [first]


def test_a_member_of_a_replayed_group_has_a_session_to_show_up(machine):
    first, second = machine.stable("a", "b")
    again = Machine()
    loaded(again.groups, machine.log)
    again.run(999)
    assert again.heartbeat(first, 1) == 0
    again.run(1)
    assert list(again.group.members) == [first]


def test_replayed_group_above_the_size_limit_rejoins(machine):
    machine.stable("a", "b", "c")
    for most, state in ((3, STABLE), (2, PREPARING)):
        again = Machine(LIMITS._replace(members_max=most))
        loaded(again.groups, machine.log)
        assert again.group.state == state, most


def test_admin_removal_of_an_instance_is_counted_and_rebalances(machine):
    machine.join("a", instance="i")
    machine.join("b", instance="k")
    machine.run(100).run(100)
    assert machine.groups.leave("g", [("", "i"), ("", "nobody"), ("x", None)]) == [0, 25, 25]
    assert machine.group.state == PREPARING and list(machine.group.statics) == ["k"]
    assert machine.groups.events["member_left"] == 1


def test_issued_member_id_can_be_released(machine):
    first, = machine.stable("a")
    pending = machine.join("b", version=4).member_id
    machine.join("a again", first, protocols=(("range", b"n"),))
    assert "a again" not in machine.answers, "the newcomer is waited for"
    assert machine.groups.leave("g", [(pending, None)]) == [0]
    assert machine.settle().answers["a again"].generation_id == 2
    assert machine.join("b late", pending).error_code == 25


def test_unused_member_id_delays_a_group_for_at_most_a_session(machine):
    first, = machine.stable("a")
    pending = machine.join("b", version=4, session_ms=300).member_id
    machine.join("a again", first, rebalance_ms=5000, protocols=(("range", b"n"),))
    machine.run(299)
    assert "a again" not in machine.answers and machine.group.pending == {pending}
    machine.run(1)
    assert machine.answers["a again"].generation_id == 2


def test_group_events_are_counted(machine):
    events = machine.groups.events

    def counted():
        found = {name: count for name, count in events.items() if count}
        events.update(dict.fromkeys(events, 0))
        return found

    first, second = machine.stable("a", "b")
    assert counted() == {"member_joined": 2, "rebalance": 1, "generation": 1}
    machine.commit(5, first, 1)
    assert counted() == {"offset_committed": 1}
    machine.run(900)
    machine.heartbeat(first, 1)
    machine.run(100)
    assert counted() == {"member_expired": 1, "rebalance": 1}
    machine.join("a again", first)
    assert counted() == {"generation": 1}
    machine.groups.leave("g", [(first, None)])
    assert counted() == {"member_left": 1, "rebalance": 1, "generation": 1}
    machine.clock.ms += 1000
    offsets.expire(machine.groups, machine.group)
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

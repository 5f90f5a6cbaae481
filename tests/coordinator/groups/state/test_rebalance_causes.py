"""Rebalance metrics and history of each kind of group, with causes."""

import pytest

from pylog.coordinator.groups.state import rebalance_tracker
from tests.coordinator.groups.consumer import test_heartbeat as consumers
from tests.coordinator.groups.consumer.test_heartbeat_refusals import rows as partition_rows
from tests.coordinator.groups.streams import test_heartbeat as streams
from tests.coordinator.streams_world import CHANGELOG, REPARTITION, SOURCE
from tests.coordinator.streams_world import rows as task_rows


class Consumers(consumers.Machine):
    """A group with one member, "a", and its finished rebalances. owns: returns the fields with
    which a member reports n owned partitions or tasks.
    """

    session_ms = consumers.SESSION_MS

    def __init__(self):
        super().__init__()
        self.heard = []
        self.groups.rebalances._over = self.heard.append

    def again(self, member_id, **fields):
        return self.beat(member_id, self.epoch(member_id), **fields)

    def epoch(self, member_id):
        return self.group.members[member_id].epoch

    def lets_go(self, member_id):
        """Let the member report that it revoked everything outside its target."""
        kept = sorted(self.group.members[member_id].assigned.get(consumers.T.id, ()))
        return self.again(member_id, topic_partitions=partition_rows(consumers.T, *kept))

    def causes(self):
        """Return [(cause, member or None)] of each finished rebalance."""
        found = [[(row["cause"], row.get("member_id")) for row in entry["causes"]]
                 for entry in self.heard]
        self.heard.clear()
        return found


class Streams(streams.Machine, Consumers):
    session_ms = streams.SESSION_MS

    def __init__(self):
        streams.Machine.__init__(self)
        self.heard = []
        self.groups.rebalances._over = self.heard.append

    def lets_go(self, member_id):
        kept = self.group.members[member_id].assigned
        return self.again(member_id, active_tasks=task_rows(kept.active), standby_tasks=[],
                          warmup_tasks=[])


@pytest.fixture(params=[Consumers, Streams])
def store(request):
    made = request.param()
    made.join("a")
    return made


def counted(store):
    return {name: store.groups.events[name] for name in (
        "member_joined", "member_left", "member_expired", "rebalance")}


def test_rebalance_of_the_first_member_ends_immediately(store):
    assert store.causes() == [[(rebalance_tracker.JOINED, "a")]]
    assert counted(store) == {
        "member_joined": 1, "member_left": 0, "member_expired": 0, "rebalance": 1}


def test_rebalance_lasts_until_the_second_member_has_its_partitions(store):
    store.causes()
    store.join("b")
    store.again("a")
    assert store.causes() == []
    store.groups.clock.ms += 30
    store.lets_go("a")
    store.again("b")
    entry, = store.heard
    assert store.causes() == [[(rebalance_tracker.JOINED, "b")]]
    # "b" had no work since it joined, "a" always had some.
    assert [(row["member_id"], row["stopped_ms"]) for row in entry["stopped"]] == [("b", 30)]
    assert (entry["took_ms"], entry["members"], entry["stopped_ms"]) == (30, 2, 30)
    assert counted(store)["rebalance"] == 2


def test_leaving_member_is_counted_once_and_is_the_cause(store):
    store.join("b")
    store.causes()
    store.beat("b", -1)
    store.again("a")
    assert store.causes()[-1][-1] == (rebalance_tracker.LEFT, "b")
    assert counted(store) == {
        "member_joined": 2, "member_left": 1, "member_expired": 0, "rebalance": 3}
    assert ("g", ("b",)) in store.groups.changed


def test_silent_member_is_counted_once_and_is_the_cause(store):
    store.causes()
    store.run(store.session_ms)
    assert store.causes() == [[(rebalance_tracker.EXPIRED, "a")]]
    assert counted(store) == {
        "member_joined": 1, "member_left": 0, "member_expired": 1, "rebalance": 2}


def test_member_that_does_not_revoke_in_time_is_the_cause(store):
    if isinstance(store, Streams):
        store.again("a", rebalance_timeout_ms=100)
    store.join("b")
    store.causes()
    store.again("a")
    store.run(store.group.members["a"].rebalance_ms)
    store.again("b")
    assert store.causes() == [
        [(rebalance_tracker.JOINED, "b"), (rebalance_tracker.NOT_REVOKED, "a")]]
    assert counted(store)["member_expired"] == 1


def test_member_that_revoked_in_time_does_not_expire(store):
    store.join("b")
    store.again("a")
    store.lets_go("a")
    for _ in range(4):
        store.run(store.group.members["a"].rebalance_ms // 4 + 1)
        store.again("a")
        store.again("b")
    assert counted(store)["member_expired"] == 0 and len(store.group.members) == 2


def test_departed_member_does_not_time_out_later(store):
    store.join("b")
    store.again("a")
    store.beat("a", -1)
    store.run(store.session_ms - 1)
    assert list(store.group.members) == ["b"] and counted(store)["member_expired"] == 0
    store.join("a")
    store.run(1)
    # The returned member has a new session.
    assert list(store.group.members) == ["a"] and counted(store)["member_expired"] == 1


def test_changed_subscription_is_a_cause_but_not_a_join(store):
    store.causes()
    if isinstance(store, Streams):
        store.again("a", rack_id="r")
    else:
        store.again("a", subscribed_topic_names=["u"])
        store.again("a", topic_partitions=[])
    assert store.causes() == [[(rebalance_tracker.SUBSCRIBED, "a")]]
    assert counted(store)["member_joined"] == 1 and counted(store)["rebalance"] == 2


def test_topics_that_change_are_a_cause_without_a_member():
    store = Streams()
    store.join("a")
    store.causes()
    store.set_topics({SOURCE: 1, REPARTITION: 1, CHANGELOG: 1})
    store.again("a")
    store.lets_go("a")
    assert store.causes() == [[(rebalance_tracker.TOPICS, None)]]


def test_fields_sent_with_a_join_are_no_separate_cause():
    """Topics and configuration are new to a group whose first member joins."""
    store = Streams()
    store.join("a")
    assert store.causes() == [[(rebalance_tracker.JOINED, "a")]]

"""Causes of a group's rebalances, idle time of its members, and the files that store them."""

import asyncio
import json
from types import SimpleNamespace

import pytest

from pylog.coordinator.groups.consumer import target_assignment
from pylog.coordinator.groups.shard import GroupShard
from pylog.coordinator.groups.state import rebalance_history
from pylog.coordinator.groups.state import rebalance_tracker
from pylog.coordinator.groups.state.rebalance_history import History
from pylog.metadata.image.image import Image, Topic
from pylog.protocol import messages
from tests.coordinator.groups.consumer.test_heartbeat import IMAGE, SESSION_MS, T
from tests.coordinator.groups.consumer.test_heartbeat import Machine as Consumers
from tests.coordinator.groups.test_shard import LIMITS
from tests.coordinator.groups.test_shard import Machine as Classic
from tests.coordinator.world import Clock


def classic():
    store = Classic()
    store.told = []
    store.groups.rebalances = rebalance_tracker.Rebalances(store.clock,
                                                                   store.told.append)
    return store


def consumers():
    told = []
    store = Consumers(groups=GroupShard(
        LIMITS, Clock(), str, image=lambda: IMAGE, over=told.append))
    store.groups.loaded()
    store.told = told
    return store


def causes(rebalance) -> list:
    return [(row["cause"], row.get("member_id")) for row in rebalance["causes"]]


# ---- the classic protocol -----------------------------------------------------------------------

def test_first_rebalance_names_joined_members_and_their_waits():
    store = classic()
    store.join("a")
    store.run(5)
    store.join("b")
    store.run(100).run(100).run(100)
    assert store.told == []
    first = store.answers["a"]
    second = store.answers["b"]
    store.sync("a syncs", first.member_id, 1)
    store.run(7)
    store.sync("b syncs", second.member_id, 1)
    [told] = store.told
    assert causes(told) == [("joined", first.member_id), ("joined", second.member_id)]
    assert [row["after_ms"] for row in told["causes"]] == [0, 5]
    assert (told["took_ms"], told["generation"], told["members"]) == (312, 1, 2)
    assert {row["member_id"]: row["stopped_ms"] for row in told["stopped"]} == {
        first.member_id: 305, second.member_id: 307}
    assert told["stopped_ms"] == 612 and told["type"] == "classic"
    assert told["stopped"][0] == {"member_id": second.member_id, "client_id": "client",
                                  "host": "/host", "stopped_ms": 307}


def test_expired_member_is_the_cause_of_a_rejoin():
    store = classic()
    a, b = store.stable("a", "b")
    store.told.clear()
    store.run(999)
    store.heartbeat(a, 1)
    store.run(1)
    store.run(50)
    store.join("again", a)
    store.sync("last", a, 2)
    [told] = store.told
    assert causes(told) == [("session_expired", b)]
    assert (told["took_ms"], told["members"], told["generation"]) == (50, 1, 2)
    assert [(row["member_id"], row["stopped_ms"]) for row in told["stopped"]] == [(a, 0)]


def test_leaving_and_rejoining_members_may_give_a_reason():
    store = classic()
    a, b = store.stable("a", "b")
    store.told.clear()
    store.groups.leave("g", [(b, None, "the consumer is being closed")])
    store.settle()
    store.join("again", a)
    store.sync("last", a, 2)
    assert [row["reason"] for row in store.told[0]["causes"]] == ["the consumer is being closed"]
    new = messages.JoinGroupRequest
    store.groups.join(new(
        group_id="g", session_timeout_ms=1000, rebalance_timeout_ms=500, member_id=a,
        protocol_type="consumer", reason="r" * 300,
        protocols=[new.JoinGroupRequestProtocol(name="range", metadata=b"new")]),
        9, "client", "/host", "third")
    store.settle()
    store.sync("third sync", a, 3)
    assert causes(store.told[1]) == [("rejoined", a)]
    assert store.told[1]["causes"][0]["reason"] == "r" * rebalance_tracker.REASON_MAX


@pytest.mark.parametrize("joins", (False, True))
def test_delaying_member_is_named(joins):
    store = classic()
    a, b = store.stable("a", "b")
    store.told.clear()
    store.join("a again", a, protocols=(("range", b"other"),))
    if joins:
        store.join("b again", b)
        store.sync("a syncs again", a, 2)
    for _ in range(5):
        store.heartbeat(a, store.group.generation)
        store.heartbeat(b, store.group.generation)
        store.run(100)
    if joins:
        store.join("a once more", a)
    store.sync("last", a, store.group.generation)
    [told] = store.told
    assert causes(told) == [("rejoined", a), ("sync_timeout" if joins else "rejoin_timeout", b)]
    assert (told["took_ms"], told["members"]) == (500, 1)


def test_rebalance_ends_when_all_members_left():
    store = classic()
    [a] = store.stable("a")
    store.told.clear()
    store.groups.leave("g", [(a, None)])
    store.settle()
    [told] = store.told
    assert (causes(told), told["members"], told["stopped"]) == ([("left", a)], 0, [])


def test_returning_instance_is_a_cause_only_if_it_triggers_a_rebalance():
    store = classic()
    both = (("range", b""), ("roundrobin", b""))
    store.join("a", instance="i", protocols=both)
    store.run(100).run(100)
    store.sync("a syncs", store.answers["a"].member_id, 1)
    store.told.clear()
    store.join("back", instance="i", protocols=both)
    store.sync("back syncs", store.answers["back"].member_id, 1)
    assert store.told == []
    store.join("other", instance="i", protocols=(("roundrobin", b""),))
    store.sync("other syncs", store.answers["other"].member_id, 2)
    assert [cause for cause, _ in causes(store.told[0])] == ["instance_replaced"]


def test_causes_and_members_are_limited_and_the_rest_counted():
    store = classic()
    store.groups.limits = LIMITS._replace(members_max=1000)
    for number in range(30):
        store.join(number)
    while 0 not in store.answers:
        store.run(100)
    for number in range(30):
        store.sync(f"{number} syncs", store.answers[number].member_id, 1)
    [told] = store.told
    assert (len(told["causes"]), told["causes_left_out"]) == (rebalance_tracker.CAUSES_MAX, 10)
    assert (len(told["stopped"]), told["stopped_left_out"]) == (rebalance_tracker.MEMBERS_MAX, 10)
    assert "and 29 more" in rebalance_tracker.sentence(told)


# ---- consumer groups ----------------------------------------------------------------------------

def test_rebalance_of_a_consumer_group_ends_when_all_members_reach_its_epoch():
    store = consumers()
    store.join("a")
    assert [(causes(told), told["took_ms"]) for told in store.told] == [([("joined", "a")], 0)]
    store.join("b")
    store.run(30)
    store.beat("a", 2)  # It receives the partitions to revoke.
    store.run(40)
    store.beat("a", 2, topic_partitions=[_owns(T.id, (0, 1))])
    assert len(store.told) == 1
    store.run(5)
    store.beat("b", 3)
    told = store.told[1]
    assert causes(told) == [("joined", "b")] and told["type"] == "consumer"
    assert (told["took_ms"], told["generation"], told["members"]) == (75, 3, 2)
    # A member that keeps some of its partitions does not stop.
    assert [(row["member_id"], row["stopped_ms"]) for row in told["stopped"]] == [("b", 75)]


def test_joins_do_not_scan_all_members():
    looked, told = [], []
    group = SimpleNamespace(id="g", kind="consumer", generation=1, members=range(1000))

    def whom():
        for number in group.members:
            looked.append(number)
            yield f"m{number}"

    kept = rebalance_tracker.Rebalances(Clock(), told.append)
    kept.because(group, rebalance_tracker.JOINED)
    for _ in range(50):
        kept.waits_for(group, whom)
    assert len(looked) == 50
    for number in group.members:
        assert told == []
        kept.arrived(group, f"m{number}")
    assert len(told) == 1 and len(looked) == 1050


def test_sessions_subscriptions_and_topics_are_distinguished():
    store = consumers()
    store.join("a")
    store.join("b", topics=("u",))
    store.beat("a", 2)
    store.told.clear()
    store.beat("a", 3, subscribed_topic_names=["t", "u"])
    store.beat("a", 4)
    store.beat("b", 3)
    store.beat("b", 3, topic_partitions=[_owns(IMAGE.topics["u"].id, (0, 1))])
    store.beat("a", 4)
    assert causes(store.told[0])[0] == ("subscription_changed", "a")
    grown = Topic("t", T.id, T.partitions + T.partitions)
    store.groups.image = lambda: Image(topics={"t": grown}, topics_by_id={T.id: grown}, offset=6)
    target_assignment.topics_changed(store.groups, {"t"})
    store.told.clear()
    store.run(SESSION_MS)
    assert {row[0] for told in store.told for row in causes(told)} == {"session_expired"}
    assert store.told[-1]["members"] == 0


def test_a_topic_that_grows_is_a_cause_without_a_member():
    store = consumers()
    store.join("a")
    store.told.clear()
    grown = Topic("t", T.id, T.partitions + T.partitions)
    store.groups.image = lambda: Image(topics={"t": grown}, topics_by_id={T.id: grown}, offset=6)
    target_assignment.topics_changed(store.groups, {"t"})
    store.beat("a", 2)
    [told] = store.told
    assert causes(told) == [("topics_changed", None)]
    assert rebalance_tracker.sentence(told) == "its topics changed; no member stopped consuming"


def test_member_that_does_not_revoke_or_leaves_is_named():
    store = consumers()
    store.join("a")
    store.join("b")
    store.beat("a", 2)
    store.told.clear()
    store.run(1000)
    store.beat("b", 3)
    assert causes(store.told[0]) == [("joined", "b"), ("revocation_timeout", "a")]
    assert store.told[0]["stopped_ms"] == 1000
    store.beat("b", -1)
    assert (causes(store.told[1]), store.told[1]["members"]) == ([("left", "b")], 0)


def _owns(topic_id, partitions):
    return messages.ConsumerGroupHeartbeatRequest.TopicPartitions(
        topic_id=topic_id, partitions=list(partitions))


# ---- stored history -----------------------------------------------------------------------------

def one(group="g", generation=1):
    return {"group": group, "type": "classic", "time_ms": 1, "took_ms": 2, "generation": generation,
            "members": 1, "causes": [{"cause": "topics_changed", "after_ms": 0}],
            "causes_left_out": 0, "stopped": [], "stopped_left_out": 0, "stopped_ms": 0}


def added(kept: History, *rows) -> None:
    async def work():
        for row in rows:
            kept.add(row)
        await kept.close()

    asyncio.run(work())


def test_the_newest_come_first_and_survive_a_restart(tmp_path):
    added(History(str(tmp_path)), one(generation=1), one("other"), one('"g"'), one(generation=2))
    kept = History(str(tmp_path))
    assert [row["generation"] for row in kept.find("g", 10)] == [2, 1]
    assert kept.find("g", 1) == [one(generation=2)]
    assert kept.find('"g"', 10) == [one('"g"')]
    assert kept.find("nobody", 10) == []


def test_half_a_line_costs_that_line_only(tmp_path):
    added(History(str(tmp_path)), one(generation=1), one(generation=2))
    path = tmp_path / rebalance_history.FILE
    path.write_bytes(path.read_bytes()[:-9])
    kept = History(str(tmp_path))
    added(kept, one(generation=3))
    assert [row["generation"] for row in kept.find("g", 10)] == [3, 1]


def test_history_files_are_limited_and_both_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(rebalance_history, "BYTES_MAX", 3 * len(json.dumps(one())))
    for generation in range(10):
        added(History(str(tmp_path)), one(generation=generation))
    assert sorted(path.name for path in tmp_path.iterdir()) == [rebalance_history.OLDER,
                                                                rebalance_history.FILE]
    largest = max(path.stat().st_size for path in tmp_path.iterdir())
    assert largest <= 3 * rebalance_history.BYTES_MAX // 2
    found = [row["generation"] for row in History(str(tmp_path)).find("g", 10)]
    assert found == [9, 8, 7, 6]


def test_failed_history_write_is_counted_and_logged_later(tmp_path, monkeypatch):
    kept = History(str(tmp_path / "gone"))
    added(kept, one(generation=1), one(generation=2))
    (tmp_path / "gone").mkdir()
    monkeypatch.setattr(rebalance_history, "LINES_MAX", 1)
    added(kept, one(generation=3), one(generation=4))
    added(kept, one(generation=5))
    assert [(row["generation"], row.get("dropped_before")) for row in kept.find("g", 9)] == [
        (5, 1), (3, 2)]

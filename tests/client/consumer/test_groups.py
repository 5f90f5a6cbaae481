"""Members of a group: assignments, rebalances, and callbacks."""

import os
import signal
import subprocess
import sys
import time

import pytest

from pylog.client import Admin, Consumer, TopicPartition, errors
from pylog.client.consumer import offset_requests
from tests.client.support import collect, new_name, new_topic, poll_until, put, rows
from tests.fixtures.brokers import REPOSITORY

BROKER_SETTINGS = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "500",
                   "group.consumer.min.heartbeat.interval.ms": "200",
                   "group.consumer.heartbeat.interval.ms": "200",
                   "group.consumer.assignment.interval.ms": "0"}
PROTOCOLS = ["classic", "consumer"]
ASSIGNORS = ["range", "roundrobin", "sticky", "cooperative-sticky"]


@pytest.fixture
def join(broker):
    """Create members that are closed at the end."""
    made = []

    def member(group, topics=None, **settings):
        told = settings.pop("listener", None)
        pattern = settings.pop("pattern", None)
        consumer = Consumer({
            "bootstrap.servers": broker.bootstrap, "group.id": group, "auto.offset.reset":
            "earliest", "heartbeat.interval.ms": 200, "metadata.max.age.ms": 500}, **settings)
        made.append(consumer)
        consumer.subscribe(topics, pattern=pattern, listener=told)
        return consumer

    yield member
    for consumer in made:
        consumer.close()


def shares(*consumers) -> list[int]:
    return sorted(len(consumer.assignment()) for consumer in consumers)


class Told:
    """Records a listener's callbacks."""

    def __init__(self):
        self.calls = []

    @property
    def has(self) -> set:
        """Return the partitions that the listener must believe it owns."""
        found: set = set()
        for what, partitions in self.calls:
            found = found | partitions if what == "assigned" else found - partitions
        return found

    def on_partitions_assigned(self, partitions):
        self.calls.append(("assigned", set(partitions)))

    def on_partitions_revoked(self, partitions):
        self.calls.append(("revoked", set(partitions)))

    def on_partitions_lost(self, partitions):
        self.calls.append(("lost", set(partitions)))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_members_share_partitions_and_take_over_from_leaving_ones(broker, join, protocol):
    topic, group = new_topic(broker, 4), new_name("g")
    first = join(group, [topic], group_protocol=protocol)
    poll_until([first], lambda: shares(first) == [4], "the first member's partitions")
    second = join(group, [topic], group_protocol=protocol)
    poll_until([first, second], lambda: shares(first, second) == [2, 2], "a share each")
    assert not set(first.assignment()) & set(second.assignment())
    second.close()
    poll_until([first], lambda: shares(first) == [4], "what the other had")


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_every_assignor_delivers_each_record_to_one_member(broker, join, assignor):
    topics = [new_topic(broker, 3), new_topic(broker, 2)]
    group = new_name("g")
    members = [join(group, topics, partition_assignment_strategy=assignor) for _ in range(3)]
    poll_until(members, lambda: shares(*members) in ([1, 2, 2], [0, 2, 3]), "a share each")
    for number in range(3):
        put(broker, topics[0], rows(20, 100 * number), number)
    put(broker, topics[1], rows(20, 900), 1)
    found = []
    end_s = time.monotonic() + 30
    while len(found) < 80 and time.monotonic() < end_s:
        for member in members:
            found += member.poll(0.05)
    assert len(found) == len({(one.topic, one.partition, one.offset) for one in found}) == 80


def test_group_resumes_from_committed_offsets(broker, join):
    topic, group = new_topic(broker), new_name("g")
    put(broker, topic, rows(100))
    first = join(group, [topic], enable_auto_commit=False)
    assert len(collect(first, 30)[:30]) == 30
    first.commit({TopicPartition(topic, 0): 30})
    first.close()
    second = join(group, [topic])
    assert collect(second, 70)[0].offset == 30


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_group_resumes_from_stored_offsets(broker, join, protocol):
    topic, group = new_topic(broker), new_name("g")
    put(broker, topic, rows(100))
    first = join(group, [topic], enable_auto_offset_store=False, group_protocol=protocol)
    found = collect(first, 100)
    first.store_offsets(found[29])
    first.close()  # This commits automatically.
    second = join(group, [topic], group_protocol=protocol)
    assert collect(second, 70)[0].offset == 30


@pytest.mark.parametrize("member", [True, False], ids=["member", "assigned"])
def test_close_waits_for_the_commits_in_the_background(broker, join, member):
    topic, group = new_topic(broker), new_name("g")
    part = TopicPartition(topic, 0)
    put(broker, topic, rows(100))
    if member:
        consumer = join(group, [topic], enable_auto_commit=False)
        poll_until([consumer], lambda: shares(consumer) == [1], "the partition")
    else:
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group},
                            enable_auto_commit=False)
        consumer.assign([part])
    done = []
    for offset in range(1, 51):
        consumer.commit_async({part: offset}, lambda given, failure: done.append(
            (given[part].offset if failure is None else given[part], failure)))
    consumer.close()
    # Until the coordinator is known, each commit is retried separately: the last one must win.
    assert sorted(done) == [(offset, None) for offset in range(1, 51)]
    with Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group}) as after:
        assert after.committed([part])[part].offset == 50


def test_retried_commit_does_not_undo_a_later_one(broker, monkeypatch):
    topic, group = new_topic(broker), new_name("g")
    part, commit, tried = TopicPartition(topic, 0), offset_requests.commit, []

    async def failing_once(cluster, who, offsets):
        tried.append(dict(offsets))
        if len(tried) == 1:
            raise errors.RetriableError("not now")
        await commit(cluster, who, offsets)

    monkeypatch.setattr(offset_requests, "commit", failing_once)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group},
                        enable_auto_commit=False)
    consumer.assign([part])
    done = []
    for offset in (1, 2):
        consumer.commit_async({part: offset}, lambda given, failure: done.append(
            (given[part].offset, failure)))
    consumer.close()
    assert sorted(done) == [(1, None), (2, None)]
    assert len(tried) >= 3  # More, if the group's coordinator is still loading.
    with Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group}) as after:
        assert after.committed([part])[part].offset == 2


def test_revoked_partitions_can_still_be_committed(broker, join):
    topic, group = new_topic(broker, 2), new_name("g")
    put(broker, topic, rows(20), 0)
    put(broker, topic, rows(20), 1)

    class Committing(Told):
        def on_partitions_revoked(self, partitions):
            super().on_partitions_revoked(partitions)
            first.commit()

    told = Committing()
    first = join(group, [topic], enable_auto_commit=False, listener=told)
    collect(first, 40)
    second = join(group, [topic])
    found = poll_until([first, second], lambda: shares(first, second) == [1, 1], "a share each")
    found += second.poll(0.5) + first.poll(0.5)
    assert found == []
    everything = {TopicPartition(topic, 0), TopicPartition(topic, 1)}
    assert told.calls[:2] == [("assigned", everything), ("revoked", everything)]


def test_callbacks_may_ask_seek_and_commit(broker, join):
    topic, group = new_topic(broker), new_name("g")
    put(broker, topic, rows(50))
    part, seen = TopicPartition(topic, 0), []

    class Seeking(Told):
        def on_partitions_assigned(self, partitions):
            seen.append(member.position(part, 10))
            member.seek(part, 45)
            member.commit({part: 7})
            seen.append(member.committed([part])[part].offset)

    member = join(group, [topic], listener=Seeking())
    assert [one.offset for one in collect(member, 5)] == [45, 46, 47, 48, 49]
    assert seen == [0, 7]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_cooperative_members_continue_to_read_kept_partitions(broker, join, protocol):
    topic, group = new_topic(broker, 4), new_name("g")
    told = Told()
    settings = {"group_protocol": protocol} if protocol == "consumer" else {
        "partition_assignment_strategy": "cooperative-sticky"}
    first = join(group, [topic], listener=told, **settings)
    poll_until([first], lambda: shares(first) == [4], "the first member's partitions")
    second = join(group, [topic], **settings)
    poll_until([first, second], lambda: shares(first, second) == [2, 2], "a share each")
    revoked = [parts for what, parts in told.calls if what == "revoked"]
    assert len(revoked) == 1 and len(revoked[0]) == 2


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_pattern_subscription_includes_later_topics(broker, join, protocol):
    stem, group = new_name("pat"), new_name("g")
    new_topic(broker, 1, f"{stem}-a")
    new_topic(broker, 1, f"other-{stem}")
    member = join(group, pattern=f"^{stem}-.*", group_protocol=protocol)
    poll_until([member], lambda: shares(member) == [1], "the first topic")
    new_topic(broker, 2, f"{stem}-b")
    poll_until([member], lambda: shares(member) == [3], "the second topic")
    assert all(name.startswith(stem) for name in member.subscription())


def test_grown_topic_is_reassigned(broker, join):
    topic, group = new_topic(broker), new_name("g")
    member = join(group, [topic])
    poll_until([member], lambda: shares(member) == [1], "the partition")
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_partitions({topic: 3})
    poll_until([member], lambda: shares(member) == [3], "the new partitions")


def test_a_subscription_can_change(broker, join):
    one, two, group = new_topic(broker), new_topic(broker, 2), new_name("g")
    member = join(group, [one])
    poll_until([member], lambda: shares(member) == [1], "the first topic")
    member.subscribe([two])
    poll_until([member], lambda: {tp.topic for tp in member.assignment()} == {two}, "the second")
    member.unsubscribe()
    assert member.assignment() == [] and member.subscription() == set()
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        assert admin.describe_consumer_groups([group])[group].members == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_returning_static_member_keeps_its_partitions(broker, join, protocol):
    topic, group = new_topic(broker, 4), new_name("g")
    settings = {"group_protocol": protocol}
    told = Told()
    stays = join(group, [topic], group_instance_id="stays", listener=told, **settings)
    goes = join(group, [topic], group_instance_id="goes", **settings)
    poll_until([stays, goes], lambda: shares(stays, goes) == [2, 2] and told.has == set(
        stays.assignment()), "a share each, and being told of it")
    had, calls = set(goes.assignment()), len(told.calls)
    goes.close()
    again = join(group, [topic], group_instance_id="goes", **settings)
    poll_until([stays, again], lambda: shares(again) == [2], "the same share")
    assert set(again.assignment()) == had
    # An empty assignment may be reported late; it does not affect revoked partitions.
    assert [call for call in told.calls[calls:] if call != ("assigned", set())] == []


def test_a_second_member_of_the_same_instance_id_fences_the_first(broker, join):
    topic, group = new_topic(broker), new_name("g")
    first = join(group, [topic], group_instance_id="one")
    poll_until([first], lambda: shares(first) == [1], "the partition")
    second = join(group, [topic], group_instance_id="one")
    poll_until([second], lambda: shares(second) == [1], "the partition")
    with pytest.raises(errors.FencedInstanceIdError) as caught:
        poll_until([first], lambda: False, "being fenced")
    assert caught.value.fatal


def test_member_that_does_not_poll_loses_its_partitions(broker, join):
    topic, group = new_topic(broker, 2), new_name("g")
    told = Told()
    slow = join(group, [topic], max_poll_interval_ms=1000, session_timeout_ms=6000,
                enable_auto_commit=False, listener=told)
    poll_until([slow], lambda: shares(slow) == [2], "the partitions")
    other = join(group, [topic])
    poll_until([slow, other], lambda: shares(slow, other) == [1, 1], "a share each")
    poll_until([other], lambda: shares(other) == [2], "what the slow one had")
    with pytest.raises(errors.CommitFailedError):
        slow.commit({TopicPartition(topic, 0): 1})
    poll_until([slow, other], lambda: shares(slow, other) == [1, 1], "a share each again")
    assert "lost" in [what for what, _ in told.calls]


MEMBER = """
import sys
from pylog.client import Consumer
consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": sys.argv[2],
                     "session.timeout.ms": 6000, "heartbeat.interval.ms": 200})
consumer.subscribe([sys.argv[3]])
told = False
while True:
    consumer.poll(0.1)
    if consumer.assignment() and not told:
        print("joined", flush=True)
        told = True
"""


def test_a_member_that_dies_is_replaced(broker, join):
    topic, group = new_topic(broker, 2), new_name("g")
    member = join(group, [topic], session_timeout_ms=6000)
    child = subprocess.Popen(
        [sys.executable, "-c", MEMBER, broker.bootstrap, group, topic], stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)})
    try:
        poll_until([member], lambda: shares(member) == [1], "the child to join")
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
    poll_until([member], lambda: shares(member) == [2], "what the dead one had")


def test_members_of_other_clients_share_a_group_with_ours(broker, join):
    from confluent_kafka import Consumer as Other

    topic, group = new_topic(broker, 4), new_name("g")
    ours = join(group, [topic], partition_assignment_strategy="range")
    other = Other({"bootstrap.servers": broker.bootstrap, "group.id": group,
                   "partition.assignment.strategy": "range"})
    other.subscribe([topic])
    try:
        end_s = time.monotonic() + 30
        while not (shares(ours) == [2] and len(other.assignment()) == 2):
            assert time.monotonic() < end_s, (ours.assignment(), other.assignment())
            ours.poll(0.05)
            other.poll(0.05)
        assert not {(tp.topic, tp.partition) for tp in other.assignment()} & set(ours.assignment())
    finally:
        other.close()


def test_a_group_that_is_not_allowed_is_an_error_of_poll(broker, join):
    member = join("", [new_topic(broker)])
    with pytest.raises(errors.InvalidGroupIdError):
        poll_until([member], lambda: False, "the refusal", 10)

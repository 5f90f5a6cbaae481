"""Streams and share groups whose coordinator dies during a rebalance.

The next coordinator continues the rebalance, and no member has to join again.
"""

import itertools
import time

import pytest

from pylog.client import Admin, NewTopic
from pylog.protocol import api, messages
from pylog.protocol.errors import ErrorCode
from pylog.testing import Cluster
from tests.coordinator.streams_world import rows, subtopology, told, topology
from tests.fixtures.clusters import until
from tests.security.caller import Caller
from tests.wire.raw import Closed

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]
LONG_MS = 3_600_000  # No member's session expires, however long a failover takes.
SETTINGS = {"broker.session.timeout.ms": 1500, "offsets.topic.num.partitions": 1,
            "group.streams.session.timeout.ms": LONG_MS,
            "group.streams.max.session.timeout.ms": LONG_MS,
            "group.streams.initial.rebalance.delay.ms": 0,
            "group.streams.assignment.interval.ms": 0,
            "group.share.session.timeout.ms": LONG_MS,
            "group.share.max.session.timeout.ms": LONG_MS,
            "group.share.assignment.interval.ms": 0,
            "share.coordinator.state.topic.num.partitions": 1,
            "share.coordinator.state.topic.replication.factor": 3,
            "share.coordinator.state.topic.min.isr": 1}
OFFSETS = "__consumer_offsets"
PARTITIONS = 6
WAIT_S = 90
NOT_YET = {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
           ErrorCode.COORDINATOR_NOT_AVAILABLE}
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def shared():
    with Cluster(3, settings=SETTINGS) as found:
        yield found


@pytest.fixture
def cluster(shared):
    yield shared
    for broker in shared.brokers.values():
        if not broker.running:
            broker.start()


class Group:
    """A group and its topic. describe: the request's class, its key and version."""

    def __init__(self, cluster, describe):
        self.cluster = cluster
        self.id = f"g-{next(NUMBERS)}"
        self.topic = f"t-{self.id}"
        self.describe = describe
        self.caller = None
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            admin.create_topics([NewTopic(self.topic, PARTITIONS, 3)])
        cluster.wait_in_sync(self.topic)

    def ask(self, key, version, request, code=lambda answer: answer.error_code):
        """Send a request to the current coordinator, retry until it succeeds, and return the
        response.
        """
        end_s = time.monotonic() + WAIT_S
        while time.monotonic() < end_s:
            try:
                if self.caller is None:
                    self.caller = self.coordinator()
                answer = self.caller and self.caller.ask(key, version, request)
                if answer is not None and code(answer) not in NOT_YET:
                    return answer
            except (Closed, OSError):
                pass
            self.hang_up()
            time.sleep(0.05)
        raise AssertionError(f"no coordinator answers {request}")

    def coordinator(self):
        """Return a connection to the coordinator, or None."""
        host, port = self.cluster.bootstrap.split(",")[0].rsplit(":", 1)
        with Caller(int(port), host=host) as asked:
            found = asked.ask(api.FIND_COORDINATOR, 4, messages.FindCoordinatorRequest(
                coordinator_keys=[self.id])).coordinators[0]
        return None if found.error_code else Caller(found.port, host=found.host)

    def hang_up(self):
        if self.caller is not None:
            self.caller.close()
        self.caller = None

    def described(self):
        kind, key, version = self.describe
        answer = self.ask(key, version, kind(group_ids=[self.id]),
                          lambda answer: answer.groups[0].error_code)
        found, = answer.groups
        assert found.error_code == 0, found
        return found

    def lose_coordinator(self):
        """Kill the coordinator's broker and wait until another one leads its partitions."""
        self.cluster.wait_in_sync(OFFSETS)
        leader = self.cluster.leader(OFFSETS)
        self.cluster.kill(leader)
        until(lambda: self.cluster.leader(OFFSETS) not in (leader, -1), WAIT_S)


# ---- Streams groups -----------------------------------------------------------------------------


class Application:
    """A member of a Streams group. told: its assigned tasks; owned: its running tasks."""

    def __init__(self, group, name):
        self.group, self.name = group, name
        self.epoch = 0
        self.told, self.owned = set(), set()

    def join(self):
        self.heartbeat(dict(topology=topology(subtopology("0", [self.group.topic])),
                        rebalance_timeout_ms=LONG_MS, process_id=self.name))

    def beat(self):
        self.heartbeat({})

    def heartbeat(self, more):
        """Send a heartbeat with all running tasks."""
        owned = {"0": {index for _, index in self.owned}} if self.owned else {}
        answer = self.group.ask(api.STREAMS_GROUP_HEARTBEAT, 0,
                                messages.StreamsGroupHeartbeatRequest(
                                    group_id=self.group.id, member_id=self.name,
                                    member_epoch=self.epoch, active_tasks=rows(owned),
                                    standby_tasks=[], warmup_tasks=[], **more))
        assert answer.error_code == 0, answer
        assert answer.member_epoch >= self.epoch
        self.epoch = answer.member_epoch
        found = told(answer)
        if found is not None:
            self.told = found[0]

    def run(self, *others):
        """Apply the assignment."""
        for other in others:
            assert self.told.isdisjoint(other.owned), (self.name, self.told, other.owned)
        self.owned = set(self.told)


def streams(cluster):
    """(the group, a member that runs every task, a new member)"""
    group = Group(cluster, (messages.StreamsGroupDescribeRequest, api.STREAMS_GROUP_DESCRIBE, 0))
    first, second = Application(group, "first"), Application(group, "second")
    first.join()
    until(lambda: first.beat() or len(first.told) == PARTITIONS, WAIT_S)
    first.run()
    first.beat()
    second.join()
    assert second.told == set()
    return group, first, second


def nothing_yet(first):
    """State before the first member learns of the second."""


def told_only(first):
    """The first member received its new assignment and still runs all tasks."""
    first.beat()
    assert len(first.told) == PARTITIONS // 2


def given_up(first):
    """The first member revoked the second's tasks, which the second does not know yet."""
    told_only(first)
    first.run()
    first.beat()


@pytest.mark.parametrize("how_far", [nothing_yet, told_only, given_up])
def test_streams_group_completes_the_rebalance_after_coordinator_failover(cluster, how_far):
    group, first, second = streams(cluster)
    how_far(first)
    before, kept = group.described(), set(first.told)
    group.lose_coordinator()
    after = group.described()
    assert (after.group_epoch, after.assignment_epoch) == (
        before.group_epoch, before.assignment_epoch)
    assert {row.member_id: row.member_epoch for row in after.members} == {
        row.member_id: row.member_epoch for row in before.members}

    def is_done():
        first.beat()
        first.run(second)
        second.beat()
        second.run(first)
        return first.epoch == second.epoch == before.group_epoch \
            and len(first.owned | second.owned) == PARTITIONS

    until(is_done, WAIT_S)
    assert len(first.owned) == len(second.owned) == PARTITIONS // 2
    assert first.owned <= kept
    last = group.described()
    assert (last.group_state, last.group_epoch) == ("Stable", before.group_epoch)
    group.hang_up()


def test_stable_streams_group_stays_stable_after_coordinator_failover(cluster):
    group, first, second = streams(cluster)
    given_up(first)
    second.beat()
    second.run(first)
    second.beat()
    before = group.described()
    assert before.group_state == "Stable"
    group.lose_coordinator()
    for member in (first, second):
        member.beat()
        assert member.told == member.owned
    assert group.described().group_epoch == first.epoch == second.epoch == before.group_epoch
    group.hang_up()


# ---- share groups -------------------------------------------------------------------------------


class Worker:
    """A member of a share group."""

    def __init__(self, group, name):
        self.group, self.name = group, name
        self.epoch, self.assigned = 0, set()

    def beat(self):
        answer = self.group.ask(api.SHARE_GROUP_HEARTBEAT, 1, messages.ShareGroupHeartbeatRequest(
            group_id=self.group.id, member_id=self.name, member_epoch=self.epoch,
            subscribed_topic_names=[self.group.topic] if self.epoch == 0 else None))
        assert answer.error_code == 0, answer
        assert answer.member_epoch >= self.epoch
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.assigned = {index for topic in answer.assignment.topic_partitions
                             for index in topic.partitions}


@pytest.mark.parametrize("knows", [False, True])
def test_share_group_completes_the_rebalance_after_coordinator_failover(cluster, knows):
    group = Group(cluster, (messages.ShareGroupDescribeRequest, api.SHARE_GROUP_DESCRIBE, 1))
    first, second = Worker(group, "a" * 21 + "1"), Worker(group, "a" * 21 + "2")
    until(lambda: first.beat() or len(first.assigned) == PARTITIONS, WAIT_S)
    second.beat()
    if knows:
        until(lambda: first.beat() or len(first.assigned) < PARTITIONS, WAIT_S)
    before = group.described()
    group.lose_coordinator()
    after = group.described()
    assert after.group_epoch == before.group_epoch
    assert {row.member_id: row.member_epoch for row in after.members} == {
        row.member_id: row.member_epoch for row in before.members}
    until(lambda: first.beat() or second.beat() or first.epoch == second.epoch
          and first.assigned | second.assigned == set(range(PARTITIONS)), WAIT_S)
    assert first.assigned and second.assigned
    assert group.described().group_epoch == before.group_epoch == first.epoch
    group.hang_up()

"""Heartbeats of the consumer protocol and of share groups, without a broker, on a virtual clock."""

import asyncio
from types import SimpleNamespace

import pytest

from pylog.client.config.settings import CONSUMER, SHARE_CONSUMER, Settings
from pylog.client.consumer import classic_membership, consumer_membership
from pylog.client.consumer.consumer_membership import ConsumerMembership
from pylog.client.consumer.subscription_state import Subscription
from pylog.client.errors import KafkaError, error
from pylog.client.network.cluster import Cluster
from pylog.client.share.membership import ShareMembership
from pylog.client.types import TopicPartition
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode

ONE, TWO, OTHER = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
IDS = {b"t" * 16: "t", b"u" * 16: "u"}
RESPONSE = messages.ConsumerGroupHeartbeatResponse


def answer(epoch=1, code=0, text=None, interval_ms=5000, member_id="", given=None):
    made = RESPONSE(member_epoch=epoch, error_code=int(code), error_message=text,
                    heartbeat_interval_ms=interval_ms, member_id=member_id)
    if given is not None:
        made.assignment = RESPONSE.Assignment(topic_partitions=[
            RESPONSE.TopicPartitions(topic_id=topic_id, partitions=numbers)
            for topic_id, numbers in given.items()])
    return made


class World:
    """The host and the coordinator of one member. script: responses; the last one is repeated."""

    def __init__(self, clock, monkeypatch, share=False, **more):
        self.clock, self.polling, self.notices, self.calls = clock, True, 0, []
        role = SHARE_CONSUMER if share else CONSUMER
        self.settings = Settings(role, bootstrap_servers="x:1", group_id="g", retry_backoff_ms=100,
                                 retry_backoff_max_ms=100, **more)
        self.cluster = Cluster(self.settings)
        self.cluster.metadata = SimpleNamespace(ids=dict(IDS), topic_id=lambda topic: {
            name: id_ for id_, name in IDS.items()}[topic])
        self.refreshes, self.asked_to_refresh, self.learns = 0, 0, {}
        self.cluster.refresh, self.cluster.request_refresh = self.refresh, self.request_refresh
        self.cluster.forget_coordinator = lambda *_: None
        self.subscription = Subscription(True)
        self.subscription.subscribe(["t"], None, None)
        self.script, self.requests, self.timeouts = [answer()], [], []
        monkeypatch.setattr(consumer_membership, "ask_coordinator", self.ask)
        self.one = (ShareMembership if share else ConsumerMembership)(self, "g")

    async def refresh(self):
        self.refreshes += 1
        self.cluster.metadata.ids.update(self.learns)

    def request_refresh(self):
        self.asked_to_refresh += 1

    async def ask(self, cluster, group, build, timeout_s=None):
        assert (cluster, group) == (self.cluster, "g")
        self.requests.append((round(self.clock.now_s - 1000, 6), build(None)[0]))
        self.timeouts.append(timeout_s)
        found = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(found, Exception):
            raise found
        return found

    def notify(self):
        self.notices += 1

    async def call_listener(self, what, partitions):
        self.calls.append((what, partitions))

    async def commit_stored_by_listener(self):
        self.calls.append(("commit stored", None))

    async def commit_before_revoke(self):
        self.calls.append(("commit", None))

    def beats(self, seconds, *steps):
        """Run heartbeats for this long; steps: (second, action)."""
        async def main():
            self.one.start_beating()
            loop = asyncio.get_running_loop()
            for at, step in steps:
                loop.call_later(at, step)
            await asyncio.sleep(seconds)
            await self.one.stop()

        self.clock.run(main())
        return [at for at, _ in self.requests]


@pytest.fixture
def world(virtual_time, monkeypatch):
    clock = virtual_time(classic_membership)
    return lambda **more: World(clock, monkeypatch, **more)


def run(one, *steps):
    async def main():
        return [await step for step in steps]

    return one.clock.run(main())


# Content of a heartbeat.

def test_first_heartbeat_is_complete_and_the_next_is_empty(world):
    one = world(client_rack="r", max_poll_interval_ms=7000, group_remote_assignor="range")
    run(one, one.one._beat_once(), one.one._beat_once())
    (_, first), (_, second) = one.requests
    assert (first.group_id, first.member_epoch, first.member_id) == ("g", 0, one.one.member_id)
    assert (first.rack_id, first.rebalance_timeout_ms, first.server_assignor) == (
        "r", 7000, "range")
    assert (first.subscribed_topic_names, first.topic_partitions, first.instance_id) == (
        ["t"], [], None)
    assert (second.member_epoch, second.rebalance_timeout_ms) == (1, -1)
    assert (second.rack_id, second.server_assignor, second.subscribed_topic_names,
            second.topic_partitions, second.instance_id) == (None,) * 5


def test_heartbeat_contains_only_changes(world):
    one = world(group_instance_id="i")
    run(one, one.one._beat_once())
    one.subscription.add([TWO, ONE, OTHER])
    run(one, one.one._beat_once())
    one.subscription.topics = frozenset("ut")
    one.subscription.drop([ONE])
    run(one, one.one._beat_once(), one.one._beat_once())
    _, owned, both, none = [request for _, request in one.requests]
    assert [(row.topic_id, row.partitions) for row in owned.topic_partitions] == [
        (b"t" * 16, [0, 1]), (b"u" * 16, [0])]
    assert owned.subscribed_topic_names is None and owned.instance_id is None
    assert both.subscribed_topic_names == ["t", "u"]
    assert [row.partitions for row in both.topic_partitions] == [[1], [0]]
    assert none.topic_partitions is None and none.subscribed_topic_names is None


def test_a_share_members_heartbeat_owns_nothing(world):
    one = world(share=True, client_rack="r")
    run(one, one.one._beat_once())
    one.subscription.add([ONE])
    run(one, one.one._beat_once())
    one.subscription.topics = frozenset("ut")
    run(one, one.one._beat_once())
    first, second, third = [request for _, request in one.requests]
    assert isinstance(first, messages.ShareGroupHeartbeatRequest)
    assert (first.rack_id, first.subscribed_topic_names, first.member_epoch) == ("r", ["t"], 0)
    assert (second.rack_id, second.subscribed_topic_names, second.member_epoch) == (None, None, 1)
    assert third.subscribed_topic_names == ["t", "u"]


def test_each_member_generates_an_id_in_kafkas_uuid_format(world):
    ids = {world().one.member_id for _ in range(50)}
    assert len(ids) == 50 and all(len(id_) == 22 and "=" not in id_ for id_ in ids)


def test_the_answer_may_name_the_member(world):
    one = world()
    one.script = [answer(4, member_id="named"), answer(5)]
    run(one, one.one._beat_once(), one.one._beat_once())
    assert (one.one.member_id, one.one.generation) == ("named", 5)


def test_rejected_heartbeat_raises_the_reason_and_changes_nothing(world):
    one = world()
    one.one.member_id, one.one.generation = "m", 4
    one.script = [answer(9, ErrorCode.GROUP_MAX_SIZE_REACHED, "full", member_id="other")]
    with pytest.raises(KafkaError, match="group 'g': full"):
        run(one, one.one._beat_once())
    assert (one.one.generation, one.one.member_id, one.one.send_all_fields) == (4, "m", True)


# Timing.

def test_heartbeats_follow_the_brokers_interval(world):
    one = world()
    one.script = [answer(interval_ms=2000), answer(interval_ms=500)]
    assert one.beats(4) == [0, 2, 2.5, 3, 3.5]


def test_changes_are_sent_at_once(world):
    one = world()
    assert one.beats(6, (1, one.one.subscription_changed),
                     (2, lambda: one.one.commit_refused(None))) == [0, 1, 2]


def test_complete_heartbeat_is_sent_after_a_failure_and_a_pause(world):
    one = world()
    one.script = [answer(), error(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), answer(2)]
    beats = one.beats(6)
    assert beats[:2] == [0, 5] and 5.08 <= beats[2] <= 5.12
    assert [request.subscribed_topic_names for _, request in one.requests] == [["t"], None, ["t"]]
    assert one.one.failure is None


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH])
def test_fenced_member_loses_partitions_and_rejoins_after_the_callback(world, code):
    one = world()
    one.subscription.add([ONE])
    one.script = [answer(3), answer(code=code), answer(9)]
    one.beats(14.9)
    assert one.one.lost and one.one.has_pending_work and one.one.generation == 0
    assert len(one.requests) == 2, "the application has not polled"
    run(one, one.one.run_pending_work(), one.one.stop())
    assert one.calls[0] == ("lost", [ONE]) and not one.subscription.states


def test_fenced_member_without_partitions_rejoins_at_once(world):
    one = world()
    one.script = [answer(3), answer(code=ErrorCode.UNKNOWN_MEMBER_ID), answer(1)]
    beats = one.beats(6)
    assert len(beats) == 3 and 5.08 <= beats[2] <= 5.12 and not one.one.lost
    assert [request.member_epoch for _, request in one.requests] == [0, 3, 0]


@pytest.mark.parametrize(("code", "again"), [
    (ErrorCode.GROUP_AUTHORIZATION_FAILED, True), (ErrorCode.FENCED_INSTANCE_ID, False)])
def test_non_retriable_error_is_raised_and_a_fatal_one_ends_heartbeats(
        world, code, again):
    one = world()
    one.script = [answer(code=code), answer()]
    assert len(one.beats(3)) == 1 + again
    for _ in range(2):
        if one.one.failure is not None:
            with pytest.raises(KafkaError):
                one.one.raise_failure()
    assert (one.one.failure is None) == again


@pytest.mark.parametrize(("polling", "interval_ms", "left"), [
    (False, 7000, [10]), (False, 12_000, []), (True, 7000, [])])
def test_an_application_that_does_not_poll_leaves_the_group(world, polling, interval_ms, left):
    one = world(max_poll_interval_ms=interval_ms)
    one.polling = polling
    one.subscription.add([ONE])
    one.beats(12)
    assert [at for at, request in one.requests if request.member_epoch == -1] == left
    assert one.one.lost == bool(left)


def test_a_rejected_commit_while_late_does_not_stop_the_loop(world, interrupted_after):
    one = world(max_poll_interval_ms=7000)
    one.polling = False
    one.subscription.add([ONE])
    with interrupted_after(5):
        one.beats(60, (30, lambda: one.one.commit_refused(None)),
                  (31, lambda: one.one.subscription_changed()))
    assert one.one.lost and one.one.failure is None


def test_exactly_the_longest_time_without_a_poll_is_not_late(world):
    one = world(max_poll_interval_ms=5000)
    one.polling = False
    one.clock.now_s += 5
    assert not one.one.is_late
    one.clock.now_s += 0.001
    assert one.one.is_late


# Assignments.

def test_partitions_are_revoked_before_assignment_and_acknowledged(world):
    one = world()
    one.subscription.add([ONE, OTHER])
    one.script = [answer(2, given={b"t" * 16: [0, 1]})]

    async def steps():
        await one.one._beat_once()
        assert one.one.has_pending_work and one.notices == 1
        one.one.task = asyncio.create_task(asyncio.sleep(0))
        one.one.kick.clear()
        await one.one.run_pending_work()
        assert one.one.kick.is_set() and not one.one.has_pending_work

    run(one, steps())
    assert one.calls == [("commit", None), ("revoked", [OTHER]), ("commit stored", None),
                         ("assigned", [TWO])]
    assert set(one.subscription.states) == {ONE, TWO}


@pytest.mark.parametrize("step", ["commit_before_revoke", "call_listener"])
def test_a_partition_is_reported_as_revoked_only_after_the_listener_returned(world, step):
    one = world()
    original = getattr(one, step)

    async def slow(*arguments):
        await original(*arguments)
        await one.one._beat_once()  # The callback takes longer than the heartbeat interval.

    async def steps():
        await one.one._beat_once()
        one.subscription.add([ONE, OTHER])
        setattr(one, step, slow)
        await one.one.take([OTHER])
        await one.one._beat_once()

    run(one, steps())
    _, during, after = [request.topic_partitions for _, request in one.requests]
    assert [row.topic_id for row in during] == [b"t" * 16, b"u" * 16]
    assert [row.topic_id for row in after] == [b"t" * 16]


def test_a_member_that_joins_again_reports_no_partitions_while_the_listener_runs(world):
    one = world()

    async def slow(what, partitions):
        await one.one._beat_once()

    async def steps():
        one.subscription.add([ONE])
        one.one._forget()
        one.call_listener = slow
        await one.one.run_pending_work()

    run(one, steps())
    assert one.requests[0][1].member_epoch == 0
    assert one.requests[0][1].topic_partitions == []


def test_empty_assignment_differs_from_a_missing_one(world):
    one = world()
    one.subscription.add([ONE])
    run(one, one.one._beat_once())
    assert one.one.wanted is None
    one.script = [answer(2, given={})]
    run(one, one.one._beat_once())
    assert one.one.wanted == []


def test_assignment_waits_for_the_name_of_a_topic_id(world):
    one = world()
    one.script = [answer(2, given={b"v" * 16: [0]})]

    async def steps():
        await one.one._beat_once()
        one.one.task = asyncio.create_task(asyncio.sleep(0))
        await one.one.run_pending_work()
        assert (one.refreshes, one.asked_to_refresh, one.one.has_pending_work) == (1, 1, False)
        one.cluster.metadata.ids[b"v" * 16] = "v"
        one.one.metadata_changed()
        assert one.one.has_pending_work
        await one.one.run_pending_work()

    run(one, steps())
    assert one.calls == [("assigned", [TopicPartition("v", 0)])] and one.refreshes == 1


def test_topic_named_by_fresh_metadata_is_not_awaited(world):
    one = world()
    one.learns = {b"v" * 16: "v"}
    one.script = [answer(2, given={b"v" * 16: [0]})]

    async def steps():
        await one.one._beat_once()
        one.one.task = asyncio.create_task(asyncio.sleep(0))
        await one.one.run_pending_work()

    run(one, steps())
    assert one.refreshes == 1 and not one.asked_to_refresh and not one.one.unknown_ids
    before = one.notices
    one.one.metadata_changed()
    assert one.notices == before


def test_assignment_received_during_another_is_applied_next(world):
    one = world()
    one.script = [answer(2, given={b"t" * 16: [0]})]
    newer = [(b"t" * 16, 1)]

    async def refresh():
        one.one.wanted = newer
        one.cluster.metadata.ids.update(IDS)

    one.cluster.refresh = refresh
    del one.cluster.metadata.ids[b"t" * 16]

    async def steps():
        await one.one._beat_once()
        one.one.task = asyncio.create_task(asyncio.sleep(0))
        await one.one.run_pending_work()
        assert one.one.wanted is newer

    run(one, steps())


# The end.

@pytest.mark.parametrize(("share", "instance", "epoch"), [
    (False, None, -1), (False, "i", -2), (True, None, -1)])
def test_leaving_member_states_whether_it_returns(world, share, instance, epoch):
    one = world(share=share, **({"group_instance_id": instance} if instance else {}))
    run(one, one.one.leave())
    assert not one.requests, "it never joined"
    one.one.generation = 1
    one.script = [error(ErrorCode.NOT_COORDINATOR)]
    run(one, one.one.leave())
    [(_, request)] = one.requests
    assert (request.member_epoch, request.member_id) == (epoch, one.one.member_id)
    assert one.timeouts == [5.0] and one.one.generation == 0
    if not share:
        assert request.instance_id == instance


@pytest.mark.parametrize("share", [False, True])
def test_member_closed_before_its_first_heartbeat_response_leaves(world, share):
    one = world(share=share)
    original, held = one.ask, []

    async def ask(cluster, group, build, timeout_s=None):
        answered = await original(cluster, group, build, timeout_s)
        if not held:
            held.append(True)
            await asyncio.sleep(60)
        return answered

    async def steps():
        one.one.start_beating()
        await asyncio.sleep(1)
        await one.one.end()
        await asyncio.sleep(60)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(consumer_membership, "ask_coordinator", ask)
        run(one, steps())
    assert [request.member_epoch for _, request in one.requests] == [0, -1]
    assert one.one.task is None and not one.one.is_known

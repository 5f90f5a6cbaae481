"""A share session with a simulated broker: epochs, requests, lost state."""

import asyncio

import pytest

from pylog.client.config.settings import SHARE_CONSUMER, Settings
from pylog.client.errors import KafkaConnectionError, KafkaError, UnsupportedByBrokerError
from pylog.client.share import session as share_session
from pylog.client.share.acknowledgements import Acknowledge, Batch
from pylog.client.share.session import Acquired, ShareSession
from pylog.client.types import TopicPartition
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode, ProtocolError

FETCH, ACKNOWLEDGE = messages.ShareFetchResponse, messages.ShareAcknowledgeResponse
ONE, TWO = TopicPartition("t", 0), TopicPartition("t", 1)
OTHER = TopicPartition("u", 0)
IDS = {"t": b"t" * 16, "u": b"u" * 16}
ACCEPT, RENEW = Acknowledge.ACCEPT, Acknowledge.RENEW
PAUSE_S = 0.25


class World:
    """The host, the cluster and the broker of one session. script: responses, in order."""

    def __init__(self, clock, version=2, **more):
        self.clock = clock
        self.settings = Settings(SHARE_CONSUMER, bootstrap_servers="x:1", group_id="g", **more)
        self.cluster, self.group, self.member_id = self, "g", "m"
        self.told, self.came, self.failures, self.leaders = [], [], [], []
        self.notices = self.refreshes = self.resets = self.pauses = 0
        self.script, self.requests, self.timeouts = [], [], []
        self.highest = version
        self.session = ShareSession(self, 5)

    # The parts of its host and cluster that the session uses.

    def topic_id(self, tp):
        return IDS[tp.topic]

    def outcome(self, outcome):
        self.told.append(outcome)

    def arrived(self, acquired):
        self.came.append(acquired)

    def fail(self, failure):
        self.failures.append(failure)

    def notify(self):
        self.notices += 1

    def request_refresh(self):
        self.refreshes += 1

    def learn_leader(self, *leader):
        self.leaders.append(leader)

    def backoff(self):
        return self

    def next(self):
        self.pauses += 1
        return PAUSE_S

    def reset(self):
        self.resets += 1

    async def connection(self, node_id, channel):
        assert (node_id, channel) == (5, "fetch")
        return self

    def version(self, _request):
        return self.highest

    async def send(self, request, version, timeout_s):
        self.requests.append(request)
        self.timeouts.append(timeout_s)
        found = self.script.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    # Used by tests.

    def work(self, *partitions):
        return self.session.work({(IDS[tp.topic], tp.partition): tp for tp in partitions})

    def asked(self):
        """Return the epoch, the partitions and the forgotten partitions of each request."""
        return [(one.share_session_epoch, cells(one.topics),
                 cells(one.forgotten_topics_data)
                 if isinstance(one, messages.ShareFetchRequest) else None)
                for one in self.requests]


def cells(topics):
    names = {value: name for name, value in IDS.items()}
    return sorted((names[row.topic_id], getattr(cell, "partition_index", cell))
                  for row in topics for cell in row.partitions)


def fetched(*rows, code=0, message=None):
    """rows: (partition, fields)."""
    responses = {}
    for tp, fields in rows:
        row = responses.setdefault(tp.topic, FETCH.ShareFetchableTopicResponse(
            topic_id=IDS[tp.topic]))
        row.partitions.append(FETCH.PartitionData(partition_index=tp.partition, **fields))
    return FETCH(error_code=code, error_message=message, responses=list(responses.values()))


def acknowledged(*rows, code=0):
    return ACKNOWLEDGE(error_code=code, responses=[
        ACKNOWLEDGE.ShareAcknowledgeTopicResponse(topic_id=IDS[tp.topic], partitions=[
            ACKNOWLEDGE.PartitionData(partition_index=tp.partition, error_code=row)])
        for tp, row in rows])


def leader(epoch, node_id):
    return FETCH.LeaderIdAndEpoch(leader_id=node_id, leader_epoch=epoch)


@pytest.fixture
def clock(virtual_time):
    return virtual_time(share_session)


@pytest.fixture
def world(clock):
    return World(clock)


def run(world, *steps):
    async def all_steps():
        return [await step for step in steps]

    return world.clock.run(all_steps())


def test_epochs_rise_with_each_response_and_only_changes_are_sent(world):
    world.script = [fetched(), fetched(), fetched(), fetched()]
    run(world, world.work(ONE), world.work(ONE), world.work(ONE, TWO), world.work(TWO))
    assert world.asked() == [
        (0, [("t", 0)], []), (1, [], []), (2, [("t", 1)], []), (3, [], [("t", 0)])]
    assert world.resets == 4 and not world.refreshes


def test_share_session_epoch_wraps_to_one(world):
    world.session._epoch = 2**31 - 2
    world.script = [fetched(), fetched(), fetched()]
    run(world, world.work(ONE), world.work(ONE), world.work(ONE))
    assert [one.share_session_epoch for one in world.requests] == [2**31 - 2, 2**31 - 1, 1]


def test_request_contains_the_configured_limits(clock):
    world = World(clock, fetch_max_wait_ms=70, fetch_min_bytes=3, fetch_max_bytes=900,
                  max_poll_records=44, share_acquire_mode="record_limit")
    world.script = [fetched()]
    run(world, world.work(ONE))
    [one] = world.requests
    assert (one.group_id, one.member_id) == ("g", "m")
    assert (one.max_wait_ms, one.min_bytes, one.max_bytes) == (70, 3, 900)
    assert (one.max_records, one.batch_size, one.share_acquire_mode) == (44, 44, 1)


@pytest.mark.parametrize(("mode", "version", "exact"), [
    ("record_limit", 1, 0), ("record_limit", 2, 1), ("batch_optimized", 2, 0)])
def test_record_limit_is_sent_to_brokers_that_support_it(
        clock, mode, version, exact):
    """KIP-1206 starts with version 2."""
    world = World(clock, version=version, share_acquire_mode=mode)
    world.script = [fetched()]
    run(world, world.work(ONE))
    assert world.requests[0].share_acquire_mode == exact


@pytest.mark.parametrize(("timeout_ms", "wait_ms", "expected_s"), [
    (30_000, 500, 30.0), (4_000, 500, 5.5), (5_500, 500, 5.5), (5_501, 500, 5.501)])
def test_an_answer_has_as_long_as_the_broker_may_wait_and_a_bit(
        clock, timeout_ms, wait_ms, expected_s):
    world = World(clock, request_timeout_ms=timeout_ms, fetch_max_wait_ms=wait_ms)
    world.script = [fetched()]
    run(world, world.work(ONE))
    assert world.timeouts == [pytest.approx(expected_s)]


def test_acquired_records_have_their_delivery_count(world):
    row = FETCH.AcquiredRecords
    world.script = [fetched((TWO, {"records": b"xyz", "acquired_records": [
        row(first_offset=3, last_offset=5, delivery_count=1),
        row(first_offset=9, last_offset=9, delivery_count=2)]}),
        (ONE, {"records": b"unasked"}))]
    run(world, world.work(ONE, TWO))
    assert world.came == [Acquired(5, TWO, b"xyz", [(3, 5, 1), (9, 9, 2)])]


def test_records_of_unrequested_partitions_are_ignored(world):
    row = FETCH.AcquiredRecords(first_offset=0, last_offset=0, delivery_count=1)
    world.script = [fetched((OTHER, {"records": b"x", "acquired_records": [row]}))]
    run(world, world.work(ONE))
    assert not world.came and not world.failures


def test_acknowledgements_go_with_the_next_fetch_in_the_order_of_offsets(world):
    world.script = [fetched(), fetched((ONE, {"acknowledge_error_code": 0}))]
    run(world, world.work(ONE))
    batches = [Batch(7, 9, ACCEPT), Batch(2, 4, Acknowledge.REJECT)]
    world.session.acknowledge_later(ONE, batches[:1])
    world.session.acknowledge_later(ONE, batches[1:])
    world.session.acknowledge_later(TWO, [])
    assert list(world.session.pending) == [ONE]
    run(world, world.work(ONE))
    [cell] = world.requests[1].topics[0].partitions
    assert [(one.first_offset, one.last_offset, one.acknowledge_types)
            for one in cell.acknowledgement_batches] == [(2, 4, [3]), (7, 9, [1])]
    assert [(one.tp, one.batches, one.error) for one in world.told] == [(ONE, batches, None)]
    assert not world.session.pending


def test_acknowledged_only_partition_is_removed_by_the_next_request(world):
    world.script = [fetched(), fetched(), fetched()]
    run(world, world.work(ONE))
    world.session.acknowledge_later(TWO, [Batch(0, 0, ACCEPT)])
    run(world, world.work(ONE), world.work(ONE))
    assert world.asked()[1:] == [(1, [("t", 1)], []), (2, [], [("t", 1)])]


def test_a_partition_is_not_forgotten_in_the_request_that_acknowledges_in_it(world):
    world.script = [fetched(), fetched(), fetched()]
    run(world, world.work(ONE, TWO))
    world.session.acknowledge_later(TWO, [Batch(0, 0, ACCEPT)])
    run(world, world.work(ONE))
    assert world.asked()[1] == (1, [("t", 1)], [])


def test_each_partition_gets_its_acknowledgement_result(world):
    world.script = [fetched(), fetched(
        (ONE, {"acknowledge_error_code": int(ErrorCode.INVALID_RECORD_STATE),
               "acknowledge_error_message": "late"}), (OTHER, {}))]
    run(world, world.work(ONE))
    for tp in (ONE, TWO, OTHER):
        world.session.acknowledge_later(tp, [Batch(1, 1, ACCEPT)])
    run(world, world.work(ONE))
    assert [(one.tp, one.error and (one.error.code, str(one.error))) for one in world.told] == [
        (ONE, (int(ErrorCode.INVALID_RECORD_STATE), "t-0: late")), (TWO, None), (OTHER, None)]


def test_renewal_is_sent_separately_before_further_fetches(world):
    world.script = [fetched(), acknowledged((ONE, 0)), fetched()]
    run(world, world.work(ONE))
    world.session.acknowledge_later(ONE, [Batch(0, 0, ACCEPT), Batch(1, 1, RENEW)])
    run(world, world.work(ONE))
    first, second, third = world.requests
    assert isinstance(second, messages.ShareAcknowledgeRequest) and second.is_renew_ack
    assert [one.share_session_epoch for one in world.requests] == [0, 1, 2]
    assert not any(cell.acknowledgement_batches for row in third.topics for cell in row.partitions)


def test_broker_without_renewal_is_not_sent_one_and_its_session_is_lost(clock):
    """KIP-1222 starts with version 2."""
    world = World(clock, version=1)
    world.script = [fetched()]
    run(world, world.work(ONE))
    world.session.acknowledge_later(ONE, [Batch(1, 1, RENEW)])
    [[outcome]] = run(world, world.session.flush())
    assert isinstance(outcome.error, UnsupportedByBrokerError) and "KIP-1222" in str(outcome.error)
    assert len(world.requests) == 1 and world.told == [outcome]


def test_flush_sends_pending_acknowledgements_and_reports_results(world):
    world.script = [fetched(), acknowledged((ONE, int(ErrorCode.INVALID_RECORD_STATE)))]
    run(world, world.work(ONE))
    for tp in (ONE, TWO):
        world.session.acknowledge_later(tp, [Batch(1, 1, ACCEPT)])
    [outcomes] = run(world, world.session.flush())
    assert [(one.tp, one.error and one.error.code) for one in outcomes] == [
        (ONE, int(ErrorCode.INVALID_RECORD_STATE)), (TWO, None)]
    assert world.told == outcomes
    request = world.requests[1]
    assert request.share_session_epoch == 1 and not request.is_renew_ack
    assert (request.group_id, request.member_id) == ("g", "m")
    assert len(request.topics) == 1 and len(request.topics[0].partitions) == 2
    assert world.session._epoch == 2


def test_empty_flush_sends_no_request(world):
    world.script = [fetched()]
    assert run(world, world.session.flush(), world.work(ONE), world.session.flush())[::2] == [
        [], []]
    assert len(world.requests) == 1


def test_the_last_flush_ends_the_session_also_without_acknowledgements(world):
    world.script = [fetched(), acknowledged()]
    run(world, world.work(ONE), world.session.flush(final=True))
    assert world.requests[1].share_session_epoch == -1
    assert world.session._epoch == 0


def test_a_session_that_never_was_has_no_end(world):
    assert run(world, world.session.flush(final=True)) == [[]]
    assert not world.requests


def test_nothing_is_fetched_after_the_last_flush(world):
    world.script = [fetched(), acknowledged()]
    run(world, world.work(ONE), world.session.flush(final=True), world.work(ONE))
    assert len(world.requests) == 2


@pytest.mark.parametrize("fetches", [True, False])
def test_acknowledgements_of_a_lost_session_are_reported_as_failed(world, fetches):
    world.session.acknowledge_later(ONE, [Batch(1, 1, ACCEPT)])
    world.script = [fetched()]
    run(world, world.work(ONE) if fetches else world.session.flush())
    [outcome] = world.told
    assert outcome.error.code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert len(world.requests) == fetches
    if fetches:
        assert not world.requests[0].topics[0].partitions[0].acknowledgement_batches


@pytest.mark.parametrize("code", [ErrorCode.SHARE_SESSION_NOT_FOUND,
                                  ErrorCode.INVALID_SHARE_SESSION_EPOCH])
def test_session_lost_by_the_broker_restarts_at_once(world, code):
    world.script = [fetched(), fetched(code=int(code)), fetched()]
    run(world, world.work(ONE), world.work(ONE), world.work(ONE))
    assert world.asked()[2] == (0, [("t", 0)], [])
    assert not world.failures and not world.refreshes and world.clock.now_s == 1000.0


@pytest.mark.parametrize("failure", [KafkaConnectionError("gone"), ProtocolError("odd")])
def test_failed_session_pauses_refreshes_leaders_and_restarts(world, failure):
    world.script = [fetched(), failure, fetched()]
    run(world, world.work(ONE))
    world.session.acknowledge_later(ONE, [Batch(1, 1, ACCEPT)])
    run(world, world.work(ONE))
    assert isinstance(world.told[0].error, KafkaError) and str(failure) in str(world.told[0].error)
    assert world.refreshes == 1 and not world.failures and world.clock.now_s == 1000.0
    run(world, world.work(ONE))
    assert world.clock.now_s == 1000.0 + PAUSE_S
    assert world.asked()[2] == (0, [("t", 0)], [])
    run_at = world.clock.now_s
    world.script = [fetched()]
    run(world, world.work(ONE))
    assert world.clock.now_s == run_at


def test_non_retriable_error_is_raised(world):
    world.script = [fetched(code=int(ErrorCode.GROUP_AUTHORIZATION_FAILED), message="no")]
    run(world, world.work(ONE))
    assert [str(one) for one in world.failures] == ["broker 5: no"]
    assert world.notices == 1


def test_rejected_flush_loses_the_session_and_its_acknowledgements(world):
    world.script = [fetched(), acknowledged(code=int(ErrorCode.INVALID_SHARE_SESSION_EPOCH))]
    run(world, world.work(ONE))
    world.session.acknowledge_later(ONE, [Batch(1, 1, ACCEPT)])
    [[outcome]] = run(world, world.session.flush())
    assert outcome.error.code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert "broker 5" in str(outcome.error) and world.session._epoch == 0


@pytest.mark.parametrize(("epoch", "node_id", "learned"), [
    (1, 0, [("t", 0, 0, 1)]), (0, 1, []), (1, -1, []), (-1, 2, [])])
def test_a_leader_that_moved_is_learned_from_the_answer(world, epoch, node_id, learned):
    """KIP-951. If the broker does not know the leader, its fields are -1 or stay 0."""
    world.script = [fetched((ONE, {"error_code": int(ErrorCode.NOT_LEADER_OR_FOLLOWER),
                                   "current_leader": leader(epoch, node_id)})), fetched()]
    run(world, world.work(ONE))
    assert world.leaders == learned
    assert world.refreshes == 1 and not world.failures
    run(world, world.work(ONE))
    assert world.clock.now_s == 1000.0 + PAUSE_S


def test_permanently_rejected_partition_is_reported_and_others_continue(world):
    row = FETCH.AcquiredRecords(first_offset=0, last_offset=0, delivery_count=1)
    world.script = [fetched((ONE, {"error_code": int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)}),
                            (TWO, {"acquired_records": [row]}))]
    run(world, world.work(ONE, TWO))
    assert [one.code for one in world.failures] == [int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)]
    assert not world.refreshes
    assert world.came == [Acquired(5, TWO, b"", [(0, 0, 1)])]


def test_without_partitions_only_acknowledgements_are_sent(world):
    world.script = [fetched(), acknowledged()]
    run(world, world.work(ONE))
    world.session.acknowledge_later(ONE, [Batch(1, 1, ACCEPT)])
    run(world, world.work(), world.work())
    assert [type(one) for one in world.requests] == [
        messages.ShareFetchRequest, messages.ShareAcknowledgeRequest]


def test_session_is_idle_before_and_after_requests(world):
    async def steps():
        assert world.session.idle
        world.session.task = asyncio.create_task(asyncio.sleep(1))
        assert not world.session.idle
        await world.session.task
        assert world.session.idle

    world.clock.run(steps())


def test_session_has_one_request_in_flight(world):
    gate, order = asyncio.Event(), []

    async def send(request, version, timeout_s):
        order.append(("asked", request.share_session_epoch))
        if not gate.is_set():
            await gate.wait()
        order.append(("answered", request.share_session_epoch))
        return fetched()

    async def steps():
        world.send = send
        tasks = [asyncio.create_task(world.work(ONE)) for _ in range(2)]
        await asyncio.sleep(0.1)
        gate.set()
        await asyncio.gather(*tasks)

    world.clock.run(steps())
    assert order == [("asked", 0), ("answered", 0), ("asked", 1), ("answered", 1)]


def test_acknowledgements_have_kafkas_numbers():
    assert [(one.name, one.value) for one in Acknowledge] == [
        ("ACCEPT", 1), ("RELEASE", 2), ("REJECT", 3), ("RENEW", 4)]

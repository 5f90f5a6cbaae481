"""A producer's id, epoch and transactions with a simulated coordinator."""

import asyncio
from types import SimpleNamespace

import pytest

from pylog.client.config.settings import PRODUCER, Settings
from pylog.client.errors import (
    IllegalStateError, KafkaConnectionError, KafkaError, KafkaTimeoutError, error,
)
from pylog.client.network.cluster import GROUP, TRANSACTION, Cluster
from pylog.client.producer import transaction_manager
from pylog.client.producer.transaction_manager import (
    ABORTING, BROKEN, COMMITTING, OPEN, READY, Identity, Transactions,
)
from pylog.client.types import OffsetAndMetadata, TopicPartition
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode

INIT, END = messages.InitProducerIdResponse, messages.EndTxnResponse
ADDED, ADDED_OFFSETS = messages.AddPartitionsToTxnResponse, messages.AddOffsetsToTxnResponse
COMMITTED = messages.TxnOffsetCommitResponse
ONE = TopicPartition("t", 1)


class World:
    """Responds from the script; versions are the highest requested, or 9."""

    def __init__(self, clock, version=1, transactional=True, **more):
        self.clock, self.script, self.requests = clock, [], []
        self.features = {"transaction.version": version} if version else {}
        more = {"transactional_id": "x", "enable_idempotence": True, **more} \
            if transactional else more
        settings = Settings(PRODUCER, bootstrap_servers="x:1", retry_backoff_ms=100,
                            retry_backoff_max_ms=100, **more)
        self.cluster = cluster = Cluster(settings)
        self.failures, self.notices, self.forgotten, self.looked_up = [], 0, [], []
        cluster.coordinator, cluster.connection = self.coordinator, self.connection
        cluster.any_connection = self.connection
        cluster.forget_coordinator = lambda *key: self.forgotten.append(key)
        cluster.request_refresh = lambda: None
        self.one = (Transactions if transactional else Identity)(
            cluster, settings, self.notify, self.failures.append)

    def notify(self):
        self.notices += 1

    async def coordinator(self, kind, key):
        self.looked_up.append((kind, key))
        return 3

    async def connection(self, node_id=3):
        assert node_id == 3
        return self

    def version(self, _, version_max=None):
        return 9 if version_max is None else version_max

    async def send(self, request, version):
        self.requests.append((type(request).__name__.removesuffix("Request"), version, request))
        found = self.script.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def run(self, *steps):
        async def all_steps():
            found = []
            for step in steps:
                step = step() if callable(step) else step
                found.append(await step if asyncio.iscoroutine(step) else step)
            await asyncio.sleep(0)
            return found

        return self.clock.run(all_steps())

    def begun(self):
        """Begin a transaction as producer 7 in epoch 3."""
        self.script.insert(0, INIT(producer_id=7, producer_epoch=3))
        self.run(self.one.init, self.one.begin)
        self.requests.clear()
        self.looked_up.clear()
        return self.one

    def names(self):
        return [(name, version) for name, version, _ in self.requests]


def added(*codes):
    return ADDED(results_by_topic_v3_and_below=[ADDED.AddPartitionsToTxnTopicResult(
        name="t", results_by_partition=[ADDED.AddPartitionsToTxnPartitionResult(
            partition_index=number, partition_error_code=int(code))
            for number, code in enumerate(codes)])])


def committed(code=0):
    return COMMITTED(topics=[COMMITTED.TxnOffsetCommitResponseTopic(name="t", partitions=[
        COMMITTED.TxnOffsetCommitResponsePartition(partition_index=1, error_code=int(code))])])


@pytest.fixture
def clock(virtual_time):
    return virtual_time()


@pytest.fixture
def world(clock):
    return World(clock)


# The id of an idempotent producer.

def test_idempotent_producer_allocates_its_id_with_the_first_batch(clock):
    world = World(clock, transactional=False)
    world.script = [INIT(producer_id=7, producer_epoch=0)]

    async def steps():
        assert not world.one.admits("t", 0) and not world.one.admits("t", 1)
        await world.one._task
        assert world.one.admits("t", 0)

    world.run(steps)
    [(name, version, request)] = world.requests
    assert (name, version, request.transactional_id) == ("InitProducerId", 5, None)
    assert request.transaction_timeout_ms == 2**31 - 1
    assert (world.one.producer_id, world.one.epoch, world.notices) == (7, 0, 1)
    assert world.one.may_retry and world.one.produce_version_max is None


@pytest.mark.parametrize(("epoch", "after"), [
    (0, (7, 1)), (32_766, (7, 32_767)), (32_767, (-1, -1))])
def test_an_epoch_that_is_used_up_is_followed_by_a_new_id(clock, epoch, after):
    one = World(clock, transactional=False).one
    one.producer_id, one.epoch = 7, epoch
    one.bump()
    assert (one.producer_id, one.epoch) == after


def test_permanent_rejection_fails_the_producer(clock):
    world = World(clock, transactional=False)
    world.script = [INIT(error_code=int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))]
    world.run(lambda: world.one._guarded(world.one._obtain))
    assert [one.code for one in world.failures] == [int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)]
    assert world.notices == 1


def test_retriable_error_is_retried_after_a_pause_without_failing(clock):
    world = World(clock, transactional=False)

    async def late():
        raise KafkaTimeoutError("late")

    world.run(lambda: world.one._guarded(late))
    assert not world.failures and world.notices == 1 and clock.now_s == 1000.1


def test_closed_producer_sends_no_more_requests(clock):
    world = World(clock, transactional=False)
    world.one.close()

    async def steps():
        world.one._work(lambda: asyncio.sleep(60))
        world.one.close()
        await asyncio.sleep(0)

    world.run(steps)
    assert clock.now_s == 1000.0


# Begin.

def test_initialization_fences_the_previous_producer(clock):
    world = World(clock, transaction_timeout_ms=1234)
    one = world.one
    world.script = [INIT(producer_id=7, producer_epoch=3)]
    world.run(one.init)
    [(name, version, request)] = world.requests
    assert (name, version) == ("InitProducerId", 5)
    assert (request.transactional_id, request.transaction_timeout_ms) == ("x", 1234)
    assert (request.producer_id, request.producer_epoch) == (-1, -1)
    assert (one.producer_id, one.epoch, one.state) == (7, 3, READY)
    assert world.looked_up == [(TRANSACTION, "x")]


@pytest.mark.parametrize(("version", "adds", "highest"), [
    (0, False, 11), (1, False, 11), (2, True, None), (3, True, None)])
def test_from_transaction_version_2_on_brokers_add_partitions_themselves(
        clock, version, adds, highest):
    """KIP-890."""
    world = World(clock, version=version)
    one = world.begun()
    assert (one.brokers_add, one.produce_version_max) == (adds, highest)


def test_transaction_version_change_applies_to_the_next_transaction(clock):
    world = World(clock, version=1)
    one = world.begun()
    world.features["transaction.version"] = 2
    world.script = [ADDED_OFFSETS(), committed(), END(), INIT(producer_id=7, producer_epoch=4)]
    world.run(lambda: one.send_offsets({ONE: 5}, "g"))
    assert not one.brokers_add
    world.run(lambda: one.end(True), one.init)
    assert one.brokers_add


# Partitions.

def test_a_partition_is_added_once_before_anything_is_sent_for_it(world):
    one = world.begun()
    world.script = [added(0, 0)]

    async def steps():
        assert not one.admits("t", 1) and not one.admits("t", 0)
        await one._task
        assert one.admits("t", 0) and one.admits("t", 1) and one.admits("t", 1)

    world.run(steps)
    [(name, version, request)] = world.requests
    assert (name, version) == ("AddPartitionsToTxn", 3)
    assert [(row.name, row.partitions) for row in request.v3_and_below_topics] == [("t", [0, 1])]
    assert (request.v3_and_below_transactional_id, request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch) == ("x", 7, 3)


def test_partitions_added_by_brokers_are_not_requested_and_sent_with_the_end(clock):
    world = World(clock, version=2)
    one = world.begun()
    assert one.admits("t", 0) and not world.requests
    world.script = [END(producer_id=7, producer_epoch=4)]
    one.begin_end(True)
    world.run(lambda: one.end(True))
    assert world.names() == [("EndTxn", 9)] and (one.producer_id, one.epoch) == (7, 4)


@pytest.mark.parametrize("codes", [
    (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.OPERATION_NOT_ATTEMPTED),
    (ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.TOPIC_AUTHORIZATION_FAILED)])
def test_rejected_partition_fails_the_transaction_with_its_error(world, codes):
    one = world.begun()
    world.script = [added(*codes)]

    async def steps():
        one.admits("t", 0)
        await one._task

    world.run(steps)
    assert one.state == BROKEN and not one.may_retry
    assert one.failure.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert {failure.code for failure in world.failures} == {one.failure.code}
    assert not one.admits("t", 0)


def test_without_an_id_nothing_is_sent(world):
    assert not world.one.admits("t", 0) and not world.requests


# End.

def test_empty_transaction_ends_without_a_request(world):
    one = world.begun()
    one.begin_end(True)
    assert one.state == COMMITTING
    world.run(lambda: one.end(True))
    assert not world.requests and one.state == READY


@pytest.mark.parametrize("commits", [True, False])
def test_end_request_contains_producer_and_result(world, commits):
    one = world.begun()
    one._touched = True
    world.script = [END()]
    one.begin_end(commits)
    world.run(lambda: one.end(commits))
    [(name, version, request)] = world.requests
    assert (name, version) == ("EndTxn", 4)
    assert (request.transactional_id, request.producer_id, request.producer_epoch,
            request.committed) == ("x", 7, 3, commits)
    assert one.state == READY and not one._touched


def test_an_abort_after_a_failure_has_a_new_epoch_begin(clock):
    """KIP-360: the brokers' state of the old epoch is unknown."""
    for version, requests in ((1, ["EndTxn", "InitProducerId"]), (2, ["EndTxn"])):
        world = World(clock, version=version)
        one = world.begun()
        one._touched = True
        world.run(lambda one=one: one.note_failure(KafkaError("lost")))
        world.script = [END(), INIT(producer_id=7, producer_epoch=4)]
        one.begin_end(False)
        world.run(lambda one=one: one.end(False))
        assert [name for name, _, _ in world.requests] == requests
        assert one.state == READY and one.failure is None


def test_failed_transaction_can_only_be_aborted(world):
    one = world.begun()
    failure = KafkaError("lost")
    world.run(lambda: one.note_failure(failure))
    assert one.state == BROKEN and world.failures == [failure]
    for refused in (one.check_open, lambda: one.begin_end(True)):
        with pytest.raises(KafkaError, match="lost"):
            refused()
    one.begin_end(False)
    assert one.state == ABORTING


def test_failure_during_the_end_prevents_the_commit(world):
    one = world.begun()
    one._touched = True
    one.begin_end(True)
    one.failure = KafkaError("lost")
    with pytest.raises(KafkaError, match="lost"):
        world.run(lambda: one.end(True))
    assert one.state == BROKEN and not world.requests


def test_fatal_error_replaces_an_abortable_one(world):
    one = world.begun()
    plain, fatal = KafkaError("lost"), error(ErrorCode.PRODUCER_FENCED)
    world.run(lambda: [one.note_failure(plain), one.note_failure(fatal),
                       one.note_failure(KafkaError("later"))])
    assert one.failure is fatal
    with pytest.raises(KafkaError) as raised:
        one.begin_end(False)
    assert raised.value is fatal


def test_a_failure_outside_a_transaction_breaks_none(world):
    world.begun()
    world.one.state = READY
    world.run(lambda: world.one.note_failure(KafkaError("late")))
    assert world.one.state == READY and not world.failures


@pytest.mark.parametrize(("state", "refused"), [
    ("not initialized", {"begin", "check_open", "commit", "abort"}),
    (READY, {"check_open", "commit", "abort"}), (OPEN, {"init", "begin"}),
    (COMMITTING, {"init", "begin", "check_open", "abort"}),
    (ABORTING, {"init", "begin", "check_open", "commit"})])
def test_calls_in_a_wrong_state_are_rejected_with_the_state(world, state, refused):
    calls = {"init": lambda: world.run(world.one.init), "begin": world.one.begin,
             "check_open": world.one.check_open, "commit": lambda: world.one.begin_end(True),
             "abort": lambda: world.one.begin_end(False)}
    for name in refused:
        world.one.state = state
        with pytest.raises(IllegalStateError, match=f"{state}|again first"):
            calls[name]()


# Offsets.

@pytest.mark.parametrize("version", [1, 2])
def test_offsets_go_with_the_transaction_to_the_groups_coordinator(clock, version):
    world = World(clock, version=version)
    one = world.begun()
    world.script = [ADDED_OFFSETS()] * (version == 1) + [committed()]
    group = SimpleNamespace(group_id="g", generation_id=4, member_id="m", group_instance_id="i")
    world.run(lambda: one.send_offsets(
        {ONE: OffsetAndMetadata(5, "why", 6), TopicPartition("t", 2): (7, "x"),
         TopicPartition("u", 0): 8}, group))
    assert world.looked_up == [(TRANSACTION, "x")] * (version == 1) + [(GROUP, "g")]
    assert world.names() == [("AddOffsetsToTxn", 9)] * (version == 1) + [
        ("TxnOffsetCommit", 5 if version == 2 else 4)]
    request = world.requests[-1][2]
    assert (request.group_id, request.generation_id_or_member_epoch, request.member_id,
            request.group_instance_id) == ("g", 4, "m", "i")
    assert (request.transactional_id, request.producer_id, request.producer_epoch) == ("x", 7, 3)
    assert [(topic.name, row.partition_index, row.committed_offset, row.committed_leader_epoch,
             row.committed_metadata) for topic in request.topics for row in topic.partitions] == [
        ("t", 1, 5, 6, "why"), ("t", 2, 7, -1, "x"), ("u", 0, 8, -1, "")]
    assert one._touched


def test_group_given_by_name_commits_without_a_member(world):
    one = world.begun()
    world.script = [ADDED_OFFSETS(), committed()]
    world.run(lambda: one.send_offsets({ONE: 5}, "g"))
    request = world.requests[-1][2]
    assert (request.generation_id_or_member_epoch, request.member_id,
            request.group_instance_id) == (-1, "", None)


@pytest.mark.parametrize("script", [
    [ADDED_OFFSETS(error_code=int(ErrorCode.GROUP_AUTHORIZATION_FAILED))],
    [ADDED_OFFSETS(), committed(ErrorCode.GROUP_AUTHORIZATION_FAILED)]])
def test_rejected_offsets_fail_the_transaction(world, script):
    one = world.begun()
    world.script = list(script)
    with pytest.raises(KafkaError):
        world.run(lambda: one.send_offsets({ONE: 5}, "g"))
    assert one.state == BROKEN and one.failure.code == ErrorCode.GROUP_AUTHORIZATION_FAILED


def test_offsets_outside_a_transaction_are_rejected(world):
    with pytest.raises(IllegalStateError, match="begin_transaction"):
        world.run(lambda: world.one.send_offsets({ONE: 5}, "g"))


# Retries.

@pytest.mark.parametrize(("code", "forgets"), [
    (ErrorCode.NOT_COORDINATOR, True), (ErrorCode.COORDINATOR_NOT_AVAILABLE, True),
    (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, False), (ErrorCode.CONCURRENT_TRANSACTIONS, False)])
def test_unavailable_coordinator_is_retried(world, code, forgets):
    world.script = [INIT(error_code=int(code)), INIT(producer_id=7, producer_epoch=3)]
    world.run(world.one.init)
    assert len(world.requests) == 2 and world.one.producer_id == 7
    assert world.forgotten == [(TRANSACTION, "x")] * forgets
    assert 1000.08 <= world.clock.now_s <= 1000.12


def test_unreachable_coordinator_is_looked_up_again(world):
    world.script = [KafkaConnectionError("gone"), INIT(producer_id=7, producer_epoch=3)]
    world.run(world.one.init)
    assert world.forgotten == [(TRANSACTION, "x")] and len(world.looked_up) == 2


def test_a_fatal_answer_is_remembered(world):
    world.script = [INIT(error_code=int(ErrorCode.PRODUCER_FENCED))]
    with pytest.raises(KafkaError):
        world.run(world.one.init)
    assert world.one.failure.fatal and world.one.state == transaction_manager.UNINITIALIZED

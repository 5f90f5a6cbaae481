"""Position validation against a new leader's log."""

import asyncio
from types import SimpleNamespace

import pytest

from pylog.client.consumer import list_offsets
from pylog.client.consumer.subscription_state import PartitionState
from pylog.client.errors import KafkaError, LogTruncationError, NoOffsetForPartitionError
from pylog.client.types import OffsetAndTimestamp, TopicPartition
from pylog.protocol import messages

PART = TopicPartition("t", 0)


class Cluster:
    """A cluster whose only leader reports that an epoch ended at `end`; `meanwhile` runs before."""

    def __init__(self, end, meanwhile=lambda: None):
        self.end, self.meanwhile = end, meanwhile
        self.metadata = SimpleNamespace(partition=lambda *_: SimpleNamespace(leader_epoch=1))

    async def leader(self, topic, partition):
        return SimpleNamespace(leader=1)

    async def retry(self, attempt, timeout_s=None):
        return await attempt()

    async def send(self, node, request):
        self.meanwhile()
        row = messages.OffsetForLeaderEpochResponse
        return row(topics=[row.OffsetForLeaderTopicResult(topic="t", partitions=[
            row.EpochEndOffset(partition=0, leader_epoch=0, end_offset=self.end)])])


def state_at(position, record_epoch=0):
    state = PartitionState(PART, 0)
    state.move_to(position, record_epoch)
    state.validate = 1
    return state


@pytest.mark.parametrize("end, expected", [(70, 70), (100, 100), (150, 100), (-1, 100)])
def test_position_beyond_a_truncation_is_reset_to_it(end, expected):
    state = state_at(100)
    cut = asyncio.run(list_offsets.validate(Cluster(end), [state]))
    assert state.position == expected and state.validate == -1
    assert bool(cut) == (expected < 100)


def test_truncation_without_a_reset_policy_is_reported_until_a_seek():
    state = state_at(100)
    for _ in range(2):
        with pytest.raises(LogTruncationError, match="t-0: the log was cut at 70") as told:
            asyncio.run(list_offsets.validate(Cluster(70), [state], False))
    assert (told.value.partition, told.value.offset) == (PART, 70)
    assert (state.position, state.validate) == (100, 1)
    state.move_to(70)
    asyncio.run(list_offsets.validate(Cluster(-1), [state], False))
    assert (state.position, state.validate) == (70, -1)


def test_records_of_the_new_leader_taken_during_validation_are_kept():
    state = state_at(100)

    def take():
        state.position, state.record_epoch = 150, 1

    asyncio.run(list_offsets.validate(Cluster(100, take), [state]))
    assert state.position == 150


def test_concurrent_seek_is_kept():
    state = state_at(100)
    asyncio.run(list_offsets.validate(Cluster(70, lambda: state.move_to(95, 0)), [state]))
    assert state.position == 95


ROW = messages.ListOffsetsResponse.ListOffsetsPartitionResponse


class Listing:
    """Two leaders, 1 for even partitions and 2 for odd ones. answers: responses to (node,
    partition, time), in turn. asked: (node, isolation, partitions and times) of each request.
    """

    def __init__(self, answers, version=7):
        self.answers = {key: list(rows) for key, rows in answers.items()}
        self.asked = []
        self.tried = 0
        self._version = version

    async def leader(self, topic, partition):
        return SimpleNamespace(leader=1 + partition % 2)

    async def retry(self, attempt, timeout_s=None):
        while True:
            self.tried += 1
            try:
                return await attempt()
            except KafkaError as failure:
                if not failure.retriable:
                    raise

    async def connection(self, node):
        return SimpleNamespace(version=lambda kind: self._version,
                               send=lambda request, version: self._send(node, request))

    async def _send(self, node, request):
        assert request.replica_id == -1
        self.asked.append((node, request.isolation_level, {
            (topic.name, row.partition_index): row.timestamp
            for topic in request.topics for row in topic.partitions}))
        answer = messages.ListOffsetsResponse
        return answer(topics=[answer.ListOffsetsTopicResponse(name=topic.name, partitions=[
            self.answers[topic.name, row.partition_index, row.timestamp].pop(0)
            for row in topic.partitions]) for topic in request.topics])


def row(partition, offset=-1, **more):
    return ROW(partition_index=partition, offset=offset, **more)


def test_each_leader_is_queried_once_and_failures_are_retried():
    cluster = Listing({
        ("t", 0, 5): [row(0, 7, timestamp=6, leader_epoch=2)],
        ("t", 1, 5): [row(1, error_code=6), row(1, 0, timestamp=5, leader_epoch=0)],
        ("t", 2, -1): [row(2)], ("u", 3, 5): [row(3, error_code=43)]})
    told = {}
    times = {("t", 0): 5, ("t", 1): 5, ("t", 2): -1, ("u", 3): 5}
    found = asyncio.run(list_offsets.list_offsets(
        cluster, times, 1, found=lambda tp, result: told.setdefault(tp, result)))
    assert found == told == {("t", 0): OffsetAndTimestamp(7, 6, 2), ("t", 2): None,
                             ("t", 1): OffsetAndTimestamp(0, 5, 0), ("u", 3): None}
    assert cluster.asked == [(1, 1, {("t", 0): 5, ("t", 2): -1}),
                             (2, 1, {("t", 1): 5, ("u", 3): 5}), (2, 1, {("t", 1): 5})]


def test_permanent_error_is_raised_before_a_retriable_one():
    cluster = Listing({("t", 0, 5): [row(0, error_code=6)], ("t", 1, 5): [row(1, error_code=29)]})
    with pytest.raises(KafkaError, match="t-1"):
        asyncio.run(list_offsets.list_offsets(cluster, {("t", 0): 5, ("t", 1): 5}))
    assert cluster.tried == 1


def test_error_contains_the_result_of_each_partition():
    cluster = Listing({("t", 0, 5): [row(0, 7)], ("t", 1, 5): [row(1, error_code=29)],
                       ("t", 2, 5): [row(2, error_code=6)]})
    with pytest.raises(KafkaError, match="t-1") as caught:
        asyncio.run(list_offsets.list_offsets(cluster, {("t", number): 5 for number in range(3)}))
    results = caught.value.results
    assert results["t", 0].offset == 7 and results["t", 1] is caught.value
    assert results["t", 2].code == 6


@pytest.mark.parametrize("version, isolation", [(1, 0), (2, 1)])
def test_old_broker_is_not_sent_an_isolation_level(version, isolation):
    cluster = Listing({("t", 0, 5): [row(0, 7)]}, version)
    asyncio.run(list_offsets.list_offsets(cluster, {("t", 0): 5}, 1))
    assert cluster.asked == [(1, isolation, {("t", 0): 5})]


def waiting(partition, reset):
    state = PartitionState(TopicPartition("t", partition), partition)
    state.forget_position(reset)
    return state


def test_positions_are_reset_by_each_strategy():
    states = [waiting(0, "earliest"), waiting(1, "latest"), waiting(2, 1234), waiting(3, 99)]
    cluster = Listing({
        ("t", 0, -2): [row(0, 3, leader_epoch=1)], ("t", 1, -1): [row(1, 8)],
        ("t", 2, 1234): [row(2, 5)], ("t", 3, 99): [row(3)], ("t", 3, -1): [row(3, 6)]})
    asyncio.run(list_offsets.reset(cluster, states, 1))
    assert [(state.position, state.record_epoch, state.reset) for state in states] == [
        (3, 1, None), (8, -1, None), (5, -1, None), (6, -1, None)]
    assert {isolation for _, isolation, _ in cluster.asked} == {1}


@pytest.mark.parametrize("how", [None, "none"])
def test_position_without_a_reset_policy_is_an_error(how):
    with pytest.raises(NoOffsetForPartitionError, match="t-0"):
        asyncio.run(list_offsets.reset(Listing({}), [waiting(0, how)], 0))


def test_seek_during_an_offset_lookup_is_kept():
    state = waiting(0, "latest")
    cluster = Listing({("t", 0, -1): [row(0, 8)]})
    leader = cluster.leader

    async def seek_first(topic, partition):
        state.move_to(4)
        return await leader(topic, partition)

    cluster.leader = seek_first
    asyncio.run(list_offsets.reset(cluster, [state], 0))
    assert state.position == 4


def test_a_leader_that_does_not_know_its_epochs_is_an_error():
    cluster = Cluster(70)
    row = messages.OffsetForLeaderEpochResponse

    async def send(node, request):
        assert (node, request.replica_id) == (1, -1)
        [topic] = request.topics
        [asked] = topic.partitions
        assert (topic.topic, asked.partition, asked.current_leader_epoch, asked.leader_epoch) == (
            "t", 0, 1, 3)
        return row(topics=[row.OffsetForLeaderTopicResult(topic="t", partitions=[
            row.EpochEndOffset(partition=0, error_code=74)])])

    cluster.send = send
    state = state_at(100, 3)
    with pytest.raises(KafkaError, match="t-0"):
        asyncio.run(list_offsets.validate(cluster, [state]))
    assert (state.position, state.validate) == (100, 1)
